"""Experiments from TOML files that somebody wrote, and settings that somebody typed."""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Any

from bartizan import registry as names
from bartizan.lab.config import toml
from bartizan.lab.config.experiment import Experiment
from bartizan.lab.config.keys import ConfigError
from fuzz.draw import Draw
from fuzz.surface import COMPARED, RefusedError, Surface, documented, require
from fuzz.warp import mutated, warped

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
            return sound(draw)
        if kind == 3:
            with documented(ConfigError):
                round_trip(Experiment().with_settings([draw.rest().decode("utf-8", "replace")]))
            return COMPARED
        path.write_bytes([draw.rest, lambda: mutated(TEXT, draw), lambda: _written(draw)][kind]())
        with documented(ConfigError):
            found = Experiment.from_toml(path)
        round_trip(found)
        return COMPARED

    return case


def sound(draw: Draw) -> str:
    """Settings as anybody would type them: each is what the experiment has then."""
    typed = {"rounds": 1 + draw.below(9000), "seed": draw.below(9000), "clients.count": 30 + draw.below(100)}
    typed |= {"rule.name": draw.pick(["krum", "mean", "mca"]), "clients.byzantine": draw.below(40) / 100}
    found = Experiment().with_settings([f"{key}={value}" for key, value in typed.items()])
    for key, value in typed.items():
        has: Any = found.as_dict()
        for part in key.split("."):
            has = has[part]
        require(has == value, f"{key} is {has!r}, and was set to {value!r}")
    round_trip(found)
    return COMPARED


def _written(draw: Draw) -> bytes:
    """A file that is TOML, of values that are not those it should have."""
    content: Any = warped(WHOLE, draw)
    if isinstance(content, dict) and draw.chance(2):
        section = draw.pick(list(NAMED))
        content = {**content, section: {NAMED[section]: draw.pick(WORDS)}}
    try:
        return toml.document(content).encode("utf-8", "surrogatepass")
    except (TypeError, AttributeError):  # None, which TOML has not
        raise RefusedError from None


def round_trip(one: Experiment) -> None:
    """What was accepted can be written, and read again as the same."""
    again = Experiment.of(tomllib.loads(toml.document(one.as_dict())))
    require(again.as_dict() == one.as_dict(), "what is written is not what was read")
    require([run.id for run in again.runs()] == [run.id for run in one.runs()], "its runs have other ids")


def surface(folder: Path) -> Surface:
    texts = [b"rounds=7", b"rule.name=nnm >> krum", b"grid.seed=[0, 1]", b"clients.byzantine=0.3", b"data.folder=/tmp"]
    seeds = [b"\0" + TEXT, b'\0rounds = 3\n[rule]\nname = "mean"', *(b"\3" + one for one in texts)]
    seeds += [b"\3rule.name=" + name.encode() for name in names.RULES]  # compiled, where checking one needs a kernel
    seeds += [bytes([kind]) + bytes(range(30)) for kind in (1, 2, 4)]
    return Surface(case_in(folder), seeds, length=3000)
