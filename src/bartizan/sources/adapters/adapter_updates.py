"""Adapters as a source: measured, and combined, by the products of their factors."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from bartizan._util.seeds import fresh_seed
from bartizan.measure import Exact, Sketch
from bartizan.measure.measurements import SHORT_OF_DIGITS, SHORT_OF_FLOAT32_DIGITS, SHORT_OF_FLOAT32_SUMS, Measurements
from bartizan.measure.sketches import Norms, settled
from bartizan.source import WHOLE, AnyRule, Combined, Judgement, Reading, Roster
from bartizan.sources.adapters import two_sided
from bartizan.sources.adapters.adapters import ADDS_NOISE, Adapter, Adapters, LoRA
from bartizan.sources.adapters.factor_stacks import Measured, exact, sums_in_float32
from bartizan.sources.adapters.merge import combined
from bartizan.sources.adapters.two_sided import TwoSided

ROUNDING = 1e-9  # of the reference's squared norm: float32 sketches are not compared with what differs less from it
MIN_KEPT = 1e-5  # of the squared norm that factors could make; independent components of rank r keep 1 / r
ROWS_TO_PROJECT = 1024  # of all clients' factors in a module, from which on a projection costs less


class AdapterUpdates:
    """The adapters of one round, in this process; distances are those of the products s B A."""

    def __init__(self, clients: Adapters, settings: LoRA, **more: Any) -> None:
        self.clients, self.settings = clients, settings
        self.roster = Roster(clients.n_sent, 0, clients.dtype, clients.quarantined, **more)
        self._cancelled: dict[int, float] = {}

    def refuses(self, rule: AnyRule, sketch: Sketch) -> str | None:
        if isinstance(sketch, (Exact, Norms, TwoSided)):
            return None
        return f"Adapters are compared by Exact() or TwoSided(), or 'auto'; got {sketch!r}."

    def settle(self, rule: AnyRule, sketch: Sketch | str, seed: int | None) -> tuple[Sketch, int]:
        adapters = self.clients.adapters

        def exact_is_faster() -> bool:
            rows = sum(max(one.form.ranks) for one in adapters)
            return rows <= ROWS_TO_PROJECT or adapters[0].form.device != "cpu"

        chosen = settled(sketch, rule.needs_distances, exact_is_faster, TwoSided())
        return chosen, fresh_seed() if seed is None else seed

    def measure(self, sketch: Sketch, seed: int, reading: Reading = WHOLE) -> Measurements:
        clients, about, scale = reading
        every = self.clients if scale is None else self.clients.scaled(scale)
        own = every if clients is None else every.of(clients)
        short = _short_of_digits(own, sketch)
        if about is not None:
            found, negligible = _measured(sketch, seed, own.rows, (), every.of([about]).adapters[0]), 0.0
        else:
            found, negligible = self._about_reference(own, sketch, seed, short)
            # Those whose factors cancel each other have too few digits left to be compared.
            self._cancelled |= {own.clients[row]: found.kept[row] for row in np.flatnonzero(found.kept < MIN_KEPT)}
            found.squared_norms[np.flatnonzero(found.kept < MIN_KEPT)] = np.nan
        norms_only = np.empty((len(own.rows), 0)) if isinstance(sketch, Norms) else None
        dots = found.dots[:, 0] if own.trusted is not None and about is None else None
        return Measurements(
            own.clients, found.squared_norms, norms_only, found.gram, dots, short, scale, sketch, seed, negligible
        )

    def _about_reference(self, own: Adapters, sketch: Sketch, seed: int, short: float) -> tuple[Measured, float]:
        """Return inner products about the reference, a trusted adapter last, and the negligible squared norm."""
        rows, reference, M = own.rows, own.reference, len(own)
        trusted = [] if own.trusted is None else [M]
        if reference is None:
            found, negligible = _measured(sketch, seed, rows, trusted), 0.0
            return replace(found, kept=found.kept[:M]), negligible
        found = _measured(sketch, seed, [*rows, reference], [*trusted, len(rows)])
        kept, square = found.kept[:M], found.squared_norms[-1]
        found = _recentred(found)
        usable = found.squared_norms[:M][np.isfinite(found.squared_norms[:M])]
        if len(usable) and np.median(usable) < short * square:
            found = _measured(sketch, seed, rows, trusted, reference)
        return replace(found, kept=kept), ROUNDING * float(square)

    def explain(self, clients: Sequence[int]) -> dict[int, str]:
        rows = {client: row for row, client in enumerate(self.clients.clients)}
        return {client: self._cancels(client) or self.clients.fault(rows[client]) for client in clients}

    def _cancels(self, client: int) -> str:
        if client not in self._cancelled:
            return ""
        return (
            f"its factors cancel each other: their product has {self._cancelled[client]:.1e} of the squared norm that "
            "factors of such lengths can make, and too few digits to be compared"
        )

    def combine(self, judgement: Judgement) -> Combined:
        decision = judgement.decision
        if decision.coordinate_stage is not None:
            raise ValueError("This rule ends with single coordinates, which the products of adapters do not have.")
        if decision.noise:
            raise ValueError(f"This rule {ADDS_NOISE}.")
        own = self.clients.of(judgement.clients)
        update, alpha, lost = combined(own, decision.weights, self.settings, judgement.seed)
        return Combined(update, {"truncation": lost, "alpha": alpha})


def _measured(
    sketch: Sketch, seed: int, rows: Sequence[Adapter], fixed: Sequence[int], about: Adapter | None = None
) -> Measured:
    if isinstance(sketch, Norms):
        return two_sided.norms(rows, fixed, about)
    return sketch.measure(rows, fixed, about, seed) if isinstance(sketch, TwoSided) else exact(rows, fixed, about)


def _short_of_digits(clients: Adapters, sketch: Sketch) -> float:
    if isinstance(sketch, TwoSided):
        return SHORT_OF_FLOAT32_DIGITS
    return SHORT_OF_FLOAT32_SUMS if sums_in_float32(clients.rows) else SHORT_OF_DIGITS


def _recentred(found: Measured) -> Measured:
    """Return the inner products about the last adapter, without it; NaN stays in its own row and column."""
    G, dots, to_last = found.gram, found.dots[:, :-1], found.dots[:, -1]
    square = found.squared_norms[-1]
    with np.errstate(invalid="ignore"):
        gram = G[:-1, :-1]
        if G.strides != (0, 0):
            gram = gram - G[:-1, -1:] - G[-1:, :-1] + G[-1, -1]
            gram = (gram + gram.T) / 2  # above and below the diagonal the order of subtractions differs
        squares = np.maximum(found.squared_norms[:-1] - 2 * to_last[:-1] + square, 0)
        products = dots[:-1] - to_last[:-1, None] - dots[-1] + square
    return Measured(gram, squares, products, found.kept[:-1])
