"""All runs of a folder; those that can't be read are named, and the others shown."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from bartizan import records as results
from bartizan._util.text import text
from bartizan.lab.report import run_data as runs
from bartizan.lab.report.run_data import Run


@dataclass(frozen=True)
class Loaded:
    """What was found in a folder."""

    folder: Path
    runs: list[Run]
    broken: list[tuple[str, str]]
    """Folders of runs that can't be shown, and why."""


def load(folder: Path, notice: Callable[[str], None] = lambda text: None) -> Loaded:
    """Read the runs in a folder; one without any is an error, a corrupt run is not."""
    folders = results.find(folder)
    if not folders:
        raise FileNotFoundError(
            f"{folder} holds no run: there is no {results.NAME} in it or below. "
            "Wanted a folder that `bartizan run` or `bartizan sweep` wrote."
        )
    found = Loaded(folder, [], [])
    for n, one in enumerate(folders, start=1):
        notice(f"reading run {n} of {len(folders)}")
        place = text(one.relative_to(folder).as_posix() if one != folder else one.resolve().name)
        try:
            found.runs.append(runs.of(results.read(one), place))
        except (ValueError, OSError) as wrong:
            found.broken.append((place, text(wrong)))
        except (LookupError, TypeError, AttributeError, ArithmeticError, RecursionError) as wrong:
            # The checksums fit, yet the lines are no results: a foreign writer's mistake.
            found.broken.append(
                (place, text(f"{one / results.NAME} breaks docs/reference/results-format.md: {wrong!r}"))
            )
    return found
