"""The parts of a page of results that are made from runs: sentences, tables, where the numbers come from."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import mean, median

from bartizan.federated.paper.cells import ABLATION
from bartizan.federated.paper.compare import Row, agreed, spread
from bartizan.federated.paper.kept import Kept
from bartizan.federated.paper.ours import Ours
from bartizan.federated.paper.summary import Summary, broke, paper_broke

DATA, SKETCH = "cifar10", "rotated"
NOTHING = "No cell has both a base and its projected twin yet."


def main_rows(rows: Sequence[Row]) -> list[Row]:
    """What the summary is about: CIFAR-10's large tables, projected as users are meant to."""
    return [row for row in rows if row.cell.data == DATA and row.cell.table != ABLATION and row.sketch == SKETCH]


def headline(rows: Sequence[Row]) -> str:
    """One sentence for all cells."""
    all_ = Summary.of(rows)
    if not all_.rows:
        return NOTHING
    n, reached = len(all_.rows), all_.differences or all_.raw_differences
    over = f"the {len(reached)} where both runs converge" if len(reached) < n else "cells"
    data = ", ".join(dict.fromkeys(row.cell.data for row in all_.rows))
    return (
        f"On {n} of the paper's cells ({data}) projecting changes the best test accuracy "
        f"by {spread(reached, '+')} points (mean and standard deviation over {over}), "
        f"at worst by {mean(all_.worst.raw_differences):+.2f} ({named(all_.worst)}). "
        f"In {all_.same_end} of the {n} either both runs converge or neither does."
    )


def bullets(rows: Sequence[Row]) -> str:
    """The summary at the top of the page."""
    all_ = Summary.of(rows)
    if not all_.rows:
        return NOTHING
    best = max(all_.rows, key=lambda row: mean(row.raw_differences))
    n, n_base, n_pdr = len(all_.rows), *(sum(broke(runs) for runs in of) for of in _ends(all_.rows))
    paper_base = sum(paper_broke(row.paper_base) for row in all_.rows)
    paper_pdr = sum(paper_broke(row.cell.values) for row in all_.rows)
    lines = [
        f"**Cells**: {n} pairs of base and PDR, {_seeds(all_.rows)}{_protocols(all_.rows)}.",
        f"**PDR minus base**, points of best test accuracy, mean and standard deviation over cells: "
        f"{spread(all_.differences, '+') or 'none'} in the {len(all_.differences)} cells where both converge, "
        f"{spread(all_.raw_differences, '+')} over all {n}. The paper's own, of the same cells: "
        f"{spread(all_.paper_differences, '+') or 'none'}.",
        f"**Worst and best cell**: {mean(all_.worst.raw_differences):+.2f} ({named(all_.worst)}), "
        f"{mean(best.raw_differences):+.2f} ({named(best)}).",
        _over_seeds(all_),
        f'**Breakdown**: "-" are, without projection and with it, {n_base} and {n_pdr} of our {n} cells, '
        f"{paper_base} and {paper_pdr} of the paper's. Base and PDR end alike in {all_.same_end} of ours "
        f"and {all_.paper_same_end} of the paper's. Of our {2 * n} ends {all_.end_as_in_the_paper} are the paper's.",
        f'**Ranks** (Spearman, "-" lowest): {_correlation(all_.ranks_of_base_and_pdr)} between our base and our PDR, '
        f"{_correlation(all_.ranks_of_ours_and_paper)} between ours and the paper's.",
        _speed(all_.speedups),
    ]
    return "\n".join(f"- {line}" for line in lines)


def groups(rows: Sequence[Row]) -> str:
    """The same numbers by rule, attack and share of liars."""
    all_ = Summary.of(rows)
    heads = ("", "cells", "PDR - base", "all cells", "worst", "the paper's", "end alike", "speed-up")
    lines = [heads, ("---", *["--:"] * (len(heads) - 1))]
    keys = (
        lambda row: row.cell.rule,
        lambda row: row.cell.attack,
        lambda row: f"b={row.cell.b:g}, beta={row.cell.beta:g}",
    )
    for key in keys:
        for name, of in all_.by(key).items():
            speedups = of.speedups
            lines.append(
                (
                    name,
                    str(len(of.rows)),
                    spread(of.differences, "+"),
                    spread(of.raw_differences, "+"),
                    f"{mean(of.worst.raw_differences):+.2f}",
                    spread(of.paper_differences, "+"),
                    f"{of.same_end} of {len(of.rows)}",
                    f"{median(speedups):.3g}x" if speedups else "",
                )
            )
    return table(lines)


def breakdowns(rows: Sequence[Row]) -> str:
    """Every cell in which one of the four is "-"; ours with the best accuracy that it had all the same."""
    lines: list[Sequence[str]] = [
        ("beta", "b", "attack", "rule", "paper base", "paper PDR", "ours base", "ours PDR"),
        ("--:", "--:", "---", "---", "--:", "--:", "--:", "--:"),
    ]
    for row in Summary.of(rows).rows:
        cell, ends = row.cell, (row.base, row.pdr)
        if any(map(broke, ends)) or paper_broke(row.paper_base) or paper_broke(cell.values):
            theirs = (" / ".join(dict.fromkeys(v.shown for v in values)) for values in (row.paper_base, cell.values))
            lines.append((f"{cell.beta:g}", f"{cell.b:g}", cell.attack, cell.rule, *theirs, *map(_end, ends)))
    return table(lines) if len(lines) > 2 else 'No cell is "-", in ours or in the paper.'


def weights(rows: Sequence[Row]) -> str:
    """Whom the rules trusted: weight on liars, and what the projection changed in it."""
    lines: list[Sequence[str]] = [
        ("beta", "b", "attack", "rule", "on liars, base", "on liars, PDR", "moved by projecting"),
        ("--:", "--:", "---", "---", "--:", "--:", "--:"),
    ]
    for row in Summary.of(rows).rows:
        cell, base, pdr = row.cell, *([run.on_liars for run in runs] for runs in (row.base, row.pdr))
        shown = (_percent(of) for of in (base, pdr, [run.moved for run in row.pdr]))
        lines.append((f"{cell.beta:g}", f"{cell.b:g}", cell.attack, cell.rule, *shown))
    return table(lines)


def origins(runs: Sequence[Kept]) -> str:
    """Machines, versions and revisions of the runs."""
    total = sum(run.seconds["run"] or 0 for run in runs)
    kinds = {
        "Machines": {run.machine for run in runs},
        "Versions": {f"bartizan {run.bartizan}, torch {run.torch}" for run in runs},
        "Revisions": {run.commit or "not said" for run in runs},
    }
    told = [f"{name}: {'; '.join(sorted(of))}." for name, of in kinds.items()]
    notes = sorted({f"{run.config['rule']['name']}: {note}" for run in runs for note in run.notes})
    first = f"{len(runs)} runs, {total / 3600:.1f} hours in all. {' '.join(told)}"
    return "\n".join([first, *(["", *(f"- {note}" for note in notes)] if notes else [])])


def named(row: Row) -> str:
    cell = row.cell
    return f"{cell.rule}, {cell.attack}, b={cell.b:g}, beta={cell.beta:g}"


def table(lines: Sequence[Sequence[str]]) -> str:
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def _ends(rows: Sequence[Row]) -> tuple[list[tuple[Ours, ...]], list[tuple[Ours, ...]]]:
    return [row.base for row in rows], [row.pdr for row in rows]


def _end(runs: Sequence[Ours]) -> str:
    had = [run.best for run in runs if run.best is not None]
    return f"- ({mean(had):.2f})" if broke(runs) and had else agreed(runs)


def _percent(parts: Sequence[float | None]) -> str:
    there = [part for part in parts if part is not None]
    return f"{100 * mean(there):.1f}%" if there else ""


def _seeds(rows: Sequence[Row]) -> str:
    counts = [len(row.pairs) for row in rows]
    if max(counts) == 1:
        return "one seed each"
    return f"{counts[0]} seeds each" if len(set(counts)) == 1 else f"{min(counts)} to {max(counts)} seeds each"


def _protocols(rows: Sequence[Row]) -> str:
    letters = sorted({row.protocol for row in rows})
    return f", under the protocols {', '.join(letters)} below" if len(letters) > 1 else ""


def _over_seeds(all_: Summary) -> str:
    if all_.spread_over_seeds is None:
        return "**Over seeds**: no spread, since every cell has one seed."
    several = sum(len(row.pairs) > 1 for row in all_.rows)
    return (
        f"**Over seeds** of one cell ({several} cells have several) the difference has a standard deviation of "
        f"{all_.spread_over_seeds:.2f}; the base's accuracy by itself has {all_.base_spread_over_seeds or 0:.2f}."
    )


def _correlation(value: float | None) -> str:
    return "none" if value is None else f"{value:.2f}"


def _speed(speedups: Sequence[float]) -> str:
    if not speedups:
        return "**Server time** in these runs: not compared, their machines differ."
    return (
        f"**Server time** in these runs, our exact engine over PDR: median {median(speedups):.3g}x "
        f"({min(speedups):.3g}x to {max(speedups):.3g}x). Against what others do: [speed](#speed)."
    )
