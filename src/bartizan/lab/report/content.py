"""The content of a report, and the HTML page with template, style, script and data in one text."""

from __future__ import annotations

import base64
import hashlib
import html
import json
import math
import re
from collections import Counter
from collections.abc import Hashable, Iterator, Sequence
from dataclasses import asdict, dataclass
from importlib.resources import files
from typing import Any

import numpy as np

from bartizan import __version__
from bartizan._util.arguments import short
from bartizan._util.text import text
from bartizan.lab.metrics import METRICS, Metric
from bartizan.lab.report import pack
from bartizan.lab.report.factors import Factors, differing, factors, order, rule_styles, setting, sketch_dashes
from bartizan.lab.report.finding import findings
from bartizan.lab.report.groups import Curve, GridCell, ServerTime, cells, curves, times
from bartizan.lab.report.load import Loaded
from bartizan.lab.report.pack import rounded
from bartizan.lab.report.run_data import Run
from bartizan.lab.report.tables import summary
from bartizan.lab.report.verdicts import best_worst_case
from bartizan.lab.report.wording import counted, level, percent

SCRIPTS = ("draw.js", "lines.js", "grids.js", "clients.js", "tables.js", "report.js")
MAX_SPLIT_NUMBERS = 300_000
"""Numbers of data splits in a page, over all runs, at most."""
_Shared = dict[Hashable, tuple[int, Any]]
"""Values that several runs have in common, each with its place in the page's list."""


@dataclass(frozen=True)
class Content:
    """Runs with their labels, cells, curves, times and findings."""

    title: str
    loaded: Loaded
    factors: list[Factors]
    cells: list[GridCell]
    curves: dict[str, list[Curve]]
    times: list[ServerTime]
    findings: list[str]
    featured: int
    """Index of the run whose clients are shown first."""

    @property
    def runs(self) -> list[Run]:
        return self.loaded.runs

    @property
    def styles(self) -> tuple[dict[str, tuple[str, int]], dict[str, int]]:
        """Return colour and mark of each rule, and dash pattern of each sketch."""
        return (rule_styles(order(f.rule for f in self.factors)), sketch_dashes(order(f.sketch for f in self.factors)))


def content(loaded: Loaded, title: str | None = None) -> Content:
    """Group the runs and compute the content of the page."""
    runs = loaded.runs
    labels = factors(runs)
    grid = cells(runs, labels)
    names = list(dict.fromkeys(run.name for run in runs if run.name))
    return Content(
        title=text(title or (names[0] if len(names) == 1 else loaded.folder.resolve().name)),
        loaded=loaded,
        factors=labels,
        cells=grid,
        curves={name: curves(runs, labels, name) for name in ("accuracy", "perplexity", "backdoor")},
        times=times(runs, labels),
        findings=findings(runs, grid),
        featured=_featured(runs, labels, grid),
    )


def page(made: Content, follow: str | None = None) -> str:
    """Return the page: template, style, script and data in one text that needs no other file.

    With a version to `follow` the page asks its server for the current one, and loads itself again if it is another.
    """
    scripts = SCRIPTS if follow is None else (*SCRIPTS, "follow.js")
    script = "(() => {\n'use strict';\n" + "\n".join(asset(name) for name in scripts) + "\n})();\n"
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    lead, *more = made.findings
    parts = {
        # Only this script may run and nothing may be fetched, whatever a name in the data contains.
        "policy": f"default-src 'none'; style-src 'unsafe-inline'; script-src 'sha256-{digest}'; base-uri 'none'"
        + ("" if follow is None else "; connect-src 'self'"),
        "version": html.escape(follow or ""),
        "title": html.escape(made.title),
        "lead": html.escape(lead),
        "more": "".join(f"<p>{html.escape(sentence)}</p>" for sentence in more),
        "style": asset("report.css"),
        "data": embedded(data(made)),
        "script": script,
    }
    return re.sub(r"\{\{(\w+)\}\}", lambda found: parts[found[1]], asset("template.html"))


def embedded(value: Any) -> str:
    """Return JSON for a script element, in which no character can end that element.

    >>> embedded("</script>")
    '"\\\\u003c/script\\\\u003e"'
    """
    # ASCII only: this also escapes line separators that old parsers take for the end of a line.
    written = json.dumps(value, ensure_ascii=True, allow_nan=False, separators=(",", ":"))
    return written.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


def asset(name: str) -> str:
    return files("bartizan.lab.report").joinpath("assets", name).read_text(encoding="utf-8")


def data(made: Content) -> dict[str, Any]:
    """Return the content as the page's script reads it."""
    runs = made.runs
    cohorts: _Shared = {}
    splits: _Shared = {}
    varied = differing(runs)
    config = runs[0].config if runs else {}
    return {
        "cards": [{"label": label, "value": value, "note": note} for label, value, note in _cards(made)],
        "problems": list(_problems(made)),
        "known": any(run.byzantine is not None for run in runs),
        "rules": order(f.rule for f in made.factors),
        "sketches": order(f.sketch for f in made.factors),
        "attacks": order(f.attack for f in made.factors),
        "others": order(f.other for f in made.factors),
        "styles": made.styles,
        "cells": rounded([asdict(cell) | {"metric": cell.metric.name} for cell in made.cells], 6),
        "curves": rounded({name: [asdict(curve) for curve in many] for name, many in made.curves.items()}),
        "times": rounded([asdict(time) for time in made.times]),
        "featured": made.featured,
        "runs": list(_runs(made, varied, cohorts, splits)),
        "cohorts": [value for _, value in cohorts.values()],
        "splits": [value for _, value in splits.values()],
        "differs": [
            {"key": key, "values": list(dict.fromkeys(setting(run.config[key]) for run in runs if key in run.config))}
            for key in varied
        ],
        "shared": [[key, setting(value)] for key, value in config.items() if key not in varied],
        "versions": _versions(runs),
    }


def _runs(made: Content, varied: list[str], cohorts: _Shared, splits: _Shared) -> Iterator[dict[str, Any]]:
    for run, labels, packed in zip(made.runs, made.factors, _weights(made), strict=True):
        attackers = None if run.byzantine is None else np.flatnonzero(run.byzantine).tolist()
        yield rounded(summary(run, labels), 6) | {
            "label": labels.label,
            "seed": labels.seed,
            "cohort": _index(cohorts, (run.clients, str(attackers)), {"ids": run.clients, "attackers": attackers}),
            "split": _split(run, splits),
            "weighs": run.weighs,
            "coordinatewise": run.coordinatewise,
            "weights": packed,
            "share": rounded(run.share(), 3) if packed else None,
            "quarantined": run.quarantined.sum(axis=0).tolist() if run.quarantined.any() else None,
            "compared": pack.compared(run) if packed else None,
            "config": {key: setting(run.config.get(key)) for key in varied},
            "notes": run.notes[:20],
        }


def _index(shared: _Shared, key: Hashable, value: Any) -> int:
    """Return the index of a value among those that runs share; add it if its key is new."""
    return shared.setdefault(key, (len(shared), value))[0]


def _weights(made: Content) -> list[dict[str, Any] | None]:
    """Return the packed weights of each run; None if it has none, or there is no room for them."""
    left = float(pack.MAX_WEIGHT_BYTES)
    packed: dict[int, dict[str, Any] | None] = {}
    for i in sorted(range(len(made.runs)), key=lambda i: i != made.featured):  # the run that is shown first comes first
        run, M = made.runs[i], len(made.runs[i].clients)
        budget = max(left / (len(made.runs) - len(packed)), min(left, 24.0 * M))
        n = pack.columns(run, budget) if run.weighs else 0
        packed[i] = pack.weights(run, n) if n else None
        left -= n * M
    return [packed[i] for i in range(len(made.runs))]


def _split(run: Run, splits: _Shared) -> int | None:
    """Return the place of a run's split of the data; None if it has none, or there is no room for it."""
    if run.split is None or not run.split.size:
        return None
    counts = np.nan_to_num(run.split).round().astype(int)
    names = run.classes or tuple(map(str, range(counts.shape[1])))
    key = counts.tobytes(), counts.shape, names
    room = MAX_SPLIT_NUMBERS - sum(len(value["counts"]) for _, value in splits.values())
    if key not in splits and counts.size > room:
        return None
    return _index(splits, key, {"classes": names, "counts": counts.ravel().tolist()})


def _versions(runs: Sequence[Run]) -> list[str]:
    found = {
        name: ", ".join(dict.fromkeys(run.versions[name] for run in runs if name in run.versions))
        for name in ("bartizan", "torch", "machine")
    }
    shown = [value if name == "machine" else f"{name} {value}" for name, value in found.items() if value]
    return [*shown, f"drawn by bartizan {__version__}"]


def _cards(made: Content) -> Iterator[tuple[str, str, str]]:
    """Yield label, value and note of each figure at the top of the page."""
    runs = made.runs
    if not runs:
        return
    states = Counter([run.status for run in runs] + ["unreadable"] * len(made.loaded.broken))
    problems = [f"{states[state]} {state}" for state in ("unfinished", "diverged", "unreadable") if states[state]]
    yield "Runs", str(len(runs)), ", ".join(problems) or "all finished"
    alone = "so far" if states["unfinished"] else "done"
    yield "Rounds", _range([run.n_rounds for run in runs]), "in each run" if len(runs) > 1 else alone
    dims = [run.dim for run in runs if run.dim]
    note = f"{_range(dims)} coordinates each" if dims else "in each run"
    yield "Clients", _range([len(run.clients) for run in runs]), note
    known = [run for run in runs if run.byzantine is not None]
    if not known:
        yield "Attackers", "?", "not known in a deployment"
        return
    known = [run for run in known if run.n_attackers] or known
    parts = [
        ([run.n_attackers / len(run.clients) for run in known], "of the clients"),
        ([run.ratio[1] for run in known if math.isfinite(run.ratio[1])], "of the data"),
    ]
    note = ", ".join(f"{_range(values, percent)} {what}" for values, what in parts if values)
    yield "Attackers", _range([run.n_attackers for run in known]), note
    for metric in METRICS.values():
        yield from _best([cell for cell in made.cells if cell.metric == metric], metric)


def _best(cells: Sequence[GridCell], metric: Metric) -> Iterator[tuple[str, str, str]]:
    """Yield the rule whose worst end over the attacks is best, among rules that were tried under the same attacks."""
    attacked = [cell for cell in cells if cell.attack != "none"]
    ended = [cell for cell in cells if math.isfinite(cell.last[0])]
    top = best_worst_case(cells) if attacked else max(ended, key=lambda c: metric.merit(c.last[0]), default=None)
    if top is None:
        return
    name = " · ".join(filter(None, (top.rule, top.sketch, top.other)))
    if len({cell.attack for cell in attacked}) > 1:
        yield "Best worst case", level(top.last[0], metric), f"{name}, under {top.attack}"
    else:
        how = "Lowest" if metric.lower_is_better else "Highest"
        yield f"{how} {metric.name}", level(top.last[0], metric), name


def _problems(made: Content) -> Iterator[dict[str, str]]:
    for folder, why in made.loaded.broken:
        yield {"folder": folder, "state": "unreadable", "why": why}
    for run in made.runs:
        if run.status == "unfinished":
            torn = f". Its last line is incomplete: {run.torn}" if run.torn else ""
            why = f"after {counted(run.n_rounds, 'round')}; shown as far as it got{torn}"
            yield {"folder": run.folder, "state": "unfinished", "why": why}
        elif run.torn:
            yield {"folder": run.folder, "state": "torn", "why": f"something follows its last line: {run.torn}"}


def _featured(runs: Sequence[Run], labels: Sequence[Factors], cells: Sequence[GridCell]) -> int:
    """Return the run to show first: with weights, compared with exact ones, attacked, of the best rule, accurate."""
    kinds = [[cell for cell in cells if cell.metric == metric] for metric in METRICS.values()]
    best = {cell.rule for cell in map(best_worst_case, kinds) if cell}

    def worth(i: int) -> tuple[Any, ...]:
        run, f = runs[i], labels[i]
        return (
            run.weighs,
            len(run.exact_rounds) > 0 and f.sketch != "exact",
            run.n_attackers > 0 and f.attack != "none",
            f.rule in best,
            f.rule != "mean",
            run.metric.merit(run.last),
        )

    return max(range(len(runs)), key=worth, default=0)


def _range(values: Sequence[Any], shown: Any = lambda value: f"{value:,}" if value < 100_000 else short(value)) -> str:
    low, high = shown(min(values)), shown(max(values))
    return low if low == high else f"{low} to {high}"
