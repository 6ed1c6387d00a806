"""Engines to be measured: each turns a rule and a problem into a call."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

from bartizan import registry as names
from bartizan._util.types import Floats
from bartizan.aggregate import Aggregator
from bartizan.rules.base import CoordinateWise, Rule
from bartizan.sketch import Exact, Sketch
from studies.rules_by_name import rule_named
from studies.speed.problem import Problem

Rules = dict[str, Callable[[Any], Any]]
"""Calls by rule: prepared updates -> aggregated update."""


@dataclass(frozen=True, eq=False)
class Answer:
    """An engine's update, and its weights if it returns them."""

    update: Any
    weights: Floats | None = None


@dataclass(frozen=True)
class Job:
    """A call to be timed; its input is prepared anew each time, which is not timed."""

    run: Callable[[Any], Answer]
    prepare: Callable[[], Any] = lambda: None


class Engine:
    """One way to aggregate."""

    name: str
    sketch: str | None = None
    exact = True
    """Whether answers must meet the rule's definition; others must be as close to the honest mean as it is."""

    def rules(self, problem: Problem) -> Rules:
        """Return the rules that the engine has for this problem."""
        return {}

    def prepare(self, problem: Problem) -> Any:
        """Return the updates in the form that the rules take: one tensor."""
        return problem.tensor()

    def job(self, rule: str, problem: Problem) -> Job | None:
        """Return the call for a rule; None where the engine has no such rule."""
        call = self.rules(problem).get(rule)
        return None if call is None else Job(lambda x: Answer(call(x)), lambda: self.prepare(problem))

    @property
    def label(self) -> str:
        return self.name if self.sketch is None else f"{self.name} {self.sketch}"


class Bartizan(Engine):
    """bartizan's public call, from updates to update, with a named sketch; `rotated:8192` has another k than 4096."""

    name = "bartizan"

    how: Sketch | Literal["auto"]

    def __init__(self, sketch: str) -> None:
        name, _, k = sketch.partition(":")
        if k and not k.isdecimal():
            raise ValueError(f"Wanted a sketch and its k, such as rotated:8192; got {sketch!r}.")
        self.sketch, self.how = sketch, "auto"
        if sketch != "auto":
            self.how = names.build(names.SKETCHES.find(name), {"k": int(k or 4096)})
        self.exact = isinstance(self.how, Exact)

    def job(self, rule: str, problem: Problem) -> Job | None:
        built = rule_of(rule, problem.byzantine)
        if isinstance(built, CoordinateWise) and not (self.exact or self.how == "auto"):
            return None
        aggregator = Aggregator(built, self.how)
        combines = not issubclass(names.rule_classes(rule)[-1], CoordinateWise)  # else the weights stand before a stage

        def run(updates: Any) -> Answer:
            result = aggregator(updates)
            return Answer(result.update, result.weights if combines else None)

        return Job(run, lambda: problem.x)


def rule_of(name: str, n_byzantine: int) -> Rule | CoordinateWise:
    """Return a named rule, with the number of attackers if it takes one."""
    try:
        rule = rule_named(name, n_byzantine)
    except TypeError as wrong:
        raise ValueError(f"The benchmark can't set {name!r} up: {wrong}") from None
    if rule.needs_trusted:
        raise ValueError(f"{name!r} needs a trusted update of the server, which the benchmark does not have.")
    return rule
