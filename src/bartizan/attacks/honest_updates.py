"""Read the honest updates, an (H, p) array or tensor, in blocks of columns in float64.

A block is a NumPy array in host memory, also of a tensor, and a tensor on a GPU. Formulas use what both libraries have
(`mean(axis=0)`, `sum(axis=0)`, arithmetic); the functions here hide the rest of the differences.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeAlias, TypeVar

import numpy as np

from bartizan._util.types import Floats
from bartizan.judge.judge import geometry_by
from bartizan.measure.sketches import Exact
from bartizan.sources.local import LocalUpdates
from bartizan.updates import parse_updates
from bartizan.updates.layout import FLOATS, as_numpy_matrix, dtype_name, is_tensor, on_gpu, widen_bfloat16

T = TypeVar("T")
Matrix: TypeAlias = Any
"""One update per row, (n, p): a NumPy array or a torch tensor."""
Vector: TypeAlias = Any
"""One update, (p,), or a block of its coordinates; of the same library as the matrix that it came from."""

BLOCK_NUMBERS = 2**17  # numbers of a block in host memory: 1 MiB in float64, for a core's cache
GPU_BLOCK_NUMBERS = 2**25
LARGEST_FINITE = {
    "float16": 65504.0,
    "bfloat16": 3.3895313892515355e38,
    "float32": float(np.finfo(np.float32).max),
    "float64": float(np.finfo(np.float64).max),
}


def checked(honest: Matrix) -> Matrix:
    """Return the honest updates as a matrix of floats; raise ValueError if they are none."""
    honest = honest.detach() if is_tensor(honest) else np.asarray(honest)
    shape = tuple(honest.shape)
    if len(shape) != 2 or 0 in shape:
        raise ValueError(f"Wanted the honest updates, one row each, (H, p), both at least 1; got shape {shape}.")
    if dtype_name(honest) not in FLOATS:
        raise ValueError(f"Wanted honest updates in {', '.join(FLOATS)}; got {honest.dtype}.")
    return honest


def widened(x: Any) -> Any:
    return x.double() if is_tensor(x) else x.astype(np.float64, copy=False)


def narrowed(x: Any, like: Any) -> Any:
    """Return a copy in the dtype and on the device of `like`; larger numbers become its largest, never Inf."""
    most = LARGEST_FINITE[dtype_name(like)]
    if is_tensor(x):
        return x.clamp(-most, most).to(like.dtype)
    x = np.clip(x, -most, most)
    if not is_tensor(like):
        return x.astype(like.dtype, copy=False)
    import torch

    return torch.from_numpy(x).to(like.device, like.dtype)


def mean(x: Matrix) -> Vector:
    return x.mean(axis=0)


def std(x: Matrix) -> Vector:
    """Return the standard deviation of each column, divided by H as the papers define it."""
    off = x - x.mean(axis=0)
    off *= off
    return off.mean(axis=0) ** 0.5


def least(x: Matrix) -> Vector:
    """Return the least number of each column."""
    return x.amin(dim=0) if is_tensor(x) else x.min(axis=0)


def largest(x: Matrix) -> Vector:
    """Return the largest number of each column."""
    return x.amax(dim=0) if is_tensor(x) else x.max(axis=0)


def sign(x: Any) -> Any:
    return x.sign() if is_tensor(x) else np.sign(x)


def each_block(honest: Matrix, task: Callable[[int, Matrix], T]) -> list[T]:
    """Return task(first column, block in float64) for all blocks, in order; in host memory they use all cores."""
    H, p = honest.shape
    if on_gpu(honest):
        width = max(1, GPU_BLOCK_NUMBERS // H)
        return [task(low, honest[:, low : low + width].double()) for low in range(0, p, width)]
    # Not by torch's own threads: on busy cores they spin while they wait for each other.
    numbers, width = as_numpy_matrix(honest), max(1, BLOCK_NUMBERS // H)
    half_of_float32 = dtype_name(honest) == "bfloat16"

    def work(low: int) -> T:
        block = numbers[:, low : low + width]
        # Threads do not inherit the setting of the caller. Honest clients may have diverged.
        with np.errstate(over="ignore", invalid="ignore"):
            return task(low, widened(widen_bfloat16(block) if half_of_float32 else block))

    with ThreadPoolExecutor() as pool:
        return list(pool.map(work, range(0, p, width)))


def by_columns(honest: Matrix, formula: Callable[[Matrix], Vector], *, wide: bool = False) -> Vector:
    """Return the result of a formula for each column, (p,), in the dtype of the honest updates or in float64."""
    row = empty(honest, honest.shape[1:], wide=wide)

    def fill(low: int, block: Matrix) -> None:
        row[low : low + block.shape[1]] = narrowed(formula(block), row)

    each_block(honest, fill)
    return row


def summed(honest: Matrix, formula: Callable[[Matrix], tuple[Any, ...]]) -> list[Any]:
    """Return the sums over all blocks of each number or array that a formula returns for a block."""
    return [sum(terms) for terms in zip(*each_block(honest, lambda low, block: formula(block)), strict=True)]


def empty(honest: Matrix, shape: tuple[int, ...], *, wide: bool = False) -> Any:
    """Return an uninitialised array on the device of the honest updates."""
    if is_tensor(honest):
        import torch

        return torch.empty(shape, dtype=torch.float64 if wide else honest.dtype, device=honest.device)
    return np.empty(shape, dtype=np.float64 if wide else honest.dtype)


def copied(row: Vector) -> Vector:
    """Return a copy of a row."""
    return row.clone() if is_tensor(row) else row.copy()


def repeat_row(row: Vector, count: int) -> Matrix:
    """Return the same row for every attacker, as a view of one row of memory."""
    return row.expand(count, -1) if is_tensor(row) else np.broadcast_to(row, (count, len(row)))


def squared_distances(honest: Matrix) -> Floats:
    """Return the squared distances of all pairs, (H, H), in float64 in host memory."""
    return geometry_by(Exact(), LocalUpdates(parse_updates(honest))).squared_distances


def gram(honest: Matrix) -> Floats:
    """Return the inner products of all pairs, (H, H), in float64 in host memory."""
    return geometry_by(Exact(), LocalUpdates(parse_updates(honest))).gram
