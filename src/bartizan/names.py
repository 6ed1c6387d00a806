"""The one table from names to things, for the command line and config files; strings become objects here only."""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from dataclasses import MISSING, fields
from functools import reduce
from operator import rshift
from typing import Any

from bartizan import coordinatewise, mixing, rules, sketch
from bartizan.coordinatewise import CoordinateWise
from bartizan.rules import Rule

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
    known = {field.name for kind in kinds for field in fields(kind)}
    for setting in settings:
        if setting not in known:
            takes = ", ".join(sorted(known)) or "no settings"
            raise TypeError(f"{name!r} has no setting {setting!r}; it takes {takes}.")
    return reduce(rshift, (build(kind, settings) for kind in kinds))


def find(name: str, table: Mapping[str, type[Any]], what: str) -> type[Any]:
    """Look a name up, in any case and with _ for -, or say which are known."""
    name = name.lower().replace("_", "-")
    if name in table:
        return table[name]
    close = difflib.get_close_matches(name, table, n=1)
    meant = f" Did you mean {close[0]!r}?" if close else ""
    raise ValueError(f"Unknown {what} {name!r}.{meant} Known: {', '.join(sorted(table))}.")


def build(kind: type[Any], settings: Mapping[str, Any]) -> Any:
    own = {field.name for field in fields(kind)}
    try:
        return kind(**{name: value for name, value in settings.items() if name in own})
    except TypeError:
        needed = [field.name for field in fields(kind) if field.default is MISSING and field.name not in settings]
        raise TypeError(f"{kind.__name__} needs {', '.join(needed)}: pass {needed[0]}=...") from None
