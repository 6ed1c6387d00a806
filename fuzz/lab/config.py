"""Surface: experiments from TOML files and from settings on the command line."""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Any

from bartizan import registry as names
from bartizan.lab.config import toml
from bartizan.lab.config.experiment import Experiment
from bartizan.lab.config.keys import ConfigError
from fuzz.draw import Draw
from fuzz.mutate import mutated_bytes, mutated_value
from fuzz.surfaces import COMPARED, RefusedError, Surface, documented, require

NAMED = {"rule": "name", "attack": "name", "sketch": "name", "split": "kind"}
WORDS = [
    "krum",
    "nnm >> krum",
    "mean",
    "rotated",
    "exact",
    "label-flip",
    "alie",
    "iid",
    "shards",
    "bulyan",
    "a >> b",
    "",
]
WHOLE = Experiment().as_dict() | {
    "grid": {"seed": [0, 1], "rule.name": ["krum", "mean"], "clients.byzantine": [0, 0.2]}
}
TEXT = toml.document(WHOLE).encode()


def case_in(folder: Path) -> Any:
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / "case.toml"

    def case(data: bytes) -> str:
        draw = Draw(data)
        kind = draw.below(5)
        if kind == 4:
            return valid_settings(draw)
        if kind == 3:
            with documented(ConfigError):
                round_trip(Experiment().with_settings([draw.rest().decode("utf-8", "replace")]))
            return COMPARED
        path.write_bytes([draw.rest, lambda: mutated_bytes(TEXT, draw), lambda: _written(draw)][kind]())
        with documented(ConfigError):
            found = Experiment.from_toml(path)
        round_trip(found)
        return COMPARED

    return case


def valid_settings(draw: Draw) -> str:
    """Valid settings are what the experiment has afterwards."""
    given = {"rounds": 1 + draw.below(9000), "seed": draw.below(9000), "clients.count": 30 + draw.below(100)}
    given |= {"rule.name": draw.pick(["krum", "mean", "mca"]), "clients.byzantine": draw.below(40) / 100}
    found = Experiment().with_settings([f"{key}={value}" for key, value in given.items()])
    for key, value in given.items():
        has: Any = found.as_dict()
        for part in key.split("."):
            has = has[part]
        require(has == value, f"{key} is {has!r} after it was set to {value!r}")
    round_trip(found)
    return COMPARED


def _written(draw: Draw) -> bytes:
    """Return a TOML file with wrong values."""
    content: Any = mutated_value(WHOLE, draw)
    if isinstance(content, dict) and draw.chance(2):
        section = draw.pick(list(NAMED))
        content = {**content, section: {NAMED[section]: draw.pick(WORDS)}}
    try:
        return toml.document(content).encode("utf-8", "surrogatepass")
    except (TypeError, AttributeError, RecursionError):  # TOML has no None, and no experiment nests so deeply
        raise RefusedError from None


def round_trip(one: Experiment) -> None:
    """Require that an accepted experiment is the same after writing and reading it."""
    again = Experiment.of(tomllib.loads(toml.document(one.as_dict())))
    require(again.as_dict() == one.as_dict(), "the experiment changed when it was written and read")
    require([run.id for run in again.runs()] == [run.id for run in one.runs()], "the ids of its runs changed")


def surface(folder: Path) -> Surface:
    texts = [b"rounds=7", b"rule.name=nnm >> krum", b"grid.seed=[0, 1]", b"clients.byzantine=0.3", b"data.folder=/tmp"]
    seeds = [b"\0" + TEXT, b'\0rounds = 3\n[rule]\nname = "mean"', *(b"\3" + one for one in texts)]
    seeds += [
        b"\3rule.name=" + name.encode() for name in names.RULES
    ]  # compiles the kernels that checking a rule needs
    seeds += [bytes([kind]) + bytes(range(30)) for kind in (1, 2, 4)]
    return Surface(case_in(folder), seeds, length=3000)
