"""The rules that survived each attack, judged by the mean without attack and under the same attack."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence

from bartizan.lab.report.factors import order
from bartizan.lab.report.groups import GridCell
from bartizan.lab.report.wording import capital, counted, level, listed, points, span

SURVIVAL_MARGIN = 0.05
"""Accuracy that a surviving rule loses against the mean without attack, at most, or fraction of perplexity it gains."""
MAX_NAMED_ATTACKS = 4
"""Attacks of which a sentence gives numbers, at most."""


def survived(cell: GridCell, clean: float, attacked: float) -> bool | None:
    """Return whether all runs of a cell converged and ended near the mean without attack and above the attacked mean.

    None if it did not fail so far, but a mean to compare it with is unknown (NaN).
    """
    sign, end = cell.metric.sign, cell.last[0]
    limit = clean * (1 + SURVIVAL_MARGIN) if cell.metric.lower_is_better else clean - SURVIVAL_MARGIN
    if cell.n_converged < cell.n or sign * end <= sign * attacked or sign * end < sign * limit:
        return False
    return None if math.isnan(cell.last[0] + clean + attacked) else True


def headline(cells: Sequence[GridCell]) -> str:
    """Say where the plain mean was not beaten, who gave attackers most of the weight, and which rules survived."""
    attacked = [cell for cell in cells if cell.attack != "none"]
    if not attacked:
        metric = cells[0].metric
        top = max(cells, key=lambda cell: metric.merit(cell.last[0]))
        how = "lowest" if metric.lower_is_better else "highest"
        sentences = [f"without attackers {top.rule} ended {how}, at {level(top.last[0], metric)}"]
    else:
        sentences = [*_mean_unbeaten(cells), *_trusted_attackers(attacked), *_verdicts(cells, attacked)]
    return " ".join(f"{capital(sentence)}." for sentence in [*sentences, seeds(cell.n for cell in cells)])


def definition(cells: Sequence[GridCell]) -> list[str]:
    """Say what "survived" means, with the ends of the mean that it is judged by, or which of them is missing."""
    attacks = order(cell.attack for cell in cells if cell.attack != "none")
    others = order(cell.other for cell in cells if cell.attack != "none")
    if not attacks:
        return []
    clean = [_of_mean(cells, other, "none") for other in others]
    tried = {(cell.other, cell.attack) for cell in cells}
    under = {a: [_of_mean(cells, other, a) for other in others if (other, a) in tried] for a in attacks}
    missing = ["without attack"] if any(map(math.isnan, clean)) else []
    missing += [f"under {attack}" for attack, ends in under.items() if any(map(math.isnan, ends))]
    metric = cells[0].metric
    worse, better = ("above", "below") if metric.lower_is_better else ("below", "above")
    within = f"{SURVIVAL_MARGIN:.0%}" if metric.lower_is_better else points(SURVIVAL_MARGIN)
    near = f"at most {within} {worse} the mean without attack" + _in_brackets([span(clean, metric)])
    above = f"{better} the mean under the same attack"
    if len(attacks) <= MAX_NAMED_ATTACKS:
        above += _in_brackets([f"{attack} {span(ends, metric)}" for attack, ends in under.items()])
    sentences = [f"Survived: all runs converged and ended, on average, {near} and {above}. Otherwise the rule failed."]
    if missing:
        sentences.append(f"Missing, and needed to say that a rule survived: the mean {listed(missing)}.")
    return sentences


def seeds(counts: Iterable[int]) -> str:
    """Return the number of seeds in words.

    >>> seeds([1, 1]), seeds([3]), seeds([1, 3])
    ('one seed', 'means of 3 seeds', 'means of 1 to 3 seeds')
    """
    least, *_, most = sorted([*counts] * 2)
    return "one seed" if most == 1 else f"means of {f'{least} to ' if least < most else ''}{most} seeds"


def _mean_unbeaten(cells: Sequence[GridCell]) -> Iterator[str]:
    """Name the attacks under which no robust rule ended above the plain mean, or with less perplexity."""
    found: dict[str, list[float]] = {}
    metric = cells[0].metric
    for other, attack in dict.fromkeys((cell.other, cell.attack) for cell in cells if cell.attack != "none"):
        mean = _of_mean(cells, other, attack)
        robust = [c for c in cells if (c.other, c.attack) == (other, attack) and c.rule != "mean"]
        if robust and math.isfinite(mean) and all(metric.sign * _end(cell) <= metric.sign * mean for cell in robust):
            found.setdefault(attack, []).append(mean)
    if found:
        ends = [end for many in found.values() for end in many]
        better = "below" if metric.lower_is_better else "above"
        yield f"under {listed(order(found))} no robust rule ended {better} the plain mean ({span(ends, metric)})"


def _trusted_attackers(attacked: Sequence[GridCell]) -> Iterator[str]:
    """Name the rules that gave attackers more than half of the weight, by attack."""
    found: dict[str, dict[str, float]] = {}
    for cell in attacked:
        if cell.rule != "mean" and cell.on_attackers > 0.5:
            rules = found.setdefault(cell.attack, {})
            rules[cell.rule] = max(rules.get(cell.rule, 0.0), cell.on_attackers)
    named = [
        f"of {listed([f'{rule} ({most:.0%})' for rule, most in sorted(rules.items(), key=lambda item: -item[1])])}"
        f" under {attack}"
        for attack, rules in found.items()
    ]
    if named:
        more = (
            f", and of rules under {len(named) - MAX_NAMED_ATTACKS} more attacks"
            if len(named) > MAX_NAMED_ATTACKS
            else ""
        )
        yield f"attackers got most of the weight {', and '.join(named[:MAX_NAMED_ATTACKS])}{more}"


def _verdicts(cells: Sequence[GridCell], attacked: Sequence[GridCell]) -> Iterator[str]:
    """Say which rules survived each attack; a rule is judged only by the attacks under which it was tried.

    A run that did not converge is not judged if the mean without attack did not either: training is the reason.
    """
    attacks = order(cell.attack for cell in attacked)
    judged = [
        cell
        for cell in attacked
        if cell.n_converged == cell.n or not math.isinf(_of_mean(cells, cell.other, "none", cell.sketch))
    ]
    if len(judged) < len(attacked):
        yield "even the mean without attack did not converge: train longer, or with another step size, to judge rules"
    groups: dict[tuple[tuple[str, ...], ...], list[str]] = {}
    for rule in order(cell.rule for cell in judged):
        found: dict[bool | None, list[str]] = {True: [], None: [], False: []}
        for attack in attacks:
            own = [cell for cell in judged if (cell.rule, cell.attack) == (rule, attack)]
            marks = [_judged(cells, cell) for cell in own]
            if own:
                found[False if False in marks else None if None in marks else True].append(attack)
        if rule == "mean":  # it can't end above itself: it failed, or there is nothing to say
            found = {True: [], None: [], False: found[False]}
        if any(found.values()):
            groups.setdefault(tuple(map(tuple, found.values())), []).append(rule)
    if groups:
        best_first = sorted(groups.items(), key=lambda item: (not item[0][0], len(item[0][2]), -len(item[0][0])))
        yield "; ".join(_clause(rules, kinds, attacks, attacked) for kinds, rules in best_first)


def _clause(
    rules: Sequence[str], kinds: tuple[tuple[str, ...], ...], attacks: Sequence[str], cells: Sequence[GridCell]
) -> str:
    won, unjudged, lost = kinds
    tried = {cell.attack for cell in cells if cell.rule in rules}
    clauses = []
    if won:
        clauses.append(f"survived {_all_of(won, attacks)} ({_worst(rules, won, cells)})")
    if unjudged:
        clauses.append(f"ended at {_worst(rules, unjudged, cells)} under {_all_of(unjudged, attacks)}")
    if lost:
        clauses.append(f"failed under {_all_of(lost, attacks)}")
    untried = f" (not tried under {counted(len(attacks) - len(tried), 'other')})" if len(tried) < len(attacks) else ""
    return f"{listed(rules)} {listed(clauses)}{untried}"


def _worst(rules: Sequence[str], attacks: Sequence[str], cells: Sequence[GridCell]) -> str:
    ends, metric = [cell.last[0] for cell in cells if cell.rule in rules and cell.attack in attacks], cells[0].metric
    worst = level(metric.worst(ends), metric)
    return worst if len(ends) == 1 else f"{worst} or {'less' if metric.lower_is_better else 'more'}"


def _all_of(some: Sequence[str], attacks: Sequence[str]) -> str:
    if len(some) < len(attacks) or len(attacks) == 1:
        return listed(some)
    return "both attacks" if len(attacks) == 2 else f"all {len(attacks)} attacks"


def _judged(cells: Sequence[GridCell], cell: GridCell) -> bool | None:
    clean = _of_mean(cells, cell.other, "none", cell.sketch)
    attacked = math.nan if cell.rule == "mean" else _of_mean(cells, cell.other, cell.attack, cell.sketch)
    return survived(cell, math.nan if math.isinf(clean) else clean, attacked)


def _of_mean(cells: Sequence[GridCell], other: str, attack: str, sketch: str | None = None) -> float:
    """Return the plain mean's end, with this sketch or, as it uses none, with any; NaN if it was not run."""
    own = [cell for cell in cells if (cell.other, cell.attack, cell.rule) == (other, attack, "mean")]
    own = [cell for cell in own if cell.sketch == sketch] or own
    return cells[0].metric.best(map(_end, own))


def _end(cell: GridCell) -> float:
    """Return the accuracy or perplexity at the end; infinitely bad if a run did not converge."""
    return cell.last[0] if cell.n_converged == cell.n else -cell.metric.sign * math.inf


def _in_brackets(texts: Sequence[str]) -> str:
    return f" ({', '.join(texts)})"
