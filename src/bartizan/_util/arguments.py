"""Parse command-line arguments: counts such as 64k or 11.2M, seconds, and comma-separated lists."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")


def number(text: str) -> int:
    """Parse a positive count, such as 50, 64k or 11.2M."""
    scale = {"k": 10**3, "M": 10**6, "G": 10**9}.get(text[-1:], 1)
    try:
        value = round(float(text if scale == 1 else text[:-1]) * scale)
    except (ValueError, OverflowError):
        value = 0
    if not 1 <= value <= 10**15:
        raise argparse.ArgumentTypeError(f"wanted a number from 1 to 1e15, such as 50, 64k or 11.2M, got {text!r}")
    return value


def seconds(text: str) -> float:
    """Parse a positive number of seconds."""
    try:
        value = float(text)
    except ValueError:
        value = 0.0
    if not 0 < value < float("inf"):
        raise argparse.ArgumentTypeError(f"wanted a positive number of seconds, got {text!r}")
    return value


def listed(one: Callable[[str], T]) -> Callable[[str], list[T]]:
    """Return a parser of comma-separated values, each read by `one`; repeated values are dropped."""

    def parse(text: str) -> list[T]:
        return list(dict.fromkeys(one(part.strip()) for part in text.split(",")))

    return parse


def short(count: int) -> str:
    """Return a count as `number` reads it, to four digits.

    >>> short(11_173_962), short(64_000), short(50)
    ('11.17M', '64k', '50')
    """
    for letter, scale in (("G", 10**9), ("M", 10**6), ("k", 10**3)):
        if count >= scale:
            return f"{count / scale:.4g}{letter}"
    return str(count)
