"""Deprecate public names and arguments: they warn, go on working, and name a substitute (SUPPORT.md has the policy)."""

from __future__ import annotations

import functools
import warnings
from collections.abc import Callable
from typing import Any, ParamSpec, TypeVar

P = ParamSpec("P")
R = TypeVar("R")


def deprecated(since: str, instead: str) -> Callable[[Callable[P, R]], Callable[P, R]]:
    """Decorate a function: calls warn that it is deprecated `since` a version, and name what to use `instead`."""

    def decorate(function: Callable[P, R]) -> Callable[P, R]:
        @functools.wraps(function)
        def warned(*args: P.args, **kwargs: P.kwargs) -> R:
            warn_deprecated(f"{function.__qualname__}()", since, instead)
            return function(*args, **kwargs)

        return warned

    return decorate


def renamed(given: dict[str, Any], old: str, new: str, since: str) -> None:
    """Move the value of an argument to its new name in `given`, the keyword arguments of a call, and warn."""
    if old in given:
        if new in given:
            raise TypeError(f"{old!r} is the old name of {new!r}: give {new!r} alone.")
        given[new] = given.pop(old)
        warn_deprecated(f"the argument {old!r}", since, repr(new), stacklevel=4)


def warn_deprecated(what: str, since: str, instead: str, stacklevel: int = 3) -> None:
    """Warn the caller of the function that calls this one's caller."""
    message = f"{what} is deprecated since bartizan {since} and will be removed two minor releases later"
    warnings.warn(f"{message}: use {instead}.", FutureWarning, stacklevel=stacklevel)
