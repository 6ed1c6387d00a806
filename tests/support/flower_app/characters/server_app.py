"""Robust aggregation of the characters' replies; what came of it is left in a folder."""

from __future__ import annotations

import json
import os
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from flwr.app import Array, ArrayRecord, Context, MetricRecord
from flwr.serverapp import Grid, ServerApp

import bartizan as bz
from bartizan.flower import AsyncRobustStrategy, RobustStrategy

app = ServerApp()
DEFAULTS = {"rounds": 2, "n-byzantine": 1, "nodes": 9, "patience": 60.0, "ballast": 0, "size": 0}
"""For a simulation that is started from Python, which has no run-config."""


@app.main()
def main(grid: Grid, context: Context) -> None:
    config = {"out": os.environ.get("CHARACTERS_OUT", ""), **DEFAULTS, **context.run_config}
    out = Path(str(config["out"]))
    (out / "server.pid").write_text(str(os.getpid()))
    size = int(config["size"])  # of a buffer, instead of rounds
    kind: Any = partial(AsyncRobustStrategy, size=size, remember=True, max_staleness=50) if size else RobustStrategy
    strategy = kind(
        bz.MultiKrum(n_byzantine=int(config["n-byzantine"])),
        sizes="reported",
        size_cap=1000,
        spill=out / "spill",
        folder=out / "run",
        fraction_evaluate=0.0,
        min_train_nodes=int(config["nodes"]),
    )

    model = ArrayRecord({"w": Array(np.zeros(40)), "steps": Array(np.array(0))})
    if int(config["ballast"]):  # so that a reply that is not let go of shows
        model["ballast"] = Array(np.zeros(int(config["ballast"])))

    def held(server_round: int, arrays: ArrayRecord) -> MetricRecord:
        """What this process holds, after a round."""
        found = {"memory": resident(), "files": len(os.listdir("/proc/self/fd"))}
        with open(out / "held.jsonl", "a") as lines:
            lines.write(json.dumps({"round": server_round, **found}) + "\n")
        return MetricRecord(found)

    result = strategy.start(
        grid=grid,
        initial_arrays=model,
        num_rounds=int(config["rounds"]),
        timeout=float(config["patience"]),
        evaluate_fn=held,
    )
    np.savez(out / "model.npz", **{name: array.numpy() for name, array in result.arrays.items()})
    told = {
        "suspects": [asdict(suspect) for suspect in strategy.suspects()],
        "metrics": {t: dict(metrics) for t, metrics in result.train_metrics_clientapp.items()},
    }
    (out / "told.json").write_text(json.dumps(told))


def resident() -> int:
    """Bytes of this process in memory."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
