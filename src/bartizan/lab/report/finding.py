"""The sentences at the top of the page, computed from the runs."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from bartizan.judge.reputation import Reputation
from bartizan.lab.metrics import METRICS
from bartizan.lab.report.factors import Factors, order
from bartizan.lab.report.groups import GridCell, ServerTime
from bartizan.lab.report.run_data import Run, mean
from bartizan.lab.report.verdicts import advice, definition, headline
from bartizan.lab.report.wording import capital, counted, difference, duration, level, listed, percent

MAX_NAMED_SUSPECTS = 4
"""Suspects that a sentence names, at most."""


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
    so_far = "So far, with unfinished runs: " if any(run.status == "unfinished" for run in runs) else ""
    kinds = [[cell for cell in cells if cell.metric == metric] for metric in METRICS.values()]
    kinds = [some for some in kinds if some]
    sentences = []
    for some in kinds:
        metric = f"By {some[0].metric.name}: " if len(kinds) > 1 else ""
        sentences += [metric + headline(some), *advice(some), *definition(some)]
    sentences += [*_backdoors(cells), *(sentence for some in kinds for sentence in _projection(some)), *_speed(times)]
    return [so_far + sentences[0], *sentences[1:]]


def _backdoors(cells: Sequence[GridCell]) -> list[str]:
    """Name the rules under which each backdoor succeeded least and most, which accuracy does not show."""
    found = []
    tested = sorted((cell for cell in cells if math.isfinite(cell.backdoor[0])), key=lambda cell: cell.backdoor[0])
    for attack in order(cell.attack for cell in tested):
        own = [cell for cell in tested if cell.attack == attack]
        ends = list(dict.fromkeys((own[0].rule, own[-1].rule)))
        rates = [percent(cell.backdoor[0]) for cell in (own[0], own[-1])][: len(ends)]
        with_rules = [f"{rate} with {rule}" for rate, rule in zip(rates, ends, strict=True)]
        found.append(f"{capital(attack)} succeeded on {' to '.join(with_rules)} of the images that it is made for.")
    return found


def _projection(cells: Sequence[GridCell]) -> list[str]:
    """Say how much projection changed runs that differ in the sketch alone, beside the spread over seeds."""
    cells = [cell for cell in cells if cell.rule != "mean"]  # which uses no sketch
    exact = {(cell.other, cell.rule, cell.attack): cell for cell in cells if cell.sketch == "exact"}
    pairs = [
        (cell, exact[key])
        for cell in cells
        if cell.sketch != "exact" and (key := (cell.other, cell.rule, cell.attack)) in exact
    ]
    pairs = [(a, b) for a, b in pairs if math.isfinite(a.last[0] - b.last[0])]
    if not pairs:
        return []
    changes = [abs(a.last[0] - b.last[0]) for a, b in pairs]
    metric = cells[0].metric
    found = f"Projection changed the final {metric.name} by {difference(float(np.median(changes)), metric)}"
    found += f" in the median and {difference(max(changes), metric)} at most" if len(changes) > 1 else ""
    deviations = [cell.last[1] for pair in pairs for cell in pair if math.isfinite(cell.last[1])]
    if deviations:
        usual = difference(float(np.median(deviations)), metric)
        return [f"{found}; seeds alone differ by a standard deviation of {usual}."]
    return [f"{found}; with one seed that may be chance."]


def _speed(times: Sequence[ServerTime]) -> list[str]:
    """Name the rules whose server time projection changed by more than rounds differ, in seconds and in reads."""
    times = [time for time in times if time.rule != "mean"]
    exact = {(time.other, time.rule): time for time in times if time.sketch == "exact"}
    pairs = [
        (time, exact[time.other, time.rule])
        for time in times
        if time.sketch != "exact" and (time.other, time.rule) in exact
    ]
    if not pairs:
        return []
    groups: dict[str, list[tuple[ServerTime, ServerTime]]] = {"less": [], "more": [], "": [], "untimed": []}
    for ours, direct in pairs:
        groups[_change(ours, direct)].append((ours, direct))
    found = []
    for change in ("less", "more"):
        if groups[change]:
            reads, unprojected = np.median([(a.reads, b.reads) for a, b in groups[change]], axis=0)
            seconds, before = np.median([(a.seconds, b.seconds) for a, b in groups[change]], axis=0)
            found.append(
                f"Projection cost the server {change} time with {_rules(groups[change])}: a round took "
                f"{reads:.1f} reads of the updates instead of {unprojected:.1f}, "
                f"{duration(seconds)} instead of {duration(before)}"
                + (" in the median." if len(groups[change]) > 1 else ".")
            )
    if groups[""]:
        found.append(
            f"With {_rules(groups[''])} projection changed the server's time by no more than rounds differ, "
            "in seconds or in reads of the updates."
        )
    if groups["untimed"]:
        found.append(
            f"No reads of the updates were timed with {_rules(groups['untimed'])}: nothing is said about speed."
        )
    return found


def _change(ours: ServerTime, direct: ServerTime) -> str:
    """Return "less" or "more" if the ranges over the rounds lie apart in seconds and in reads, "" if they do not."""
    if math.isnan(ours.reads + direct.reads):
        return "untimed"
    ranges = ((ours.seconds_range, direct.seconds_range), (ours.reads_range, direct.reads_range))
    if all(a[1] < b[0] for a, b in ranges):
        return "less"
    return "more" if all(a[0] > b[1] for a, b in ranges) else ""


def _rules(pairs: Sequence[tuple[ServerTime, ServerTime]]) -> str:
    return listed(order(ours.rule for ours, _ in pairs))


def _alone(runs: Sequence[Run], factors: Factors) -> list[str]:
    """Describe runs of one rule, one attack and one sketch, with one seed or several."""
    known = [one for one in runs if one.converged and math.isfinite(one.last)]
    run, ends = (known or runs)[0], [one.last for one in known]
    rule = f"With {factors.rule}" + (f" and a {factors.sketch} sketch" if factors.sketch not in ("", "exact") else "")
    if ends:
        verb = "is" if run.status == "unfinished" else "ended at"
        reached = f"{run.metric.name} {verb} {level(float(np.mean(ends)), run.metric)}"
    else:
        reached = f"{run.metric.name} was not evaluated yet" if run.converged else "the model did not converge"
    part = f"{len(ends)} of " if ends and len(ends) < len(runs) else ""
    seeds = f" ({'mean of ' if len(ends) > 1 else ''}{part}{len(runs)} runs)" if len(runs) > 1 else " (one seed)"
    if len(ends) > 1:
        seeds = f"{seeds[:-1]}, standard deviation {difference(float(np.std(ends, ddof=1)), run.metric)})"
    done = [one.n_rounds for one in known or runs]
    rounds = (f"{min(done):,} to " if min(done) < max(done) else "") + counted(max(done), "round")
    M, f = len(run.clients), run.n_attackers
    under = f", while {f} of {M} clients attacked with {factors.attack}" if f else ""
    lead = f"{rule} {reached} after {rounds}{seeds}{under}."
    if not f:
        return [lead]
    doors = [one.backdoor for one in known or runs if math.isfinite(one.backdoor)]
    if doors:
        lead += f" The backdoor succeeded on {percent(float(np.mean(doors)))} of the images that it is made for."
    weights = np.concatenate([one.on_attackers() for one in known or runs])
    got = float(mean(weights, axis=0))
    share = f"The attackers are {percent(f / M)} of the clients and got {percent(got)} of the weight."
    found = [f"{lead} {share}"] if got > 0.5 else [lead, share] if math.isfinite(got) else [lead]
    if factors.attack != "none":
        found.append("Missing, and needed for a verdict: the mean without attack.")
    return found


def _deployment(run: Run, n_runs: int) -> list[str]:
    """Name the suspects of a run whose attackers are not known."""
    where = f" in {run.name or run.folder}" if n_runs > 1 else ""
    unknown = "The attackers are not known."
    if not run.n_rounds:
        return [f"No round is done yet{where}. {unknown}"]
    suspects = reputation_of(run).suspects()
    if suspects:
        named = [f"{run.clients[one.node]} ({one.record})" for one in suspects[:MAX_NAMED_SUSPECTS]]
        named += [f"{len(suspects) - MAX_NAMED_SUSPECTS} more"] if len(suspects) > MAX_NAMED_SUSPECTS else []
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
