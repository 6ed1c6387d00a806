"""Check the updates that the server itself supplies: the reference and the trusted update."""

from __future__ import annotations

from typing import Any

import numpy as np

from bartizan._util.types import Array
from bartizan.updates.column_pass import ColumnPass
from bartizan.updates.columns import Row, numbers
from bartizan.updates.layout import Layout, Path, flat_of, is_tensor, leaves_of, moved, on_host, shown_path


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
        if not all(_finite(piece) for _, piece in column_pass.pieces(flat)):
            raise ValueError(f"{name} must be finite: {own[entry.path]} holds NaN or Inf.")
        floats.append(flat)
    return Row(tuple(floats), tuple(integers))


def _finite(piece: Any) -> bool:
    return bool(piece.isfinite().all() if is_tensor(piece) else np.isfinite(piece).all())


def server_leaves(name: str, update: Any) -> dict[Path, Any]:
    try:
        return leaves_of(update)
    except TypeError as unfit:
        raise ValueError(f"{name} must be like a client's update: {unfit}.") from None


def shapes(leaves: dict[Path, Any]) -> dict[Path, tuple[int, ...]]:
    return {path: tuple(leaf.shape) for path, leaf in leaves.items()}


def shown(shapes: dict[Path, tuple[int, ...]], most: int = 4) -> str:
    shown = [f"{shown_path(path) or 'one array'} {shape}" for path, shape in list(shapes.items())[:most]]
    return (", ".join(shown) or "nothing") + (f" and {len(shapes) - most} more" if len(shapes) > most else "")
