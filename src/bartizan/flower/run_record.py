"""Write the results.jsonl of a deployed run, which `bartizan report` reads."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from bartizan import __version__, records
from bartizan._util import jsonl, machine
from bartizan.aggregate import Aggregator
from bartizan.records import CorruptFileError

log = logging.getLogger("flwr")


def run_line(name: str, aggregator: Aggregator, dim: int) -> dict[str, Any]:
    """Return what is known of a run before its first round; the clients are added when they are asked."""
    sketch = aggregator.sketch
    config = {"rule": {"name": repr(aggregator.rule)}, "sketch": {"name": sketch if sketch == "auto" else repr(sketch)}}
    unknown = dict.fromkeys(("byzantine", "ratio", "sizes", "split", "classes"))
    about = {"version": records.VERSION, "id": name, "name": name, "config": config, "dim": dim}
    return {"kind": "run", **about, **unknown, "bartizan": __version__, "machine": machine.name_of("cpu")}


def settings(aggregator: Aggregator, sizes: Any, size_cap: float | None) -> dict[str, str]:
    """Return how a run aggregates, in words that can be shown and compared."""
    how = "one a node" if sizes is None else "as given"
    if isinstance(sizes, str) and size_cap is not None:
        how = f"as reported, {float(size_cap)} at most"
    return {"rule": repr(aggregator.rule), "sketch": str(aggregator.sketch), "sizes": how}


class RunRecord:
    """The results.jsonl of a deployment, whose clients become known round by round."""

    def __init__(self, folder: Path, run: dict[str, Any], done: int = 0) -> None:
        """Begin a file, or continue one after its first `done` rounds."""
        self.folder = folder
        self._lines = [run]
        self._writer: records.Writer | None = None
        if done:
            # Rounds after the checkpoint are run again. They are counted, since their bytes move when a client joins.
            recorded = records.read(folder)
            if len(recorded.rounds) < done:
                raise CorruptFileError(
                    f"{folder / records.NAME} tells of {len(recorded.rounds)} rounds, and its checkpoint of {done}: "
                    "it was cut. Put back a copy, or take another folder to begin again."
                )
            self._lines = [recorded.run, *recorded.rounds[:done]]
            self._rewrite()

    def add(self, line: Mapping[str, Any], clients: Iterable[str]) -> None:
        """Append a round's line and wait until the disk has it."""
        run = self._lines[0]
        known = run.get("clients", [])
        new = [client for client in dict.fromkeys(clients) if client not in set(known)]
        self._lines.append({"kind": "round", **line})
        try:
            if self._writer is None or new:
                # The first line names all clients, so the file is written again when one joins.
                run["clients"] = [*known, *new]
                self._rewrite()
            else:
                self._writer.write("round", **line)
                self._writer.sync()
        except OSError:  # the line is written with the next one
            self.close()
            raise

    def end(self, seconds: float) -> None:
        """Append the last line, if there was any round."""
        if self._writer is None and len(self._lines) > 1:
            self._rewrite()
        if self._writer is not None:
            accuracies = [line["accuracy"] for line in self._lines if line.get("accuracy") is not None]
            best = {"best": max(accuracies), "last": accuracies[-1]} if accuracies else {}
            self._writer.write("end", status="finished", seconds=seconds, **best)
            self._writer.sync()

    def close(self) -> None:
        if self._writer is not None:
            self._writer.close()
        self._writer = None

    def _rewrite(self) -> None:
        self.close()
        size = jsonl.rewrite(self.folder / records.NAME, self._lines, settle=True)
        self._writer = records.Writer(self.folder, keep=size)


@contextmanager
def log_full_disk() -> Iterator[None]:
    """Log an OSError, such as a full disk, and go on: the next round is written with this one."""
    try:
        yield
    except OSError as full:
        log.error("The run can't be recorded (%s): after a crash it would go on from an earlier round.", full)
