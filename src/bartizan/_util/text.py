"""Sanitise untrusted text before it is printed."""

from __future__ import annotations

from typing import Any


def text(value: Any) -> str:
    """Any value as one printable line.

    Invisible characters and those that change the direction of writing are replaced by a mark, not dropped: a client's
    name must not be able to look like another's.

    >>> text("bank\\n 7"), ascii(text("\\u202ebank-7"))
    ('bank 7', "'\\\\ufffdbank-7'")
    """
    plain = value if isinstance(value, str) else "" if value is None else str(value)
    line = " ".join(plain.encode("utf-8", "replace").decode().split())
    return line if line.isprintable() else "".join(one if one.isprintable() else "\ufffd" for one in line)


def short(value: Any, most: int = 500) -> str:
    """The first `most` characters of `text(value)`."""
    return text(str("" if value is None else value)[: 4 * most])[:most]


def quoted(value: Any, most: int = 200) -> str:
    """The beginning of a value's repr, for error messages.

    >>> quoted("krum"), len(quoted(list(range(10_000))))
    ("'krum'", 203)
    """
    try:
        written = repr(value)
    except Exception as unreadable:  # of a foreign class, or of an integer of thousands of digits
        written = f"a {type(value).__name__} that can't be written ({type(unreadable).__name__})"
    return written if len(written) <= most else f"{written[:most]}..."
