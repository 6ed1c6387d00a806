"""The sentences at the top of the page, computed from the runs."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from bartizan.defense.reputation import Reputation
from bartizan.lab.report.factors import Factors, order
from bartizan.lab.report.groups import GridCell, ServerTime
from bartizan.lab.report.run_data import Run

NAMED = 4
"""The most suspects that a sentence names."""


def findings(
    runs: Sequence[Run], factors: Sequence[Factors], cells: Sequence[GridCell], times: Sequence[ServerTime]
) -> list[str]:
    """Return the sentences, the headline first."""
    if not runs:
        return ["No run could be read."]
    if all(run.byzantine is None for run in runs):
        return _deployment(runs[0], len(runs))
    keys = [(f.other, f.sketch, f.rule, f.attack) for f in factors]
    if len(set(keys)) == 1:
        return _alone(runs, factors[0])
    if not cells:
        return [f"None of {len(runs)} runs was evaluated yet."]
    if len(cells) == 1:
        # The others have no accuracy, and must not be given this one's.
        own = (cells[0].other, cells[0].sketch, cells[0].rule, cells[0].attack)
        evaluated = [run for run, key in zip(runs, keys, strict=True) if key == own]
        lead, *more = _alone(evaluated, factors[keys.index(own)])
        rest = counted(len(runs) - len(evaluated), "other run")
        return [f"So far: {lead[0].lower()}{lead[1:]}", *more, f"Not evaluated yet: {rest}."]
    survival = _survival(cells, _guessing(runs))
    if any(run.status == "unfinished" for run in runs):
        return [f"So far, with unfinished runs: {survival}", *_projection(cells, times)]
    return [_capital(survival), *_projection(cells, times)]


def survived(cell: GridCell, best: float, guessing: float) -> bool:
    """Whether all seeds converged, and on average ended at least half as far above guessing as the best did."""
    return cell.n_converged == cell.n and cell.last[0] - guessing >= 0.5 * (best - guessing)


def _survival(cells: Sequence[GridCell], guessing: float) -> str:
    """Which rule survived which attacks; a rule is judged only by the attacks under which it was tried."""
    attacked = [cell for cell in cells if cell.attack != "none"]
    if not attacked:
        top = max(cells, key=lambda cell: np.nan_to_num(cell.last[0]))
        return f"without attackers {top.rule} ended highest, at {percent(top.last[0])}."
    best: dict[str, float] = {}
    for cell in cells:
        best[cell.other] = max(best.get(cell.other, 0.0), float(np.nan_to_num(cell.last[0])))
    attacks = order(cell.attack for cell in attacked)
    groups: dict[tuple[tuple[str, ...], tuple[str, ...]], list[str]] = {}
    lowest: dict[str, float] = {}
    for rule in order(cell.rule for cell in attacked):
        own = [cell for cell in attacked if cell.rule == rule]
        failed = {cell.attack for cell in own if not survived(cell, best[cell.other], guessing)}
        tried = [attack for attack in attacks if any(cell.attack == attack for cell in own)]
        groups.setdefault((tuple(tried), tuple(attack for attack in tried if attack in failed)), []).append(rule)
        lowest[rule] = min((cell.last[0] for cell in own if math.isfinite(cell.last[0])), default=math.nan)
    parts = []
    for (tested, lost), rules in sorted(groups.items(), key=lambda item: (len(item[0][1]), -len(item[0][0]))):
        if lost:
            parts.append(f"{listed(rules)} failed under {listed(lost)}")
        else:
            worst = percent(min(lowest[rule] for rule in rules))
            parts.append(f"{listed(rules)} survived {_against(tested, attacks)}, ending at {worst} or more")
    return "; ".join(parts) + "."


def _against(tried: Sequence[str], attacks: Sequence[str]) -> str:
    if len(tried) < len(attacks):
        return f"{listed(tried)} (not tried under the other {len(attacks) - len(tried)})"
    return {1: f"the attack {attacks[0]}", 2: "both attacks"}.get(len(attacks), f"all {len(attacks)} attacks")


def _projection(cells: Sequence[GridCell], times: Sequence[ServerTime]) -> list[str]:
    """What projection changed in accuracy and in time, between runs that differ only in the sketch."""
    exact = {(cell.other, cell.rule, cell.attack): cell.last[0] for cell in cells if cell.sketch == "exact"}
    changes = [
        abs(cell.last[0] - exact.get((cell.other, cell.rule, cell.attack), math.nan))
        for cell in cells
        if cell.sketch != "exact"
    ]
    changes = [change for change in changes if math.isfinite(change)]
    if not changes:
        return []
    found = f"Projection changed the final accuracy by {points(float(np.median(changes)))} in the median"
    found += f" and {points(max(changes))} at most" if len(changes) > 1 else ""
    unprojected = {(time.other, time.rule): time.reads for time in times if time.sketch == "exact"}
    pairs = [
        (time.reads, unprojected.get((time.other, time.rule), math.nan)) for time in times if time.sketch != "exact"
    ]
    pairs = [pair for pair in pairs if all(map(math.isfinite, pair))]
    if pairs:
        ours, direct = np.median(pairs, axis=0)
        found += f"; a round took the server {ours:.1f} reads of the updates instead of {direct:.1f}"
        found += " in the median" if len(pairs) > 1 else ""
    return [found + "."]


def _alone(runs: Sequence[Run], factors: Factors) -> list[str]:
    """One rule, one attack, one sketch, perhaps several seeds."""
    known = [one for one in runs if one.converged and math.isfinite(one.last)]
    run, ends = (known or runs)[0], [one.last for one in known]
    rule = f"With {factors.rule}" + (f" and a {factors.sketch} sketch" if factors.sketch not in ("", "exact") else "")
    if ends:
        verb = "is" if run.status == "unfinished" else "ended at"
        reached = f"accuracy {verb} {percent(float(np.mean(ends)))}"
    else:
        reached = "accuracy was not evaluated yet" if run.converged else "the model did not converge"
    part = f"{len(ends)} of " if ends and len(ends) < len(runs) else ""
    seeds = f" ({'mean of ' if len(ends) > 1 else ''}{part}{len(runs)} runs)" if len(runs) > 1 else ""
    done = [one.n_rounds for one in known or runs]
    rounds = (f"{min(done):,} to " if min(done) < max(done) else "") + counted(max(done), "round")
    M, f = len(run.clients), run.n_attackers
    under = f", while {f} of {M} clients attacked with {factors.attack}" if f else ""
    found = [f"{rule} {reached} after {rounds}{seeds}{under}."]
    weight = run.on_attackers()
    if np.isfinite(weight).any():
        got = percent(float(np.nanmean(weight)))
        found.append(f"The attackers are {percent(f / M)} of the clients and got {got} of the weight.")
    return found


def _deployment(run: Run, n_runs: int) -> list[str]:
    """The suspects of a run whose attackers are not known."""
    where = f" in {run.name or run.folder}" if n_runs > 1 else ""
    unknown = "The attackers are not known."
    if not run.n_rounds:
        return [f"No round is done yet{where}. {unknown}"]
    suspects = reputation_of(run).suspects()
    if suspects:
        named = [f"{run.clients[one.node]} ({one.record})" for one in suspects[:NAMED]]
        named += [f"{len(suspects) - NAMED} more"] if len(suspects) > NAMED else []
        what = counted(len(suspects), "suspect")
        first = f"{what} among {counted(len(run.clients), 'client')}{where}: {listed(named)}."
    elif not run.weighs:
        why = "The rule gives no weights" if run.coordinatewise else "No round gave weights"
        first = f"{why}, so there are no suspects{where}."
    else:
        first = f"No suspects{where}: chance explains how often each of {len(run.clients)} clients was left out."
    state = f"Accuracy is {percent(run.last)}" if math.isfinite(run.last) else "Accuracy was not evaluated"
    return [first, f"{state} after {counted(run.n_rounds, 'round')}. {unknown}"]


def reputation_of(run: Run) -> Reputation:
    """Return the reputation of each client, by its position, after all rounds of a run."""
    reputation = Reputation()
    for t, (weights, quarantined) in enumerate(zip(run.weights, run.quarantined, strict=True)):
        judged = {int(i): float(weights[i]) for i in np.flatnonzero(np.isfinite(weights))}
        sizes = {} if run.sizes is None else {i: float(run.sizes[t, i]) for i in judged}
        reputation.add(
            judged,
            {int(i): "" for i in np.flatnonzero(quarantined)},
            {int(i): "" for i in np.flatnonzero(run.failed[t])},
            took_part=map(int, np.flatnonzero(run.present[t])),
            sizes=sizes if sizes and all(size > 0 for size in sizes.values()) else None,
        )
    return reputation


def _guessing(runs: Sequence[Run]) -> float:
    fewest = min((len(run.classes) for run in runs if run.classes), default=0)
    return 1 / fewest if fewest else 0.0


def percent(value: float) -> str:
    """
    >>> percent(0.8125), percent(0.3)
    ('81.2%', '30%')
    """
    return "not known" if math.isnan(value) else f"{100 * value:.1f}".removesuffix(".0") + "%"


def points(value: float) -> str:
    return f"{100 * value:.1f} points"


def counted(count: int, noun: str) -> str:
    return f"{count:,} {noun}{'' if count == 1 else 's'}"


def listed(names: Sequence[str]) -> str:
    """
    >>> listed(["krum", "mca", "mean"])
    'krum, mca and mean'
    """
    return " and ".join([", ".join(names[:-1]), names[-1]]) if len(names) > 1 else names[0]


def _capital(sentence: str) -> str:
    """Begin with a capital, unless the first word is an abbreviation.

    >>> _capital("krum and mca"), _capital("mca")
    ('Krum and mca', 'mca')
    """
    return sentence if len(sentence.split()[0].strip(",")) <= 3 else sentence[:1].upper() + sentence[1:]
