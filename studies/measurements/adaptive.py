"""The harm of attackers who know the projection, which check detects them, and what it costs."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

import numpy as np

import bartizan as bz
from bartizan import attacks
from bartizan._util import machine
from bartizan._util.console import ProgressLine
from bartizan._util.seeds import fresh_seed
from bartizan.attacks.nullspace import hidden_part
from bartizan.judge.quarantine import distorted_norms
from bartizan.judge.recheck import RECHECK_SKETCH, largest_ratio
from bartizan.measure.base import PROBABILITY_OF_ERROR
from bartizan.measure.exact import Norms
from bartizan.measure.geometry import Geometry
from bartizan.sources.local import LocalUpdates
from bartizan.updates import parse_updates
from studies.options import add_parts
from studies.tables import markdown_table
from studies.timing import in_turns

H, F, P, LEAKED = 35, 15, 40_000, 2**90 + 5
ABOUT = "attackers who know the projection; each part checks first that what it is about to print is right"


def add_to(commands: Any) -> None:
    add_parts(commands, "adaptive", ABOUT, (harm, outliers, odds, held_out, cost))


def honest(rng, length):
    """Draw honest updates: a common direction, `length` times as long as the noise of each."""
    return (length * rng.standard_normal(P) + rng.standard_normal((H, P))).astype(np.float32)


def error(update, x):
    """Return the distance from the honest mean, in root mean square distances of the honest from it."""
    middle = x.mean(axis=0, dtype=np.float64)
    return np.linalg.norm(update - middle) / np.sqrt(((x - middle) ** 2).sum(axis=1).mean())


def undefended(rule, sketch, sent, seed):
    return rule(Geometry.of(sketch(sent, seed=seed))) @ sent.astype(np.float64)


def streamed(rule, sketch, sent, **settings):
    with bz.Aggregator(rule, sketch).round(**settings) as r:
        for client, update in enumerate(sent):
            r.add(update, client)
        return r.close()


def harm() -> None:
    """Print the error of the aggregate under each attack, and how many of the 15 attackers were quarantined."""
    sketch, rules = bz.Rotated(), [bz.Krum(F), bz.GeometricMedian(), bz.MCA()]
    guess = bz.Aggregator(bz.GeometricMedian(), sketch)
    x, rng = honest(np.random.default_rng(0), 2.0), np.random.default_rng(0)
    z = attacks.null_space(x, 1, rng, sketch=sketch, leaked_seed=LEAKED)
    assert np.linalg.norm(sketch(z, seed=LEAKED)) < 0.1 * np.linalg.norm(z), "the move must be invisible"
    body = []
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
                    cells = [harm_of(rule, sketch, x, sent, seed or fresh_seed()) for rule in rules]
                    body.append([str(length), name.replace("_", "-"), "leaked" if seed else "fresh", *cells])
    print(f"{H} honest, {F} attackers, p = {P}, {sketch!r}. ", end="")
    print("Error: exact / undefended / one call / stream (quarantined in the last two)")
    print(markdown_table(["mean / noise", "attack", "seed", *(type(rule).__name__ for rule in rules)], body))


def harm_of(rule, sketch, x, sent, seed):
    one = bz.aggregate(sent, rule, sketch=sketch, seed=seed)
    many = streamed(rule, sketch, sent, seed=seed)
    assert not set(range(H)) & (set(one.quarantined) | set(many.quarantined)), "an honest client was hit"
    updates = [bz.aggregate(sent, rule, sketch=bz.Exact()).update, undefended(rule, sketch, sent, seed)]
    errors = " / ".join(f"{error(update, x):.2f}" for update in (*updates, one.update, many.update))
    return f"{errors} ({len(one.quarantined)}, {len(many.quarantined)})"


def outliers() -> None:
    """Print the error where attackers hide a move nearly as long as the distance of honest outliers."""
    sketch, rule, p, far = bz.Rotated(k=512), bz.GeometricMedian(), 9000, 1000
    print("Distance from the tight clients' middle, in their spreads: exact / stream without (b) / with (b) / one call")
    for n_honest, n_attackers, n_out in ((35, 15, 12), (26, 24, 2)):
        rng = np.random.default_rng(1)
        x = rng.normal(size=(n_honest, p)) * np.where(np.arange(n_honest) < n_out, far, 1)[:, None]
        middle, move = x[n_out:].mean(axis=0), hidden_part(rng.normal(size=p), sketch, [LEAKED])
        forged = middle + 0.9 * far * np.sqrt(p) * move / np.linalg.norm(move)
        sent = (np.concatenate([x, np.tile(forged, (n_attackers, 1))]) + 3 * far).astype(np.float32)
        assert np.linalg.norm(sketch((forged - middle)[None], seed=LEAKED)) < 1e-6 * far, "the move must be invisible"
        found = [bz.aggregate(sent, rule, sketch=bz.Exact())]
        found += [streamed(rule, sketch, sent, seed=LEAKED, recheck=recheck) for recheck in (False, True)]
        found += [bz.aggregate(sent, rule, sketch=sketch)]
        off = " / ".join(f"{np.linalg.norm(out.update - middle - 3 * far) / np.sqrt(p):.2f}" for out in found)
        shown = f"{n_honest} honest, {n_out} of them outliers, {n_attackers} attackers"
        print(f"{shown}: {off}, {len(found[2].quarantined)} quarantined")


def odds(*, seeds: int = 20_000) -> None:
    """Print the ranges of both checks, and how often vectors leave them at probabilities that can be counted."""
    sketches = [*(bz.Rotated(mixing=n) for n in (32, 64, 16, 8)), bz.Rotated(k=1024), bz.Rotated(k=256)]
    sketches += [bz.Achlioptas(4096), bz.Achlioptas(4096, s=32), bz.Achlioptas(256), bz.Achlioptas(64)]
    sketches += [bz.Gaussian(4096), bz.Gaussian(64)]
    body = []
    for sketch in sketches:
        largest, (least, most) = largest_ratio(sketch, RECHECK_SKETCH), sketch.norm_ratio_range(PROBABILITY_OF_ERROR)
        parts = f"{least:.2f} to {most:.2f}" if least else "none"
        body.append([f"`{sketch!r}`", parts, f"{largest:.2f}" if largest else "none"])
    at = f"with a probability of error of {PROBABILITY_OF_ERROR:g}"
    print(f"Check (a): |Px|^2 / |x|^2 {at}; check (b): largest d'/d; the second sketch is {RECHECK_SKETCH!r}")
    print(markdown_table(["sketch", "(a) parts", "(b) most ratio"], body))
    k, p = 64, 512
    cases = [(bz.Rotated(k), 32), (bz.Rotated(k, mixing=8), 8), (bz.Gaussian(16), 8), (bz.Achlioptas(k, s=4), 8)]
    count_exits([(sketch, vectors(k, n, p)) for sketch, n in cases], range(seeds))


def held_out(*, seeds: int = 15_000) -> None:
    """Print how often Rotated leaves its ranges on vectors and seeds that they were not chosen by."""
    rng, cases = np.random.default_rng(20261), []
    for k, n in ((64, 32), (64, 16), (64, 8), (128, 16)):
        kinds = [(m, B, flat) for m in (2, 3, 4, 5, 6, 7, 8, n // 2, n) for B in (2, 3, 4) for flat in (True, False)]
        cases.append((bz.Rotated(k, n), np.array([lanes(rng, k, n, *kind) for kind in kinds])))
    count_exits(cases, range(10**6, 10**6 + seeds))


def count_exits(cases, seeds: Sequence[int], wanted: float = 1e-3) -> None:
    """Print how many seeds take the worst vector's squared norm below and above the range of these odds."""
    print(
        f"Of {len(seeds)} seeds, leaving the range of odds {wanted:g}: below / above, the worst of the vectors ", end=""
    )
    print(f"({wanted * len(seeds):.0f} are promised)")
    for sketch, x in cases:
        ratios, lengths = np.empty((len(seeds), len(x))), (x**2).sum(axis=1)
        with ProgressLine(repr(sketch), len(seeds), delay=0, plain=False) as progress:
            for row, seed in enumerate(seeds):
                ratios[row] = (sketch(x, seed=seed) ** 2).sum(axis=1) / lengths
                progress.advance()
        least, most = sketch.norm_ratio_range(wanted)
        below, above = (left.sum(axis=0).max() for left in (ratios < least - 1e-9, ratios > most + 1e-9))
        print(f"{sketch!r}: {len(x)} vectors, {least:.3f} to {most:.3f}, {below} / {above}")
        assert max(below, above) < 2 * max(wanted * len(seeds), 10)


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
