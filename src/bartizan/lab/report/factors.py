"""What distinguishes the runs: rule, sketch, attack, seed, and whatever else was varied."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from bartizan._util.text import text
from bartizan.lab.report.run_data import Run
from bartizan.registry import COORDINATEWISE

SECTIONS = ("rule", "sketch", "attack")
# These name a run or say where it ran; two runs that differ in them alone are repetitions.
NO_FACTOR = ("name", "seed", "device", "data.folder")


@dataclass(frozen=True)
class Factors:
    """One run's place in a sweep, in words."""

    rule: str
    sketch: str
    attack: str
    other: str
    """What else differs between the runs, such as `split.beta = 0.2`; empty where nothing does."""
    seed: str

    @property
    def label(self) -> str:
        seed = f"seed {self.seed}" if self.seed else ""
        return " · ".join(part for part in (self.rule, self.sketch, self.attack, self.other, seed) if part)


def factors(runs: Sequence[Run]) -> list[Factors]:
    """For each run, with only those settings that tell it from others of the same name."""
    varied = differing(runs)
    others = [key for key in varied if key not in NO_FACTOR and not key.startswith((*_dotted(SECTIONS), "grid."))]
    labels = {section: _labels(section, runs) for section in SECTIONS}
    several_seeds = "seed" in varied
    return [
        Factors(
            rule=labels["rule"][i],
            sketch=labels["sketch"][i],
            attack=labels["attack"][i],
            other=", ".join(f"{key} = {plain(run.config[key])}" for key in others if key in run.config),
            seed=plain(run.config.get("seed", "")) if several_seeds else "",
        )
        for i, run in enumerate(runs)
    ]


def differing(runs: Sequence[Run]) -> list[str]:
    """Keys of the configuration that do not have one value in all runs, in their order there."""
    keys = dict.fromkeys(key for run in runs for key in run.config)
    return [key for key in keys if len({plain(run.config.get(key)) for run in runs}) > 1]


def order(labels: Iterable[str]) -> list[str]:
    """Each once, as they come; what others are compared with first.

    >>> order(["krum", "mean", "krum", "mca"])
    ['mean', 'krum', 'mca']
    """
    first = ("mean", "exact", "none", "")
    return sorted(dict.fromkeys(labels), key=lambda label: first.index(label) if label in first else len(first))


def coordinatewise(run: Run) -> bool:
    """Whether its rule is known to work coordinate by coordinate, so that it never gives weights."""
    return _name("rule", run).rpartition(">>")[2].strip() in COORDINATEWISE


def plain(value: Any) -> str:
    """A setting as it stands in the page.

    >>> plain(0.1), plain(True), plain(["a", 1]), plain("krum"), plain(None)
    ('0.1', 'true', '["a", 1]', 'krum', '')
    """
    if value is None:
        return ""
    return value if isinstance(value, str) else text(json.dumps(value, ensure_ascii=False, default=str))


def _labels(section: str, runs: Sequence[Run]) -> list[str]:
    """The thing's name, and those of its settings that differ between runs of that name."""
    named = [_name(section, run) for run in runs]
    own = {}
    for name in dict.fromkeys(named):
        same = [run for run, other in zip(runs, named, strict=True) if other == name]
        own[name] = [key for key in differing(same) if key.startswith(f"{section}.")]
    return [_with(name, own[name], run) for run, name in zip(runs, named, strict=True)]


def _with(name: str, keys: Sequence[str], run: Run) -> str:
    return " ".join([name, *(f"{key.partition('.')[2]}={plain(run.config[key])}" for key in keys if key in run.config)])


def _name(section: str, run: Run) -> str:
    name = plain(run.config.get(f"{section}.name", run.config.get(section)))
    if name:
        return name
    if section == "sketch":
        return run.sketch.partition("(")[0].lower()
    if section == "attack":
        return "not known" if run.byzantine is None else "none"
    return "rule"


def _dotted(sections: Iterable[str]) -> tuple[str, ...]:
    return tuple(f"{section}." for section in sections)
