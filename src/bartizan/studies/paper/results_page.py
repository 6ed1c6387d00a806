"""The parts of a page of results that are made from runs: sentences, tables, where the numbers come from."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import mean, median

from bartizan.studies.paper.cells import ABLATION
from bartizan.studies.paper.compare import Row, agreed, printed, spread
from bartizan.studies.paper.kept import Kept
from bartizan.studies.paper.outcome import Ours
from bartizan.studies.paper.summary import Summary, broke, paper_broke

DATA, SKETCH = "cifar10", "rotated"
FEW = 3  # below so many different numbers a standard deviation says nothing
NOTHING = "No cell has both a base and its projected twin yet."


def main_rows(rows: Sequence[Row]) -> list[Row]:
    """What the summary is about: CIFAR-10's large tables, projected as users are meant to."""
    return [row for row in rows if row.cell.data == DATA and row.cell.table != ABLATION and row.sketch == SKETCH]


def headline(rows: Sequence[Row]) -> str:
    """One sentence for all cells."""
    all_ = Summary.of(rows)
    if not all_.cells:
        return NOTHING
    n, reached = len(all_.rows), all_.differences
    told = f" ({_distinct(all_)})" if n < len(all_.cells) else ""
    where = f"On {len(all_.cells)} of the paper's cells{told}: {_asked(all_.cells)}, {_seeds(all_.cells)}. "
    same = f"{all_.same_end} of {n}" if all_.same_end < n else f"all {n}" if n > 1 else "it"
    end = f"In {same} either both runs converge or neither does."
    if not reached or all_.worst is None:
        return f"{where}{end}"
    over = f"the {len(reached)} where both runs converge" if len(reached) < n else "them"
    how = "mean" if len(reached) < FEW else "mean and standard deviation"
    return (
        f"{where}Projecting changes the best test accuracy by {_spread(reached)} points ({how} over {over}), "
        f"at worst by {mean(all_.worst.raw_differences):+.2f} ({named(all_.worst)}). {end}"
    )


def headlines(rows: Sequence[Row]) -> list[str]:
    """One a protocol and sketch; the k/s table, which varies the sketch, has none."""
    large = [row for row in rows if row.cell.table != ABLATION]
    groups: dict[str, list[Row]] = {}
    for row in large:
        if row.compared:
            groups.setdefault(f"{row.protocol}, {row.sketch}", []).append(row)
    return [f"{name}: {headline(of)}" for name, of in groups.items()] or [NOTHING]


def bullets(rows: Sequence[Row]) -> str:
    """The summary at the top of the page."""
    all_ = Summary.of(rows)
    if not all_.cells:
        return NOTHING
    n, cells = len(all_.rows), len(all_.cells)
    n_base, n_pdr = (sum(map(broke, of)) for of in _ends(all_.cells))
    paper_base = sum(paper_broke(row.paper_base) for row in all_.cells)
    paper_pdr = sum(paper_broke(row.cell.values) for row in all_.cells)
    lines = [
        f"**Cells**: {cells} pairs of base and PDR, {_seeds(all_.cells)}{_protocols(all_.cells)}; {_distinct(all_)}."
        f"{_unchanged(all_)}",
        f"**PDR minus base**, points of best test accuracy, mean and standard deviation over distinct pairs: "
        f"{_spread(all_.differences) or 'none'} in the {len(all_.differences)} where both converge, "
        f"{_spread(all_.raw_differences) or 'none'} in the {len(all_.raw_differences)} where not both diverged. "
        f"The paper's own: {_spread(all_.paper_differences) or 'none'}, in the {len(all_.paper_differences)} cells "
        "where both its runs and ours converge.",
        *_extremes(all_),
        _over_seeds(all_),
        f'**Breakdown**: of {cells} cells {n_base} are "-" in our base and {n_pdr} in our PDR; in the paper '
        f"{paper_base} and {paper_pdr}. Base and PDR agree on that in {all_.same_end} of our {n} distinct pairs and in "
        f"{all_.paper_same_end} of the paper's {cells} cells. {all_.end_as_in_the_paper} of our {2 * cells} runs "
        'agree with the paper\'s on being "-" or not.',
        f'**Ranks** (Spearman, "-" lowest): {_correlation(all_.ranks_of_base_and_pdr)} between our base and our PDR, '
        f"{_correlation(all_.ranks_of_ours_and_paper)} between ours and the paper's.",
        _speed(all_),
    ]
    return "\n".join(f"- {line}" for line in lines)


def groups(rows: Sequence[Row]) -> str:
    """The same numbers by rule, attack and share of attackers; speed-ups by rule only."""
    all_ = Summary.of(rows)
    heads = (
        "",
        "cells",
        "distinct",
        "PDR - base",
        "also not converged",
        "worst",
        "the paper's",
        "same end",
        "speed-up",
    )
    lines = [heads, ("---", *["--:"] * (len(heads) - 1))]
    keys = (
        lambda row: row.cell.rule,
        lambda row: row.cell.attack,
        lambda row: f"b={row.cell.b:g}, beta={row.cell.beta:g}",
    )
    for key in keys:
        for name, of in all_.by(key).items():
            speedups = of.speedups if key is keys[0] else []
            lines.append(
                (
                    name,
                    str(len(of.cells)),
                    str(len(of.rows)),
                    _spread(of.differences),
                    _spread(of.raw_differences),
                    f"{mean(of.worst.raw_differences):+.2f}" if of.worst else "",
                    _spread(of.paper_differences),
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
    for row in Summary.of(rows).cells:
        cell, ends = row.cell, (row.base, row.pdr)
        if any(map(broke, ends)) or paper_broke(row.paper_base) or paper_broke(cell.values):
            theirs = map(printed, (row.paper_base, cell.values))
            lines.append((f"{cell.beta:g}", f"{cell.b:g}", cell.attack, cell.rule, *theirs, *map(_end, ends)))
    return table(lines) if len(lines) > 2 else 'No cell is "-", in ours or in the paper.'


def weights(rows: Sequence[Row]) -> str:
    """Whom the rules trusted: weight on attackers, and what the projection changed in it."""
    lines: list[Sequence[str]] = [
        ("beta", "b", "attack", "rule", "on attackers, base", "on attackers, PDR", "moved by projecting"),
        ("--:", "--:", "---", "---", "--:", "--:", "--:"),
    ]
    for row in Summary.of(rows).cells:
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


def _distinct(all_: Summary) -> str:
    """How many are no copies: where a rule gives attackers nothing, it trains the same model against all of them."""
    n = len(all_.rows)
    return (
        "all are distinct" if n == len(all_.cells) else f"{n} are distinct, the others repeat one of them to the digit"
    )


def _asked(rows: Sequence[Row]) -> str:
    """The data, b and beta of the cells."""
    kinds = {
        "": dict.fromkeys(row.cell.data for row in rows),
        "b=": dict.fromkeys(f"{row.cell.b:g}" for row in rows),
        "beta=": dict.fromkeys(f"{row.cell.beta:g}" for row in rows),
    }
    return ", ".join(front + " and ".join(of) for front, of in kinds.items())


def _unchanged(all_: Summary) -> str:
    n = all_.unchanged
    return f" Pairs whose base and PDR are the same to the digit: {n}." if n else ""


def _extremes(all_: Summary) -> list[str]:
    if all_.worst is None or all_.best is None:
        return []
    ends = (f"{mean(row.raw_differences):+.2f} ({named(row)})" for row in (all_.worst, all_.best))
    return [f"**Worst and best pair**: {', '.join(ends)}."]


def _spread(numbers: Sequence[float]) -> str:
    """A mean, and its standard deviation where there are enough different numbers to speak of one."""
    if len(set(numbers)) < FEW:
        return f"{mean(numbers):+.2f}" if numbers else ""
    return spread(numbers, "+")


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


def _speed(all_: Summary) -> str:
    if not all_.speedups:
        return "**Server time** in these runs: not compared, their machines differ."
    by_rule = [median(of.speedups) for of in all_.by(lambda row: row.cell.rule).values() if of.speedups]
    among = f" (by rule {min(by_rule):.3g}x to {max(by_rule):.3g}x)" if len(by_rule) > 1 else ""
    return (
        f"**Server time** in these runs, our exact engine over PDR: median {median(all_.speedups):.3g}x{among}. "
        "Against what others do: [speed](#speed)."
    )
