"""The harm of attackers who know the projection, which check detects them, and what it costs."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

import bartizan as bz
from bartizan import attacks
from bartizan._util import machine
from bartizan._util.console import ProgressLine
from bartizan._util.seeds import fresh_seed
from bartizan.judge.judge import RECHECK_SKETCH, distorted_norms, largest_ratio
from bartizan.measure.geometry import Geometry
from bartizan.measure.sketches import PROBABILITY_OF_ERROR, Norms
from bartizan.sources.local import LocalUpdates
from bartizan.updates import parse_updates
from studies.options import add_parts
from studies.rows import keep
from studies.tables import markdown_table, table_of
from studies.theory.projection_attacks import streamed
from studies.timing import in_turns

H, F, P, LEAKED = 35, 15, 40_000, 2**90 + 5
SERVERS = ("exact", "unchecked", "call", "round")
ABOUT = "attackers who know the projection; each part checks first that what it is about to print is right"


def add_to(commands: Any) -> None:
    add_parts(commands, "adaptive", ABOUT, (harm, odds, cost))


def honest(rng, length):
    """Draw honest updates: a common direction, `length` times as long as the noise of each."""
    return (length * rng.standard_normal(P) + rng.standard_normal((H, P))).astype(np.float32)


def error(update, x):
    """Return the distance from the honest mean, in root mean square distances of the honest from it."""
    middle = x.mean(axis=0, dtype=np.float64)
    return np.linalg.norm(update - middle) / np.sqrt(((x - middle) ** 2).sum(axis=1).mean())


def undefended(rule, sketch, sent, seed):
    return rule(Geometry.of(sketch(sent, seed=seed))) @ sent.astype(np.float64)


def harm(*, out: Path | None = None) -> None:
    """Measure the error of the aggregate under each attack, and how many of the 15 attackers are quarantined."""
    sketch, rules = bz.Rotated(), [bz.Krum(F), bz.GeometricMedian(), bz.MCA()]
    guess = bz.Aggregator(bz.GeometricMedian(), sketch)
    x, rng = honest(np.random.default_rng(0), 2.0), np.random.default_rng(0)
    z = attacks.null_space(x, 1, rng, sketch=sketch, leaked_seed=LEAKED)
    assert np.linalg.norm(sketch(z, seed=LEAKED)) < 0.1 * np.linalg.norm(z), "the move must be invisible"
    rows: list[dict[str, Any]] = []
    with ProgressLine("adaptive", delay=0, plain=False) as progress:
        for length in (2.0, 0.33):
            x = honest(np.random.default_rng(0), length)
            known = {
                "null_space": {"leaked_seed": LEAKED},
                "null_space_mirror": {"leaked_seed": LEAKED},
                "replay": {"past_seeds": [1, 2, 3]},
                "observer": {"past_seeds": [1, 2, 3], "published": x.mean(axis=0)},
                "blind_collision": {},
                "optimised_null_space": {"aggregator": lambda updates: guess(updates, seed=77).update},
            }
            for name, more in known.items():
                progress.show(f"{name}, mean {length} times the noise")
                forged = getattr(attacks, name)(x, F, np.random.default_rng(1), sketch=sketch, **more)
                sent = np.concatenate([x, forged])
                for seed in (LEAKED, None) if "leaked_seed" in more else (None,):
                    setting = {"common": length, "attack": name, "seed": "leaked" if seed else "fresh"}
                    for rule in rules:
                        rows.append(setting | harm_of(rule, sketch, x, sent, seed or fresh_seed()))
    print(harm_table(rows))
    keep(out, rows)


def harm_of(rule, sketch, x, sent, seed):
    one = bz.aggregate(sent, rule, sketch=sketch, seed=seed)
    many = streamed(rule, sketch, sent, seed)
    assert not set(range(H)) & (set(one.quarantined) | set(many.quarantined)), "an honest client was hit"
    updates = [bz.aggregate(sent, rule, sketch=bz.Exact()).update, undefended(rule, sketch, sent, seed)]
    errors = [error(update, x) for update in (*updates, one.update, many.update)]
    counts = {"quarantined_call": len(one.quarantined), "quarantined_round": len(many.quarantined)}
    return {"rule": type(rule).__name__, **dict(zip(SERVERS, errors, strict=True)), **counts}


def harm_table(rows: Sequence[dict[str, Any]]) -> str:
    """Return errors exact / unchecked / one call / round (quarantined in the last two), the worst of fresh seeds."""
    lines, body = pd.DataFrame(rows).sort_values(["common", "seed"], ascending=False, kind="stable"), []
    lines["attack"] = lines.attack.where(lines.seed == "leaked", "the worst of all six").str.replace("_", "-")
    for names, scene in lines.groupby(["common", "attack", "seed"], sort=False):
        worst, cells = scene.groupby("rule", sort=False).max(numeric_only=True), []
        for _, own in worst.iterrows():
            errors = " / ".join(f"{own[name]:.{0 if own[name] > 10 else 2}f}" for name in SERVERS)
            cells.append(f"{errors} ({own.quarantined_call:.0f}, {own.quarantined_round:.0f})")
        body.append([*map(str, names), *cells])
    return markdown_table(["common part", "attack", "seed", *dict.fromkeys(lines.rule)], body)


def ranges_table() -> str:
    """Return the ranges of both checks."""
    sketches = [*(bz.Rotated(mixing=n) for n in (32, 64, 16, 8)), bz.Rotated(k=1024), bz.Rotated(k=256)]
    sketches += [bz.Achlioptas(4096), bz.Achlioptas(4096, s=32), bz.Achlioptas(256), bz.Achlioptas(64)]
    sketches += [bz.Gaussian(4096), bz.Gaussian(64)]
    body = []
    for sketch in sketches:
        least, most = sketch.norm_ratio_range(PROBABILITY_OF_ERROR)
        largest = largest_ratio(sketch, RECHECK_SKETCH)
        first = f"{least:.2f} to {most:.2f}" if least else "none"
        body.append([f"`{sketch!r}`", first, f"{largest:.2f}" if largest else "none"])
    return markdown_table(["sketch", "first check: range of the ratio", "second check: largest ratio"], body)


def odds(*, seeds: int = 20_000, held_out_seeds: int = 15_000, out: Path | None = None) -> None:
    """Count how often vectors leave the range of the first check at a probability that can be counted.

    The last four lines have vectors and seeds that the range of `Rotated` was not chosen by.
    """
    print(f"{ranges_table()}\n\nBoth err with {PROBABILITY_OF_ERROR:g}; the second sketch is {RECHECK_SKETCH!r}.\n")
    k, p = 64, 512
    cases = [(bz.Rotated(k), 32), (bz.Rotated(k, mixing=8), 8), (bz.Gaussian(16), 8), (bz.Achlioptas(k, s=4), 8)]
    rows = count_exits([(sketch, vectors(k, n, p)) for sketch, n in cases], range(seeds))
    rng, cases = np.random.default_rng(20261), []
    for k, n in ((64, 32), (64, 16), (64, 8), (128, 16)):
        kinds = [(m, B, flat) for m in (2, 3, 4, 5, 6, 7, 8, n // 2, n) for B in (2, 3, 4) for flat in (True, False)]
        cases.append((bz.Rotated(k, n), np.array([lanes(rng, k, n, *kind) for kind in kinds])))
    rows += count_exits(cases, range(10**6, 10**6 + held_out_seeds))
    print(table_of(rows))
    keep(out, rows)


def count_exits(cases, seeds: Sequence[int], wanted: float = 1e-3) -> list[dict[str, Any]]:
    """Return how many seeds take the worst vector's squared norm below and above the range of this probability."""
    rows, allowed = [], round(wanted * len(seeds))
    for sketch, x in cases:
        ratios, lengths = np.empty((len(seeds), len(x))), (x**2).sum(axis=1)
        with ProgressLine(repr(sketch), len(seeds), delay=0, plain=False) as progress:
            for row, seed in enumerate(seeds):
                ratios[row] = (sketch(x, seed=seed) ** 2).sum(axis=1) / lengths
                progress.advance()
        least, most = sketch.norm_ratio_range(wanted)
        below, above = (left.sum(axis=0).max() for left in (ratios < least - 1e-9, ratios > most + 1e-9))
        assert max(below, above) < 2 * max(allowed, 10)
        counts = {"may leave at each end": allowed, "left below": int(below), "left above": int(above)}
        rows.append({"sketch": f"`{sketch!r}`", "vectors": len(x), "seeds": len(seeds), **counts})
    return rows


def lanes(rng, k, n, m, B, flat):
    """Return a vector with m entries in one lane of B of eight blocks: equal and in a row, or any and anywhere."""
    v, lane = np.zeros((8, n, k // n)), rng.integers(k // n)
    for block in rng.choice(8, B, replace=False):
        count = min(m, n)
        rows = (np.arange(count) ^ int(rng.integers(n))) % n if flat else rng.choice(n, count, replace=False)
        v[block, rows, lane] = 1 if flat else rng.uniform(0.5, 1.5, count)
    return v.ravel()


def vectors(k, n, p):
    """Return constant vectors on cosets of rows in one lane, the worst known; sparse, heavy-tailed and dense ones."""
    rng, rows = np.random.default_rng(7), []
    for blocks in (2, 3):
        for m in (1, 2, 3, 4, 8):
            lane = np.zeros((p // k, n, k // n))
            lane[:blocks, :m, 0] = 1
            rows.append(lane.ravel())
    rows += [rng.standard_normal(p), rng.standard_cauchy(p), np.ones(p)]
    return np.array([*rows, *(np.eye(p)[:c].sum(axis=0) for c in (1, 2, 8, 64))])


def cost(*, clients: int = 50, dim: int = 5_500_000, repeats: int = 5) -> None:
    """Print what both checks cost at the close of a stream, in reads of all updates."""
    rng, x = np.random.default_rng(0), np.empty((clients, dim), np.float32)
    for row in x:
        rng.standard_normal(dtype=np.float32, out=row)
    x += np.float32(0.3)
    updates = parse_updates(x)
    source, measured = LocalUpdates(updates), bz.Rotated().measure(updates, 0).on_host()
    assert (np.abs(np.diag(measured.gram) / measured.squared_norms - 1) < 0.2).all(), "the norms must agree"

    def closing(rule, recheck):
        """Return the seconds of the close alone."""
        with bz.Aggregator(rule, bz.Rotated()).round(recheck=recheck) as r:
            for m in range(clients):
                r.add(x[m], m)
            out, spent = machine.timed(r.close)
            assert not out.quarantined
            return spent

    def spent_by(call, *arguments):
        return machine.timed(partial(call, *arguments))[1]

    jobs = {"one read": partial(spent_by, Norms().measure, updates, 0)}
    jobs["(a), the comparison"] = partial(spent_by, distorted_norms, source, measured)
    for k in (64, 256, 1024, 4096):
        jobs[f"sketch {bz.Rotated(k)!r}"] = partial(spent_by, bz.Rotated(k).measure, updates, 0)
    for rule in (bz.Krum(clients // 10), bz.Krum(3 * clients // 10), bz.GeometricMedian()):
        for recheck in (False, True):
            jobs[f"close {rule!r}{', (b)' if recheck else ''}"] = partial(closing, rule, recheck)
    times = in_turns(jobs, repeats, self_timed=True)
    read = np.median(times["one read"])
    print(f"{clients} clients x {dim:,} on {machine.name_of('cpu')}: ", end="")
    print(f"reads, median (least .. most); one read {1e3 * read:.0f} ms")
    for name, spent in times.items():
        low, middle, high = (g(spent) / read for g in (min, np.median, max))
        print(f"{name:62s} {middle:9.5f} ({low:.5f} .. {high:.5f})")
