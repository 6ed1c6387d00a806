"""Follow a run in TensorBoard."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any

from bartizan._util.extras import missing_extra
from bartizan.watch.base import Line, Watcher


class TensorBoard(Watcher):
    """Write each round as TensorBoard scalars, readable at once.

    Args:
        folder: Where the event files go, `tensorboard --logdir`.
        clients: Whether to write numbers of each client.
        suffix: The end of the files' names.
    """

    def __init__(self, folder: str | os.PathLike[str], *, clients: bool = True, suffix: str = "") -> None:
        super().__init__(clients=clients)
        self.folder, self.suffix = Path(folder), suffix
        self._writers, self._events, self._summaries = event_modules("bartizan.watch.TensorBoard")
        self._writer: Any = None

    def begin(self, run: Line) -> None:
        self.open()

    def log(self, step: int, numbers: Mapping[str, float]) -> None:
        self.add(step, numbers, time.time())
        self._writer.flush()

    def end(self, end: Line) -> None:
        self.close()

    def open(self) -> None:
        """Make the folder and a file of events in it."""
        self.folder.mkdir(parents=True, exist_ok=True)
        self._writer = self._writers.EventFileWriter(str(self.folder), filename_suffix=self.suffix)

    def add(self, step: int, numbers: Mapping[str, float], at: float) -> None:
        """Write the numbers of a round, at a time of day in seconds, without a wait for the disk."""
        values = [self._summaries.Summary.Value(tag=tag, simple_value=value) for tag, value in numbers.items()]
        summary = self._summaries.Summary(value=values)
        self._writer.add_event(self._events.Event(wall_time=at, step=step, summary=summary))

    def close(self) -> None:
        self._writer.close()


def event_modules(what: str) -> list[ModuleType]:
    """Return TensorBoard's writer and messages, or raise an error that says what to install."""
    names = ("summary.writer.event_file_writer", "compat.proto.event_pb2", "compat.proto.summary_pb2")
    try:
        return [import_module(f"tensorboard.{name}") for name in names]
    except ModuleNotFoundError as missing:
        raise missing_extra(f"{what} needs tensorboard", "tensorboard") from missing
