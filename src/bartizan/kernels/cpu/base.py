"""What all kernels share: rows as arrays, the origin, and when a second thread is worth waking."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any, TypeVar

import numpy as np
from numba import carray, get_num_threads, njit, set_num_threads, types  # type: ignore[attr-defined]
from numba.core import cgutils
from numba.extending import intrinsic

from bartizan.kernels.rows import Rows

# Reordering sums is all we allow: NaN and Inf must come through.
SUMS = {"reassoc", "contract", "nsz"}
# Numbers below which waking a second thread costs more than it saves.
SMALL = 2**17

Kernel = TypeVar("Kernel", bound=Callable[..., None])


def alone_if_small(kernel: Kernel) -> Kernel:
    """Run a kernel on one thread where its rows hold few numbers."""

    @wraps(kernel)
    def sized(rows: Rows, *arguments: Any) -> None:
        threads = get_num_threads()
        if threads == 1 or rows.width * len(rows) >= SMALL:
            return kernel(rows, *arguments)
        set_num_threads(1)
        try:
            kernel(rows, *arguments)
        finally:
            set_num_threads(threads)

    return sized  # type: ignore[return-value]


@intrinsic
def _pointer(typing_context, address):
    def generate(context, builder, signature, arguments):
        return builder.inttoptr(arguments[0], cgutils.voidptr_t)

    return types.voidptr(types.uintp), generate


@njit(cache=True)
def row_of(pointers, m, width, like):
    """The row that begins at this address, as an array."""
    return carray(_pointer(pointers[m]), (width,), like.dtype)  # type: ignore[call-arg]


@njit(cache=True)
def value(row, origin, i):
    """row[i] - origin[i], widened. numba compiles one version with an origin and one without."""
    if origin is None:
        return np.float64(row[i])
    else:
        return np.float64(row[i]) - origin[i]
