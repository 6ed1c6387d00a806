"""Deprecate public names: they warn, go on working, and name a substitute (SUPPORT.md has the policy)."""

from __future__ import annotations

import functools
import warnings
from collections.abc import Callable
from typing import ParamSpec, TypeVar

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


def warn_deprecated(what: str, since: str, instead: str) -> None:
    """Warn the caller of the function that calls this one, such as one that was given an argument's old name."""
    message = f"{what} is deprecated since bartizan {since} and will be removed two minor releases later"
    warnings.warn(f"{message}: use {instead}.", FutureWarning, stacklevel=3)
