"""Terminal output: capabilities of a stream, a progress line, and durations as text."""

from __future__ import annotations

import os
import shutil
import sys
import time
from typing import TextIO

DELAY_S = 2.0  # of work before a progress line appears
REDRAW_S = 0.2  # between two drawings of a line on a terminal
REPEAT_S = 10.0  # between two lines on another stream


def is_terminal(stream: TextIO | None) -> bool:
    """Return whether a stream is a terminal on which a line can be rewritten."""
    try:
        return stream is not None and stream.isatty() and os.environ.get("TERM") != "dumb"
    except (AttributeError, ValueError):  # no isatty, or closed
        return False


def has_colour(stream: TextIO | None) -> bool:
    """Return whether a stream shows colours: a terminal, unless the environment variable NO_COLOR is set."""
    return is_terminal(stream) and not os.environ.get("NO_COLOR")


def encodable(text: str, stream: TextIO | None) -> str:
    """Return the text with "?" for each character that the stream's encoding lacks.

    >>> import io
    >>> encodable("naïve", io.TextIOWrapper(io.BytesIO(), encoding="ascii"))
    'na?ve'
    """
    encoding = getattr(stream, "encoding", None) or "utf-8"
    return text.encode(encoding, "replace").decode(encoding)


def clock(seconds: float) -> str:
    """Return a duration as short text.

    >>> clock(7), clock(75), clock(7300)
    ('7 s', '1:15 min', '2:01 h')
    """
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60}:{whole % 60:02} min"
    return f"{whole // 3600}:{whole % 3600 // 60:02} h"


class ProgressLine:
    """A line on stderr about work that takes longer than `delay` seconds.

    A terminal shows one line that is rewritten and at last removed; any other stream gets a line every ten seconds.

    Args:
        label: The work, as shown.
        total: How many steps there are, if known; then the line counts them and estimates the time left.
        delay: Seconds before the first line.
        plain: Whether to write lines where stderr is no terminal.
    """

    def __init__(self, label: str, total: int | None = None, *, delay: float = DELAY_S, plain: bool = True) -> None:
        self.label, self.total, self.done = label, total, 0
        self._stream = sys.stderr
        self._live = is_terminal(self._stream)
        self._silent = not self._live and not plain
        self._begun = time.monotonic()
        self._next = self._begun + (delay if self._live else max(delay, REPEAT_S) if delay else 0.0)
        self._measured = 0  # steps that took time here
        self._width = 0  # characters on the terminal's line

    def advance(self, count: int = 1, *, skipped: bool = False) -> None:
        """Count steps; those `skipped`, which were finished earlier, do not count towards the pace."""
        self.done += count
        self._measured += 0 if skipped else count
        if not skipped:
            self.show()

    def show(self, note: str = "") -> None:
        """Draw the line if it is time to, with a note on the present step."""
        now = time.monotonic()
        if now < self._next or self._silent:
            return
        self._next = now + (REDRAW_S if self._live else REPEAT_S)
        parts = [] if self.total is None else [f"{self.done:,} of {self.total:,}"]
        if self.total is not None and self._measured:
            left = (now - self._begun) / self._measured * (self.total - self.done)
            parts.append(f"{clock(left)} left")
        self._write(f"{self.label}: {', '.join([*parts, note] if note else parts)}" if parts or note else self.label)

    def close(self) -> None:
        """Remove the line from the terminal."""
        if self._width:
            print("\r" + " " * self._width, end="\r", file=self._stream, flush=True)
            self._width = 0

    def __enter__(self) -> ProgressLine:
        return self

    def __exit__(self, *raised: object) -> None:
        self.close()

    def _write(self, text: str) -> None:
        text = encodable(text, self._stream)
        if not self._live:
            print(text, file=self._stream, flush=True)
            return
        # Spaces over the rest of the last line, not an escape code: these work on every terminal.
        text = text[: shutil.get_terminal_size().columns - 1]
        print("\r" + text.ljust(self._width), end="", file=self._stream, flush=True)
        self._width = len(text)
