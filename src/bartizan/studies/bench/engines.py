"""Who is measured: each engine turns a rule and a problem into a job, or says that it has no such rule."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, fields
from typing import Any, Literal

from bartizan import registry as names
from bartizan._util.types import Floats
from bartizan.aggregate import Aggregator
from bartizan.rules import Rule
from bartizan.sketch import Exact, Sketch
from bartizan.studies.bench.problem import Problem


@dataclass(frozen=True, eq=False)
class Answer:
    """An engine's update, and its weights where it tells them."""

    update: Any
    weights: Floats | None = None


@dataclass(frozen=True)
class Job:
    """A call to be timed; what it is given is made anew each time, and making it is not timed."""

    run: Callable[[Any], Answer]
    given: Callable[[], Any] = lambda: None


class Engine(ABC):
    """One way to aggregate."""

    name: str
    sketch: str | None = None
    exact = True
    """Whether its answers must meet the rule's definition; otherwise they must be as near to the honest as it is."""

    @abstractmethod
    def job(self, rule: str, problem: Problem) -> Job | None:
        """The call for this rule, by name; None where the engine has no such rule."""

    @property
    def label(self) -> str:
        return self.name if self.sketch is None else f"{self.name} {self.sketch}"


class Bartizan(Engine):
    """The whole public call, from updates to update."""

    name = "bartizan"

    def __init__(self, sketch: str, how: Sketch | Literal["auto"]) -> None:
        self.sketch, self.how = sketch, how
        self.exact = isinstance(how, Exact)

    def job(self, rule: str, problem: Problem) -> Job:
        aggregator = Aggregator(rule_of(rule, problem.byzantine), self.how)

        def run(given: Any) -> Answer:
            result = aggregator(problem.x)
            return Answer(result.update, result.weights)

        return Job(run)


def ours(sketch: str) -> Bartizan:
    """bartizan with a sketch by its name, `rotated:8192` for another k than 4096."""
    name, _, k = sketch.partition(":")
    if name == "auto" and not k:
        return Bartizan("auto", "auto")
    kind = names.SKETCHES.find(name)
    if k and not k.isdecimal():
        raise ValueError(f"Wanted a sketch and its k, such as rotated:8192; got {sketch!r}.")
    return Bartizan(sketch, names.build(kind, {"k": int(k or 4096)}))


def rule_of(name: str, n_byzantine: int) -> Rule:
    """A rule by its name, told how many lie if it wants to know."""
    kinds = names.rule_classes(name)
    asked = any(field.name == "n_byzantine" for kind in kinds for field in fields(kind))
    try:
        rule = names.rule(name, **({"n_byzantine": n_byzantine} if asked else {}))
    except TypeError as wrong:
        raise ValueError(f"The benchmark can't set {name!r} up: {wrong}") from None
    if not isinstance(rule, Rule):
        raise ValueError(f"The benchmark compares rules that weigh clients; {name!r} works coordinate by coordinate.")
    if rule.needs_trusted:
        raise ValueError(f"{name!r} needs an update that the server vouches for, which the benchmark has not.")
    return rule
