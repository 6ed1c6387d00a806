"""The README's table of deployments: the mean without attack, and the mean and the default rule under attack.

Every number is made from kept rows. A deployment of which one of the three is not kept is left out.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import mean
from typing import Any

from bartizan.lab.metrics import ACCURACY, METRICS, Metric
from bartizan.lab.report.wording import level
from bartizan.registry import DEFAULT_RULE
from studies.guide.kept_rows import kept
from studies.rows import RESULTS
from studies.tables import markdown_table

Ends = Sequence[float | None]
"""The last value of each seed or repetition; None if the run diverged."""
NONE = "none"
HEADS = ("setting", "no attack, mean", "attack, mean", "attack, ours", "command")


@dataclass(frozen=True)
class Deployment:
    """One line of the table, with its ends by rule and attack."""

    setting: str
    command: str
    ends: dict[tuple[str, str], Ends]
    metric: Metric = ACCURACY

    @property
    def complete(self) -> bool:
        """Return whether there are runs without attack, and runs of both rules under the same attacks."""
        attacks = [{attack for rule, attack in self.ends if rule == one} for one in ("mean", DEFAULT_RULE)]
        return NONE in attacks[0] and attacks[0] - {NONE} == attacks[1] - {NONE} != set()

    def line(self) -> list[str]:
        worst = [
            min((ends for (rule, attack), ends in self.ends.items() if rule == one and attack != NONE), key=self._merit)
            for one in ("mean", DEFAULT_RULE)
        ]
        shown = [self._text(ends) for ends in (self.ends["mean", NONE], *worst)]
        return [self.setting, *shown, f"`{self.command}`"]

    def _merit(self, ends: Ends) -> float:
        return -math.inf if None in ends else self.metric.merit(mean(map(float, ends)))

    def _text(self, ends: Ends) -> str:
        known = [end for end in ends if end is not None]
        if len(known) < len(ends):
            return "diverges" if not known else f"diverges ({len(ends) - len(known)} of {len(ends)} runs)"
        return level(mean(known), self.metric)


def does_it_help(folder: Path = RESULTS) -> str:
    """Return the table; under several attacks a rule's worst counts."""
    lines = [one.line() for one in deployments(folder) if one.complete]
    return markdown_table(HEADS, lines, right=HEADS[1:4])


def deployments(folder: Path) -> list[Deployment]:
    """Return what is kept of each deployment."""
    return [
        Deployment(
            "Flower app, 10 nodes of which 3 attack, accuracy",
            "python -m studies example-attacks flower",
            examples(folder / "example-attacks-flower.json"),
        ),
        Deployment(
            "NVFlare job, 9 sites of which 3 attack, accuracy",
            "python -m studies example-attacks nvflare",
            examples(folder / "example-attacks-nvflare.json"),
        ),
        Deployment(
            "7 sites, one with half of the data; 2 others attack, accuracy",
            "python -m studies few-sites",
            sites(folder / "few-sites.json"),
        ),
        Deployment(
            "LoRA adapters, 20 clients of which 4 attack, perplexity (lower is better)",
            "bartizan sweep studies/guide/adapters.toml",
            trained(folder / "adapters.jsonl", adapters=8),
            METRICS["perplexity"],
        ),
        Deployment(
            "text, 20 clients of which 6 attack by sign flips or Min-Max, perplexity (lower is better)",
            "bartizan sweep studies/pages/text.toml",
            trained(folder / "window-text.jsonl"),
            METRICS["perplexity"],
        ),
    ]


def examples(file: Path) -> dict[tuple[str, str], Ends]:
    """Return the ends of one of the examples that are run as processes."""
    return {(row["rule"], "its own" if row["hostile"] else NONE): row["ends"] for row in documents(file)}


def sites(file: Path) -> dict[tuple[str, str], Ends]:
    """Return the ends without sizes of the study of few sites, with two small sites that attack."""
    names, columns = {"Mean": "mean", "ARC(2) >> CAF(2)": DEFAULT_RULE}, {"nobody": NONE, "two small sites": "two"}
    rows = [row for row in documents(file) if row["rule"] in names and not row["sizes"]]
    return {(names[row["rule"]], attack): row[who] for row in rows for who, attack in columns.items()}


def trained(file: Path, adapters: int = 0) -> dict[tuple[str, str], Ends]:
    """Return the ends of runs of the laboratory, by all weights or by adapters of a rank."""
    found: dict[tuple[str, str], list[float | None]] = {}
    for row in kept(file).to_dict("records") if file.exists() else []:
        if row["adapters"] == adapters:
            end = row["last"]
            found.setdefault((row["rule"], row["attack"]), []).append(None if end is None or math.isnan(end) else end)
    return {key: tuple(ends) for key, ends in found.items()}


def documents(file: Path) -> Iterable[dict[str, Any]]:
    """Return the rows of a JSON file, none if it is not there."""
    return json.loads(file.read_text(encoding="utf-8")) if file.exists() else []
