"""Runs of the paper's cells, in real files, for the tests that compare and keep them."""

from __future__ import annotations

from bartizan import records as results
from studies.paper import cells as paper
from studies.paper import run_cells
from studies.paper.paper_protocol import experiment


def write(
    folder,
    cell,
    accuracies,
    *,
    server=1.0,
    end=True,
    status="finished",
    machine="ours",
    refused=(),
    changes=(),
    sizes=None,
    weights=(None, None),
    first_weights=None,
    **settings,
):
    """Write the files of a run of a cell; a refused round has no times of the server."""
    one = experiment(cell, changes=changes, **settings)
    with results.Writer(folder / run_cells.Job(cell, one).folder) as lines:
        lines.write(
            "run",
            version=results.VERSION,
            id=one.id,
            name=one.name,
            config=one.as_dict(),
            machine=machine,
            clients=list(range(len(sizes or weights[0] or "ab"))),
            sizes=sizes,
            byzantine=[1],
            first_weights=first_weights,
        )
        for number, accuracy in enumerate(accuracies, start=1):
            seconds = {"train": 9.0, "sketch": server / 2, "weigh": server / 4, "combine": server / 4}
            if number in refused:
                seconds = {"train": 9.0}
            given = {"weights": weights[0], "exact_weights": weights[1], "clients": list(range(len(weights[0] or ())))}
            lines.write("round", round=number, seconds=seconds, accuracy=accuracy, **given)
        if end:
            converged = status == "finished" and max(accuracies) > 0.2
            lines.write("end", status=status, converged=converged, best=max(accuracies))


def write_pair(folder, filters, base, pdr, **settings):
    """Write one run of a cell's base and one of its projected cell, from their accuracies; return the two cells."""
    cells = cells_of(filters)
    for cell, accuracies in zip(cells, (base, pdr), strict=True):
        write(folder, cell, accuracies, **{"rounds": len(accuracies), **settings})
    return cells


def cells_of(filters, table="cifar10-0.6"):
    base, pdr = paper.filtered(paper.named(table), filters)
    return base, pdr
