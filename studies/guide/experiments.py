"""The experiments behind the guide to rules: step sizes, a screen of all rules, the grid, and checks on other data."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from bartizan import registry
from bartizan.lab.config.build_parts import rule_for
from bartizan.lab.config.choices import CHOICES
from bartizan.lab.config.experiment import Experiment

Settings = Mapping[str, Any]
N_CLIENTS, N_ATTACKERS = 50, 15

BASE: Settings = {
    "rounds": 100,
    "device": "cpu",
    "data.name": "fashion-mnist-mini",
    "model.name": "cnn",
    "clients.count": N_CLIENTS,
    "clients.byzantine": N_ATTACKERS,
    "clients.batch": 16,
    "server.by_size": False,
    "server.schedule": "cosine",
    "sketch.name": "exact",
    "evaluation.every": 10,
    "evaluation.exact_weights": False,
}
TEXT: Settings = {
    "rounds": 120,
    "data.name": "sotu-mini",
    "split.kind": "natural",
    "model.name": "transformer",
    "clients.count": 20,
    "clients.byzantine": 6,
    "clients.batch": 8,
    "server.optimiser": "prodigy",
    "server.schedule": "constant",
    "evaluation.every": 20,
}
PROTOCOLS: dict[str, tuple[Settings, str]] = {
    "server momentum": ({"server.optimiser": "momentum"}, "server.step_size"),
    "client momentum": ({"clients.worker_momentum": 0.9, "server.optimiser": "sgd"}, "server.step_size"),
    "five local steps": (
        {"clients.work": "steps", "clients.local": 5, "server.optimiser": "sgd", "rounds": 40, "evaluation.every": 4},
        "clients.step_size",
    ),
    "cifar10": ({"data.name": "cifar10", "server.optimiser": "momentum", "rounds": 200}, "server.step_size"),
}
"""Settings, and the key of the step size."""
CANDIDATES = {
    "server momentum": (0.015, 0.03, 0.06, 0.1),
    "client momentum": (0.15, 0.3, 0.6, 1.0),
    "five local steps": (0.03, 0.06, 0.12, 0.25),
    "cifar10": (0.015, 0.03, 0.06, 0.1),
}
STEP_SIZES = {"server momentum": 0.06, "client momentum": 0.6, "five local steps": 0.06, "cifar10": 0.06}
"""The best on validation images without attack, by the mean; a test compares with the kept rows."""
BETAS: dict[str, Settings] = {
    "beta 0.1": {"split.kind": "dirichlet", "split.beta": 0.1},
    "beta 0.6": {"split.kind": "dirichlet", "split.beta": 0.6},
    "iid": {"split.kind": "iid"},
}
FEWER: Settings = {"clients.byzantine": 5}
ATTACKS = (
    *("none", "sign-flip", "foe", "lie", "alie-over-time", "min-max", "ipm", "mimic", "label-flip"),
    *("optimised-alie", "optimised-ipm"),
)
SCREEN_ATTACKS = ("label-flip", "lie", "min-max", "ipm", "alie-over-time", "mimic", "sign-flip", "none")
"""In the order of the screen: those that most rules do worst under come first."""
LIKELY = ("arc >> caf", "caf", "flame", "arc >> flame", "nnm >> geometric-median")
"""Five rules that meet all attacks of the screen before others do."""
FEW_ATTACKS = ("none", "sign-flip", "alie-over-time", "min-max", "ipm", "label-flip")
FEW_RULES: tuple[Settings, ...] = tuple(
    {"name": name} for name in ("mean", "geometric-median", "arc >> caf", "caf", "flame", "nnm >> geometric-median")
)
"""What the slices compare: the rules that the choice is among, the mean, and one rule of the paper."""
TEXT_ATTACKS = ("none", "sign-flip", "lie", "alie-over-time", "min-max", "ipm")
FRONTS = ("", "arc >> ", "nnm >> ", "norm-filter >> ")
PAPER: tuple[Settings, ...] = (
    {"name": "krum"},
    {"name": "geometric-median"},
    {"name": "mca", "start": "mean"},
    {"name": "multi-krum"},
)
PROJECTED: Settings = {
    **BETAS["beta 0.6"],
    "rounds": 40,
    "data.name": "fashion-mnist",
    "model.name": "mlp",
    "server.optimiser": "momentum",
    "server.step_size": 0.05,
    "evaluation.exact_weights": True,
}
HOLDING: Mapping[str, Sequence[str]] = {
    "arc >> caf": ("edge-riding", "min-max", "sign-flip", "ipm"),
    "multi-krum": ("edge-riding", "min-max", "sign-flip"),
    "nnm >> geometric-median": ("edge-riding", "min-max", "sign-flip"),
    "flame": ("ipm",),
}
"""Rules, and attacks under which they learn with exact distances, chosen on one seed.

Under IPM the second ended at 10% and the third at 35%, where the mean without attack ends at 69%. What the last sees
of a reversed mean is its angle alone, so that it has no edge to ride.
"""
EXACT: Settings = {"name": "exact"}
ROTATED: tuple[Settings, ...] = tuple({"name": "rotated", "k": k} for k in (4096, 1024, 256, 64))
CONTROL: Settings = {"name": "gaussian", "k": 2}
PLACEBO: Settings = {"name": "rotated", "k": 2**21}
"""An isometry of 1.07 million coordinates: they fill less than one block."""
CNN: Settings = {**PROJECTED, "model.name": "cnn", "split.kind": "client-dirichlet", "clients.batch": 32, "rounds": 60}
HIDING = ("lie", "alie", "ipm", "min-max")
FINALISTS = ("arc >> caf", "caf", "norm-filter >> caf", "flame", "arc >> flame")
"""The five best of the screen; a test compares with the kept rows. The last has the same ends as the fourth."""
PROVEN = "nnm >> geometric-median"
"""The rule that the guide takes where a proof is wanted: compared in place of the last finalist."""
SEEDS = range(5)
SLICES: dict[str, tuple[str, Settings]] = {
    "momentum at the clients": ("client momentum", BETAS["beta 0.1"]),
    "five local steps": ("five local steps", BETAS["beta 0.1"]),
    "Dirichlet 0.6": ("server momentum", BETAS["beta 0.6"]),
    "iid": ("server momentum", BETAS["iid"]),
    "5 attackers": ("server momentum", {**BETAS["beta 0.1"], **FEWER}),
    "weighed by data": ("server momentum", {**BETAS["beta 0.1"], "server.by_size": True}),
}
"""What differs from the grid's setting: 15 attackers of 50 clients that count alike, Dirichlet 0.1, server momentum."""


def step_sizes() -> Iterator[Settings]:
    """Yield the runs that choose the step sizes: the mean without attack, tested on images held out of training."""
    for name, (settings, key) in PROTOCOLS.items():
        for beta, step, seed in itertools.product(("beta 0.1", "beta 0.6"), CANDIDATES[name], (100, 101)):
            own = {"data.validation": 0.2, "rule": {"name": "mean"}, "attack.name": "none", "seed": seed}
            yield {**settings, **BETAS[beta], **own, key: step}


def convergence() -> Iterator[Settings]:
    """Yield the mean without attack for as many rounds as the grid has, and for twice as many."""
    for name, factor, seed in itertools.product(PROTOCOLS, (1, 2), range(3)):
        rounds = factor * PROTOCOLS[name][0].get("rounds", BASE["rounds"])
        yield {**_protocol(name), **BETAS["beta 0.1"], **_cell({"name": "mean"}, "none", seed), "rounds": rounds}


def screen() -> Iterator[Settings]:
    """Yield one seed of all rules that need no trusted update, alone and behind three pre-aggregators."""
    for rule, attack in itertools.product(screened_rules(), SCREEN_ATTACKS):
        yield {**_protocol("server momentum"), **BETAS["beta 0.1"], **_cell({"name": rule}, attack, 0)}


def still_open(cells: Iterator[Settings], ends: Mapping[tuple[str, str], float]) -> list[Settings]:
    """Return the cells of the screen to run next, given the ends of those that were run, by rule and attack.

    That is the next attack for each rule, until its worst end is below that of the fifth best rule which has met all
    attacks. This finds the same five as running all, and its first rules are those that probably are among them.
    """
    by_rule: dict[str, list[str]] = {}
    settings = {(cell["rule"]["name"], cell["attack"]["name"]): cell for cell in cells}
    for rule, attack in settings:
        by_rule.setdefault(rule, []).append(attack)
    attacked = {
        rule: [ends[rule, one] for one in by_rule[rule] if one != "none" and (rule, one) in ends] for rule in by_rule
    }
    left = {rule: [one for one in by_rule[rule] if (rule, one) not in ends] for rule in by_rule}
    worst = sorted((min(attacked[rule]) for rule in by_rule if not left[rule]), reverse=True)
    if first := [rule for rule in LIKELY if left.get(rule)]:
        return [settings[rule, one] for rule in first for one in left[rule]]
    limit = worst[len(LIKELY) - 1] if len(worst) >= len(LIKELY) else -1.0
    return [
        settings[rule, left[rule][0]] for rule in by_rule if left[rule] and min(attacked[rule], default=1.0) >= limit
    ]


def screened_rules() -> list[str]:
    """Return the names of the rules that admit 15 attackers among 50 clients."""
    found = []
    for front, name in itertools.product(FRONTS, [*registry.RULES.built_in, *registry.COORDINATEWISE.built_in]):
        if (front and name == "mean") and front != "arc >> ":
            continue  # not robust
        try:
            rule, lowered = rule_for(CHOICES["rule"].of({"name": front + name}), N_CLIENTS, N_ATTACKERS)
        except ValueError:
            continue
        if not (lowered or rule.needs_trusted):
            found.append(front + name)
    return found


def grid() -> Iterator[Settings]:
    """Yield five seeds of all compared rules under all attacks, where clients differ most."""
    for seed, rule, attack in itertools.product(SEEDS, compared(), ATTACKS):
        yield {**_protocol("server momentum"), **BETAS["beta 0.1"], **_cell(rule, attack, seed)}


def slices() -> Iterator[Settings]:
    """Yield three seeds of fewer rules under fewer attacks, each time with one setting changed."""
    for seed, (protocol, own) in itertools.product(range(3), SLICES.values()):
        for rule, attack in itertools.product(FEW_RULES, FEW_ATTACKS):
            yield {**_protocol(protocol), **own, **_cell(rule, attack, seed)}


def other() -> Iterator[Settings]:
    """Yield what no choice was made on: two more seeds of the hardest slice, and two of CIFAR-10."""
    for seed, rule, attack in itertools.product((5, 6), FEW_RULES, ATTACKS):
        yield {**_protocol("server momentum"), **BETAS["beta 0.1"], **_cell(rule, attack, seed)}
    for seed, rule, attack in itertools.product(range(2), FEW_RULES, FEW_ATTACKS):
        yield {**_protocol("cifar10"), **BETAS["beta 0.6"], **_cell(rule, attack, seed)}


def text() -> Iterator[Settings]:
    """Yield three seeds on text, whose clients are the speakers."""
    for seed, rule, attack in itertools.product(range(3), FEW_RULES, TEXT_ATTACKS):
        yield {**TEXT, **_cell(rule, attack, seed)}


def projection() -> Iterator[Settings]:
    """Yield five seeds of rules that hold, by sketches of a 260th of the coordinates and less."""
    cells = [(rule, attack, one) for rule in HOLDING for attack in HOLDING[rule] for one in (EXACT, *ROTATED)]
    for rule in list(HOLDING)[:2]:
        cells += [(rule, "min-max", CONTROL), (rule, "edge-riding", CONTROL), (rule, "edge-riding", PLACEBO)]
    for seed, (rule, attack, sketch) in itertools.product(SEEDS, cells):
        yield {**PROJECTED, **_cell({"name": rule}, attack, seed), "sketch": sketch}


def projection_large() -> Iterator[Settings]:
    """Yield five seeds of eight cells at 11.6 million coordinates."""
    large: Settings = {**PROJECTED, "model.name": "wide-mlp", "rounds": 15, "evaluation.every": 5}
    cells = [(rule, attack) for rule in HOLDING for attack in HOLDING[rule] if attack != "sign-flip"]
    for seed, (rule, attack), sketch in itertools.product(SEEDS, cells, (EXACT, *ROTATED[::2])):
        yield {**large, **_cell({"name": rule}, attack, seed), "sketch": sketch}


def achlioptas() -> Iterator[Settings]:
    """Yield three seeds with the paper's own matrix: 16 cells, and its table of k and s, which has no other attack."""
    rules = [{**rule, "n_selected": 20} if rule["name"] == "multi-krum" else rule for rule in PAPER]
    table = [{"name": "achlioptas", "k": k, "s": s} for k in (4096, 2048, 1024) for s in (8, 16, 32)]
    for seed in range(3):
        for rule, attack, sketch in itertools.product(rules, HIDING, (EXACT, table[0])):
            yield {**CNN, **_cell(rule, attack, seed), "sketch": sketch}
        for rule, sketch in itertools.product([*PAPER[:3], {"name": "bulyan"}], (EXACT, *table)):
            yield {**CNN, **FEWER, **_cell(rule, "gaussian", seed), "sketch": sketch}


STAGES: dict[str, Callable[[], Iterator[Settings]]] = {
    "step-sizes": step_sizes,
    "convergence": convergence,
    "screen": screen,
    "grid": grid,
    "slices": slices,
    "other": other,
    "text": text,
    "projection": projection,
    "projection-large": projection_large,
    "achlioptas": achlioptas,
}


def experiments(
    stage: str, data: Path | None = None, ends: Mapping[tuple[str, str], float] | None = None
) -> list[Experiment]:
    """Return the experiments of a stage; `data` is the folder of data sets that the package does not hold.

    With `ends`, the last accuracies of the screen's kept runs by rule and attack, only those that it runs next.
    """
    base, cells = Experiment().changed({**BASE, "name": f"guide-{stage}"}), STAGES[stage]()
    found = [base.changed(settings) for settings in (cells if ends is None else still_open(cells, ends))]
    return [one if one.data.name.endswith("-mini") else one.changed({"data.folder": str(data or "")}) for one in found]


def compared() -> list[Settings]:
    """Return the settings of the compared rules: the mean, the paper's, four finalists, the one with a proof."""
    return [{"name": "mean"}, *PAPER, *({"name": name} for name in (*FINALISTS[:-1], PROVEN))]


def _protocol(name: str) -> Settings:
    settings, key = PROTOCOLS[name]
    return {**settings, key: STEP_SIZES[name]}


def _cell(rule: Settings, attack: str, seed: int) -> Settings:
    return {"rule": dict(rule), "attack": {"name": attack}, "seed": seed}
