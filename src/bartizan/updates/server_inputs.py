"""Check the server's own arguments: the reference, the trusted update, and arrays for the result (`out=`)."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np

from bartizan._util.types import Array
from bartizan.updates.column_pass import ColumnPass
from bartizan.updates.columns import Row, numbers
from bartizan.updates.layout import (
    Layout,
    Path,
    as_numpy,
    dtype_name,
    flat_of,
    is_tensor,
    leaves_of,
    moved,
    on_gpu,
    on_host,
    shown_path,
)
from bartizan.updates.mapping import span


def server_row(name: str, update: Any, layout: Layout, column_pass: ColumnPass) -> Row | None:
    """The reference or the trusted update as a row, in its own precision; ValueError if it does not fit the layout."""
    if update is None:
        return None
    leaves = {path: moved(leaf, layout.entries[0].device) for path, leaf in server_leaves(name, update).items()}
    wanted = {entry.path: entry.shape for entry in layout.entries}
    if shapes(leaves) != wanted:
        raise ValueError(
            f"{name} must have the names and shapes of a client's update: wanted {shown(wanted)}, "
            f"got {shown(shapes(leaves))}."
        )
    own = {entry.path: entry for entry in Layout.of(leaves).entries}
    floats: list[Array] = []
    integers: list[Array] = []
    for entry in layout.entries:
        if own[entry.path].is_float != entry.is_float:
            raise ValueError(f"{name} has {own[entry.path]} where the clients sent {entry.dtype}.")
        flat = flat_of(leaves[entry.path])
        if not entry.is_float:
            flat = np.asarray(on_host(flat)).reshape(-1)
            integers.append(flat.astype(entry.dtype))
            if (integers[-1] != flat).any():
                raise ValueError(
                    f"{name} has {own[entry.path]} with values that the clients' {entry.dtype} can't hold."
                )
            continue
        flat = flat if is_tensor(flat) else numbers(flat.reshape(-1), own[entry.path])
        pieces = (piece for _, piece in column_pass.pieces(flat))
        if not all(bool(piece.isfinite().all() if is_tensor(piece) else np.isfinite(piece).all()) for piece in pieces):
            raise ValueError(f"{name} must be finite: {own[entry.path]} holds NaN or Inf.")
        floats.append(flat)
    return Row(tuple(floats), tuple(integers))


@dataclass(frozen=True)
class Target:
    """The caller's container, like one client's update, and its arrays in the order of the layout."""

    container: Any
    row: Row

    @classmethod
    def of(cls, out: Any, layout: Layout, updates: Iterable[Array], points: Mapping[str, Any]) -> Target:
        """Check that a result fits into `out`, and that writing it changes no client's update and none of `points`."""
        leaves = server_leaves("out", out)
        if misfit := layout.misfit(Layout.of(leaves)) if leaves else "it is empty":
            raise ValueError(f"out must have the names, shapes and dtypes of a client's update: {misfit}.")
        arrays = {path: as_numpy(leaf) for path, leaf in leaves.items()}
        for entry in layout.entries:
            if not arrays[entry.path].flags.writeable:
                raise ValueError(f"out must be writable, but {entry} is not. Map files with mode 'r+', or copy it.")
            if _repeats(arrays[entry.path]):
                raise ValueError(f"out must have memory for each number, but {entry} uses some for several. Copy it.")
        spans = sorted(span(array) for array in arrays.values() if array.size)
        if any(low < before for (_, before), (low, _) in pairwise(spans)):
            raise ValueError(
                "out must have memory of its own for each entry, but two of them overlap or interleave. Copy them."
            )

        def overlap(array: Array) -> bool:
            low, high = span(array)
            at = bisect_left(spans, (high, 0)) - 1
            return at >= 0 and array.size > 0 and spans[at][1] > low

        if any(map(overlap, updates)):
            raise ValueError("out must not be a client's update: those are never changed. Pass other arrays.")
        for name, point in points.items():
            leaves = {} if point is None else leaves_of(point)
            if any(overlap(as_numpy(leaf)) for leaf in leaves.values() if not on_gpu(leaf)):
                raise ValueError(f"out must not overlap {name}, which is never changed. Pass other arrays.")
        floats, integers = ([e for e in layout.entries if e.is_float is kind] for kind in (True, False))
        return cls(out, Row(tuple(arrays[e.path] for e in floats), tuple(arrays[e.path] for e in integers)))

    def filled(self, floats: Iterable[Array], counters: Iterable[Array]) -> Any:
        """Write these numbers and integers into the arrays of the container, and return it."""
        for own, array in zip(self.row.floats, floats, strict=True):
            if own is not array:
                own[...] = array.reshape(own.shape)
        for own, counts in zip(self.row.integers, counters, strict=True):
            own[...] = counts.reshape(own.shape)
        return self.container


def _repeats(array: Array) -> bool:
    """Return whether several numbers of an array may be in the same memory: it is expanded, or has odd strides."""
    reach = array.itemsize
    for step, n in sorted((abs(step), n) for step, n in zip(array.strides, array.shape, strict=True) if n > 1):
        if step < reach:
            return bool(array.size)
        reach += step * (n - 1)
    return False


def server_leaves(name: str, update: Any) -> dict[Path, Any]:
    try:
        leaves = leaves_of(update)
        for path, leaf in leaves.items():
            dtype_name(leaf, path)
    except TypeError as unfit:
        raise ValueError(f"{name} must be like a client's update: {unfit}.") from None
    return leaves


def shapes(leaves: dict[Path, Any]) -> dict[Path, tuple[int, ...]]:
    return {path: tuple(leaf.shape) for path, leaf in leaves.items()}


def shown(shapes: dict[Path, tuple[int, ...]], most: int = 4) -> str:
    shown = [f"{shown_path(path) or 'one array'} {shape}" for path, shape in list(shapes.items())[:most]]
    return (", ".join(shown) or "nothing") + (f" and {len(shapes) - most} more" if len(shapes) > most else "")
