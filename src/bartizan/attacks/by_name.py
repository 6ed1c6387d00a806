"""Attacks and data poisonings by name, plug-ins included."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from functools import partial
from typing import Any

from bartizan.attacks import adaptive, fang, formulas, noise, optimised, over_time
from bartizan.attacks.data_poisoning import Backdoor, DistributedBackdoor, LabelFlip, Poison, SemanticBackdoor
from bartizan.attacks.min_max import min_max, min_sum
from bartizan.attacks.parameters import CONTEXT_ARGUMENTS, as_attack, check
from bartizan.registry import Registry, build, frozen_dataclass, only_known, settings_of


def _fits(part: Any) -> None:
    if isinstance(part, type):
        frozen_dataclass(Poison)(part)
        return
    wanted = "wanted a function (honest, count, rng, *, settings) or a class that derives from bartizan.attacks.Poison"
    if not callable(part):
        raise TypeError(f"{wanted}, got {part!r}.")
    parameters = inspect.signature(part).parameters.values()
    positional = [one for one in parameters if one.kind in (one.POSITIONAL_ONLY, one.POSITIONAL_OR_KEYWORD)]
    others = [one for one in parameters if one not in positional and one.kind is not one.KEYWORD_ONLY]
    if len(positional) != 3 or others:
        raise TypeError(f"{wanted}, got {part.__name__}{inspect.signature(part)}.")


ATTACKS = Registry(
    "attack",
    {
        "none": formulas.none,
        "gaussian": noise.gaussian,
        "sign-flip": formulas.sign_flip,
        "lie": formulas.little_is_enough,
        "foe": formulas.fall_of_empires,
        "alie": formulas.a_little_is_enough,
        "alie-over-time": formulas.alie_over_time,
        "rop": formulas.relocated_orthogonal_perturbation,
        "hybrid-sparse": formulas.hybrid_sparse,
        "ipm": formulas.inner_product_manipulation,
        "optimised-alie": optimised.optimised_alie,
        "optimised-ipm": optimised.optimised_ipm,
        "edge-riding": optimised.edge_riding,
        "mimic": formulas.mimic,
        "min-max": min_max,
        "min-sum": min_sum,
        "fang-krum": fang.fang_krum,
        "fang-trim": fang.fang_trim,
        "null-space": adaptive.null_space,
        "null-space-mirror": adaptive.null_space_mirror,
        "replay": adaptive.replay,
        "observer": adaptive.observer,
        "blind-collision": adaptive.blind_collision,
        "optimised-null-space": adaptive.optimised_null_space,
        "send-old": over_time.send_old,
        "flood": over_time.flood,
        "wait-and-strike": over_time.wait_and_strike,
        "infinity": noise.infinity,
        "nan": noise.not_a_number,
        "garbage": noise.garbage,
    },
    "bartizan.attacks",
    check=_fits,
    context=CONTEXT_ARGUMENTS,
)
POISONS = Registry(
    "data poisoning",
    {
        "label-flip": LabelFlip,
        "backdoor": Backdoor,
        "semantic-backdoor": SemanticBackdoor,
        "distributed-backdoor": DistributedBackdoor,
    },
)


def attack(name: str, **settings: Any) -> Callable[..., Any]:
    """Return an attack by its name, its settings checked and bound: (honest, count, rng) -> the attackers' updates.

    >>> import numpy as np
    >>> attack("foe", factor=-2.0)([[1.0, 3.0]], 1, np.random.default_rng(0)).tolist()
    [[-2.0, -6.0]]
    """
    found = (ATTACKS | POISONS).find(name)
    if isinstance(found, type):
        raise ValueError(f"{name!r} poisons data, and its attackers follow the protocol: attacks.poison builds it.")
    function = as_attack(found)
    only_known(name, settings, settings_of(function))
    check(name, function.wanted, settings)
    return partial(function, **settings)


def poison(name: str, **settings: Any) -> Poison:
    """Return a data poisoning by its name.

    >>> poison("backdoor", target=3)
    Backdoor(target=3, fraction=0.5, size=4, value=255)
    """
    kind = (ATTACKS | POISONS).find(name)
    if not isinstance(kind, type):
        raise ValueError(f"{name!r} changes updates, not data: attacks.attack builds it.")
    only_known(name, settings, settings_of(kind))
    made: Poison = build(kind, settings)
    return made
