"""Labels of the settings by which runs differ: rule, sketch, attack, seed and others.

Names of rules, sketches and attacks are text from the run's record: nothing that they name is imported.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from bartizan._util.text import text
from bartizan.lab.report.run_data import Run

SECTIONS = ("rule", "sketch", "attack")
# Runs that differ only in these are repetitions.
REPETITION = ("name", "seed", "device", "data.folder")


@dataclass(frozen=True)
class Factors:
    """The labels of one run."""

    rule: str
    sketch: str
    attack: str
    other: str
    """Other settings that differ between the runs, such as `split.beta = 0.2`; empty if there are none."""
    seed: str

    @property
    def label(self) -> str:
        seed = f"seed {self.seed}" if self.seed else ""
        return " · ".join(filter(None, (self.rule, self.sketch, self.attack, self.other, seed)))


def factors(runs: Sequence[Run]) -> list[Factors]:
    """Return the labels of each run, with only those settings that differ between runs of the same name."""
    varied = differing(runs)
    own = tuple(f"{section}." for section in (*SECTIONS, "grid"))
    others = [key for key in varied if key not in REPETITION and not key.startswith(own)]
    labels = [_labels(section, runs) for section in SECTIONS]
    return [
        Factors(
            rule,
            sketch,
            attack,
            other=", ".join(f"{key} = {setting(run.config[key])}" for key in others if key in run.config),
            seed=setting(run.config.get("seed")) if "seed" in varied else "",
        )
        for run, rule, sketch, attack in zip(runs, *labels, strict=True)
    ]


def differing(runs: Sequence[Run]) -> list[str]:
    """Return the keys of the configuration that differ between the runs, in their order there."""
    keys = dict.fromkeys(key for run in runs for key in run.config)
    return [key for key in keys if len({setting(run.config.get(key)) for run in runs}) > 1]


def order(labels: Iterable[str]) -> list[str]:
    """Return each label once, in the order given, with those that others are compared with first.

    >>> order(["krum", "mean", "krum", "mca"])
    ['mean', 'krum', 'mca']
    """
    first = ("mean", "exact", "none", "")
    return sorted(dict.fromkeys(labels), key=lambda label: first.index(label) if label in first else len(first))


def rule_styles(rules: Iterable[str]) -> dict[str, tuple[str, int]]:
    """Return the colour of each rule, as the style sheet names it, and the number of its mark; the mean is grey.

    >>> rule_styles(["mean", "krum", "mca"])
    {'mean': ('c7', 0), 'krum': ('c0', 0), 'mca': ('c1', 0)}
    """
    robust = [rule for rule in rules if rule != "mean"]
    return {"mean": ("c7", 0)} | {rule: (f"c{i % 7}", i // 7 % 4) for i, rule in enumerate(robust)}


def sketch_dashes(sketches: Iterable[str]) -> dict[str, int]:
    """Return the number of each sketch's dash pattern: 0, solid, for the first projection; 1 for exact beside it.

    >>> sketch_dashes(["exact"]), sketch_dashes(["exact", "rotated"])
    ({'exact': 0}, {'exact': 1, 'rotated': 0})
    """
    projected = [sketch for sketch in sketches if sketch != "exact"]
    return {"exact": min(1, len(projected))} | {sketch: i and 2 + (i - 1) % 2 for i, sketch in enumerate(projected)}


def setting(value: Any) -> str:
    """Return the value of a setting as the page shows it.

    >>> setting(0.1), setting(True), setting(["a", 1]), setting("krum"), setting(None)
    ('0.1', 'true', '["a", 1]', 'krum', '')
    """
    if value is None:
        return ""
    return value if isinstance(value, str) else text(json.dumps(value, ensure_ascii=False, default=str))


def _labels(section: str, runs: Sequence[Run]) -> list[str]:
    """Return for each run the name of its rule, sketch or attack with those settings that differ under that name."""
    names = [_name(section, run) for run in runs]
    varied = {
        name: differing([run for run, other in zip(runs, names, strict=True) if other == name]) for name in {*names}
    }
    found = []
    for run, name in zip(runs, names, strict=True):
        keys = [key for key in varied[name] if key.startswith(f"{section}.") and key in run.config]
        found.append(" ".join([name, *(f"{key.partition('.')[2]}={setting(run.config[key])}" for key in keys)]))
    return found


def _name(section: str, run: Run) -> str:
    name = setting(run.config.get(f"{section}.name", run.config.get(section)))
    if name:
        return name
    if section == "sketch":
        return run.sketch.partition("(")[0].lower()
    if section == "attack":
        return "not known" if run.byzantine is None else "none"
    return "rule"
