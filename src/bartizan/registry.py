"""The one table from names to things, for the command line and config files; strings become objects here only."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import MISSING, fields
from functools import partial, reduce
from operator import rshift
from typing import Any, TypeVar

from bartizan import attacks, rules, sketch
from bartizan._util.text import quoted
from bartizan.attacks.parameters import check
from bartizan.rules import Rule, coordinatewise
from bartizan.rules import preaggregators as mixing
from bartizan.rules.coordinatewise import CoordinateWise

T = TypeVar("T")
RULES: dict[str, type[Any]] = {
    "mean": rules.Mean,
    "krum": rules.Krum,
    "multi-krum": rules.MultiKrum,
    "bulyan": rules.Bulyan,
    "geometric-median": rules.GeometricMedian,
    "mca": rules.MCA,
    "centered-clipping": rules.CenteredClipping,
    "mda": rules.MDA,
    "smea": rules.SMEA,
    "monna": rules.MoNNA,
    "fltrust": rules.FLTrust,
    "caf": rules.CAF,
    "cge": rules.CGE,
    "dnc": rules.SpectralDnC,
    "clipped-clustering": rules.ClippedClustering,
}
COORDINATEWISE: dict[str, type[Any]] = {
    "median": coordinatewise.Median,
    "trimmed-mean": coordinatewise.TrimmedMean,
    "meamed": coordinatewise.MeaMed,
}
PRE_AGGREGATORS: dict[str, type[Any]] = {
    "nnm": mixing.NNM,
    "bucketing": mixing.Bucketing,
    "clipping": mixing.Clipping,
    "arc": mixing.ARC,
}
SKETCHES: dict[str, type[Any]] = {
    "exact": sketch.Exact,
    "rotated": sketch.Rotated,
    "achlioptas": sketch.Achlioptas,
    "gaussian": sketch.Gaussian,
}
ATTACKS: dict[str, Callable[..., Any]] = {
    "none": attacks.none,
    "gaussian": attacks.gaussian,
    "sign-flip": attacks.sign_flip,
    "lie": attacks.little_is_enough,
    "foe": attacks.fall_of_empires,
    "alie": attacks.a_little_is_enough,
    "ipm": attacks.inner_product_manipulation,
    "optimised-alie": attacks.optimised_alie,
    "optimised-ipm": attacks.optimised_ipm,
    "mimic": attacks.mimic,
    "min-max": attacks.min_max,
    "min-sum": attacks.min_sum,
    "null-space": attacks.null_space,
    "null-space-mirror": attacks.null_space_mirror,
    "replay": attacks.replay,
    "observer": attacks.observer,
    "blind-collision": attacks.blind_collision,
    "optimised-null-space": attacks.optimised_null_space,
    "infinity": attacks.infinity,
    "nan": attacks.not_a_number,
    "garbage": attacks.garbage,
}
POISONS: dict[str, type[Any]] = {
    "label-flip": attacks.LabelFlip,
    "backdoor": attacks.Backdoor,
}


def rule(name: str, **settings: Any) -> Rule | CoordinateWise:
    """A rule by its name, `pre >> rule` included; each part takes the settings that it has.

    >>> rule("multi-krum", n_byzantine=5)
    MultiKrum(n_byzantine=5, n_selected=None)
    >>> rule("nnm >> trimmed-mean", n_byzantine=2)
    NNM(n_byzantine=2) >> TrimmedMean(n_byzantine=2)
    """
    *pres, last = (part.strip() for part in str(name).split(">>"))
    kinds = [
        *(find(pre, PRE_AGGREGATORS, "pre-aggregator") for pre in pres),
        find(last, RULES | COORDINATEWISE, "rule"),
    ]
    only_known(name, settings, {field.name for kind in kinds for field in fields(kind)})
    return reduce(rshift, (build(kind, settings) for kind in kinds))


def attack(name: str, **settings: Any) -> Callable[..., Any]:
    """An attack by its name, its settings checked and bound: (honest, count, rng) -> what the attackers send.

    >>> import numpy as np
    >>> attack("foe", factor=-2.0)([[1.0, 3.0]], 1, np.random.default_rng(0)).tolist()
    [[-2.0, -6.0]]
    """
    everything: dict[str, Any] = ATTACKS | POISONS
    function = find(name, everything, "attack")
    if function in POISONS.values():
        raise ValueError(f"{name!r} poisons data, and its attackers follow the protocol: names.poison builds it.")
    wanted = function.wanted
    only_known(name, settings, wanted)
    check(name, wanted, settings)
    return partial(function, **settings)


def poison(name: str, **settings: Any) -> attacks.Poison:
    """A data poisoning by its name.

    >>> poison("backdoor", target=3)
    Backdoor(target=3, fraction=0.5, size=4, value=255)
    """
    kind = find(name, POISONS, "data poisoning")
    only_known(name, settings, {field.name for field in fields(kind)})
    return build(kind, settings)


def find(name: str, table: Mapping[str, T], what: str) -> T:
    """Look a name up, in any case and with _ for -, or say which are known."""
    name = name.lower().replace("_", "-")
    if name in table:
        return table[name]
    close = difflib.get_close_matches(name[:200], table, n=1)
    meant = f" Did you mean {close[0]!r}?" if close else ""
    raise ValueError(f"Unknown {what} {quoted(name)}.{meant} Known: {', '.join(sorted(table))}.")


def only_known(name: str, settings: Iterable[str], known: Collection[str]) -> None:
    """Raise on the first setting that a thing does not have."""
    for setting in settings:
        if setting not in known:
            takes = ", ".join(sorted(known)) or "no settings"
            raise TypeError(f"{name!r} has no setting {setting!r}; it takes {takes}.")


def build(kind: type[Any], settings: Mapping[str, Any]) -> Any:
    own = {field.name for field in fields(kind)}
    try:
        return kind(**{name: value for name, value in settings.items() if name in own})
    except TypeError:
        needed = [field.name for field in fields(kind) if field.default is MISSING and field.name not in settings]
        raise TypeError(f"{kind.__name__} needs {', '.join(needed)}: pass {needed[0]}=...") from None
