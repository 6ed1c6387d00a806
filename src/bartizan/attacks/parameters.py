"""Declare attacks: check their settings, their input and the updates that they return."""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import wraps
from typing import Any, TypeVar, cast

import numpy as np

from bartizan.attacks.honest_updates import checked
from bartizan.measure import Sketch
from bartizan.updates.layout import is_tensor

F = TypeVar("F", bound=Callable[..., Any])


@dataclass(frozen=True)
class Wanted:
    """The permitted values of a setting, in words and as a test."""

    words: str
    fits: Callable[[Any], bool]


def is_number(value: Any) -> bool:
    known = isinstance(value, (int, float, np.integer, np.floating)) and not isinstance(value, bool)
    return known and math.isfinite(value)


def is_whole(value: Any) -> bool:
    return isinstance(value, (int, np.integer)) and not isinstance(value, bool)


NUMBER = Wanted("a finite number", is_number)
NOT_NEGATIVE = Wanted("a finite number from 0 up", lambda value: is_number(value) and value >= 0)
FRACTION = Wanted("a number from 0 to 1", lambda value: is_number(value) and 0 <= value <= 1)
AT_LEAST_ONE = Wanted("a whole number from 1 up", lambda value: is_whole(value) and value >= 1)
INDEX = Wanted("a whole number from 0 up", lambda value: is_whole(value) and value >= 0)
INDEX_OR_NONE = Wanted("a whole number from 0 up or None", lambda value: value is None or INDEX.fits(value))
CONTEXT_ARGUMENTS = {
    "aggregator": Wanted("a function from all updates, (M, p), to one, (p,)", callable),
    "exact_weights": Wanted("a function from all updates, (M, p), to the rule's weights by exact distances", callable),
    "sketch": Wanted("a sketch such as Rotated(k=4096)", lambda value: isinstance(value, Sketch)),
    "leaked_seed": INDEX,
    "past_seeds": Wanted(
        "a list of whole numbers from 0 up, the latest last",
        lambda value: isinstance(value, (list, tuple)) and all(map(INDEX.fits, value)),
    ),
    "published": Wanted("a vector, (p,)", lambda value: getattr(value, "ndim", 0) == 1),
    "now": INDEX,
    "earlier": Wanted("a list of vectors, (p,), the latest last", lambda value: isinstance(value, (list, tuple))),
}
"""Arguments, not settings: knowledge of the server, which a run passes to attacks whose signature names it."""


def attack(**wanted: Wanted) -> Callable[[F], F]:
    """Make an attack of a function (honest, count, rng, *, settings) -> (count, p) that checks its input and output."""

    def validated(function: F) -> F:
        name, arguments = function.__name__, inspect.signature(function).parameters
        permitted = {key: one for key, one in CONTEXT_ARGUMENTS.items() if key in arguments} | wanted

        @wraps(function)
        def call(honest: Any, count: int, rng: np.random.Generator, **settings: Any) -> Any:
            check(name, {"count": INDEX, **permitted}, {"count": count, **settings})
            if not isinstance(rng, np.random.Generator):
                raise TypeError(f"{name} needs rng, a numpy.random.Generator; got {rng!r}.")
            honest = checked(honest)
            with np.errstate(over="ignore", invalid="ignore"):
                return _checked_rows(name, function(honest, int(count), rng, **settings), honest, int(count))

        call.wanted = permitted  # type: ignore[attr-defined]
        return cast("F", call)

    return validated


def on_changes(function: F) -> F:
    """Mark an attack that is defined on changes of the model, and is never given new weights."""
    function.on_changes = True  # type: ignore[attr-defined]
    return function


def sees_changes(attack: Callable[..., Any]) -> bool:
    """Return whether an attack (or a `functools.partial` of one) must be given changes of the model.

    These are also what the server sketches and what it published.

    >>> from bartizan.attacks import attack
    >>> sees_changes(attack("fang-trim")), sees_changes(attack("null-space")), sees_changes(attack("ipm"))
    (True, True, False)
    """
    marked = getattr(getattr(attack, "func", attack), "on_changes", False)
    return marked or bool(needs(attack) & {"sketch", "published"})


def as_attack(function: Any) -> Any:
    """Return the function itself if `attack` made it, else an attack of it: a plug-in's may be a plain function."""
    return function if hasattr(function, "wanted") else attack()(function)


def _checked_rows(name: str, sent: Any, honest: Any, count: int) -> Any:
    """Return an attack's rows; raise ValueError if library, dtype or shape are not those wanted."""
    same = is_tensor(sent) == is_tensor(honest) and hasattr(sent, "shape")
    shape = (count, honest.shape[1])
    if not same or tuple(sent.shape) != shape or sent.dtype != honest.dtype:
        kind = "a tensor" if is_tensor(honest) else "an array"
        came = f"{type(sent).__name__} of {sent.dtype} and shape {tuple(sent.shape)}" if same else repr(type(sent))
        raise ValueError(
            f"{name} must return {kind} of {honest.dtype} and shape {shape}, one row per attacker; got {came}."
        )
    return sent


def check(name: str, wanted: Mapping[str, Wanted], given: Mapping[str, Any]) -> None:
    """Raise on the first setting with a value that is not permitted; unknown settings are not checked here."""
    for setting, value in given.items():
        if setting in wanted and not wanted[setting].fits(value):
            raise ValueError(f"{name} needs {setting}, {wanted[setting].words}; got {value!r}.")


def needs(attack: Callable[..., Any]) -> frozenset[str]:
    """Return the knowledge of the server that an attack (or a `functools.partial` of one) must still be passed.

    `aggregator`: the server; `exact_weights`: its rule without projection; `sketch`: its projection; `leaked_seed`: the
    seed of this round; `past_seeds`: those before; `published`: the sum of the aggregates so far; `now`: the round;
    `earlier`: the honest means of the rounds before.

    >>> from bartizan.attacks import attack
    >>> sorted(needs(attack("null-space"))), sorted(needs(attack("ipm")))
    (['leaked_seed', 'sketch'], [])
    """
    parameters = inspect.signature(attack).parameters
    return frozenset(
        name for name in CONTEXT_ARGUMENTS if name in parameters and parameters[name].default is inspect.Parameter.empty
    )
