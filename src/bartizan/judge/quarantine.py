"""Find clients whose numbers can't take part in the round, and why."""

from __future__ import annotations

import numpy as np

from bartizan._util.types import Floats
from bartizan.measure.geometry import (
    FLOAT32_SQUARES_UNDERFLOW,
    TARGET_MEDIAN_NORM,
    TRIAL_SCALE,
    enlargement,
    mostly_below,
    norm_limit,
)
from bartizan.measure.measurements import Measurements
from bartizan.measure.sketches import PROBABILITY_OF_ERROR, Exact, Norms, Sketch
from bartizan.source import Roster, Source

SMALLEST_NORMAL = float(np.finfo(np.float32).tiny)


def is_ordinary(measured: Measurements, roster: Roster) -> bool:
    """Return whether no norm is tiny, too large or distorted: one quick test, which most rounds pass."""
    from bartizan.kernels import weigh

    norms, least, most = measured.squared_norms, FLOAT32_SQUARES_UNDERFLOW, norm_limit(roster.dtype)
    if measured.norms_only:
        return bool(norms.min() >= least and norms.max() <= most)  # False for NaN
    ratios = (0.0, np.inf) if isinstance(measured.sketch, Exact) else _ratios(measured.sketch)
    return bool(weigh.ordinary(measured.gram, norms, least, most, *ratios))


def enlarged(source: Source, measured: Measurements) -> Measurements:
    """The measurements of updates times a power of two, if most are so tiny that their squares underflow."""

    def measure(sketch: Sketch, scale: float) -> Measurements:
        return source.measure(sketch, measured.seed, clients=measured.clients, scale=scale).on_host()

    def norms(scale: float) -> Floats:
        return np.asarray(measure(Norms(), scale).squared_norms[:M])

    M = len(measured.clients)
    if source.roster.dtype.itemsize == 8:
        scale = enlargement(measured.squared_norms, M, lambda: norms(TRIAL_SCALE))
        return measured if scale == 1 else measure(measured.sketch, scale)
    if source.roster.on_gpu and mostly_below(FLOAT32_SQUARES_UNDERFLOW, measured.squared_norms[:M]):
        return measure(measured.sketch, 1.0) if np.median(norms(1.0)) > 0 else measured
    return measured


def unusable_numbers(source: Source, measured: Measurements) -> dict[int, str]:
    """Return the clients whose numbers are not finite or overflow, by their squared norms, and why."""
    M, dtype = len(measured.clients), source.roster.dtype
    fit = measured.squared_norms <= norm_limit(dtype)  # False for NaN
    if fit.all():
        return {}
    if not fit[M:].all():
        raise ValueError(f"trusted is too large: its squares overflow {dtype}.")
    typical = measured.unit * TARGET_MEDIAN_NORM
    beside = "" if measured.unit == 1 else f", next to the other clients' of about {typical:.0e}"
    reasons = source.explain([measured.clients[row] for row in np.flatnonzero(~fit)])
    return {client: reason + beside for client, reason in reasons.items()}


def distorted_norms(source: Source, measured: Measurements) -> dict[int, str]:
    """Return the clients whose projected norm is outside the range for vectors that do not depend on the seed.

    The exact norms were taken in the same pass. A norm that is too small hides a large update from the rule; one that
    is too large belongs to an update without the part that the projection does not show.
    """
    least, most = _ratios(measured.sketch)
    if not least:
        return {}
    M = len(measured.clients)
    exact, shown = measured.squared_norms[:M], np.diag(measured.gram)[:M]
    outside = (shown < least * exact) | (shown > most * exact)
    # Below the smallest normal numbers the digits are gone, and the ratio means nothing.
    outside &= exact > max(source.roster.dim * SMALLEST_NORMAL**2, measured.negligible)
    return {
        measured.clients[
            r
        ]: f"the projection shows {shown[r] / exact[r]:.2g} of its squared norm {exact[r]:.3g}, where "
        f"an update that does not depend on the seed keeps {least:.2g} to {most:.2g}: it "
        + ("hides from the projection" if shown[r] < exact[r] else "leaves out what the projection does not show")
        for r in np.flatnonzero(outside)
    }


def _ratios(sketch: Sketch) -> tuple[float, float]:
    """The range of projected over exact squared norm, rounding included."""
    least, most = sketch.norm_ratio_range(PROBABILITY_OF_ERROR)
    return (1 - 1e-4) * least, (1 + 1e-4) * most
