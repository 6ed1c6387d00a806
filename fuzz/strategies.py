"""Cases that are drawn by Hypothesis strategies, from the bytes of the campaign."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from fuzz.surfaces import RefusedError, Surface

T = TypeVar("T")
LENGTH = 200
"""Bytes that are enough for a case of any strategy here."""


def surface_of(strategy: st.SearchStrategy[T], check: Callable[[T], str], warm: Callable[[], None]) -> Surface:
    """Return the surface whose cases are drawn by this strategy; bytes that are too few for a case are refused."""
    outcome = []

    @settings(database=None, deadline=None, suppress_health_check=list(HealthCheck))
    @given(strategy)
    def run(case: T) -> None:
        outcome.append(check(case))

    def case(data: bytes) -> str:
        outcome.clear()
        run.hypothesis.fuzz_one_input(data)  # type: ignore[attr-defined]
        if not outcome:
            raise RefusedError
        return outcome[0]

    seeds = [bytes([n + 7 * i & 255 for i in range(LENGTH)]) for n in range(0, 256, 16)]
    return Surface(case, seeds, length=LENGTH, warm=warm)
