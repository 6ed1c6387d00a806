"""Sanitise untrusted text before it is printed, and guess what was meant."""

from __future__ import annotations

import difflib
import re
from collections.abc import Callable, Iterable
from typing import Any


def text(value: Any) -> str:
    """Return any value as one printable line.

    Invisible characters and those that change the direction of writing are replaced by a mark, not dropped: a client's
    name must not be able to look like another's.

    >>> text("bank\\n 7"), ascii(text("\\u202ebank-7"))
    ('bank 7', "'\\\\ufffdbank-7'")
    """
    plain = "" if value is None else _written(value, str)
    return _printable(" ".join(plain.encode("utf-8", "replace").decode().split()))


def visible(name: str) -> str:
    """Return a name as one printable line, distinct for distinct names: what is not printable is escaped.

    So are backslashes, and spaces at the ends or behind a space or a colon, which could pass for another column.

    >>> print(visible("bank\\n7"), visible("bank\\udcff"), visible("a: b "), visible("ann b"))
    bank\\n7 bank\\udcff a:\\x20b\\x20 ann b
    """
    escaped = "".join(one if one.isprintable() and one != "\\" else repr(one)[1:-1] for one in name)
    return re.sub(r"(?<=[ :]) |^ | $", r"\\x20", escaped)


def short(value: Any, most: int = 500) -> str:
    """Return the first `most` characters of `text(value)`."""
    return text(("" if value is None else _written(value, str))[: 4 * most])[:most]


def quoted(value: Any, most: int = 200) -> str:
    """Return the beginning of a value's repr, printable, for error messages.

    >>> quoted("krum"), len(quoted(list(range(10_000)))), quoted(10**5000)
    ("'krum'", 203, '<an int that can not be shown>')
    """
    written = _written(value, repr)
    return _printable(written) if len(written) <= most else f"{_printable(written[:most])}..."


def did_you_mean(given: str, known: Iterable[str], show: Callable[[str], str] = repr) -> str:
    """Return the nearest known name as a question that ends an error message; empty if none is near.

    >>> did_you_mean("krumm", ["krum", "mean"]), did_you_mean("x", ["krum"])
    (" Did you mean 'krum'?", '')
    """
    close = difflib.get_close_matches(given[:200], known, n=1)
    return f" Did you mean {show(close[0])}?" if close else ""


def _printable(line: str) -> str:
    return line if line.isprintable() else "".join(one if one.isprintable() else "\ufffd" for one in line)


def _written(value: Any, by: Callable[[Any], str]) -> str:
    """Return the `str` or `repr` of a value, or a substitute: huge integers and faulty classes have neither."""
    try:
        return by(value)
    except Exception:
        return f"<an {type(value).__name__} that can not be shown>"
