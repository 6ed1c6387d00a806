"""Robust aggregation in four arrows; only the first and the last see p coordinates.

updates (M x p) --sketch--> (M x k) --geometry--> (M x M) --rule--> weights (M) --combine--> update (p)
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypedDict, TypeVar, Unpack, overload

import numpy as np
import numpy.typing as npt

from bartizan._util.stopwatch import Stopwatch
from bartizan._util.text import quoted
from bartizan._util.types import Array
from bartizan.errors import LostClients, NamedErrors
from bartizan.judge.judge import judge
from bartizan.measure import Exact, Projection, Sketch
from bartizan.rules.base import Rule
from bartizan.rules.coordinatewise import CoordinateWise
from bartizan.rules.preaggregators import PreAggregator
from bartizan.source import Aggregation, AnyRule, Source
from bartizan.sources.local import open_updates
from bartizan.updates import Progress

if TYPE_CHECKING:
    from torch import Tensor

    from bartizan.buffer import Buffer
    from bartizan.round import Round
    from bartizan.sources.committed.committed_round import CommittedRound

U = TypeVar("U")
D = TypeVar("D", bound=np.generic)


@dataclass(frozen=True, init=False)
class Aggregator:
    """A rule and a sketch, to be called every round; with `n_byzantine` and no rule, the default rule.

    >>> import numpy as np
    >>> from bartizan import Krum
    >>> pdr = Aggregator(Krum(n_byzantine=1), sketch="rotated")
    >>> pdr(np.array([[1.0, 2.0], [1.1, 2.1], [1.0, 2.1], [0.9, 1.9], [-50.0, 70.0]])).weights[-1]
    np.float64(0.0)
    """

    rule: AnyRule
    """A rule; may be given as in `aggregate`: by its name, by `n_byzantine` alone, or by both."""
    sketch: Sketch | str
    """A sketch, its name, or "auto", the faster of `Exact()` and `Rotated()`."""

    def __init__(
        self, rule: AnyRule | str | None = None, sketch: Sketch | str = "auto", *, n_byzantine: int | None = None
    ) -> None:
        object.__setattr__(self, "rule", rule_of(rule, n_byzantine))
        object.__setattr__(self, "sketch", sketch_of(sketch))
        if isinstance(self.rule, CoordinateWise) and not (self.sketch == "auto" or isinstance(self.sketch, Exact)):
            raise ValueError(
                f"{self.rule!r} can't be projected: it judges each coordinate by itself, and a random projection mixes "
                f"the coordinates. Use it with Exact(), or behind a pre-aggregator: NNM(...) >> {self.rule!r}."
            )

    @overload
    def __call__(self, updates: npt.NDArray[D], **options: Unpack[Options]) -> Aggregation[npt.NDArray[D]]: ...
    @overload
    def __call__(self, updates: Tensor, **options: Unpack[Options]) -> Aggregation[Tensor]: ...
    @overload
    def __call__(self, updates: Mapping[Any, Path | str], **options: Unpack[Options]) -> Aggregation[Any]: ...
    @overload
    def __call__(self, updates: Mapping[Any, Sequence[float]], **options: Unpack[Options]) -> Aggregation[Array]: ...
    @overload
    def __call__(self, updates: Mapping[Any, U], **options: Unpack[Options]) -> Aggregation[U]: ...
    @overload
    def __call__(self, updates: Iterable[Path | str], **options: Unpack[Options]) -> Aggregation[Any]: ...
    @overload
    def __call__(self, updates: Iterable[Sequence[float]], **options: Unpack[Options]) -> Aggregation[Array]: ...
    @overload
    def __call__(self, updates: Iterable[U], **options: Unpack[Options]) -> Aggregation[U]: ...

    def __call__(self, updates: Any, **options: Unpack[Options]) -> Aggregation[Any]:
        """Aggregate one round of updates; see `aggregate` for the arguments."""
        return aggregate(updates, self.rule, sketch=self.sketch, **options)

    def round(self, seed: int | None = None, **options: Unpack[RoundOptions]) -> Round[Any]:
        """Open a round whose updates are added one by one, each sketched as it arrives; see `Round`."""
        from bartizan.round import Round

        return Round(self, seed, **options)

    def buffer(self, size: int, **options: Unpack[BufferOptions]) -> Buffer[Any]:
        """Open a buffer of updates from any model version, judged `size` at a time without a barrier; see `Buffer`."""
        from bartizan.buffer import Buffer

        return Buffer(self, size, **options)

    def committed_round(self, like: Any, *, expected: Iterable[str], **options: Any) -> CommittedRound:
        """Open a round to which clients commit, and only those with weight send their updates; see `CommittedRound`."""
        from bartizan.sources.committed.committed_round import CommittedRound

        return CommittedRound(self, like, expected=expected, **options)


@overload
def aggregate(
    updates: npt.NDArray[D], rule: AnyRule | str | None = ..., **options: Unpack[Choices]
) -> Aggregation[npt.NDArray[D]]: ...
@overload
def aggregate(updates: Tensor, rule: AnyRule | str | None = ..., **options: Unpack[Choices]) -> Aggregation[Tensor]: ...
@overload
def aggregate(
    updates: Mapping[Any, Path | str], rule: AnyRule | str | None = ..., **options: Unpack[Choices]
) -> Aggregation[Any]: ...
@overload
def aggregate(
    updates: Mapping[Any, Sequence[float]], rule: AnyRule | str | None = ..., **options: Unpack[Choices]
) -> Aggregation[Array]: ...
@overload
def aggregate(
    updates: Mapping[Any, U], rule: AnyRule | str | None = ..., **options: Unpack[Choices]
) -> Aggregation[U]: ...
@overload
def aggregate(
    updates: Iterable[Path | str], rule: AnyRule | str | None = ..., **options: Unpack[Choices]
) -> Aggregation[Any]: ...
@overload
def aggregate(
    updates: Iterable[Sequence[float]], rule: AnyRule | str | None = ..., **options: Unpack[Choices]
) -> Aggregation[Array]: ...
@overload
def aggregate(updates: Iterable[U], rule: AnyRule | str | None = ..., **options: Unpack[Choices]) -> Aggregation[U]: ...


def aggregate(
    updates: Any,
    rule: AnyRule | str | None = None,
    *,
    n_byzantine: int | None = None,
    sketch: Sketch | str = "auto",
    sizes: npt.ArrayLike | Mapping[Any, float] | None = None,
    reference: Any = None,
    trusted: Any = None,
    seed: int | None = None,
    history: tuple[float, ...] = (),
    strict: bool = False,
    out: Any = None,
    memory: int | str | None = None,
    progress: Progress | None = None,
) -> Aggregation[Any]:
    """Return one robust update from the updates of M clients, of which some may be Byzantine.

    Args:
        updates: One update per client: a 2-D array, or a list of arrays, of lists of arrays or of dicts of arrays
            (NumPy, torch or any with DLPack, such as JAX's, in host memory or on one CUDA device), or of paths
            (`pathlib.Path`) and addresses ("s3://...") of files and folders, which `bartizan.files.open_update` opens.
            They are never modified and never copied whole. Arrays must not change during the call; a client whose file
            changes between measuring and summing is quarantined. A dict of such updates by client id, most of them in
            one form, counts as the list of its values, and the result's `clients` are its keys. A state dict, which is
            one update, is refused; but one without torch's metadata whose entries have one shape passes for clients.
        rule: Turns distances into weights, such as ``Krum(n_byzantine=5)`` or ``NNM(5) >> GeometricMedian()``; or its
            name, such as "median" or "nnm >> geometric-median". If left out, the default rule for `n_byzantine`
            attackers, which the result's `rule` names.
        n_byzantine: The most Byzantine clients to withstand, for the default rule or a rule given by name; at least
            2 n_byzantine + 1 clients must take part. A rule that is an object has its own.
        sketch: Projects the updates before distances are taken: ``Rotated(k=4096)``, or its name, ``"rotated"``;
            ``Exact()`` does not project. ``"auto"`` is the faster of these two, and the result's `sketch` says which.
        sizes: The clients' data sizes, from 2^-64 to 2^64; each rule says how it uses them. For a dict of clients they
            may be a dict by id.
        reference: The origin of distances and norms: the last global model where updates are whole weights, or its
            path or address. Zero if not given.
        trusted: An update of the server's own, for the rules that need one.
        seed: Seed of this round's randomness; fresh secret entropy if not given.
        history: The `history` of the last round's result, for the rules that have a memory.
        strict: Raise on the first client that can't take part, instead of quarantining it.
        out: A container like one update, whose arrays the result is written into; it is the result's `update`. It must
            not share memory with any of the updates, the reference or the trusted update.
        memory: The most memory to use at a time, in bytes or as "512 MiB", pages of mapped files included: updates may
            be larger than RAM.
        progress: Called as progress(stage, done, total) after each block of columns; both count numbers.

    >>> from bartizan import GeometricMedian
    >>> out = aggregate([[1.0, 2.0], [1.0, 2.0], [-90.0, 7.0], [float("nan"), 0.0]], GeometricMedian())
    >>> out.update.tolist(), list(out.quarantined)
    ([1.0, 2.0], [3])
    >>> aggregate([[1.0, 2.0], [1.0, 2.0], [-90.0, 7.0]], n_byzantine=1).rule
    ARC(n_byzantine=1) >> CAF(n_byzantine=1)
    """
    watch, aggregator = Stopwatch(), Aggregator(rule, sketch, n_byzantine=n_byzantine)
    aggregator.rule.check_trusted(trusted is not None)
    with NamedErrors(list(updates), {}) if isinstance(updates, Mapping) else nullcontext():
        source = open_updates(
            updates,
            sizes=sizes,
            reference=reference,
            trusted=trusted,
            strict=strict,
            out=out,
            memory=memory,
            progress=progress,
        )
        return run(source, aggregator, seed, history=history, watch=watch)


def run(
    source: Source,
    aggregator: Aggregator,
    seed: int | None = None,
    *,
    history: tuple[float, ...] = (),
    recheck: Projection | None = None,
    watch: Stopwatch | None = None,
    result: type[Aggregation[Any]] = Aggregation,
) -> Aggregation[Any]:
    """Measure, judge and combine the updates of a source: every entry comes here."""
    rule, watch = aggregator.rule, watch or Stopwatch()
    sketch, seed = source.settle(rule, aggregator.sketch, seed)
    if problem := source.refuses(rule, sketch):
        raise ValueError(problem)
    measured = source.measure(sketch, seed)
    while True:
        try:
            judgement = judge(source, measured, rule, history=history, recheck=recheck, watch=watch)
            combined = source.combine(judgement)
            break
        except LostClients as lost:
            source.roster, measured = source.roster.without(lost.reasons), measured.without(lost.reasons)
    watch.lap("combine")
    return result.of(combined, judgement, source.roster, watch.laps)


class Options(TypedDict, total=False):
    """Types of the keyword arguments of `aggregate` for its overloads."""

    sizes: npt.ArrayLike | Mapping[Any, float] | None
    reference: Any
    trusted: Any
    seed: int | None
    history: tuple[float, ...]
    strict: bool
    out: Any
    memory: int | str | None
    progress: Progress | None


class ArrivalOptions(TypedDict, total=False):
    """Types of the keyword arguments that `Round` and `Buffer` share."""

    history: tuple[float, ...]
    strict: bool
    spill: str | os.PathLike[str] | None
    folder: str | os.PathLike[str] | None
    copy: bool
    memory: int | str | None
    recheck: bool


class RoundOptions(ArrivalOptions, total=False):
    """Types of the keyword arguments of `Round`."""

    reference: Any
    trusted: Any


class BufferOptions(ArrivalOptions, total=False):
    """Types of the keyword arguments of `Buffer`."""

    staleness: str | Callable[[int], float] | None
    max_staleness: int
    remember: bool | int
    sum_remembered: bool
    max_age: int
    model: Any
    seed: int | None
    epoch: int


class Choices(Options, total=False):
    """Types of the keyword arguments in `Options`, and of those that choose the rule and the sketch."""

    n_byzantine: int | None
    sketch: Sketch | str


def rule_of(rule: Any, n_byzantine: int | None = None) -> AnyRule:
    """Return a rule as it is, one by its name, with `n_byzantine` if given, or the default rule for it."""
    if isinstance(rule, (Rule, CoordinateWise)):
        if n_byzantine is not None:
            raise TypeError(f"Pass a rule or n_byzantine, got {rule!r} and n_byzantine={quoted(n_byzantine)}.")
        return rule
    if not (rule is None or isinstance(rule, str)):
        raise TypeError(f"rule must be a rule such as Krum(n_byzantine=5), got {quoted(rule)}.{_hint(rule)}")
    whole = isinstance(n_byzantine, (int, np.integer)) and not isinstance(n_byzantine, bool)
    if n_byzantine is not None and not (whole and n_byzantine >= 0):
        raise ValueError(f"n_byzantine must be a whole number from 0 up, got {quoted(n_byzantine)}.")
    from bartizan import registry

    known = {} if n_byzantine is None else {"n_byzantine": n_byzantine}
    if rule is None and not known:
        raise TypeError(
            "Pass n_byzantine=5 for the default rule, or a rule such as Krum(n_byzantine=5) or 'median'; got neither."
        )
    if rule is not None and known and "n_byzantine" not in registry.settings_of_rule(rule):
        raise TypeError(f"rule={quoted(rule)} takes no n_byzantine: leave it out.")
    try:
        return registry.default_rule(**known) if rule is None else registry.rule(rule, **known)
    except TypeError as wrong:
        name, other = quoted(rule), "other " if known else ""
        raise TypeError(f"rule={name} needs {other}settings: pass bartizan.rule({name}, ...). {wrong}") from None


def sketch_of(sketch: Any) -> Sketch | str:
    """Return a sketch as it is, one by its name, or "auto"."""
    if isinstance(sketch, Sketch) or (isinstance(sketch, str) and sketch == "auto"):
        return sketch
    if isinstance(sketch, str):
        return _named_sketch(sketch)
    raise TypeError(
        f"sketch must be a sketch such as Exact() or Rotated(k=4096), its name, or 'auto'; got {quoted(sketch)}."
        f"{_hint(sketch)}"
    )


@lru_cache(maxsize=16)
def _named_sketch(name: str) -> Sketch:
    """Return a sketch by its name, looked up once: small rounds are called often."""
    from bartizan import registry

    return registry.sketch(name)


def _hint(given: Any) -> str:
    """Return a hint at the right argument, for an error message."""
    if isinstance(given, type):
        return f" That is the class: call it, as in {given.__name__}(...)."
    if isinstance(given, int):
        return f" For the default rule pass n_byzantine={given}."
    return f" Put a rule behind it, as in {given!r} >> Mean()." if isinstance(given, PreAggregator) else ""
