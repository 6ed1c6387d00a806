"""The verdict on each rule under attack: it held, lost so many points, or broke."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence

from bartizan.lab.report.factors import order
from bartizan.lab.report.groups import GridCell
from bartizan.lab.report.wording import counted, difference, listed, span

HELD = 0.9
"""Part of the accuracy of the mean without attack that a rule keeps in every run under attack, to count as held."""
BROKE = 0.5
"""The part below which it counts as broken."""


def headline(cells: Sequence[GridCell]) -> str:
    """Return the worst case of the mean and of the best rule, the verdicts on all rules, and the number of seeds."""
    if any(cell.attack != "none" for cell in cells):
        sentences = [*_worst_cases(cells), *_verdicts(cells)]
    else:
        metric = cells[0].metric
        best = max(cells, key=lambda cell: metric.merit(_end(cell)))
        sentences = [f"Best without attackers: {best.rule} {span([_end(best)], metric)}"]
    return "".join(f"{sentence}. " for sentence in sentences) + f"{seeds(cell.n for cell in cells).capitalize()}."


def definition(cells: Sequence[GridCell]) -> list[str]:
    """Return the meaning of the verdicts."""
    clean = [clean_end(cells, other) for other in order(cell.other for cell in cells if cell.attack != "none")]
    if not clean:
        return []
    if any(map(math.isnan, clean)):
        return ["Missing, and needed for a verdict: the mean without attack."]
    metric = cells[0].metric
    held, broke = f"at least {HELD:.0%} of", "less than half of it"
    if metric.lower_is_better:
        held, broke = f"at most {1 / HELD - 1:.0%} above", "twice that or more"
    said = f"the {metric.name} of the mean without attack ({span(clean, metric)})"
    return [f"Held: {held} {said}, in every run under attack. Broke: {broke}, or a run did not converge."]


def verdict(cells: Sequence[GridCell], rule: str, sketch: str | None = None) -> str:
    """Return the worst verdict on a rule over attacks and settings, and with one sketch or all; "" if there is none."""
    attacked = [cell for cell in cells if cell.rule == rule and cell.attack != "none"]
    own = {judged(cells, cell) for cell in attacked if sketch in (None, cell.sketch)}
    return next((kind for kind in ("broke", "lost", "", "held") if kind in own), "")


def judged(cells: Sequence[GridCell], cell: GridCell) -> str:
    """Return "held", "lost" or "broke"; "" where the mean without attack is missing, or did not converge itself."""
    clean = clean_end(cells, cell.other, cell.sketch)
    if not math.isfinite(clean):
        return "broke" if math.isnan(clean) and cell.n_converged < cell.n else ""

    def keeps(end: float, part: float) -> bool:
        return clean >= part * end if cell.metric.lower_is_better else end >= part * clean

    if not keeps(_end(cell), BROKE):
        return "broke"
    return "held" if keeps(cell.least, HELD) else "lost"


def clean_end(cells: Sequence[GridCell], other: str, sketch: str | None = None) -> float:
    """Return the last accuracy of the mean without attack, if possible from a run with this sketch; NaN if not run."""
    own = [cell for cell in cells if (cell.other, cell.attack, cell.rule) == (other, "none", "mean")]
    return cells[0].metric.best(map(_end, [cell for cell in own if cell.sketch == sketch] or own))


def seeds(counts: Iterable[int]) -> str:
    """Return the number of seeds in words.

    >>> seeds([1, 1]), seeds([3]), seeds([1, 3])
    ('one seed', 'means of 3 seeds', 'means of 1 to 3 seeds')
    """
    least, *_, most = sorted([*counts] * 2)
    return "one seed" if most == 1 else f"means of {f'{least} to ' if least < most else ''}{most} seeds"


def worst_cases(cells: Sequence[GridCell]) -> tuple[frozenset[tuple[str, str]], list[GridCell]]:
    """Return the settings and attacks that are compared, and the worst cell there of each rule and sketch.

    Rules are compared only where all of them were tried: under the most that several rules, the mean included, share.
    """
    tried: dict[tuple[str, str], dict[tuple[str, str], GridCell]] = {}
    for cell in cells:
        if cell.attack != "none":
            entry = cell.rule, "" if cell.rule == "mean" else cell.sketch  # the mean uses no sketch
            tried.setdefault(entry, {})[cell.other, cell.attack] = cell
    sharing = {
        keys: len({rule for (rule, _), own in tried.items() if keys <= own.keys()})
        for keys in map(frozenset, tried.values())
    }
    chosen = max(sharing, key=lambda keys: (sharing[keys] > 1, len(keys), sharing[keys]), default=frozenset())
    shared = [[cell for key, cell in own.items() if key in chosen] for own in tried.values() if chosen <= own.keys()]
    return chosen, [min(own, key=lambda cell: cell.metric.merit(_end(cell))) for own in shared]


def best_worst_case(cells: Sequence[GridCell], *, held: bool = False) -> GridCell | None:
    """Return the best of the worst cells, the mean's left out; with `held`, of the rules that held everywhere."""
    some = [cell for cell in worst_cases(cells)[1] if cell.rule != "mean" and math.isfinite(_end(cell))]
    some = [cell for cell in some if not held or verdict(cells, cell.rule) == "held"]
    return max(some, key=lambda cell: cell.metric.merit(_end(cell)), default=None)


def advice(cells: Sequence[GridCell]) -> list[str]:
    """Name the rule to take, if one held under several attacks, and what the attack that is worst for it costs."""
    taken, (compared, _) = best_worst_case(cells, held=True), worst_cases(cells)
    if taken is None or len({attack for _, attack in compared}) < 2:
        return []
    if verdict(cells, "mean") == "held":
        return ["The mean held too: these attacks call for no robust rule."]
    own = [cell for cell in cells if (cell.rule, cell.sketch) == (taken.rule, taken.sketch) and cell.attack != "none"]
    loss, attack = largest_loss(cells, own)
    cost = f"costs it most, {difference(loss, taken.metric)}" if loss > 0 else "costs it nothing"
    return [f"Take {taken.rule} here: of the rules that held it has the best worst case; {attack} {cost}."]


def largest_loss(cells: Sequence[GridCell], own: Sequence[GridCell]) -> tuple[float, str]:
    """Return how much worse than the mean without attack some cells ended, at most, and under which attack."""
    sign = cells[0].metric.sign
    return max((sign * (clean_end(cells, cell.other, cell.sketch) - cell.last[0]), cell.attack) for cell in own)


def _worst_cases(cells: Sequence[GridCell]) -> Iterator[str]:
    """Say how the mean and the best of the rules ended under the attack that is worst for each."""
    metric, (compared, worst), best = cells[0].metric, worst_cases(cells), best_worst_case(cells)
    shown = {cell.rule: cell for cell in worst if cell.rule == "mean"}
    if best:
        several = len({cell.sketch for cell in cells if cell.rule == best.rule}) > 1
        shown[f"{best.rule} ({best.sketch})" if several else best.rule] = best
    if not shown:
        return
    attacks, others = order(attack for _, attack in compared), order(other for other, _ in compared)
    where = f"Worst of {counted(len(attacks), 'attack')}" if len(attacks) > 1 else f"Under {attacks[0]}"
    where += f" with {listed(others)}" if len(others) < len({cell.other for cell in cells}) else ""
    reached = {name: [cell.ended if math.isfinite(cell.ended) else _end(cell)] for name, cell in shown.items()}
    clean = [end for other in others if not math.isnan(end := clean_end(cells, other))]
    reached |= {"the mean without attack": clean} if clean else {}
    yield f"{where}: {', '.join(f'{name} {span(ends, metric)}' for name, ends in reached.items())}"


def _verdicts(cells: Sequence[GridCell]) -> Iterator[str]:
    """Name the rules that held, those that lost accuracy and under which attack most, and those that broke."""
    attacked = [cell for cell in cells if cell.attack != "none"]
    found: dict[str, list[str]] = {"held": [], "lost": [], "broke": []}
    for rule in order(cell.rule for cell in attacked):
        kind = verdict(cells, rule)
        own = [cell for cell in attacked if cell.rule == rule]
        tried = order(cell.attack for cell in own)
        named = rule
        if kind == "lost":
            most, attack = largest_loss(cells, own)
            named += f" {difference(most, cells[0].metric)} under {attack}"
        elif kind == "broke":
            broken = [cell for cell in own if judged(cells, cell) == "broke"]
            named += f" under {listed(order(cell.attack for cell in broken))}"
            where = order(cell.other for cell in broken)
            if len(where) < len({cell.other for cell in attacked}):
                named += f" with {listed(where)}"
        if len(tried) < len({cell.attack for cell in attacked}):
            named += f" (only under {listed(tried)})"
        if kind:
            found[kind].append(named)
    yield from (f"{kind.capitalize()}: {'; '.join(rules)}" for kind, rules in found.items() if rules)
    if not found["held"] and any(found.values()):
        yield "None of the rules held under all attacks"
    if any(math.isinf(clean_end(cells, cell.other, cell.sketch)) for cell in cells):
        yield "Even the mean without attack did not converge: train longer, or with another step size, to judge rules"


def _end(cell: GridCell) -> float:
    """Return the accuracy or perplexity at the end; infinitely bad if a run did not converge."""
    return cell.last[0] if cell.n_converged == cell.n else -cell.metric.sign * math.inf
