"""The honest updates as attacks read them: (H, p) in NumPy or torch, a block of columns at a time, in float64.

The two libraries agree on everything that formulas need (`mean(axis=0)`, `sum(axis=0)`, arithmetic); where they do not,
the difference stands here.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeAlias, TypeVar

import numpy as np

from bartizan.geometry import Geometry
from bartizan.layout import FLOATS, dtype_name, is_tensor
from bartizan.sketch.exact import Exact
from bartizan.types import Floats
from bartizan.updates import Updates

T = TypeVar("T")
Matrix: TypeAlias = Any
"""One update a row, (n, p): a NumPy array or a torch tensor."""
Vector: TypeAlias = Any
"""One update, (p,), or a block of its coordinates; of the same library as the matrix that it came from."""

BLOCK = 2**17  # numbers of a block in host memory, 1 MiB in float64, for a core's cache; all honest updates are never copied
BLOCK_ON_GPU = 2**25


def checked(honest: Matrix) -> Matrix:
    """The honest updates as an array or tensor of floats, or an error that says what came."""
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
    """In the dtype of `like`; what does not fit becomes the largest that does, for an Inf would be found at once."""
    if is_tensor(x):
        import torch

        most = torch.finfo(like.dtype).max
        return x.clamp(-most, most).to(like.dtype)
    most = float(np.finfo(like.dtype).max)
    return np.clip(x, -most, most).astype(like.dtype, copy=False)


def mean(x: Matrix) -> Vector:
    return x.mean(axis=0)


def std(x: Matrix) -> Vector:
    """Of the population: divided by H, as the papers define it."""
    off = x - x.mean(axis=0)
    off *= off
    return off.mean(axis=0) ** 0.5


def sign(x: Any) -> Any:
    return x.sign() if is_tensor(x) else np.sign(x)


def each_block(honest: Matrix, task: Callable[[int, Matrix], T]) -> list[T]:
    """task(first column, block in float64) for all blocks, in their order; NumPy's on all cores."""
    H, p = honest.shape
    width = max(1, (BLOCK_ON_GPU if is_tensor(honest) and honest.is_cuda else BLOCK) // H)

    def work(low: int) -> T:
        # Threads do not inherit it. An honest client that has diverged is no reason to warn about an attack.
        with np.errstate(over="ignore", invalid="ignore"):
            return task(low, widened(honest[:, low : low + width]))

    starts = range(0, p, width)
    if is_tensor(honest) or len(starts) < 2:
        return [work(low) for low in starts]
    with ThreadPoolExecutor() as pool:
        return list(pool.map(work, starts))


def by_columns(honest: Matrix, formula: Callable[[Matrix], Vector], *, wide: bool = False) -> Vector:
    """What a formula makes of each column, (p,): in the dtype of the honest updates, or in float64."""
    row = empty(honest, honest.shape[1:], wide=wide)

    def fill(low: int, block: Matrix) -> None:
        row[low : low + block.shape[1]] = narrowed(formula(block), row)

    each_block(honest, fill)
    return row


def empty(honest: Matrix, shape: tuple[int, ...], *, wide: bool = False) -> Any:
    """Fresh memory where the honest updates lie."""
    if is_tensor(honest):
        import torch

        return torch.empty(shape, dtype=torch.float64 if wide else honest.dtype, device=honest.device)
    return np.empty(shape, dtype=np.float64 if wide else honest.dtype)


def copied(row: Vector) -> Vector:
    """So that whoever changes what was sent does not change the honest update."""
    return row.clone() if is_tensor(row) else row.copy()


def agreed(row: Vector, count: int) -> Matrix:
    """The same row from all liars: one row of memory."""
    return row.expand(count, -1) if is_tensor(row) else np.broadcast_to(row, (count, len(row)))


def squared_distances(honest: Matrix) -> Floats:
    """Between all pairs, (H, H), in float64 in host memory."""
    look = Exact().look(Updates.of(honest), seed=0)
    return Geometry.seen(look, len(honest)).squared_distances
