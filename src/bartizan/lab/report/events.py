"""Write the rounds as TensorBoard scalars, without TensorFlow or torch."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from importlib import import_module
from pathlib import Path
from types import ModuleType

import numpy as np

from bartizan.lab.report.run_data import Run

SUFFIX = ".bartizan"


def modules() -> list[ModuleType]:
    """Return TensorBoard's writer and messages, or raise an error that says what to install."""
    names = ("summary.writer.event_file_writer", "compat.proto.event_pb2", "compat.proto.summary_pb2")
    try:
        return [import_module(f"tensorboard.{name}") for name in names]
    except ModuleNotFoundError as missing:
        raise ModuleNotFoundError("--tensorboard needs tensorboard: pip install 'bartizan[tensorboard]'") from missing


def write(runs: Sequence[Run], folder: Path, notice: Callable[[str], None] = lambda text: None) -> None:
    """Write the events of each run to a folder of its own; those of an earlier report are replaced."""
    writers, events, summaries = modules()
    for n, run in enumerate(runs, start=1):
        notice(f"writing the events of run {n} of {len(runs)}")
        target = folder / run.folder
        target.mkdir(parents=True, exist_ok=True)
        old = list(target.glob(f"events.out.tfevents.*{SUFFIX}"))
        writer = writers.EventFileWriter(str(target), filename_suffix=SUFFIX)
        scalars = {
            **{name: run.series[name] for name in ("accuracy", "test_loss", "backdoor", "loss", "norm", "step")},
            "server/seconds": run.server,
            "server/reads": run.reads,
            "weight on attackers": run.on_attackers(),
        }
        # The record has durations, not times of day: the clock starts at 0.
        clock = np.cumsum(np.nan_to_num(run.server) + np.nan_to_num(run.series["train"]))
        for t in range(run.n_rounds):
            values = [
                summaries.Summary.Value(tag=tag, simple_value=float(values[t]))
                for tag, values in scalars.items()
                if np.isfinite(values[t])
            ]
            summary = summaries.Summary(value=values)
            writer.add_event(events.Event(wall_time=float(clock[t]), step=t + 1, summary=summary))
        writer.close()
        for path in old:
            path.unlink()
