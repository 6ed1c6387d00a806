"""Adaptive attackers: their harm, which check detects them and its cost (numbers of docs/explanation/adaptive.md).

`python benchmarks/adaptive.py harm` and `... odds` take a minute or two each; `... cost [--clients 50] [--dim 5500000]`
times the close of a stream. Each checks first that what it is about to print is right.
"""

import argparse
import time

import numpy as np

import bartizan as bz
from bartizan import attacks
from bartizan._util import machine
from bartizan._util.arguments import number
from bartizan._util.console import ProgressLine
from bartizan._util.seeds import fresh_seed
from bartizan.attacks.nullspace import hidden_part
from bartizan.defense.quarantine import ODDS, distorted_norms
from bartizan.defense.recheck import RECHECK_SKETCH, Recheck
from bartizan.geometry import Geometry
from bartizan.sketch.exact import Norms
from bartizan.updates import parse_updates

H, F, P, LEAKED = 35, 15, 40_000, 2**90 + 5
PROGRESS = ProgressLine("adaptive", delay=0, plain=False)


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


def harm(options):
    """Print the error of the aggregate under each attack, and how many of the 15 attackers were quarantined."""
    sketch, rules = bz.Rotated(), [bz.Krum(F), bz.GeometricMedian(), bz.MCA()]
    guess = bz.Aggregator(bz.GeometricMedian(), sketch)
    z = attacks.null_space(
        honest(np.random.default_rng(0), 2.0), 1, np.random.default_rng(0), sketch=sketch, leaked_seed=LEAKED
    )
    assert np.linalg.norm(sketch(z, seed=LEAKED)) < 0.1 * np.linalg.norm(z), "the move must be invisible"
    lines = []
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
            PROGRESS.show(f"{name}, mean {length} times the noise")
            forged = getattr(attacks, name)(x, F, np.random.default_rng(1), sketch=sketch, **more)
            sent = np.concatenate([x, forged])
            for seed in (LEAKED, None) if "leaked_seed" in more else (None,):
                own = fresh_seed() if seed is None else seed
                cells = []
                for rule in rules:
                    one = bz.aggregate(sent, rule, sketch=sketch, seed=own)
                    many = streamed(rule, sketch, sent, seed=own)
                    assert not set(range(H)) & (set(one.quarantined) | set(many.quarantined)), (
                        "an honest client was hit"
                    )
                    found = [error(bz.aggregate(sent, rule).update, x), error(undefended(rule, sketch, sent, own), x)]
                    found += [error(one.update, x), error(many.update, x)]
                    cells.append(
                        " / ".join(f"{e:.2f}" for e in found) + f" ({len(one.quarantined)}, {len(many.quarantined)})"
                    )
                leak = "leaked" if seed else "fresh"
                lines.append(f"| {length} | {name.replace('_', '-')} | {leak} | {' | '.join(cells)} |")
    PROGRESS.close()
    print(
        f"{H} honest, {F} attackers, p = {P}, {sketch!r}. "
        "Error: exact / undefended / one call / stream (quarantined in the last two)"
    )
    print(f"| mean / noise | attack | seed | {' | '.join(type(rule).__name__ for rule in rules)} |")
    print("\n".join(["|---" * (3 + len(rules)) + "|", *lines]))


def outliers(options):
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
        found = [bz.aggregate(sent, rule), streamed(rule, sketch, sent, seed=LEAKED, recheck=False)]
        found += [streamed(rule, sketch, sent, seed=LEAKED), bz.aggregate(sent, rule, sketch=sketch)]
        off = " / ".join(f"{np.linalg.norm(out.update - middle - 3 * far) / np.sqrt(p):.2f}" for out in found)
        shown = f"{n_honest} honest, {n_out} of them outliers, {n_attackers} attackers"
        print(f"{shown}: {off}, {len(found[2].quarantined)} quarantined")


def odds(options):
    """Print the ranges of both checks, and how often vectors leave them at odds that can be counted."""
    sketches = [bz.Rotated(), bz.Rotated(mixing=64), bz.Rotated(mixing=16), bz.Rotated(mixing=8)]
    sketches += [bz.Rotated(k=1024), bz.Rotated(k=256)]
    sketches += [bz.Achlioptas(4096), bz.Achlioptas(4096, s=32), bz.Achlioptas(256), bz.Achlioptas(64)]
    sketches += [bz.Gaussian(4096), bz.Gaussian(64)]
    print(f"Check (a): |Px|^2 / |x|^2 at odds {ODDS:g}; check (b): most d'/d; the second sketch is {RECHECK_SKETCH!r}")
    print("| sketch | (a) parts | (b) most ratio |\n|---|---|---|")
    for sketch in sketches:
        second = Recheck.of(sketch)
        least, most = sketch.norm_ratio_range(ODDS)
        parts = f"{least:.2f} to {most:.2f}" if least else "none"
        print(f"| `{sketch!r}` | {parts} | {f'{second.most:.2f}' if second else 'none'} |")
    wanted, seeds, k, p = 1e-3, 20_000, 64, 512
    print(
        f"\nOf {seeds} seeds, leaving the range of odds {wanted:g}: below / above, the worst of the vectors "
        f"({wanted * seeds:.0f} are promised)"
    )
    for sketch in (bz.Rotated(k), bz.Rotated(k, mixing=8), bz.Gaussian(16), bz.Achlioptas(k, s=4)):
        x = vectors(64, 8 if getattr(sketch, "mixing", 8) == 8 else 32, p)
        least, most = sketch.norm_ratio_range(wanted)
        below, above = left_range(sketch, x, range(seeds), wanted)
        assert max(below, above) < 2 * wanted * seeds
        print(f"{sketch!r}: {least:.3f} to {most:.3f}, {below} / {above}")


def left_range(sketch, x, seeds, wanted):
    """Return how many seeds take the worst vector's squared norm below the range of these odds, and how many above."""
    ratios = np.empty((len(seeds), len(x)))
    for row, seed in enumerate(seeds):
        PROGRESS.show(f"{sketch!r}: {row} of {len(seeds)}")
        ratios[row] = (sketch(x, seed=seed) ** 2).sum(axis=1)
    PROGRESS.close()
    ratios /= (x**2).sum(axis=1)
    least, most = sketch.norm_ratio_range(wanted)
    return (ratios < least - 1e-9).sum(axis=0).max(), (ratios > most + 1e-9).sum(axis=0).max()


def held_out(options):
    """Print how often Rotated leaves its ranges on vectors and seeds that they were not chosen by."""
    rng, wanted, seeds = np.random.default_rng(20261), 1e-3, 15_000
    print(
        f"Of {seeds} seeds, leaving the range of odds {wanted:g}: the worst vector ({wanted * seeds:.0f} are promised)"
    )
    for k, n in ((64, 32), (64, 16), (64, 8), (128, 16)):
        kinds = [(m, B, flat) for m in (2, 3, 4, 5, 6, 7, 8, n // 2, n) for B in (2, 3, 4) for flat in (True, False)]
        x = np.array([lanes(rng, k, n, *kind) for kind in kinds])
        sketch = bz.Rotated(k, n)
        least, most = sketch.norm_ratio_range(wanted)
        below, above = left_range(sketch, x, range(10**6, 10**6 + seeds), wanted)
        print(f"{sketch!r}: {len(x)} vectors, {below} below {least:.3f}, {above} above {most:.3f}")


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
    rows += [
        rng.standard_normal(p),
        rng.standard_cauchy(p),
        np.ones(p),
        *(np.eye(p)[:c].sum(axis=0) for c in (1, 2, 8, 64)),
    ]
    return np.array(rows)


def cost(options):
    """Print what both checks cost, in reads of all updates."""
    M, p = options.clients, options.dim
    rng = np.random.default_rng(0)
    x = np.empty((M, p), np.float32)
    for row in x:
        rng.standard_normal(dtype=np.float32, out=row)
    x += np.float32(0.3)
    clients, f = parse_updates(x), 3 * M // 10
    rules = [bz.Krum(M // 10), bz.Krum(f), bz.GeometricMedian()]
    stats = bz.Rotated().gram_stats(clients, 0)
    assert (np.abs(np.diag(stats.gram) / stats.squared_norms - 1) < 0.2).all(), "the norms must agree"

    def closing(rule, recheck):
        with bz.Aggregator(rule, bz.Rotated()).round(recheck=recheck) as r:
            for m in range(M):
                r.add(x[m], m)
            out, spent = machine.timed(r.close)
            assert not out.quarantined
            return spent

    jobs = {"one read": lambda: machine.timed(lambda: Norms().gram_stats(clients, 0))[1]}
    jobs["(a), the comparison"] = lambda: machine.timed(lambda: distorted_norms(clients, stats, bz.Rotated()))[1]
    for k in (64, 256, 1024, 4096):
        sketch = bz.Rotated(k)
        jobs[f"sketch {sketch!r}"] = lambda s=sketch: machine.timed(lambda: s.sketch_rows(clients, 0))[1]
    for rule in rules:
        for recheck in (False, True):
            jobs[f"close {rule!r}{', (b)' if recheck else ''}"] = lambda rule=rule, recheck=recheck: closing(
                rule, recheck
            )
    times = {name: [] for name in jobs}
    for turn in range(options.repeats + 1):
        for name, job in jobs.items():
            PROGRESS.show(f"{name}, {turn} of {options.repeats}")
            spent = job()
            if turn:  # the first compiles
                times[name].append(spent)
    unit = np.median(times["one read"])
    PROGRESS.close()
    print(
        f"{M} clients x {p:,} on {machine.name_of('cpu')}: reads, median (least .. most); one read {1e3 * unit:.0f} ms"
    )
    for name, spent in times.items():
        low, middle, high = (g(spent) / unit for g in (min, np.median, max))
        print(f"{name:62s} {middle:9.5f} ({low:.5f} .. {high:.5f})")


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("what", choices=["harm", "outliers", "odds", "held-out", "cost"])
    parser.add_argument("--clients", type=number, default=50)
    parser.add_argument("--dim", type=number, default=5_500_000)
    parser.add_argument("--repeats", type=number, default=5)
    options = parser.parse_args()
    {"harm": harm, "outliers": outliers, "odds": odds, "held-out": held_out, "cost": cost}[options.what](options)


if __name__ == "__main__":
    start = time.perf_counter()
    main()
    print(f"Done in {time.perf_counter() - start:.0f} s.")
