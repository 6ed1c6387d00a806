"""Times of several calls that take turns, so that whatever else the machine does slows all of them alike."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from bartizan._util import machine
from bartizan._util.console import ProgressLine


def in_turns(
    calls: Mapping[str, Callable[[], Any]],
    repeats: int,
    device: str = "cpu",
    *,
    label: str = "timing",
    self_timed: bool = False,
) -> dict[str, list[float]]:
    """Return the seconds of `repeats` calls of each, which alternate (A B A B); one more goes before, and compiles.

    Calls that are `self_timed` return their seconds, without what prepares them.
    """
    seconds: dict[str, list[float]] = {name: [] for name in calls}
    with ProgressLine(label, (repeats + 1) * len(calls), delay=0, plain=False) as progress:
        for turn in range(repeats + 1):
            for name, call in calls.items():
                progress.show(name)
                result, spent = machine.timed(call, device)
                if turn:
                    seconds[name].append(result if self_timed else spent)
                progress.advance()
    return seconds
