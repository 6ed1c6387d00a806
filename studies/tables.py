"""The writer of all tables, and of the numbers in them."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any


def markdown_table(
    heads: Sequence[str], body: Iterable[Sequence[str]], right: Collection[str] = (), padded: bool = False
) -> str:
    """Return a Markdown table; columns whose heads are in `right` are aligned to the right, `padded` for a terminal.

    >>> print(markdown_table(["rule", "reads"], [["krum", "2.1"]], right=["reads"]))
    | rule | reads |
    | --- | --: |
    | krum | 2.1 |
    """
    lines = [list(heads), ["--:" if head in right else "---" for head in heads], *map(list, body)]
    if padded:
        widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
        adjust = [str.rjust if head in right else str.ljust for head in heads]
        lines = [[to(text, width) for to, text, width in zip(adjust, line, widths, strict=True)] for line in lines]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def table_of(rows: Sequence[Mapping[str, Any]]) -> str:
    """Return rows of plain values as a Markdown table, with their keys as heads.

    >>> print(table_of([{"sketch": "`Exact()`", "bytes": 20008, "error": 0.12345}]))
    | sketch | bytes | error |
    | --- | --- | --- |
    | `Exact()` | 20,008 | 0.123 |
    """

    def text(value: Any) -> str:
        return f"{value:,}" if isinstance(value, int) else three_digits(value) if isinstance(value, float) else value

    return markdown_table(list(rows[0]), [list(map(text, row.values())) for row in rows])


def three_digits(value: float | None) -> str:
    """Format a number to three digits, without an exponent where they fit.

    >>> three_digits(0.012345), three_digits(123456.0), three_digits(0.0), three_digits(None)
    ('0.0123', '1.2e+05', '0', '')
    """
    if value is None:
        return ""
    return f"{value:.0f}" if 100 <= value < 10_000 else f"{value:.3g}" if value < 100 else f"{value:.1e}"


def multiple(value: float) -> str:
    """Format a ratio or a number of reads.

    >>> multiple(2.345), multiple(1234.5)
    ('2.35', '1,234')
    """
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


def duration(seconds: float) -> str:
    """Format a measured time.

    >>> duration(2.5), duration(0.0125), duration(3e-5)
    ('2.5 s', '12.5 ms', '30 us')
    """
    if seconds >= 1:
        return f"{multiple(seconds)} s"
    return f"{seconds * 1e3:.3g} ms" if seconds >= 1e-3 else f"{seconds * 1e6:.3g} us"
