"""What an aggregation needs to hold, set against what it may."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from bartizan._util.types import Array
from bartizan.defense.recheck import RECHECK_SKETCH
from bartizan.sketch.base import Projection, Sketch, StreamingSketch
from bartizan.updates.column_pass import gathered_bytes, in_place_bytes
from bartizan.updates.columns import GRANULE, Row
from bartizan.updates.layout import as_numpy, leaves_of
from bartizan.updates.target import Target
from bartizan.updates.updates import Updates

ITEMSIZES = {"float16": 2, "bfloat16": 2, "float32": 4, "float64": 8}


def prepared(clients: Updates, effective_sketch: Sketch, out: Any, *, recheck: bool = False) -> Updates:
    """The same updates, with the place for their result checked and their blocks cut to the budget."""
    if clients.on_gpu and (out is not None or clients.column_pass.spare is not None):
        given = "memory" if out is None else "out"
        raise ValueError(f"{given} is for updates in host memory; these are on {clients.layout.entries[0].device}.")
    if out is not None:
        clients = replace(clients, target=Target.of(out, clients.layout, _everyone(clients)))
    if clients.column_pass.spare is None:
        return clients
    M, itemsize = len(clients.everyone), clients.columns.widest.itemsize
    k = effective_sketch.k + (RECHECK_SKETCH.k if recheck else 0) if isinstance(effective_sketch, Projection) else 0
    least = gathered_bytes(M, GRANULE, itemsize)
    if isinstance(effective_sketch, StreamingSketch):  # reads a few rows at a time, where they lie
        least = max(least, in_place_bytes(1 if clients.trusted is None else 2, effective_sketch.unit, itemsize))
    clients.column_pass.limit(
        {
            "sketches": 2 * 8 * M * k,
            "distances": 16 * 8 * M * M,
            "result": 0 if out is not None else sum(e.size * _itemsize(e.dtype) for e in clients.layout.entries),
            "widened reference and trusted update": sum(
                array.nbytes
                for row in (clients.reference, clients.trusted)
                for array in (row.floats if row is not None else ())
                if array.base is None
            ),
        },
        least,
    )
    return clients


def arrays_of(out: Any) -> list[Array]:
    """The arrays of a container, as far as it has any."""
    try:
        return [as_numpy(leaf) for leaf in leaves_of(out).values()]
    except (TypeError, RuntimeError):
        return []


def _everyone(clients: Updates) -> list[Row]:
    rows = [Row(tuple(clients.located.arrays[m]), clients.integers[m]) for m in range(len(clients))]
    return rows if clients.trusted is None else [*rows, clients.trusted]


def _itemsize(dtype: str) -> int:
    return ITEMSIZES.get(dtype) or np.dtype(dtype).itemsize
