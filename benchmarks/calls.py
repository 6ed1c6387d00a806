"""Time whole calls in a row, and of these the sketching and the weighted sum, in reads of the updates.

`python benchmarks/calls.py [--device cuda] [--clients 50] [--dim 11173962]`; `--dim 100` shows the least cost of a
call. The adds and the close of a round are timed too. First Krum must choose a client of little noise.
"""

import argparse
import time

import numpy as np

import bartizan as bz
from bartizan._util import machine
from bartizan._util.arguments import number
from bartizan.sketch.exact import Norms
from bartizan.updates import combine, parse_updates


def drawn(clients, dim, device):
    if device == "cuda":
        import torch

        x = torch.empty((clients, dim), device="cuda")
        for row in x:
            row.normal_()
        x[: clients // 2] *= 0.5  # so that one client is plainly the most central
        return x, torch.randn(dim, device="cuda")
    rng = np.random.default_rng(0)
    x = np.empty((clients, dim), np.float32)
    for row in x:
        rng.standard_normal(dtype=np.float32, out=row)
    x[: clients // 2] *= 0.5
    return x, rng.standard_normal(dim, dtype=np.float32)


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cpu")
    parser.add_argument("--clients", type=number, default=50)
    parser.add_argument("--dim", type=number, default=11_173_962)
    parser.add_argument("--repeats", type=number, default=9)
    options = parser.parse_args()
    M, device = options.clients, machine.checked_device(options.device)
    x, reference = drawn(M, options.dim, device)
    clients = parse_updates(x)
    about = parse_updates(x, reference=reference)

    def streamed(rule):
        with bz.Aggregator(rule, bz.Rotated()).round() as r:
            adding = machine.timed(lambda: [r.add(x[m], m) for m in range(M)], device)[1]
            return adding, machine.timed(r.close, device)[1]

    f = (M - 3) // 4
    rules = [bz.Krum(f), bz.Bulyan(f), bz.GeometricMedian(), bz.MCA()]
    chosen = [np.flatnonzero(bz.aggregate(x, bz.Krum(f), sketch=s).weights)[0] for s in (bz.Exact(), bz.Rotated())]
    assert max(chosen) < M // 2, "Krum must choose among the clients of little noise"
    read = (lambda: x.sum()) if device == "cuda" else (lambda: Norms().gram_stats(clients, 0))
    jobs = {
        "one read": read,
        "sketch, projected": lambda: bz.Rotated().gram_stats(clients, 0),
        "sketch, about a reference": lambda: bz.Rotated().gram_stats(about, 0),
        "sum of all": lambda: combine(clients, np.full(M, 1 / M)),
    }
    for sketch in (bz.Rotated(), bz.Exact()):
        for rule in rules:
            jobs[f"{type(sketch).__name__} {type(rule).__name__}"] = lambda a=bz.Aggregator(rule, sketch): a(x)
    times = {name: [] for name in jobs}
    for turn in range(options.repeats + 1):
        for name, job in jobs.items():
            seconds = machine.timed(job, device)[1]
            if turn:  # the first compiles
                times[name].append(seconds)
    unit = np.median(times["one read"])
    print(
        f"{M} clients x {options.dim:,} on {machine.name_of(device)}: reads, median (least .. most), and milliseconds"
    )
    for name, spent in times.items():
        low, middle, high = (f(spent) / unit for f in (min, np.median, max))
        took = f"{1e3 * np.median(spent):9.3f} ms, least {1e3 * min(spent):.3f}"
        print(f"{name:28s} {middle:6.2f} ({low:.2f} .. {high:.2f})  {took}")
    for rule in rules[::2]:
        streamed(rule)
        adds, closes = (np.median(some) / unit for some in zip(*(streamed(rule) for _ in range(3)), strict=True))
        print(f"stream {type(rule).__name__:21s} adds {adds:.2f}, close {closes:.2f}")


if __name__ == "__main__":
    start = time.perf_counter()
    main()
    print(f"Done in {time.perf_counter() - start:.0f} s.")
