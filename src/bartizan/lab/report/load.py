"""Read all runs of a folder; those that can't be read are listed with the reason."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from bartizan import records
from bartizan._util.text import text
from bartizan.lab.report import run_data
from bartizan.lab.report.run_data import Run


@dataclass(frozen=True)
class Loaded:
    """The runs of a folder."""

    folder: Path
    runs: list[Run]
    broken: list[tuple[str, str]]
    """Folders of runs that can't be read, and why."""


def load(folder: Path, notice: Callable[[str], None] = lambda text: None) -> Loaded:
    """Read the runs in a folder; raise FileNotFoundError if it has none. A corrupt run raises nothing."""
    folders = records.find(folder)
    if not folders:
        raise FileNotFoundError(
            f"{folder} holds no run: there is no {records.NAME} in it or below. "
            "Wanted a folder that `bartizan run` or `bartizan sweep` wrote."
        )
    found = Loaded(folder, [], [])
    for n, one in enumerate(folders, start=1):
        notice(f"reading run {n} of {len(folders)}")
        name = text(one.relative_to(folder).as_posix() if one != folder else one.resolve().name)
        try:
            found.runs.append(run_data.of(records.read(one), name))
        except (ValueError, OSError) as wrong:
            found.broken.append((name, text(wrong)))
        except (LookupError, TypeError, AttributeError, ArithmeticError, RecursionError) as wrong:
            # The checksums are right but the fields are not: a mistake of another program that wrote them.
            found.broken.append((name, text(f"{one / records.NAME} does not follow the results format: {wrong!r}")))
    return found
