"""Tables and numbers for the report."""

from __future__ import annotations

from collections.abc import Sequence


def number(value: float | None) -> str:
    """Three digits, plain where they fit.

    >>> number(0.012345), number(123456.0), number(0.0), number(None)
    ('0.0123', '1.2e+05', '0', '')
    """
    if value is None:
        return ""
    return f"{value:.0f}" if 100 <= value < 10_000 else f"{value:.3g}" if value < 100 else f"{value:.1e}"


def table(heads: Sequence[str], body: Sequence[Sequence[str]]) -> str:
    """
    >>> print(table(["a", "b"], [["1", "2"]]))
    | a | b |
    |---|---|
    | 1 | 2 |
    """
    lines = [heads, ["---"] * len(heads), *body]
    return "\n".join("|" + "|".join(line) + "|" if line[0] == "---" else f"| {' | '.join(line)} |" for line in lines)
