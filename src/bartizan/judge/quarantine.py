"""Find clients that can't take part in the round, and why."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeVar

import numpy as np

from bartizan.errors import BadClientError, LostUpdatesError
from bartizan.measure.base import Sketch
from bartizan.measure.geometry import FLOAT32_SQUARES_UNDERFLOW, MIDDLE, GramStats, norm_limit
from bartizan.updates import Updates

T = TypeVar("T")

ODDS = 1e-9  # per round: the chance to quarantine a client, by its norms, that does not know the seed
SMALLEST = float(np.finfo(np.float32).tiny)

FindFaults = Callable[[Updates, Sequence[int]], Sequence[str]]
"""Returns the reason for each of these rows why its numbers can't be used."""


def quarantine(clients: Updates, stats: GramStats, reasons: dict[int, str], strict: bool) -> tuple[Updates, GramStats]:
    """The round without these clients; under `strict` the first is raised."""
    if not reasons:
        return clients, stats
    if strict:
        client = min(reasons)
        raise BadClientError(client, reasons[client])
    bad = [row for row, client in enumerate(clients.clients) if client in reasons]
    kept = np.delete(np.arange(len(stats.squared_norms)), bad)
    return clients.without(reasons), stats.keep(kept)


def until_read(
    clients: Updates, stats: GramStats, strict: bool, decide_and_combine: Callable[[Updates, GramStats], T]
) -> T:
    """Decide and combine; where that loses updates, quarantine their clients and do it again."""
    while True:
        try:
            return decide_and_combine(clients, stats)
        except LostUpdatesError as lost:
            clients, stats = quarantine(clients, stats, lost.reasons, strict)


def is_ordinary(clients: Updates, stats: GramStats, sketch: Sketch) -> bool:
    """Whether no norm is tiny, too large or distorted: one quick test, which most rounds pass."""
    from bartizan.kernels import weigh

    if stats.norms_only:
        return False
    limits = FLOAT32_SQUARES_UNDERFLOW, norm_limit(clients.layout.widest), *_ratios(sketch)
    return bool(weigh.ordinary(stats.gram, stats.squared_norms, *limits))


def unusable_numbers(clients: Updates, stats: GramStats, find_faults: FindFaults) -> dict[int, str]:
    """Clients whose numbers are not finite or overflow, by their squared norms; the faults are searched only then."""
    M = len(clients)
    fit = stats.squared_norms <= norm_limit(clients.layout.widest)  # False for NaN
    if fit.all():
        return {}
    if not fit[M:].all():
        raise ValueError(f"trusted is too large: its squares overflow {clients.layout.widest}.")
    rows = np.flatnonzero(~fit).tolist()
    beside = "" if stats.unit == 1 else f", next to the other clients' of about {stats.unit * MIDDLE:.0e}"
    return {clients.clients[row]: fault + beside for row, fault in zip(rows, find_faults(clients, rows), strict=True)}


def local_faults(clients: Updates, rows: Sequence[int]) -> list[str]:
    """The reason for each of these rows why its numbers can't be used; all columns are in this process."""
    return [clients.fault(row) for row in rows]


def distorted_norms(clients: Updates, stats: GramStats, sketch: Sketch) -> dict[int, str]:
    """Clients whose projected norm is outside the range for vectors that do not depend on the seed.

    The exact norms were taken in the same pass. A norm that is too small hides a large update from the rule; one that
    is too large belongs to an update without the part that the projection does not show.
    """
    least, most = _ratios(sketch)
    if not least:
        return {}
    M = len(clients)
    exact, shown = stats.squared_norms[:M], np.diag(stats.gram)[:M]
    outside = (shown < least * exact) | (shown > most * exact)
    # Below the smallest normal numbers the digits are gone, and the ratio means nothing.
    outside &= exact > max(clients.layout.dim * SMALLEST**2, stats.negligible)
    return {
        clients.clients[r]: f"the projection shows {shown[r] / exact[r]:.2g} of its squared norm {exact[r]:.3g}, where "
        f"an update that does not depend on the seed keeps {least:.2g} to {most:.2g}: it "
        + ("hides from the projection" if shown[r] < exact[r] else "leaves out what the projection does not show")
        for r in np.flatnonzero(outside)
    }


def _ratios(sketch: Sketch) -> tuple[float, float]:
    """The range of projected over exact squared norm, rounding included."""
    least, most = sketch.norm_ratio_range(ODDS)
    return (1 - 1e-4) * least, (1 + 1e-4) * most
