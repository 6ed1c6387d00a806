"""One recorded run as arrays by round and client, with NaN for what was not recorded."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from bartizan._util.types import Floats
from bartizan.lab.metrics import Metric

Flags = npt.NDArray[np.bool_]
Singles = npt.NDArray[np.float32]

ROUND_NUMBERS = ("accuracy", "perplexity", "test_loss", "backdoor", "loss", "norm", "step", "read", "committed_bytes")
SERVER_STAGES = ("sketch", "weigh", "combine")
STAGES = ("train", *SERVER_STAGES)


@dataclass(frozen=True, eq=False)
class Run:
    """The content of one `results.jsonl`, checked; T rounds, M clients."""

    folder: str
    """Its folder, relative to the folder of the report."""
    id: str
    name: str
    config: dict[str, Any]
    """Settings by dotted names, such as `rule.name`."""
    clients: tuple[str, ...]
    byzantine: Flags | None
    """(M,) the true attackers; None in a deployment, which does not know them."""
    ratio: tuple[float, float]
    """Fraction of attackers among the clients and in the data."""
    split: Floats | None
    """(M, classes) number of examples."""
    classes: tuple[str, ...] | None
    dim: int | None
    versions: dict[str, str]
    status: str
    """`finished`, `diverged`, or `unfinished`."""
    torn: str
    converged: bool
    metric: Metric
    """The metric of `best` and `last`."""
    best: float
    last: float
    seconds: float
    series: dict[str, Floats]
    """(T,) for each name of `ROUND_NUMBERS` and `STAGES`."""
    weights: Singles
    """(T, M); NaN for clients that did not take part, and for rules without weights."""
    present: Flags
    quarantined: Flags
    failed: Flags
    sizes: Floats | None
    """(T, M) the data size by which each client was weighed; None if all counted alike."""
    exact_rounds: npt.NDArray[np.intp]
    exact: Singles
    """(R, M) the weights of the unprojected rule, in those rounds."""
    sketch: str
    notes: tuple[tuple[int, str], ...]

    @property
    def n_rounds(self) -> int:
        return len(self.present)

    @property
    def weighs(self) -> bool:
        return bool(np.isfinite(self.weights).any())

    @property
    def coordinatewise(self) -> bool:
        """Return whether rounds were aggregated without weights; refused rounds, which have no time, do not count."""
        return not self.weighs and bool(np.isfinite(self.server).any())

    @property
    def n_attackers(self) -> int:
        return 0 if self.byzantine is None else int(self.byzantine.sum())

    @property
    def server(self) -> Floats:
        """Return the server's seconds, (T,); a stage that was not timed counts 0, and a refused round is NaN."""
        spent = np.nan_to_num(np.stack([self.series[name] for name in SERVER_STAGES])).sum(axis=0)
        return np.where(spent > 0, spent, math.nan)

    @property
    def reads(self) -> Floats:
        """Return the server's time over the time of one read of the updates, (T,); NaN if no read was timed."""
        return _ratio(self.server, self.series["read"])

    @property
    def backdoor(self) -> float:
        """Return the backdoor's success at its last test; NaN if there is none."""
        known = self.series["backdoor"][np.isfinite(self.series["backdoor"])]
        return float(known[-1]) if known.size else math.nan

    def share(self) -> Floats:
        """Return each client's mean weight over its rounds, (M,); 1 is an equal share."""
        equal = self.weights * self.present.sum(axis=1, keepdims=True)
        return mean(np.asarray(equal, dtype=np.float64), axis=0)

    def on_attackers(self) -> Floats:
        """Return the fraction of the weight on attackers, (T,); NaN if there are none, or they are not known."""
        if self.byzantine is None or not self.byzantine.any():
            return np.full(self.n_rounds, math.nan)
        weights = np.nan_to_num(self.weights)
        theirs = weights[:, self.byzantine].sum(axis=1, dtype=np.float64)
        return _ratio(theirs, weights.sum(axis=1, dtype=np.float64))

    def distance(self) -> Floats:
        """Return the total variation distance between the weights and the exact ones, (R,)."""
        ours = np.nan_to_num(self.weights[self.exact_rounds])
        return 0.5 * np.abs(ours - np.nan_to_num(self.exact)).sum(axis=1, dtype=np.float64)


def mean(values: Floats, axis: int) -> Floats:
    """Return the mean of the finite values; NaN if there are none."""
    finite = np.isfinite(values)
    return _ratio(np.where(finite, values, 0.0).sum(axis=axis), finite.sum(axis=axis))


def quantiles(values: Sequence[Floats], *parts: float) -> list[float]:
    """Return quantiles of the finite values of all arrays; NaN if there are none."""
    joined = np.concatenate(values)
    finite = joined[np.isfinite(joined)]
    return [float(part) for part in np.quantile(finite, parts)] if finite.size else [math.nan] * len(parts)


def _ratio(above: Any, below: Any) -> Floats:
    return np.divide(above, below, out=np.full(np.shape(below), math.nan), where=below > 0)
