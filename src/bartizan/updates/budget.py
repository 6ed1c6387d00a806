"""Check that an aggregation fits its memory budget, and that its result fits the caller's arrays."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from bartizan._util.types import Array
from bartizan.updates.column_pass import gathered_bytes, in_place_bytes
from bartizan.updates.columns import GRANULE, Row
from bartizan.updates.layout import as_numpy, itemsize_of, leaves_of
from bartizan.updates.target import Target
from bartizan.updates.updates import Updates


def prepare(clients: Updates, out: Any, sketch_size: int, unit: int | None) -> Updates:
    """The same updates with `out` as checked target, and blocks that fit the budget.

    `sketch_size` numbers are kept of each client. A sketch that reads rows in place reads `unit` columns at a time.
    """
    if clients.on_gpu and (out is not None or clients.column_pass.spare is not None):
        given = "memory" if out is None else "out"
        raise ValueError(f"{given} is for updates in host memory; these are on {clients.layout.entries[0].device}.")
    if out is not None:
        clients = replace(clients, target=Target.of(out, clients.layout, _all_rows(clients)))
    if clients.column_pass.spare is None:
        return clients
    M, itemsize = len(clients.all_rows), clients.columns.widest.itemsize
    least = gathered_bytes(M, GRANULE, itemsize)
    if unit is not None:
        least = max(least, in_place_bytes(1 if clients.trusted is None else 2, unit, itemsize))
    points = [row.floats for row in (clients.reference, clients.trusted) if row is not None]
    clients.column_pass.limit(
        {
            "sketches": 2 * 8 * M * sketch_size,
            "distances": 16 * 8 * M * M,
            "result": 0 if out is not None else sum(e.size * itemsize_of(e.dtype) for e in clients.layout.entries),
            "widened reference and trusted update": sum(
                array.nbytes for floats in points for array in floats if array.base is None
            ),
        },
        least,
    )
    return clients


def arrays_of(out: Any) -> list[Array]:
    """The arrays of a container; none where it is no container of arrays."""
    try:
        return [as_numpy(leaf) for leaf in leaves_of(out).values()]
    except (TypeError, RuntimeError):
        return []


def _all_rows(clients: Updates) -> list[Row]:
    rows = [Row(tuple(clients.rows.arrays[m]), clients.integers[m]) for m in range(len(clients))]
    return rows if clients.trusted is None else [*rows, clients.trusted]
