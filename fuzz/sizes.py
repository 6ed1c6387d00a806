"""Surface: data sizes of any kind and ratio, given by the caller or reported by clients, with every rule."""

from __future__ import annotations

import math
import warnings
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
from hypothesis import strategies as st

import bartizan as bz
from bartizan.judge.client_reports import SizePolicy
from fuzz.aggregate import warm
from fuzz.rules import RULES, enough
from fuzz.strategies import surface_of
from fuzz.surfaces import ACCEPTED, COMPARED, RefusedError, Surface, documented, require

P = 4
LEAST, LARGEST = 2.0**-64, 2.0**64  # the stated range
TOLERANCE = 1e-6  # of sums of weights, and of results in float32
PLAIN = st.one_of(
    st.integers(-64, 64).map(lambda e: 2.0**e),
    st.sampled_from(
        [1, 1.0, 3, 600, 1e12, 0.5, 1e-9, np.int64(7), np.uint8(9), np.float16(0.1), LEAST, LARGEST, 2**64]
    ),
    st.floats(LEAST, LARGEST),
)
ODD = st.one_of(
    st.sampled_from(
        [5e-324, 1e-300, 1e308, 0, -1, -0.0, math.nan, math.inf, 2.0**-65, 2.0**65, 10**400, 2**64 + 2**12]
    ),
    st.sampled_from([True, np.False_, None, "7", b"7", [7], 1j, Fraction(1, 10**400), np.float16("inf"), np.nan]),
    st.floats(allow_nan=True),
)


@dataclass(frozen=True)
class Case:
    """Updates, what is given as their sizes, and how: a list, an array, a dict by id, or a client's report."""

    rule: str
    f: int
    seed: int
    scale: float
    ties: bool
    dtype: str
    sizes: list[Any]
    how: str


CASES = st.integers(1, 13).flatmap(
    lambda M: st.builds(
        Case,
        rule=st.sampled_from(sorted(RULES)),
        f=st.integers(0, 3),
        seed=st.integers(0, 255),
        scale=st.sampled_from([1.0, 1e-6, 1e6, 1e15]),
        ties=st.booleans(),
        dtype=st.sampled_from(["f4", "f8"]),
        sizes=st.one_of(
            st.lists(PLAIN, min_size=M, max_size=M),
            st.tuples(st.lists(PLAIN, min_size=M - 1, max_size=M - 1), ODD).map(lambda drawn: [*drawn[0], drawn[1]]),
            st.lists(st.one_of(PLAIN, ODD), min_size=M, max_size=M),
        ),
        how=st.sampled_from(["list", "array", "by id", "round", "reported"]),
    )
)


def admitted(size: Any) -> bool:
    """The stated range, of numbers that are no truth values."""
    if isinstance(size, (bool, np.bool_, complex)) or not isinstance(size, (int, float, Fraction, np.number)):
        return False
    try:
        return LEAST <= float(size) <= LARGEST
    except OverflowError:
        return False


def check(case: Case) -> str:
    x = np.random.default_rng(case.seed).normal(size=(len(case.sizes), P))
    x = (case.scale * (np.round(x) if case.ties else x)).astype(case.dtype)
    rule = RULES[case.rule](case.f)
    sound = [admitted(size) for size in case.sizes]
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=".*did not reach its tolerance")
        out = _reported(case, rule, x, sound) if case.how == "reported" else _given(case, rule, x, all(sound))
    if out.weights is not None:
        parts = np.isfinite(out.weights).all() and (out.weights >= 0).all() and out.weights.sum() <= 1 + TOLERANCE
        require(parts, f"{rule!r} gave weights {out.weights}")
    # Convex combinations of the clients, and of the origin where a rule clips.
    inside = np.abs(out.update) <= np.abs(x).max() * (1 + TOLERANCE)
    require(inside.all(), f"{rule!r} gave {out.update}")
    return COMPARED if all(sound) else ACCEPTED


def _trusted(rule: Any, x: np.ndarray) -> np.ndarray | None:
    """The mean, or the first client's update where that has no direction."""
    if not getattr(rule, "needs_trusted", False):
        return None
    mean: np.ndarray = x.mean(axis=0)
    if not mean.any() and not x[0].any():
        raise RefusedError
    return mean if mean.any() else x[0]


def _given(case: Case, rule: Any, x: np.ndarray, sound: bool) -> bz.Aggregation[Any]:
    sizes: Any = case.sizes
    updates: Any = x
    trusted = _trusted(rule, x)
    if case.how == "array":
        try:
            sizes = np.asarray(case.sizes, dtype=np.float64)
        except (TypeError, ValueError, OverflowError):
            raise RefusedError from None  # NumPy makes no such array
        sound = all(admitted(size) for size in sizes)
    if case.how == "by id":
        updates, sizes = dict(enumerate(x)), dict(enumerate(case.sizes))
    with documented(ValueError, sound=sound and enough(rule, len(x), 0)):
        if case.how == "round":
            with bz.Aggregator(rule).round(case.seed, trusted=trusted) as opened:
                for client, (update, size) in enumerate(zip(x, case.sizes, strict=True)):
                    opened.add(update, client, size)
                out: bz.Aggregation[Any] = opened.close()
        else:
            out = bz.aggregate(updates, rule, sizes=sizes, trusted=trusted, seed=case.seed)
    require(sound, f"sizes {case.sizes!r} were taken")
    return out


def _reported(case: Case, rule: Any, x: np.ndarray, sound: list[bool]) -> bz.Aggregation[Any]:
    policy, sizes = SizePolicy("reported", LARGEST), {}
    for client, claim in enumerate(case.sizes):
        try:
            sizes[client] = policy.of(client, lambda claim=claim: claim)
        except ValueError:
            require(not sound[client] or isinstance(claim, Fraction), f"the claim {claim!r} was refused")
        else:
            require(sound[client], f"the claim {claim!r} was taken")
    trusted = _trusted(rule, x)
    with documented(ValueError, sound=bool(sizes) and enough(rule, len(sizes), 0)):
        return bz.aggregate(x[list(sizes)], rule, sizes=list(sizes.values()), trusted=trusted, seed=case.seed)


def surface(folder: Path) -> Surface:
    return surface_of(CASES, check, warm)
