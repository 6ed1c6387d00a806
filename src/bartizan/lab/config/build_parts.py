"""Build the rule, the sketch and the attack of an experiment from their names, and check them before it runs."""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from bartizan import registry as names
from bartizan.aggregate import Aggregator
from bartizan.attacks import needs
from bartizan.attacks.by_name import ATTACKS, POISONS, attack, poison
from bartizan.errors import TooFewClientsError
from bartizan.lab.config.choices import CHOICES, ChosenPart
from bartizan.lab.config.keys import ConfigError, shown
from bartizan.lab.data.loaders import DATASETS
from bartizan.lab.data.partition import SPLITS
from bartizan.lab.models.networks import MODELS
from bartizan.measure import Exact, Rotated, Sketch
from bartizan.rules import Rule
from bartizan.rules.coordinatewise import CoordinateWise
from bartizan.sources.adapters import TwoSided
from bartizan.sources.adapters.adapters import refusal_of

if TYPE_CHECKING:
    from bartizan.buffer import Buffer
    from bartizan.lab.config.experiment import Experiment

MAX_AGE = 1000  # versions of a buffer: the laboratory's clients are slow, and not dead


def check(experiment: Experiment) -> None:
    """Build every part that needs no data, so that wrong names and settings raise before training."""
    m, n = experiment.clients.taking_part, n_judged(experiment)
    rule = _in_section("rule", lambda: rule_for(experiment.rule, n, min(experiment.clients.n_byzantine, n))[0])
    sketch = _in_section("sketch", lambda: sketch_of(experiment))
    attacker = _in_section("attack", lambda: attack_of(experiment.attack))
    known = needs(attacker) if callable(attacker) else frozenset()
    if experiment.model.adapters:
        if why := refusal_of(rule):
            given = {"name": experiment.rule.name, **experiment.rule.settings}
            key = next((key for key in ("trim", "noise") if given.get(key)), "name")
            another = "take a rule that only weighs the clients, such as 'nnm >> geometric-median'"
            remedy = another if key == "name" else "leave it out"
            raise ConfigError(f"rule.{key} = {shown(given[key])} {why}: {remedy}.")
        products = "and model.adapters compares products of factors: take"
        if not isinstance(sketch, (Exact, TwoSided)):
            raise ConfigError(
                f"sketch.name = {experiment.sketch.name!r} projects vectors, {products} 'exact' or 'rotated'."
            )
        if "sketch" in known:
            raise ConfigError(
                f"attack.name = {experiment.attack.name!r} aims at projected vectors, {products} another attack."
            )
    if "exact_weights" in known:  # tries the rule on the geometry of the clients alone
        weighs = isinstance(rule, Rule) and not rule.ends_coordinate_wise() and not rule.needs_trusted
        if not weighs or experiment.rule.name == "centered-clipping" or experiment.model.adapters:
            raise ConfigError(
                f"attack.name = {experiment.attack.name!r} needs a rule that weighs the clients by their distances "
                f"alone, and a model without adapters; got rule.name = {experiment.rule.name!r}. "
                "Take another rule or attack."
            )
    if isinstance(rule, CoordinateWise) and experiment.sketch.name != "exact":
        raise ConfigError(
            f"rule.name = {experiment.rule.name!r} judges each coordinate by itself, and a projection mixes them: "
            "it needs sketch.name = 'exact', or a pre-aggregator in front, such as 'nnm >> median'."
        )
    Aggregator(rule, sketch)
    honest = experiment.clients.count - experiment.clients.n_byzantine
    copied = experiment.attack.settings.get("client") if experiment.attack.name == "mimic" else None
    if copied is not None and (copied >= honest or m < experiment.clients.count):
        raise ConfigError(
            f"attack.client is a row of the honest updates, 0 to {honest - 1}, and one client only if all take part; "
            f"got {copied}, and clients.participation = {experiment.clients.participation}."
        )
    if experiment.server.buffer:
        if experiment.model.adapters:
            raise ConfigError("server.buffer is for whole models: leave model.adapters out.")
        _in_section("server", lambda: buffer_of(experiment))
    _in_section("split", lambda: names.build(SPLITS[experiment.split.name], experiment.split.settings))
    if experiment.data.name not in DATASETS.built_in:
        _in_section("data", lambda: DATASETS.find(experiment.data.name))
    if experiment.model.name not in MODELS.built_in:  # those would import torch
        _in_section("model", lambda: MODELS.find(experiment.model.name))


def n_judged(experiment: Experiment) -> int:
    """Return how many clients the rule sees: those of a round, of a buffer, or all where a buffer remembers them."""
    given, clients = experiment.server, experiment.clients
    if not given.buffer:
        return clients.taking_part
    return clients.count if given.remember != "no" else given.buffer


def buffer_of(experiment: Experiment, seed: int = 0) -> tuple[Buffer[Any], str]:
    """Return the buffer of an experiment with `server.buffer`, and a note if its rule's n_byzantine was lowered.

    Its rule withstands all attackers, and each judgement has a seed: a run that is resumed must find the same.
    """
    given, clients = experiment.server, experiment.clients
    if given.buffer > clients.count:
        raise ConfigError(f"server.buffer = {given.buffer} is more than clients.count = {clients.count}.")
    rule, note = rule_for(experiment.rule, n_judged(experiment), clients.n_byzantine)
    more: dict[str, Any] = {"max_staleness": MAX_AGE, "max_age": MAX_AGE, "seed": seed, "epoch": 1, "recheck": False}
    buffer = Aggregator(rule, sketch_of(experiment)).buffer(
        given.buffer,
        staleness=None if given.staleness == "none" else given.staleness,
        remember=given.remember != "no",
        sum_remembered=given.remember == "sum",
        **more,
    )
    return buffer, note


def sketch_of(experiment: Experiment) -> Sketch:
    """Return the experiment's sketch; for adapters `rotated` stands for their own projection to k numbers."""
    chosen = experiment.sketch
    made: Sketch = names.build(CHOICES["sketch"].registry.find(chosen.name), chosen.settings)
    if experiment.model.adapters and isinstance(made, Rotated):
        return TwoSided(made.k, min(made.k, TwoSided.rows))
    return made


def attack_of(chosen: ChosenPart) -> Any:
    """Return a function of the honest updates, or a data poisoning; None if nobody attacks."""
    if chosen.name == "none":
        return None
    make = poison if isinstance((ATTACKS | POISONS).find(chosen.name), type) else attack
    return make(chosen.name, **chosen.settings)


def is_coordinatewise(rule: Any) -> bool:
    """Return whether a section [rule] names a coordinate-wise rule, which can't be projected."""
    try:
        kinds = names.rule_classes(CHOICES["rule"].of(rule).name)
    except ValueError:  # refused where the experiment is checked
        return False
    return len(kinds) == 1 and issubclass(kinds[0], CoordinateWise)


@lru_cache(maxsize=1024)
def rule_for(chosen: ChosenPart, n_clients: int, n_byzantine: int) -> tuple[Rule | CoordinateWise, str]:
    """Return the rule for a round of so many clients and attackers, and a note if its n_byzantine was lowered.

    A rule with n_byzantine gets the true number, or the most that it can take with so many clients.
    """
    name, settings = chosen.name, chosen.settings
    if "n_byzantine" in settings or "n_byzantine" not in CHOICES["rule"].settings(name):
        rule = names.rule(name, **settings)
        rule.check(n_clients)
        return rule, ""
    too_few: TooFewClientsError | None = None
    for f in range(n_byzantine, -1, -1):
        try:
            rule = names.rule(name, n_byzantine=f, **settings)
            rule.check(n_clients)
        except TooFewClientsError as wrong:
            too_few = too_few or wrong
            continue
        lowered = f"{name} has n_byzantine={f}, not {n_byzantine}: with {n_clients} clients it can take no more."
        return rule, lowered if f < n_byzantine else ""
    raise too_few or TooFewClientsError(f"{name} can't be used with {n_clients} clients.")


def _in_section(section: str, build: Callable[[], Any]) -> Any:
    try:
        return build()
    except (ValueError, TypeError) as wrong:
        raise ConfigError(f"[{section}] {wrong}") from None
