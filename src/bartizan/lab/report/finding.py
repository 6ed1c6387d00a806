"""What the runs show, in a sentence or two that are computed from them."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from bartizan.defense.reputation import Reputation
from bartizan.lab.report.factors import Factors, coordinatewise, order
from bartizan.lab.report.groups import Cell, Time
from bartizan.lab.report.run_data import Run

NAMED = 4


def findings(runs: Sequence[Run], placed: Sequence[Factors], cells: Sequence[Cell], times: Sequence[Time]) -> list[str]:
    """The headline first."""
    if not runs:
        return ["No run could be read."]
    if all(run.byzantine is None for run in runs):
        return [sentence for run in runs[:1] for sentence in _deployment(run, len(runs))]
    kinds = [(f.other, f.sketch, f.rule, f.attack) for f in placed]
    if len(set(kinds)) == 1:
        return _alone(runs, placed[0])
    if not cells:
        return [f"None of {len(runs)} runs was evaluated yet."]
    if len(cells) == 1:
        # The others have no accuracy, and must not be given this one's.
        own = (cells[0].other, cells[0].sketch, cells[0].rule, cells[0].attack)
        lead, *more = _alone(
            [run for run, kind in zip(runs, kinds, strict=True) if kind == own], placed[kinds.index(own)]
        )
        rest = len(kinds) - kinds.count(own)
        return [f"So far: {lead[0].lower()}{lead[1:]}", *more, f"Not evaluated yet: {counted(rest, 'other run')}."]
    survival = _survival(cells, _guessing(runs), so_far=any(run.status == "unfinished" for run in runs))
    return [survival, *_projection(cells, times)]


def survived(cell: Cell, best: float, guessing: float) -> bool:
    """Whether all seeds converged, and on average ended at least half as far above guessing as the best did."""
    return cell.n_converged == cell.n and cell.last[0] - guessing >= 0.5 * (best - guessing)


def _survival(cells: Sequence[Cell], guessing: float, so_far: bool) -> str:
    """Who survived what; a rule is judged by those attacks alone under which it was tried."""
    attacked = [cell for cell in cells if cell.attack != "none"]
    best = {
        other: max((cell.last[0] for cell in cells if cell.other == other and math.isfinite(cell.last[0])), default=0.0)
        for other in {cell.other for cell in cells}
    }
    if not attacked:
        top = max(cells, key=lambda cell: np.nan_to_num(cell.last[0]))
        return f"Without attackers {top.rule} ended highest, at {percent(top.last[0])}."
    attacks = order(cell.attack for cell in attacked)
    held: dict[tuple[tuple[str, ...], tuple[str, ...]], list[str]] = {}
    lowest: dict[str, float] = {}
    for rule in order(cell.rule for cell in attacked):
        own = [cell for cell in attacked if cell.rule == rule]
        tried = tuple(attack for attack in attacks if any(cell.attack == attack for cell in own))
        bad = {cell.attack for cell in own if not survived(cell, best[cell.other], guessing)}
        held.setdefault((tried, tuple(attack for attack in tried if attack in bad)), []).append(rule)
        lowest[rule] = min((cell.last[0] for cell in own if math.isfinite(cell.last[0])), default=math.nan)
    parts = []
    for (tried, failed), rules in sorted(held.items(), key=lambda item: (len(item[0][1]), -len(item[0][0]))):
        if failed:
            parts.append(f"{listed(rules)} failed under {listed(failed)}")
        else:
            worst = percent(min(lowest[rule] for rule in rules))
            parts.append(f"{listed(rules)} survived {_against(tried, attacks)}, ending at {worst} or more")
    if so_far:
        return "So far, with unfinished runs: " + "; ".join(parts) + "."
    return _capital("; ".join(parts)) + "."


def _against(tried: Sequence[str], attacks: Sequence[str]) -> str:
    if len(tried) < len(attacks):
        return f"{listed(tried)} (not tried under the other {len(attacks) - len(tried)})"
    return {1: f"the attack {attacks[0]}", 2: "both attacks"}.get(len(attacks), f"all {len(attacks)} attacks")


def _projection(cells: Sequence[Cell], times: Sequence[Time]) -> list[str]:
    """What looking through a sketch changed, where the same was also done without."""
    exact = {(cell.other, cell.rule, cell.attack): cell for cell in cells if cell.sketch == "exact"}
    changes = [
        abs(cell.last[0] - exact[key].last[0])
        for cell in cells
        if cell.sketch != "exact" and (key := (cell.other, cell.rule, cell.attack)) in exact
    ]
    changes = [change for change in changes if math.isfinite(change)]
    if not changes:
        return []
    found = f"Projecting moved the final accuracy by {points(float(np.median(changes)))} in the median"
    found += f" and {points(max(changes))} at most" if len(changes) > 1 else ""
    plain = {(time.other, time.rule): time.reads for time in times if time.sketch == "exact"}
    costs = [
        (time.reads, plain[time.other, time.rule])
        for time in times
        if time.sketch != "exact" and (time.other, time.rule) in plain
    ]
    costs = [both for both in costs if all(map(math.isfinite, both))]
    if costs:
        ours, direct = np.median(costs, axis=0)
        found += f", and took the server {ours:.1f} reads of the updates instead of {direct:.1f}"
        found += " in the median" if len(costs) > 1 else ""
    return [found + "."]


def _alone(runs: Sequence[Run], what: Factors) -> list[str]:
    """One rule, one attack, one sketch, perhaps several seeds."""
    known = [one for one in runs if one.converged and math.isfinite(one.last)]
    run, ends = (known or runs)[0], [one.last for one in known]
    rule = f"With {what.rule}" + (f" through a {what.sketch} sketch" if what.sketch not in ("", "exact") else "")
    if ends:
        verb = "is" if run.status == "unfinished" else "ended at"
        reached = f"accuracy {verb} {percent(float(np.mean(ends)))}"
    else:
        reached = "accuracy was not evaluated yet" if run.converged else "the model did not converge"
    part = f"{len(ends)} of " if ends and len(ends) < len(runs) else ""
    seeds = f" ({'mean of ' if len(ends) > 1 else ''}{part}{len(runs)} runs)" if len(runs) > 1 else ""
    done = [one.n_rounds for one in known or runs]
    rounds = (f"{min(done):,} to " if min(done) < max(done) else "") + counted(max(done), "round")
    attackers = 0 if run.byzantine is None else int(run.byzantine.sum())
    under = f", while {attackers} of {len(run.clients)} clients attacked with {what.attack}" if attackers else ""
    found = [f"{rule} {reached} after {rounds}{seeds}{under}."]
    theirs = run.on_attackers()
    if attackers and np.isfinite(theirs).any():
        found.append(
            f"The attackers are {percent(attackers / len(run.clients))} of the clients and got "
            f"{percent(float(np.nanmean(theirs)))} of the weight."
        )
    return found


def _deployment(run: Run, n_runs: int) -> list[str]:
    """Nobody knows the attackers: name who was quarantined, or left out more often than chance explains."""
    suspects = reputation_of(run).suspects()
    where = f" in {run.name or run.place}" if n_runs > 1 else ""
    if not run.n_rounds:
        return [f"No round is done yet{where}. Who attacks is not known."]
    if suspects:
        named = [f"{run.clients[one.node]} ({one.record})" for one in suspects[:NAMED]]
        named += [f"{len(suspects) - NAMED} more"] if len(suspects) > NAMED else []
        what = counted(len(suspects), "suspect")
        first = f"{what} among {counted(len(run.clients), 'client')}{where}: {listed(named)}."
    elif not run.weighs:
        why = "The rule gives no weights" if coordinatewise(run) else "No round gave weights"
        first = f"{why}, so there are no suspects{where}."
    else:
        first = f"No suspects{where}: chance explains how often each of {len(run.clients)} clients was left out."
    state = f"Accuracy is {percent(run.last)}" if math.isfinite(run.last) else "Accuracy was not evaluated"
    return [first, f"{state} after {counted(run.n_rounds, 'round')}. Who attacks is not known."]


def reputation_of(run: Run) -> Reputation:
    """What its rounds say of each client, by index."""
    reputation = Reputation()
    for t, (weights, gone) in enumerate(zip(run.weights, run.quarantined, strict=True)):
        judged = {int(i): float(weights[i]) for i in np.flatnonzero(np.isfinite(weights))}
        counted_for = None if run.counted_for is None else run.counted_for[t]
        sizes = None if counted_for is None else {i: float(counted_for[i]) for i in judged}
        reputation.add(
            judged,
            {int(i): "" for i in np.flatnonzero(gone)},
            took_part=map(int, np.flatnonzero(run.present[t])),
            sizes=None if sizes is None or not all(size > 0 for size in sizes.values()) else sizes,
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
    """Without spoiling a name: `mca` is none that begins with a capital.

    >>> _capital("krum and mca"), _capital("mca")
    ('Krum and mca', 'mca')
    """
    return sentence if len(sentence.split()[0].strip(",")) <= 3 else sentence[:1].upper() + sentence[1:]
