"""Arrays of other libraries that speak DLPack, such as JAX's: read in place, and returned in their own type."""

from __future__ import annotations

import sys
from typing import Any

import numpy as np

from bartizan._util.machine import torch_for
from bartizan._util.types import Array

CPU, CUDA, PINNED = 1, 2, 3  # DLPack's numbers of devices


class DLPackArray(np.ndarray[Any, Any]):
    """The memory of another library's array, and the namespace whose `from_dlpack` makes such arrays."""

    namespace: Any = None

    def __array_finalize__(self, base: Any) -> None:
        self.namespace = getattr(base, "namespace", None)


def speaks_dlpack(kind: type) -> bool:
    """Return whether arrays of this class are read by DLPack; NumPy's own, masked ones among them, are not."""
    own = issubclass(kind, (np.ndarray, np.generic))
    return not own and hasattr(kind, "__dlpack__") and hasattr(kind, "__dlpack_device__")


def borrowed(array: Any) -> Any:
    """A view of the array's memory: a `DLPackArray` in host memory, a torch tensor on a CUDA device.

    Raises TypeError where it is on another device, or can't be exported.
    """
    device = int(array.__dlpack_device__()[0])
    if device not in (CPU, CUDA, PINNED):
        raise TypeError(f"an array on device type {device} of DLPack came; wanted one on a CPU or a CUDA device")
    try:
        if device == CUDA:
            return _with_namespace(torch_for("An array on a GPU").from_dlpack(array), array)
        try:
            view: Array = np.from_dlpack(array)
        except (BufferError, RuntimeError, TypeError, ValueError):  # NumPy has no bfloat16: JAX's comes from ml_dtypes
            if not hasattr(type(array), "__array__"):
                raise
            view = np.asarray(array)
    except (BufferError, RuntimeError, ValueError) as unfit:
        raise TypeError(f"an array of {type(array).__name__} can't be read by DLPack: {unfit}") from None
    return _with_namespace(view.view(DLPackArray), array)


def in_own_type(result: Any, leaf: Any) -> Any:
    """The result, made like this leaf of an update, as an array of the library that the leaf came from."""
    namespace = getattr(leaf, "namespace", None)
    if namespace is None:
        return np.asarray(result) if isinstance(result, DLPackArray) else result
    if isinstance(result, np.ndarray):
        result = np.ascontiguousarray(result)
    try:
        return namespace.from_dlpack(result)
    except (BufferError, RuntimeError, TypeError, ValueError):
        return namespace.asarray(result)


def _with_namespace(view: Any, array: Any) -> Any:
    kind = type(array)
    own = array.__array_namespace__() if hasattr(kind, "__array_namespace__") else None
    root = sys.modules.get(kind.__module__.partition(".")[0])
    view.namespace = own if own is not None else root if hasattr(root, "from_dlpack") else None
    return view
