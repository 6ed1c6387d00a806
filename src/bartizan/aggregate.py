"""Robust aggregation in four arrows; only the first and the last see p coordinates.

updates (M x p) --sketch--> (M x k) --geometry--> (M x M) --rule--> weights (M) --combine--> update (p)
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import numpy.typing as npt

from bartizan._util.seeds import checked_seed, fresh_seed
from bartizan._util.stopwatch import Stopwatch
from bartizan._util.text import quoted
from bartizan._util.types import Floats
from bartizan.defense.quarantine import decided, scored, without, without_the_hidden, without_the_unfit
from bartizan.defense.recheck import RECHECK_SKETCH, Recheck
from bartizan.geometry import Geometry, GramStats, client_sizes
from bartizan.rules.base import Decision, Rule
from bartizan.rules.coordinatewise import CoordinateWise
from bartizan.rules.preaggregators import PreAggregator
from bartizan.sketch import Exact, Sketch
from bartizan.sketch.norms_only import Norms
from bartizan.updates.budget import arrays_of, prepared
from bartizan.updates.column_pass import ColumnPass, Progress
from bartizan.updates.files import opened
from bartizan.updates.updates import Updates

if TYPE_CHECKING:
    from bartizan.round import Round


@dataclass(frozen=True, eq=False, repr=False)
class Aggregation:
    """One round's robust update, and how it came about."""

    update: Any
    """In the container, array type, dtypes and shapes of one client's update."""
    weights: Floats | None
    """What each client got, (M,): >= 0, sum 1 or less, 0 if quarantined. None where a coordinate-wise rule has none."""
    quarantined: dict[Any, str]
    """Why a client could not take part, by its index, or by its id in a `Round`."""
    seed: int
    """What this round was drawn from: with `sketch` it replays it. Publish it after the round, never before."""
    seconds: dict[str, float]
    """Time of the stages: sketch, weigh, combine, and a round's recheck."""
    history: tuple[float, ...] = ()
    """What a rule with a memory wants to be passed next round."""
    sketch: Sketch = Exact()
    """How the clients were looked at: what `sketch="auto"` chose, what was given, or a `Round`'s second look."""
    clients: tuple[Any, ...] = ()
    """Whose weights these are: indices, or the ids that were given to a `Round`, in order."""
    scores: Floats | None = None
    """How far each client lies from the weighted centre, (M,), as the sketch saw it: NaN if quarantined. None where the
    rule looked at no distances."""
    recheck_seed: int | None = None
    """What a `Round` drew at its close, to look at the chosen once more; None where nobody looked. It is `seed` too
    where that look was at all clients: then they are weighed by it."""

    @classmethod
    def of(
        cls,
        update: Any,
        rule: Rule | CoordinateWise,
        decision: Decision,
        clients: Updates,
        watch: Stopwatch,
        **told: Any,
    ) -> Aggregation:
        """What a decision on the clients that were left came to, told of all that were sent."""
        weights = np.zeros(clients.n_sent)
        weights[list(clients.clients)] = decision.weights
        return cls(
            update=update,
            weights=None if isinstance(rule, CoordinateWise) else weights,
            seconds=watch.laps,
            history=decision.history,
            clients=tuple(range(clients.n_sent)),
            **told,
        )

    def __repr__(self) -> str:
        trusted = (
            "" if self.weights is None else f", {np.count_nonzero(self.weights)} of {len(self.weights)} have weight"
        )
        spent = ", ".join(f"{stage} {seconds:.3g} s" for stage, seconds in self.seconds.items())
        return f"<Aggregation{trusted}, {len(self.quarantined)} quarantined; {spent}>"


@dataclass(frozen=True)
class Aggregator:
    """A rule and a sketch, to be called every round.

    >>> from bartizan import Krum, Rotated
    >>> pdr = Aggregator(Krum(n_byzantine=1), sketch=Rotated(k=64))
    >>> pdr(np.array([[1.0, 2.0], [1.1, 2.1], [1.0, 2.1], [0.9, 1.9], [-50.0, 70.0]])).weights[-1]
    np.float64(0.0)
    """

    rule: Rule | CoordinateWise
    sketch: Sketch | Literal["auto"] = Exact()

    def __post_init__(self) -> None:
        if not isinstance(self.rule, (Rule, CoordinateWise)):
            raise TypeError(
                f"rule must be a rule such as Krum(n_byzantine=5), got {quoted(self.rule)}.{_hint(self.rule)}"
            )
        auto = isinstance(self.sketch, str) and self.sketch == "auto"
        if not isinstance(self.sketch, Sketch) and not auto:
            raise TypeError(
                f"sketch must be a sketch such as Exact() or Rotated(k=4096), or 'auto'; got {quoted(self.sketch)}."
                f"{_hint(self.sketch)}"
            )
        if isinstance(self.rule, CoordinateWise) and not isinstance(self.sketch, Exact) and not auto:
            raise ValueError(
                f"{self.rule!r} can't be projected: it judges each coordinate by itself, and a random projection mixes "
                f"the coordinates. Use it with Exact(), or behind a pre-aggregator: NNM(...) >> {self.rule!r}."
            )

    def __call__(
        self,
        updates: Any,
        *,
        sizes: npt.ArrayLike | None = None,
        reference: Any = None,
        trusted: Any = None,
        seed: int | None = None,
        history: tuple[float, ...] = (),
        strict: bool = False,
        out: Any = None,
        memory: int | str | None = None,
        progress: Progress | None = None,
    ) -> Aggregation:
        """Aggregate one round of updates; see `aggregate` for the arguments."""
        if seed is not None:
            checked_seed(seed)
        watch = Stopwatch()
        if isinstance(self.rule, Rule):
            self.rule.check_trusted(trusted is not None)
        updates = opened(updates)
        column_pass = ColumnPass.of(memory, progress, written=() if out is None else arrays_of(out))
        clients = Updates.of(updates, reference=reference, trusted=trusted, strict=strict, column_pass=column_pass)
        S = client_sizes(sizes, clients.n_sent)
        sketch = self.sketch if isinstance(self.sketch, Sketch) else self._planned(clients)
        effective_sketch = self.effective_sketch(sketch)
        clients = prepared(clients, effective_sketch, out)

        column_pass.begin("sketch")
        # Not before all updates are here: `updates` may be a generator that is still waiting for some.
        seed = fresh_seed() if seed is None else checked_seed(seed)
        look = effective_sketch.gram_stats(clients, seed)
        return self.finish(clients, look, S, sketch, watch, seed=seed, history=history, strict=strict)

    def effective_sketch(self, sketch: Sketch) -> Sketch:
        """What looks at the clients: only at their norms where the rule wants no distances."""
        return sketch if self.rule.needs_distances else Norms()

    def finish(
        self,
        clients: Updates,
        look: GramStats,
        sizes: Floats,
        sketch: Sketch,
        watch: Stopwatch,
        *,
        seed: int,
        history: tuple[float, ...],
        strict: bool,
        recheck: bool = False,
    ) -> Aggregation:
        """Weigh and combine: what is left to do once all have been looked at."""
        clients, look = without_the_unfit(clients, look, strict)
        effective_sketch = self.effective_sketch(sketch)
        clients, look = without_the_hidden(clients, look, effective_sketch, strict)
        watch.lap("sketch")

        second = Recheck.of(effective_sketch) if recheck else None
        while True:
            kept = list(clients.clients)
            geometry = Geometry.from_stats(look, len(kept), sizes=sizes[kept], seed=seed, history=history)
            decision = decided(self.rule, geometry, clients)
            watch.lap("weigh")
            if second is None:
                break
            bad = second.found_out(self.rule, decision, geometry, clients)
            watch.lap("recheck")
            if not bad:
                break
            clients, look = without(clients, look, bad, strict)
        if second is not None and second.has_read(clients):
            # Nobody who sent could know this look, and it is paid for.
            geometry = second.geometry(clients, sizes=sizes[kept], history=history)
            decision, seed, sketch = decided(self.rule, geometry, clients), second.seed, RECHECK_SKETCH
            watch.lap("weigh")
        scores = scored(self.rule, geometry, decision, clients)

        clients.column_pass.begin("combine")
        if decision.coordinate_stage is None:
            update = clients.combine(decision.weights)
        else:
            update = clients.reduce(
                decision.coordinate_stage.reduce, decision.coordinate_stage.mixing, decision.weights
            )
        watch.lap("combine")

        told = {"quarantined": clients.quarantined, "scores": scores, "seed": seed, "sketch": sketch}
        second_seed = None if second is None else second.seed
        return Aggregation.of(update, self.rule, decision, clients, watch, **told, recheck_seed=second_seed)

    def round(
        self,
        seed: int | None = None,
        *,
        reference: Any = None,
        trusted: Any = None,
        history: tuple[float, ...] = (),
        strict: bool = False,
        spill: str | os.PathLike[str] | None = None,
        copy: bool = False,
        memory: int | str | None = None,
        recheck: bool = True,
    ) -> Round:
        """Open a round whose updates are added one by one, each sketched as it arrives; see `Round`."""
        from bartizan.round import Round

        return Round(
            self,
            seed,
            reference=reference,
            trusted=trusted,
            history=history,
            strict=strict,
            spill=spill,
            copy=copy,
            memory=memory,
            recheck=recheck,
        )

    def _planned(self, clients: Updates) -> Sketch:
        from bartizan.sketch.choose import sketch_for

        return sketch_for(clients, isinstance(self.rule, Rule) and self.rule.needs_distances)


def aggregate(
    updates: Any,
    rule: Rule | CoordinateWise,
    *,
    sketch: Sketch | Literal["auto"] = Exact(),
    sizes: npt.ArrayLike | None = None,
    reference: Any = None,
    trusted: Any = None,
    seed: int | None = None,
    history: tuple[float, ...] = (),
    strict: bool = False,
    out: Any = None,
    memory: int | str | None = None,
    progress: Progress | None = None,
) -> Aggregation:
    """One robust update from M clients' updates, of whom some may lie.

    Args:
        updates: One update a client: a 2-D array, or a list of arrays, of lists of arrays or of dicts of arrays (NumPy
            or torch, in host memory or on one CUDA device), or of paths (`pathlib.Path`) of files, which are mapped.
            Never modified, never copied whole.
        rule: Whom to trust, such as ``Krum(n_byzantine=5)`` or ``NNM(5) >> GeometricMedian()``.
        sketch: How to look at them; ``Rotated(k=4096)`` projects, the default does not, ``"auto"`` takes the faster.
        sizes: The clients' data sizes; each rule says what it makes of them.
        reference: The origin that distances and norms are taken from: the last global model where updates are whole
            weights. Zero if not given.
        trusted: An update that the server vouches for, for the rules that need one.
        seed: Of this round's randomness; fresh secret entropy if not given.
        history: What the last round's result held, for the rules that have a memory.
        strict: Raise on the first unfit client instead of quarantining it.
        out: A container like one update, whose arrays the result is written into; it is the result's `update`.
        memory: What may be held at a time, in bytes or as "512 MiB", pages of mapped files included: updates may be
            larger than RAM.
        progress: Called as progress(stage, done, total) after each block of columns; both count numbers.

    >>> from bartizan import GeometricMedian
    >>> out = aggregate([[1.0, 2.0], [1.0, 2.0], [-90.0, 7.0], [float("nan"), 0.0]], GeometricMedian())
    >>> out.update.tolist(), list(out.quarantined)
    ([1.0, 2.0], [3])
    """
    return Aggregator(rule, sketch)(
        updates,
        sizes=sizes,
        reference=reference,
        trusted=trusted,
        seed=seed,
        history=history,
        strict=strict,
        out=out,
        memory=memory,
        progress=progress,
    )


def _hint(came: Any) -> str:
    """What whoever passed this probably meant."""
    if isinstance(came, type):
        return f" That is the class: call it, as in {came.__name__}(...)."
    if isinstance(came, str):
        return f" By name: bartizan.rule({quoted(came)}, ...)."
    if isinstance(came, PreAggregator):
        return f" Put a rule behind it, as in {came!r} >> Mean()."
    return ""
