"""What strangers write, made fit to be shown."""

from __future__ import annotations

from typing import Any


def text(value: Any) -> str:
    """Anything as one line that can be written, and shows all there is: lone surrogates are no text.

    What nobody sees, or what turns the writing round, is shown as a mark and not dropped: a client must not be able to
    look like another.

    >>> text("bank\\n 7"), ascii(text("\\u202ebank-7"))
    ('bank 7', "'\\\\ufffdbank-7'")
    """
    plain = value if isinstance(value, str) else "" if value is None else str(value)
    line = " ".join(plain.encode("utf-8", "replace").decode().split())
    return line if line.isprintable() else "".join(one if one.isprintable() else "\ufffd" for one in line)


def short(value: Any, most: int = 500) -> str:
    """The beginning of it, on one line."""
    return text(str("" if value is None else value)[: 4 * most])[:most]


def quoted(value: Any, most: int = 200) -> str:
    """A value as Python writes it, or the beginning of that: for messages about what came.

    >>> quoted("krum"), len(quoted(list(range(10_000))))
    ("'krum'", 203)
    """
    written = repr(value)
    return written if len(written) <= most else f"{written[:most]}..."
