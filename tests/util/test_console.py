"""What is written to terminals and to other streams while work goes on."""

import io
import sys

import pytest

from bartizan._util import console
from bartizan._util.console import ProgressLine, encodable, has_colour, is_terminal


class Stream(io.StringIO):
    """Text that may claim to be a terminal."""

    def __init__(self, terminal: bool) -> None:
        super().__init__()
        self.terminal = terminal

    def isatty(self) -> bool:
        return self.terminal


def stderr_of(monkeypatch: pytest.MonkeyPatch, *, terminal: bool) -> Stream:
    stream = Stream(terminal)
    monkeypatch.setattr(sys, "stderr", stream)
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.delenv("NO_COLOR", raising=False)
    return stream


def shown(written: str) -> str:
    """What a terminal shows after these characters: a carriage return goes back to the line's start."""
    line: list[str] = []
    at = 0
    for one in written:
        if one == "\r":
            at = 0
            continue
        line[at : at + 1] = [one]
        at += 1
    return "".join(line).rstrip()


def test_a_terminal_shows_one_line_that_is_removed_at_the_end(monkeypatch):
    stderr = stderr_of(monkeypatch, terminal=True)
    monkeypatch.setattr(console, "REDRAW_S", 0.0)
    with ProgressLine("Reading", 3, delay=0) as line:
        line.show("a file with a long name")
        line.advance()
        assert shown(stderr.getvalue()).startswith("Reading: 1 of 3, ")
        assert "long name" not in shown(stderr.getvalue())
    assert shown(stderr.getvalue()) == ""
    assert "\n" not in stderr.getvalue()
    assert "\x1b" not in stderr.getvalue()


@pytest.mark.parametrize("terminal", [True, False])
def test_short_work_shows_nothing(terminal, monkeypatch):
    stderr = stderr_of(monkeypatch, terminal=terminal)
    with ProgressLine("Reading", 3) as line:
        for _ in range(3):
            line.advance()
    assert stderr.getvalue() == ""


def test_other_streams_get_whole_lines_now_and_then_and_steps_finished_earlier_do_not_count(monkeypatch):
    stderr = stderr_of(monkeypatch, terminal=False)
    with ProgressLine("Reading", 1000, delay=0) as line:
        for _ in range(1000):
            line.advance()
    with ProgressLine("Measuring", 10, delay=0) as line:
        line.advance(9, skipped=True)
        line.show("the last cell")
    assert stderr.getvalue() == "Reading: 1 of 1,000, 0 s left\nMeasuring: 9 of 10, the last cell\n"


def test_no_color_and_dumb_terminals_are_respected(monkeypatch):
    stderr = stderr_of(monkeypatch, terminal=True)
    assert has_colour(stderr)
    monkeypatch.setenv("NO_COLOR", "1")
    assert is_terminal(stderr)
    assert not has_colour(stderr)
    monkeypatch.setenv("TERM", "dumb")
    assert not is_terminal(stderr)
    closed = io.StringIO()
    closed.close()
    assert not is_terminal(None)
    assert not is_terminal(closed)


@pytest.mark.parametrize(("encoding", "shown"), [("ascii", "? done"), ("latin-1", "? done"), ("utf-8", "─ done")])
def test_text_fits_the_encoding(encoding, shown):
    assert encodable("─ done", io.TextIOWrapper(io.BytesIO(), encoding=encoding)) == shown
