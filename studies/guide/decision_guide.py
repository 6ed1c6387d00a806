"""The tables of the decision guide, of momentum at the clients, and of adapters, from the kept rows of their runs.

python -m studies guide run step-sizes convergence screen grid slices text other --data DIR   # resumes
bartizan sweep studies/guide/momentum.toml                           # then guide keep-rows; so with adapters.toml
python -m studies pages                                              # write the tables
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from statistics import mean
from typing import Any

import pandas as pd

from bartizan.lab.metrics import METRICS
from bartizan.lab.report.intervals import interval
from bartizan.lab.report.wording import level
from studies.guide import experiments
from studies.guide.kept_rows import kept, stage_file
from studies.rows import RESULTS
from studies.tables import markdown_table

NOTHING_KEPT = "*No runs are kept yet.*"


def end_text(runs: pd.DataFrame) -> str:
    """Return the mean of the ends with half of its 95% interval over the seeds, or how many runs failed."""
    metric, ends = METRICS[runs.metric.iloc[0]], runs["last"].dropna()
    if len(ends) < len(runs):
        return f"fails ({len(runs) - len(ends)} of {len(runs)} seeds)"
    half = interval(list(ends), least=2)
    if half is None:
        return level(mean(ends), metric)
    shown = f"{100 * half:.1f}" if metric.name == "accuracy" else f"{half:.2f}"
    return f"{level(mean(ends), metric)} ± {shown}"  # not pandas' mean, whose last bit would decide ties


def merit(runs: pd.DataFrame) -> float:
    """Return the mean end of some seeds, more is better; minus infinity if a run failed."""
    metric = METRICS[runs.metric.iloc[0]]
    return -math.inf if runs["last"].isna().any() else float(metric.merit(mean(runs["last"])))


def cells(rows: pd.DataFrame) -> pd.DataFrame:
    """Return the merit and the text of each cell: a line per rule, best worst case first, and a column per attack."""
    found = [(*key, merit(own), end_text(own)) for key, own in rows.groupby(["rule", "attack"], sort=False)]
    table = pd.DataFrame(found, columns=["rule", "attack", "merit", "text"]).pivot(index="rule", columns="attack")
    attacked = table["merit"].drop(columns="none", errors="ignore")
    return table.loc[attacked.min(axis="columns").sort_values(ascending=False, kind="stable").index]


def worst_attacks(table: pd.DataFrame) -> pd.Series:
    """Return the attack under which each rule ends worst."""
    return table["merit"].drop(columns="none", errors="ignore").idxmin(axis="columns")


def worst_case_table(rows: pd.DataFrame) -> str:
    """Return a line per rule: its end without attack, its worst case, and where the mean is better."""
    if rows.empty:
        return NOTHING_KEPT
    table, body = cells(rows), []
    for rule, attack in worst_attacks(table).items():
        merits = table["merit"]
        better = [one for one in merits if one != "none" and merits.loc["mean", one] > merits.loc[rule, one]]
        shown = [table["text"].loc[rule, "none"], f"{table['text'].loc[rule, attack]} ({attack})", ", ".join(better)]
        body.append([f"`{rule}`", *shown])
    return markdown_table(["rule", "no attack", "worst case", "worse than the mean under"], body)


def attacks_table(rows: pd.DataFrame) -> str:
    """Return a line per rule with its end under each attack."""
    if rows.empty:
        return NOTHING_KEPT
    table = cells(rows)["text"]
    names = [one for one in experiments.ATTACKS if one in table]
    return markdown_table(["rule", *names], [[f"`{rule}`", *own[names].fillna("")] for rule, own in table.iterrows()])


def slice_of(row: Any) -> str:
    """Return the name of the slice that a row belongs to, by what differs from the setting of the grid."""
    if row.worker_momentum:
        return "momentum at the clients"
    if row.work == "steps":
        return "five local steps"
    if row.by_size:
        return "weighed by data"
    if row.b != experiments.N_ATTACKERS:
        return f"{row.b} attackers"
    return row.clients_differ.replace("dirichlet", "Dirichlet")


def whole_seeds(rows: pd.DataFrame) -> pd.DataFrame:
    """Return the rows of the seeds that have as many as the seed with most: a stage may have stopped within a seed."""
    counts = rows.groupby("seed").slug.transform("count")
    return rows[counts == counts.max()]


def slices_table(rows: pd.DataFrame) -> str:
    """Return the worst case of each rule in each slice, and its end without attack."""
    if rows.empty:
        return NOTHING_KEPT
    rows = whole_seeds(rows.assign(slice=rows.apply(slice_of, axis="columns")))
    tables = {name: cells(own) for name, own in rows.groupby("slice")}
    names = [name for name in experiments.SLICES if name in tables]
    body = []
    for rule in [name for name in _rules() if all(name in tables[one].index for one in names)]:
        shown = [f"`{rule}`"]
        for name in names:
            text, attack = tables[name]["text"].loc[rule], worst_attacks(tables[name])[rule]
            shown.append(f"{text['none']}; {text[attack]} ({attack})")
        body.append(shown)
    return markdown_table(["rule", *names], body)


def screen_table(rows: pd.DataFrame) -> str:
    """Return the ends of one seed for the rules that met every attack of the screen, and how far the others came."""
    if rows.empty:
        return NOTHING_KEPT
    whole = rows.groupby("rule").attack.nunique() == len(experiments.SCREEN_ATTACKS)
    table = attacks_table(rows[rows.rule.map(whole)])
    out = rows[~rows.rule.map(whole)].sort_values("last").groupby("rule", sort=False).first().sort_index()
    lines = [f"`{rule}` {100 * own['last']:.1f}% ({own.attack})" for rule, own in out.fillna(0.0).iterrows()]
    return f"{table}\n\nOut, with the end that took each below the fifth best worst case: {', '.join(lines)}."


def step_sizes_table(rows: pd.DataFrame) -> str:
    """Return the accuracy of the mean on validation images by protocol, split and step size."""
    rows = rows.assign(protocol=rows.apply(_protocol_of, axis="columns"))
    rows["size"] = rows.apply(lambda row: row.step if row.work == "steps" else row.server_step, axis="columns")
    body = []
    for (protocol, split), own in rows.groupby(["protocol", "clients_differ"], sort=False):
        by_size = [f"{size:g}: {100 * mean(some['last']):.1f}%" for size, some in own.groupby("size")]
        body.append([protocol, split, ", ".join(by_size)])
    return markdown_table(
        ["protocol", "split", "step size: last accuracy on validation images, mean of two seeds"], body
    )


def chosen_steps(rows: pd.DataFrame) -> dict[str, float]:
    """Return the step size with the best mean over splits and seeds, for each protocol all of whose runs are kept."""
    rows = rows.assign(protocol=rows.apply(_protocol_of, axis="columns"))
    rows["size"] = rows.apply(lambda row: row.step if row.work == "steps" else row.server_step, axis="columns")
    means = rows.groupby(["protocol", "size"])["last"].mean().unstack("size")
    runs = {name: 4 * len(sizes) for name, sizes in experiments.CANDIDATES.items()}  # two splits, two seeds
    whole = [name for name, own in rows.groupby("protocol") if len(own) == runs[str(name)]]
    return {str(protocol): float(best) for protocol, best in means.loc[whole].idxmax(axis="columns").items()}


def _protocol_of(row: Any) -> str:
    if row.data == "cifar10":
        return "cifar10"
    return "five local steps" if row.work == "steps" else f"{'client' if row.worker_momentum else 'server'} momentum"


def _rules() -> list[str]:
    return [one["name"] for one in experiments.compared()]


def parts() -> dict[str, str]:
    """Return the tables by the names of their markers."""
    rows = {stage: kept(stage_file(stage)) for stage in ("screen", "grid", "slices", "text", "other", "step-sizes")}
    other = rows["other"]
    return {
        "guide_steps": step_sizes_table(rows["step-sizes"]),
        "guide_screen": screen_table(rows["screen"]),
        "guide_grid": worst_case_table(rows["grid"]),
        "guide_attacks": attacks_table(rows["grid"]),
        "guide_slices": slices_table(rows["slices"]),
        "guide_text": attacks_table(rows["text"]),
        "guide_seeds": worst_case_table(other if other.empty else other[other.data != "cifar10"]),
        "guide_cifar10": worst_case_table(other if other.empty else other[other.data == "cifar10"]),
        "momentum": momentum_table(),
        "adapters": adapters_table(),
    }


def momentum_table() -> str:
    """Return the ends with and without the clients' momentum, by attack and rule."""
    across = lambda row: f"server `{row.optimiser}`, clients {row.worker_momentum:g}"  # noqa: E731
    return pivot(kept(RESULTS / "momentum.jsonl"), ["attack", "rule"], across)


def adapters_table() -> str:
    """Return the ends of training by adapters under attack, and beside that of all weights without."""
    rows = kept(RESULTS / "adapters.jsonl")
    rows["trained"] = rows.adapters.map({0: "all weights", 8: "adapters of rank 8"})
    return pivot(rows, ["trained", "attack", "rule"], lambda row: row.metric)


def pivot(rows: pd.DataFrame, down: Sequence[str], across: Callable[[Any], str]) -> str:
    """Return a table of the ends, training without attack first."""
    rows = rows.assign(attacked=rows.attack != "none", column=rows.apply(across, axis=1))
    rows = rows.sort_values(["adapters", "attacked", "attack", "rule"], kind="stable")
    columns = sorted(rows.column.unique(), key=lambda text: (" `sgd`" not in text, text))
    body = []
    for names, own in rows.groupby(list(down), sort=False):
        shown = [name if head == "trained" else f"`{name}`" for head, name in zip(down, names, strict=True)]
        body.append([*shown, *(end_text(own[own.column == column]) for column in columns)])
    return markdown_table([*down, *columns], body)
