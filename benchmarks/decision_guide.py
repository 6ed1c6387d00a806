"""The tables of the decision guide: rules x attacks x heterogeneity x b, on images and on text, three seeds each.

bartizan sweep benchmarks/guide/images.toml        # to runs/guide-images; half an hour for both on two cores
bartizan sweep benchmarks/guide/text.toml
python benchmarks/decision_guide.py runs/guide-images runs/guide-text    # keep a row a run
python benchmarks/results_page.py                  # write what is made of the rows into docs/guides/choosing.md

Likewise guide/momentum.toml and guide/adapters.toml, kept by --out, for the tables of docs/reference/models.md, and
guide/projection.toml for those of docs/results.md.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import mean, stdev
from typing import Any

from bartizan import records
from bartizan._util.atomic import write_whole
from bartizan._util.jsonl import flatten
from bartizan.lab.metrics import METRICS, Metric
from bartizan.lab.report.wording import level
from bartizan.studies.estimates import interval
from bartizan.studies.formatting import markdown_table
from bartizan.studies.paper.compare import verdict
from bartizan.studies.paper.kept_runs import RunSummary

MOST = 1000.0  # a perplexity far above that of guessing every character
RESULTS = Path(__file__).parent / "results"
KEPT = RESULTS / "guide.jsonl"
EXACT = "exact"
PROJECTIONS = {
    "rotated 4096": "Rotated(k=4096)",
    "rotated 256": "Rotated(k=256)",
    "bad-unsigned-sum 16": "bad sketch (k=16, no signs)",
}


@dataclass(frozen=True)
class Row:
    """One finished run."""

    metric: str
    clients_differ: str
    """The split, such as "dirichlet 0.1"."""
    b: float
    attack: str
    rule: str
    seed: int
    last: float | None
    """None if the run diverged: to infinity, to NaN, or to a perplexity above `MOST`."""
    rounds: int
    machine: str
    bartizan: str
    worker_momentum: float = 0.0
    optimiser: str | None = None
    adapters: int = 0
    sketch: str = ""
    best: float | None = None
    moved: float | None = None
    """The part of the weight that the projection gave to other clients than the exact rule, mean over the rounds."""


@dataclass(frozen=True)
class Cell:
    """The runs of one rule under one attack and split, over the seeds."""

    rule: str
    attack: str
    clients_differ: str
    ends: tuple[float | None, ...]
    metric: Metric

    @property
    def merit(self) -> float:
        return -math.inf if None in self.ends else self.metric.merit(mean(end for end in self.ends if end is not None))

    @property
    def spread(self) -> float:
        known = [end for end in self.ends if end is not None]
        return stdev(known) if len(known) > 1 else 0.0

    @property
    def text(self) -> str:
        known = [end for end in self.ends if end is not None]
        if len(known) < len(self.ends):
            return f"fails ({len(self.ends) - len(known)} of {len(self.ends)} seeds)"
        spread = f"{100 * self.spread:.1f}" if self.metric.name == "accuracy" else f"{self.spread:.2f}"
        return f"{level(mean(known), self.metric)} ± {spread}"


def rows_of(folder: Path) -> Iterator[Row]:
    for one in records.find(folder):
        found = records.read(one)
        if found.end is None:
            raise ValueError(f"{one} is not finished: run the sweep again, it goes on.")
        config = flatten(found.run["config"])
        yield Row(
            metric=found.run.get("metric") or "accuracy",
            clients_differ=" ".join(str(config[key]) for key in ("split.kind", "split.beta") if key in config),
            b=config["clients.byzantine"],
            attack=config["attack.name"],
            rule=config["rule.name"],
            seed=config["seed"],
            last=_last(found.end),
            rounds=len(found.rounds),
            machine=str(found.run.get("machine")),
            bartizan=str(found.run.get("bartizan")),
            worker_momentum=config.get("clients.worker_momentum", 0.0),
            optimiser=config.get("server.optimiser"),
            adapters=config.get("model.adapters", 0),
            sketch=" ".join(f"{config[key]}" for key in ("sketch.name", "sketch.k") if key in config),
            best=found.end["best"],
            moved=RunSummary.of(found).moved if any(line.get("exact_weights") for line in found.rounds) else None,
        )


def _last(end: Mapping[str, Any]) -> float | None:
    """Return the last accuracy or perplexity; None if the run diverged. An accuracy is always below `MOST`."""
    last = end["last"]
    return last if end["status"] != "diverged" and last is not None and last < MOST else None  # False for NaN


def kept(path: Path = KEPT) -> list[Row]:
    return [Row(**json.loads(line)) for line in path.read_text().splitlines()]


def cells(rows: Sequence[Row]) -> list[Cell]:
    """Return a cell for each rule, attack and split; all rows have one metric and one b."""
    groups: dict[tuple[str, str, str], list[Row]] = {}
    for row in sorted(rows, key=lambda row: row.seed):
        groups.setdefault((row.rule, row.attack, row.clients_differ), []).append(row)
    metric = METRICS[rows[0].metric]
    return [Cell(*key, tuple(row.last for row in group), metric) for key, group in groups.items()]


def worst_cases(rows: Sequence[Row]) -> list[tuple[Cell, Cell]]:
    """Return each rule's worst cell under attack and its worst without, the best worst case first."""
    found = cells(rows)
    worst = []
    for rule in dict.fromkeys(cell.rule for cell in found):
        own = [cell for cell in found if cell.rule == rule]
        worst.append(
            tuple(
                min((c for c in own if (c.attack == "none") == clean), key=lambda cell: cell.merit)
                for clean in (False, True)
            )
        )
    return sorted(worst, key=lambda pair: -pair[0].merit)


def by_b(rows: Sequence[Row], metric: str) -> dict[float, list[Row]]:
    own = [row for row in rows if row.metric == metric]
    return {b: [row for row in own if row.b == b] for b in sorted({row.b for row in own})}


def table(rows: Sequence[Row], metric: str) -> str:
    """Return a table of the rules, ordered by their worst case at the largest b."""
    groups = {b: worst_cases(some) for b, some in by_b(rows, metric).items()}
    order = [pair[0].rule for pair in groups[max(groups)]]
    heads = ["rule", *(head for b in groups for head in (f"b = {b:g}: no attack", "worst case"))]
    body = []
    for rule in order:
        pairs = [next(pair for pair in pairs if pair[0].rule == rule) for pairs in groups.values()]
        shown = [(clean.text, f"{worst.text} ({worst.attack}, {worst.clients_differ})") for worst, clean in pairs]
        body.append([f"`{rule}`", *(text for pair in shown for text in pair)])
    return markdown_table(heads, body)


def sentences(rows: Sequence[Row]) -> str:
    """Say which rule has the best worst case, by data and b, and which others are within the spread of the seeds."""
    said = []
    for metric, data in (("accuracy", "images"), ("perplexity", "text")):
        for b, some in by_b(rows, metric).items():
            (best, _), *others = worst_cases(some)
            if best.merit == -math.inf:
                said.append(f"- On {data} with b = {b:g} every rule fails under some attack.")
                continue
            near = [worst.rule for worst, _ in others if best.merit - worst.merit <= best.spread + worst.spread]
            equal = f"; {', '.join(f'`{rule}`' for rule in near)} within the spread of the seeds" if near else ""
            said.append(f"- On {data} with b = {b:g} the best worst case has `{best.rule}`: {best.text}{equal}.")
    machines = ", ".join(sorted({row.machine for row in rows}))
    seeds, rounds = len({row.seed for row in rows}), max(row.rounds for row in rows)
    said.append(f"- {len(rows)} runs of {rounds} rounds, {seeds} seeds; {machines}.")
    return "\n".join(said)


def momentum_table() -> str:
    """Return the ends with and without the clients' momentum, by attack and rule."""
    return _pivot(
        kept(RESULTS / "momentum.jsonl"),
        {"attack": lambda row: f"`{row.attack}`", "rule": lambda row: f"`{row.rule}`"},
        lambda row: f"server `{row.optimiser}`, clients {row.worker_momentum:g}",
    )


def adapters_table() -> str:
    """Return the ends of training by adapters under attack, and beside that of all weights without."""
    trained = {0: "all weights", 8: "adapters of rank 8"}
    return _pivot(
        kept(RESULTS / "adapters.jsonl"),
        {
            "trained": lambda row: trained[row.adapters],
            "attack": lambda row: f"`{row.attack}`",
            "rule": lambda row: f"`{row.rule}`",
        },
        lambda row: row.metric,
    )


def projection_sentence() -> str:
    """Return what projecting changes in points of accuracy, as intervals over the cells."""
    rows = kept(RESULTS / "projection.jsonl")
    said = []
    for sketch, label in PROJECTIONS.items():
        best = [mean(some) for some in _changes(rows, sketch, "best").values()]
        half = interval(best) or math.nan
        ends = f"{mean(best) - half:+.2f} to {mean(best) + half:+.2f}"
        said.append(f"{label} changes it by {mean(best):+.2f} points, 95% interval {ends}, {verdict(best)}")
    return f"{'; '.join(said)} ({len(best)} cells, {len({row.seed for row in rows})} seeds each)."


def projection_tables() -> str:
    """Return the same with the last accuracy and the worst cell, and a table of the cells."""
    rows = kept(RESULTS / "projection.jsonl")
    changes = {label: _changes(rows, sketch, "best") for sketch, label in PROJECTIONS.items()}
    pooled = []
    for sketch, label in PROJECTIONS.items():
        best, last = ([mean(some) for some in _changes(rows, sketch, end).values()] for end in ("best", "last"))
        shown = [f"{mean(some):+.2f} ± {interval(some) or math.nan:.2f}" for some in (best, last)]
        worst = " under ".join(min(changes[label], key=lambda cell: mean(changes[label][cell])))
        size = f"{mean(abs(change) for change in best):.2f}"
        moved = f"{100 * mean(row.moved or 0.0 for row in rows if row.sketch == sketch):.1f}%"
        pooled.append([label, *shown, size, f"{min(best):+.2f} ({worst})", moved, verdict(best)])
    heads = ["sketch", "best", "last", "size of a cell's change", "worst cell", "moved", "the interval lies"]
    base = {cell: _of(rows, *cell, EXACT, "best") for cell in changes[label]}
    by_cell = []
    for rule, attack in base:
        of_base = f"{mean(base[rule, attack]):.1f} ± {stdev(base[rule, attack]):.1f}"
        shown = [f"{mean(of[rule, attack]):+.1f} ± {stdev(of[rule, attack]):.1f}" for of in changes.values()]
        by_cell.append([f"`{rule}`", f"`{attack}`", of_base, *shown])
    numbers = ["exact", *changes]
    cell_table = markdown_table(["rule", "attack", *numbers], by_cell, right=numbers)
    return f"{markdown_table(heads, pooled, right=[*heads[1:4], 'moved'])}\n\n{cell_table}"


def _of(rows: Sequence[Row], rule: str, attack: str, sketch: str, end: str) -> list[float]:
    """Return the ends of a cell's runs by seed, in percent."""
    own = [row for row in rows if (row.rule, row.attack, row.sketch) == (rule, attack, sketch)]
    return [100 * getattr(row, end) for row in sorted(own, key=lambda row: row.seed)]


def _changes(rows: Sequence[Row], sketch: str, end: str) -> dict[tuple[str, str], list[float]]:
    """Return the points by which the ends with this sketch differ from the exact rule's, by cell and seed."""
    cells = sorted({(row.rule, row.attack) for row in rows})
    return {
        cell: [pdr - base for base, pdr in zip(*(_of(rows, *cell, of, end) for of in (EXACT, sketch)), strict=True)]
        for cell in cells
    }


def _pivot(rows: Sequence[Row], down: Mapping[str, Callable[[Row], str]], across: Callable[[Row], str]) -> str:
    """Return a table of mean ± standard deviation over the seeds, in the order of the rows' texts."""
    found: dict[tuple[str, ...], dict[str, list[Row]]] = {}
    for row in sorted(rows, key=lambda row: (row.adapters, row.attack != "none", row.attack, row.rule)):
        found.setdefault(tuple(text(row) for text in down.values()), {}).setdefault(across(row), []).append(row)
    columns = sorted({across(row) for row in rows}, key=lambda text: (" `sgd`" not in text, text))
    cell = {key: {c: cells(some)[0].text for c, some in by.items()} for key, by in found.items()}
    return markdown_table([*down, *columns], [[*key, *(texts[c] for c in columns)] for key, texts in cell.items()])


def section() -> str:
    """Return the section of the guide, from the kept rows."""
    rows = kept()
    return f"""## The worst case, measured

{sentences(rows)}

A worst case is the worst end over all attacks and splits, mean ± standard deviation over the seeds. Without
attack it is that of the worst split; the rule has the f of that b all the same, and leaves out honest clients. A
rule fails where a run diverged, or ended at a perplexity above 1,000 (`benchmarks/decision_guide.py`). Images, by
accuracy:

{table(rows, "accuracy")}

Text, by perplexity, of which less is better. Guessing characters by their frequency gives about 20, and the
laboratory counts a run as converged below 15.1, which many are not after 50 rounds: read this table for who breaks,
not for who is best.

{table(rows, "perplexity")}
"""


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("runs", type=Path, nargs="+", help="folders that the sweeps wrote")
    parser.add_argument("--out", type=Path, default=KEPT)
    options = parser.parse_args()
    rows = [asdict(row) for folder in options.runs for row in rows_of(folder)]
    rows.sort(key=lambda row: [str(value) for value in row.values()])
    write_whole(options.out, "".join(json.dumps(row) + "\n" for row in rows))
    print(f"kept {len(rows)} runs in {options.out.name}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
