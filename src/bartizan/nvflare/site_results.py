"""Read untrusted results of sites: their parameters, in memory or on disk, compared with the model that was sent."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from bartizan.updates.files import open_update
from bartizan.updates.layout import Layout, is_tensor, layout_key, leaves_of, plain_and_leaves, rebuild


def mapped(params: Any) -> Any:
    """Return the parameters, with tensors that NVFlare keeps on disk mapped into memory instead of loaded."""
    # NVFlare makes these references itself; while their module is not imported there are none.
    lazy = getattr(sys.modules.get("nvflare.app_opt.pt.lazy_tensor_dict"), "_LazyRef", None)
    if lazy is None or not isinstance(params, Mapping):
        return params
    return {
        name: open_update(Path(value.file_path))[value.key] if isinstance(value, lazy) else value
        for name, value in params.items()
    }


def check_layout(params: Any, model: Any) -> None:
    """Raise TypeError unless the parameters have the names, shapes and kinds of numbers of the model that was sent."""
    wanted, came = leaves_of(model), leaves_of(params)
    if layout_key(wanted) == layout_key(came):
        return
    if misfit := Layout.of(wanted).misfit(Layout.of(came), any_precision=True):
        raise TypeError(misfit)


def in_library_of(model: Any, params: Any) -> Any:
    """Return the parameters as torch tensors where the model has tensors, and as NumPy arrays where it has arrays."""
    if not isinstance(model, Mapping) or not isinstance(params, Mapping):
        return params
    return {name: _converted(array, is_tensor(model.get(name, array))) for name, array in params.items()}


def _converted(array: Any, to_tensor: bool) -> Any:
    if is_tensor(array) == to_tensor:
        return array
    if to_tensor:
        return sys.modules["torch"].from_numpy(array)
    return (array.float() if "bfloat16" in str(array.dtype) else array).numpy()  # NumPy has no bfloat16


def n_bytes(model: Any) -> int:
    """Return the bytes of a model's numbers; 0 where there is no model, or an empty one."""
    return 0 if model is None else sum(leaf.nbytes for leaf in leaves_of(model).values())


def zeros_like(model: Any) -> Any:
    """Return a difference of zero, which leaves the model unchanged."""
    plain, _ = plain_and_leaves(model)
    return rebuild(plain, lambda _, leaf: leaf.new_zeros(leaf.shape) if is_tensor(leaf) else np.zeros_like(leaf))
