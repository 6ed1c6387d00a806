"""Sentences and tables of docs/results.md that are made from kept runs; used by benchmarks/results_page.py."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import sqrt
from statistics import mean, median, variance

from bartizan.studies.estimates import interval, spearman
from bartizan.studies.formatting import markdown_table
from bartizan.studies.paper.cells import ABLATION
from bartizan.studies.paper.compare import (
    NOTHING,
    USUAL,
    CellComparison,
    Comparison,
    Summary,
    accuracy_text,
    cell_text,
    failed,
    mean_accuracy,
    printed,
    seeds_text,
    signed_spread,
)
from bartizan.studies.paper.interval_plot import MAIN, label, main_protocol
from bartizan.studies.paper.kept_runs import RunSummary

DATA, SKETCH = "cifar10", "rotated"
HIGH, NEAR = 60.0, 55.0  # percent: a base cell that the paper has above the first should be above the second here
CELL = ("beta", "b", "attack", "rule")


class PageSummary(Summary):
    """The statistics of the page beyond those of `bartizan paper compare`."""

    @property
    def paper_differences(self) -> list[float]:
        """The paper's differences, of all cells where both its runs and ours converge."""
        return [mean(row.paper_differences) for row in self.cells if row.differences and row.paper_differences]

    @property
    def best(self) -> CellComparison | None:
        return max(self.with_difference, key=lambda row: mean(row.raw_differences), default=None)

    @property
    def unchanged(self) -> int:
        """How many distinct pairs have the same accuracies in every round, base and PDR."""
        return sum(all(base.accuracy == pdr.accuracy for base, pdr in row.pairs) for row in self.rows)

    @property
    def spread_over_seeds(self) -> float | None:
        """Standard deviation of the difference between seeds of one cell, over all cells that have several."""
        return pooled([row.raw_differences for row in self.rows])

    @property
    def base_spread_over_seeds(self) -> float | None:
        """The same of the base's accuracy."""
        return pooled([[100 * run.best for run, _ in row.pairs if run.best is not None] for row in self.rows])

    @property
    def paper_same_end(self) -> int:
        return sum(failed(row.paper_base) == failed(row.cell.values) for row in self.cells)

    @property
    def end_as_in_the_paper(self) -> int:
        """How many sides, base or PDR, converge where the paper's do, and fail where these fail."""
        return sum(
            (failed(row.base) == failed(row.paper_base)) + (failed(row.pdr) == failed(row.cell.values))
            for row in self.cells
        )

    @property
    def ranks_of_base_and_pdr(self) -> float | None:
        return spearman([mean_accuracy(row.base) for row in self.rows], [mean_accuracy(row.pdr) for row in self.rows])

    @property
    def ranks_of_ours_and_paper(self) -> float | None:
        ours = [mean_accuracy(runs) for row in self.cells for runs in (row.base, row.pdr)]
        paper = [mean_accuracy(values) for row in self.cells for values in (row.paper_base, row.cell.values)]
        return spearman(ours, paper)

    @property
    def speedups(self) -> list[float]:
        """Of all cells: runs with equal accuracies still have times of their own."""
        return [row.speedup for row in self.cells if row.speedup is not None]

    def by(self, key: Callable[[CellComparison], str]) -> dict[str, PageSummary]:
        names = dict.fromkeys(key(row) for row in self.cells)
        return {name: PageSummary([row for row in self.cells if key(row) == name]) for name in names}


def main_rows(rows: Sequence[CellComparison]) -> list[CellComparison]:
    """CIFAR-10's large tables, projected by the default sketch: the cells of the summary."""
    return [row for row in rows if row.cell.data == DATA and row.cell.table != ABLATION and row.sketch == SKETCH]


def bullets(rows: Sequence[CellComparison]) -> str:
    """The summary at the top of the page."""
    all_ = PageSummary.of(rows)
    if not all_.cells:
        return NOTHING
    n, cells = len(all_.rows), len(all_.cells)
    letters = sorted({row.protocol for row in all_.cells})
    protocols = f", under the protocols {', '.join(letters)} below" if len(letters) > 1 else ""
    unchanged = f" Pairs whose base and PDR are the same to the digit: {all_.unchanged}." if all_.unchanged else ""
    lines = [
        f"**Cells**: {cells} pairs of base and PDR, {seeds_text(all_.cells)}{protocols}; {all_.distinct}.{unchanged}",
        f"**PDR minus base**, points of best test accuracy, mean and standard deviation over distinct pairs: "
        f"{signed_spread(all_.differences) or 'none'} in the {len(all_.differences)} where both converge, "
        f"{signed_spread(all_.raw_differences) or 'none'} in the {len(all_.raw_differences)} where not both diverged. "
        f"The paper's own: {signed_spread(all_.paper_differences) or 'none'}, in the {len(all_.paper_differences)} "
        "cells where both its runs and ours converge.",
    ]
    if all_.worst is not None and all_.best is not None:
        ends = (f"{mean(row.raw_differences):+.2f} ({cell_text(row)})" for row in (all_.worst, all_.best))
        lines.append(f"**Worst and best pair**: {', '.join(ends)}.")
    ours, paper = (
        [sum(failed(side) for side in sides) for sides in zip(*pairs, strict=True)]
        for pairs in (
            [(row.base, row.pdr) for row in all_.cells],
            [(row.paper_base, row.cell.values) for row in all_.cells],
        )
    )
    lines += [
        _over_seeds(all_),
        f'**Breakdown**: of {cells} cells {ours[0]} are "-" in our base and {ours[1]} in our PDR; in the paper '
        f"{paper[0]} and {paper[1]}. Base and PDR agree on that in {all_.same_end} of our {n} distinct pairs and in "
        f"{all_.paper_same_end} of the paper's {cells} cells. {all_.end_as_in_the_paper} of our {2 * cells} runs "
        'agree with the paper\'s on being "-" or not.',
        f'**Ranks** (Spearman, "-" lowest): {_correlation(all_.ranks_of_base_and_pdr)} between our base and our PDR, '
        f"{_correlation(all_.ranks_of_ours_and_paper)} between ours and the paper's.",
        _speed(all_),
    ]
    return "\n".join(f"- {line}" for line in lines)


def literal_sentences(found: Comparison) -> str:
    """What projecting changes under attacks that hide among the honest, as an interval; and how far we are off."""
    lines = []
    for (sketch, k), of in main_protocol(found.rows).items():
        if of.half is not None and ((sketch, k) == (MAIN, USUAL) or sketch.startswith("bad")):
            middle = mean(of.raw_differences)
            lines.append(
                f"{label(sketch, k)} changes the best accuracy by {middle:+.2f} points, 95% interval "
                f"{middle - of.half:+.2f} to {middle + of.half:+.2f}, {of.verdict} ({len(of.rows)} cells, "
                f"{seeds_text(of.cells)})"
            )
    return f"{'; '.join(lines)}. {gap(found.rows)}"


def gap(rows: Sequence[CellComparison]) -> str:
    """How far the literal protocol's unprojected runs are from the paper's."""
    both = {row.cell.base: (mean_accuracy(row.base), mean_accuracy(row.paper_base)) for row in _with_paper(rows)}
    if len(both) < 3:
        return "Too few of the paper's own cells were run to say how far ours are from them."
    ranks = spearman(*zip(*both.values(), strict=True))
    high = [ours for ours, paper in both.values() if paper > HIGH]
    near = sum(ours > NEAR for ours in high)
    return (
        f"Of the {len(high)} cells that the paper's base has above {HIGH:g}%, ours has {near} above {NEAR:g}%; over "
        f"all {len(both)} base cells the rank correlation with the paper is {_correlation(ranks)}."
    )


def _with_paper(rows: Sequence[CellComparison]) -> list[CellComparison]:
    return [row for row in rows if row.base and row.paper_base and row.cell.table != ABLATION]


def pooled_table(found: Comparison) -> str:
    """The pooled differences of every sketch, of the best and of the last accuracy."""
    heads, body = ["sketch", "cells", "seeds", "best", "last", "worst cell", "moved", "the interval lies"], []
    for (sketch, k), of in main_protocol(found.rows).items():
        last = [mean(row.last_differences) for row in of.rows if row.last_differences]
        shown = [f"{mean(some):+.2f} ± {interval(some) or 0:.2f}" for some in (of.raw_differences, last)]
        worst = f"{mean(of.worst.raw_differences):+.2f} ({cell_text(of.worst)})" if of.worst else ""
        moved = _percent([run.moved for row in of.rows for run in row.pdr])
        body.append([label(sketch, k), str(len(of.rows)), seeds_text(of.cells), *shown, worst, moved, of.verdict])
    return markdown_table(heads, body, right=["cells", "best", "last", "moved"])


def far_cells(found: Comparison) -> str:
    """Every base cell that the paper has above 60% and we have not above 55%."""
    rows = {row.cell.base: row for row in _with_paper(found.rows)}
    body = [
        [
            *_cell(row),
            printed(row.paper_base),
            accuracy_text(row.base) or "-",
            _percent([r.on_attackers for r in row.base]),
        ]
        for row in rows.values()
        if mean_accuracy(row.paper_base) > HIGH and mean_accuracy(row.base) <= NEAR
    ]
    heads = ["paper base", "ours base", "on attackers"]
    return markdown_table([*CELL, *heads], body, right=["beta", "b", *heads]) if body else "None."


def groups(rows: Sequence[CellComparison]) -> str:
    """The same numbers by rule, attack and share of attackers; speed-ups by rule only."""
    all_, body = PageSummary.of(rows), []
    heads = ["", "cells", "distinct", "PDR - base", "also not converged"]
    heads += ["worst", "the paper's", "same end", "speed-up"]
    by_rule = all_.by(lambda row: row.cell.rule)
    by_attack = all_.by(lambda row: row.cell.attack)
    by_share = all_.by(lambda row: f"b={row.cell.b:g}, beta={row.cell.beta:g}")
    for name, of in (*by_rule.items(), *by_attack.items(), *by_share.items()):
        speedups = of.speedups if name in by_rule else []
        body.append(
            [
                name,
                str(len(of.cells)),
                str(len(of.rows)),
                signed_spread(of.differences),
                signed_spread(of.raw_differences),
                f"{mean(of.worst.raw_differences):+.2f}" if of.worst else "",
                signed_spread(of.paper_differences),
                f"{of.same_end} of {len(of.rows)}",
                f"{median(speedups):.3g}x" if speedups else "",
            ]
        )
    return markdown_table(heads, body, right=heads[1:])


def breakdowns(rows: Sequence[CellComparison]) -> str:
    """Every cell in which one of the four is "-"; ours with the best accuracy that it reached."""
    heads, body = ["paper base", "paper PDR", "ours base", "ours PDR"], []
    for row in PageSummary.of(rows).cells:
        ours, paper = (row.base, row.pdr), (row.paper_base, row.cell.values)
        if any(map(failed, (*ours, *paper))):
            body.append([*_cell(row), *map(printed, paper), *map(_end, ours)])
    right = ["beta", "b", *heads]
    return markdown_table([*CELL, *heads], body, right) if body else 'No cell is "-", in ours or in the paper.'


def weights(rows: Sequence[CellComparison]) -> str:
    """The weight on attackers, and how much weight the projection moved."""
    heads = ["on attackers, base", "on attackers, PDR", "moved by projecting"]
    body = [
        [
            *_cell(row),
            *(_percent([run.on_attackers for run in runs]) for runs in (row.base, row.pdr)),
            _percent([run.moved for run in row.pdr]),
        ]
        for row in PageSummary.of(rows).cells
    ]
    return markdown_table([*CELL, *heads], body, right=["beta", "b", *heads])


def origins(runs: Sequence[RunSummary]) -> str:
    """Machines, versions and revisions of the runs."""
    total = sum(run.seconds["run"] or 0 for run in runs)
    kinds = {
        "Machines": {run.machine for run in runs},
        "Versions": {f"bartizan {run.bartizan}, torch {run.torch}" for run in runs},
        "Revisions": {run.commit or "not said" for run in runs},
    }
    lines = [f"{name}: {'; '.join(sorted(of))}." for name, of in kinds.items()]
    notes = sorted({f"{run.config['rule']['name']}: {note}" for run in runs for note in run.notes})
    first = f"{len(runs)} runs, {total / 3600:.1f} hours in all. {' '.join(lines)}"
    return "\n".join([first, *(["", *(f"- {note}" for note in notes)] if notes else [])])


def _cell(row: CellComparison) -> list[str]:
    return [f"{row.cell.beta:g}", f"{row.cell.b:g}", row.cell.attack, row.cell.rule]


def _end(runs: Sequence[RunSummary]) -> str:
    best = [run.best_percent for run in runs if run.best_percent is not None]
    return f"- ({mean(best):.2f})" if failed(runs) and best else accuracy_text(runs)


def _percent(parts: Sequence[float | None]) -> str:
    known = [part for part in parts if part is not None]
    return f"{100 * mean(known):.1f}%" if known else ""


def _over_seeds(all_: PageSummary) -> str:
    if all_.spread_over_seeds is None:
        return "**Over seeds**: no spread, since every cell has one seed."
    several = sum(len(row.pairs) > 1 for row in all_.rows)
    return (
        f"**Over seeds** of one cell ({several} cells have several) the difference has a standard deviation of "
        f"{all_.spread_over_seeds:.2f}; the base's accuracy by itself has {all_.base_spread_over_seeds or 0:.2f}."
    )


def _correlation(value: float | None) -> str:
    return "none" if value is None else f"{value:.2f}"


def _speed(all_: PageSummary) -> str:
    if not all_.speedups:
        return "**Server time** in these runs: not compared, their machines differ."
    by_rule = [median(of.speedups) for of in all_.by(lambda row: row.cell.rule).values() if of.speedups]
    among = f" (by rule {min(by_rule):.3g}x to {max(by_rule):.3g}x)" if len(by_rule) > 1 else ""
    return (
        f"**Server time** in these runs, our exact engine over PDR: median {median(all_.speedups):.3g}x{among}. "
        "Against what others do: [speed](#speed)."
    )


def pooled(groups: Sequence[Sequence[float]]) -> float | None:
    """Return one standard deviation of several small groups, each about its own mean.

    >>> pooled([[1.0, 3.0], [10.0, 12.0], [5.0]])
    1.4142135623730951
    """
    several = [group for group in groups if len(group) > 1]
    if not several:
        return None
    return sqrt(sum((len(g) - 1) * variance(g) for g in several) / sum(len(g) - 1 for g in several))
