"""`bartizan aggregate`: one round over files, folders and addresses, as a scheduled job runs it."""

from __future__ import annotations

import argparse
import json
import math
import sys
from collections.abc import Mapping, Sequence
from contextlib import closing, nullcontext
from pathlib import Path
from typing import Any

from bartizan import __version__, registry
from bartizan._util.arguments import seconds
from bartizan._util.atomic import write_whole
from bartizan._util.console import ProgressLine
from bartizan._util.redact import without_secrets
from bartizan._util.text import short
from bartizan.aggregate import aggregate
from bartizan.aggregate_places import Pattern, client_names, folder_hint, refuse_overwriting, sizes_in, told
from bartizan.errors import BadClientError, TooFewClientsError
from bartizan.judge.byzantine_budget import lowered
from bartizan.measure.sketches import named
from bartizan.source import Aggregation
from bartizan.updates.files import create_update, is_address, max_bytes_like, open_paths, open_point
from bartizan.updates.layout import Unreadable
from bartizan.updates.parse import parse_updates
from bartizan.updates.stores import TIMEOUT, uploaded

TOO_FEW = 3  # exit status if there is no robust result; 2 is for wrong arguments
MAX_REASON_CHARS = 2000  # in the report
MAX_PROBLEM_CHARS = 4000
MAX_NAME_CHARS = 60  # that widen the column of names; a longer name moves the columns of its own line alone
MAX_CLIENTS_SHOWN = 50  # in the table that is printed; the report has all
EPILOG = """exit status: 0 the result is written; 2 a wrong argument, or a file that can't be read or written;
3 too few clients can take part, or --strict and one can't: nothing but the report is written"""


def add_to(commands: Any) -> None:
    about = "one robust update from the updates in files, folders and object stores"
    parser = commands.add_parser("aggregate", help=about, description=f"Compute {about}.", epilog=EPILOG)
    option = parser.add_argument
    option("updates", nargs="+", metavar="UPDATE", help="one per client: paths, addresses such as s3://..., or globs")
    option("--rule", help=f"such as krum (default: '{registry.DEFAULT_RULE}'; `bartizan list` shows all)")
    option("--byzantine", type=int, metavar="F", help="the number of Byzantine clients that the rule withstands")
    option("--sketch", default="auto", help="auto, exact or a projection (default auto)")
    option("--k", type=int, help="dimension of the sketch (default 4096)")
    option("--reference", metavar="UPDATE", help="the last global model, where updates are whole weights")
    option("--trusted", metavar="UPDATE", help="an update of the server's own, for the rules that need one")
    option("--sizes", metavar="JSON", help="file with an object from clients' names to their data sizes")
    option("--out", required=True, metavar="FILE", help="path or address of the result, .safetensors or .npy")
    option("--report", metavar="JSON", help="path or address of a report: weights, quarantined clients, seed")
    option("--memory", metavar="SIZE", help="the most memory to use, such as '512 MiB'")
    option("--seed", type=int, help="of the projection (default: secret, and written to the report)")
    option("--timeout", type=seconds, default=TIMEOUT, help=f"seconds for one request (default {TIMEOUT:g})")
    option("--strict", action="store_true", help="stop at the first client that can't take part")
    parser.set_defaults(run=_run)


def _run(options: argparse.Namespace) -> int:
    rule = _rule(options.rule, options.byzantine)
    sketch = _sketch(options.sketch, options.k)
    if not options.out.endswith((".npy", ".safetensors")):
        raise ValueError(f"--out must end in .npy (one array) or .safetensors (a dict), got {told(options.out)}.")
    patterns = [Pattern.of(text, options.timeout) for text in options.updates]
    clients = client_names(patterns)
    places, names = list(clients), list(clients.values())
    inputs = {"--reference": options.reference, "--trusted": options.trusted, "--sizes": options.sizes}
    refuse_overwriting({"--out": options.out, "--report": options.report}, inputs, patterns)
    report: dict[str, Any] = {"version": 1, "bartizan": __version__, "rule": repr(rule), "sketch": str(sketch)}
    report |= {"byzantine": options.byzantine, "out": without_secrets(options.out), "clients": names}
    try:
        if not places:
            raise TooFewClientsError(f"Nothing matches {' '.join(map(told, options.updates))}.")
        sizes, lacking = None, dict[int, Unreadable]()
        if options.sizes is not None:
            sizes, lacking = sizes_in(options.sizes, names)
        updates = [lacking.get(client, place) for client, place in enumerate(places)]
        reference = _point(options.reference, options.timeout)
        read = open_paths(updates, timeout=options.timeout, max_bytes=max_bytes_like(reference))
        like = parse_updates(read, reference=reference, strict=options.strict).like
        # Local files as paths, so that `aggregate` knows what may still be rewritten.
        read = [place if isinstance(place, Path) else one for place, one in zip(updates, read, strict=True)]
        with create_update(options.out, like) as result, closing(_StageLines()) as progress:
            out = aggregate(
                read,
                rule,
                sketch=sketch,
                sizes=sizes,
                reference=reference,
                trusted=_point(options.trusted, options.timeout),
                seed=options.seed,
                strict=options.strict,
                memory=options.memory,
                out=result,
                progress=progress,
            )
    except (TooFewClientsError, BadClientError) as refused:
        if isinstance(refused, BadClientError):
            problem, reasons = "A client can't take part (--strict).", {refused.client: refused.reason}
        else:
            problem, reasons = refused.problem, refused.quarantined
        problem += folder_hint(patterns)
        quarantined = _by_name(reasons, names)
        _write_report(options.report, report | {"status": "refused", "problem": problem, "quarantined": quarantined})
        _print_quarantined(quarantined)
        print(f"bartizan aggregate: {short(problem, MAX_PROBLEM_CHARS)}", file=sys.stderr)
        return TOO_FEW
    quarantined = _by_name(out.quarantined, names)
    report |= {"status": "ok", "quarantined": quarantined, **named(out.sketch), "seed": str(out.seed)}
    report |= {"rule": repr(out.rule), "byzantine": out.n_byzantine, "seconds": out.seconds, "history": out.history}
    report |= {"weights": _numbers(out.weights), "scores": _numbers(out.scores)}
    _write_report(options.report, report)
    _print_result(out, names, quarantined, report["out"])
    if fewer := lowered(rule, out.n_byzantine, len(quarantined), 0):
        print(fewer)
    return 0


def _by_name(reasons: Mapping[int, str], names: Sequence[str]) -> dict[str, str]:
    return {names[client]: short(reason, MAX_REASON_CHARS) for client, reason in reasons.items()}


def _point(text: str | None, timeout: float) -> Any:
    if text is None:
        return None
    return open_point(text if is_address(text) else Path(text), timeout)


def _rule(name: str | None, n_byzantine: int | None) -> Any:
    if name is None:
        if n_byzantine is None:
            raise ValueError("Pass --byzantine F for the default rule, or --rule NAME (`bartizan list` shows all).")
        return registry.default_rule(n_byzantine)
    try:
        return registry.rule(name, **({} if n_byzantine is None else {"n_byzantine": n_byzantine}))
    except TypeError as wrong:
        raise ValueError(f"{wrong} --byzantine F is n_byzantine.") from None


def _sketch(name: str, k: int | None) -> Any:
    if name == "auto" and k is None:
        return name
    try:
        return registry.sketch("rotated" if name == "auto" else name, **({} if k is None else {"k": k}))
    except TypeError as wrong:
        raise ValueError(str(wrong)) from None


class _StageLines:
    """A progress line per stage, one after another."""

    line: ProgressLine | None = None

    def __call__(self, stage: str, done: int, total: int) -> None:
        if self.line is None or self.line.label != stage:
            self.close()
            self.line = ProgressLine(stage, total)
        self.line.total = total
        self.line.advance(done - self.line.done)

    def close(self) -> None:
        if self.line is not None:
            self.line.close()


def _numbers(values: Any) -> list[float | None] | None:
    return None if values is None else [float(value) if math.isfinite(value) else None for value in values]


def _write_report(place: str | None, report: dict[str, Any]) -> None:
    if place is None:
        return
    with uploaded(place) if is_address(place) else nullcontext(Path(place)) as local:
        write_whole(local, json.dumps(report, indent=1) + "\n")


def _print_result(out: Aggregation[Any], names: list[str], quarantined: dict[str, str], place: str) -> None:
    if out.weights is not None:
        distances = [math.nan] * len(names) if out.scores is None else out.scores
        rows = [row for row in zip(names, out.weights, distances, strict=True) if row[0] not in quarantined]
        rows.sort(key=lambda row: (-row[1], row[0]))
        width = max([6, *(min(len(name), MAX_NAME_CHARS) for name, _, _ in rows[:MAX_CLIENTS_SHOWN])])
        print(f"{'client':<{width}}  {'weight':>8}  {'distance':>10}")
        for name, weight, distance in rows[:MAX_CLIENTS_SHOWN]:
            print(f"{name:<{width}}  {weight:>8.4f}  {'' if math.isnan(distance) else f'{distance:.4g}':>10}")
        if len(rows) > MAX_CLIENTS_SHOWN:
            print(f"... and {len(rows) - MAX_CLIENTS_SHOWN} more clients (--report has all)")
    _print_quarantined(quarantined)
    took, by = sum(out.seconds.values()), f"{out.rule!r}, {out.sketch!r}"
    print(f"{place}: {len(names) - len(quarantined)} of {len(names)} clients took part, {by}, {took:.1f} s")


def _print_quarantined(reasons: dict[str, str]) -> None:
    for name, reason in list(reasons.items())[:MAX_CLIENTS_SHOWN]:
        print(f"quarantined: {name}: {short(reason, 300)}")
    if len(reasons) > MAX_CLIENTS_SHOWN:
        print(f"... and {len(reasons) - MAX_CLIENTS_SHOWN} more quarantined")
