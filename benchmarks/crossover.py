"""Measure from how many clients projecting is faster than exact inner products, beside the planner's prediction.

Times of the sketches alone (the rule does the same after each), in reads: the least of several, taken by turns. Run as
`python benchmarks/crossover.py`.
"""

import argparse
import math

from bartizan import Exact, Rotated
from bartizan._util import machine
from bartizan._util.arguments import listed, number, short
from bartizan._util.console import ProgressLine
from bartizan.sketch.choose import costs_of
from bartizan.sketch.exact import Norms
from bartizan.studies.bench.problem import Problem

SKETCHES = [Norms(), Exact(), Rotated()]


def least(problem, repeats):
    """Return the seconds of one read, of the exact Gram matrix and of the projected one."""
    times = [math.inf] * len(SKETCHES)
    for turn in range(repeats + 1):
        for i, sketch in enumerate(SKETCHES):
            seconds = machine.timed(lambda s=sketch: s.gram_stats(problem.updates, 0), problem.device)[1]
            if turn:  # the first compiles
                times[i] = min(times[i], seconds)
    return times


def meeting(clients, ratios):
    """Return the M, interpolated, from which on exact / projected is above 1."""
    for i in range(len(clients) - 1, 0, -1):
        low, high = math.log(ratios[i - 1]), math.log(ratios[i])
        if low <= 0 < high:
            part = -low / (high - low)
            return f"{clients[i - 1] * (clients[i] / clients[i - 1]) ** part:.0f}"
    return f"below {clients[0]}" if ratios[0] > 1 else f"above {clients[-1]}"


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--clients", type=listed(number), default=[4, 8, 16, 32, 64, 128])
    parser.add_argument("--dim", type=listed(number), default=[100_000, 1_000_000, 11_000_000])
    parser.add_argument("--dtype", default="float32")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--repeats", type=int, default=9)
    options = parser.parse_args()
    costs, progress = costs_of(options.device), ProgressLine("crossover", plain=False)
    print(f"{machine.name_of(options.device)}; reads: exact / projected to 4096 (predicted)\n")
    print(f"| p | {' | '.join(f'M={M}' for M in options.clients)} | measured crossover | predicted |")
    print(f"|---|{'---|' * len(options.clients)}---|---|", flush=True)
    for dim in options.dim:
        cells, measured, predicted, done = [], [], [], []
        for M in options.clients:
            predicted.append(costs.exact(M, dim) / costs.projected(M, dim, Rotated().k))
            if M * dim * 8 > machine.free_memory(options.device) / 2:
                cells.append("")
                continue
            progress.show(f"p={short(dim)}, M={M}")
            read, exact, projected = least(Problem.draw(M, 0, dim, options.dtype, options.device), options.repeats)
            expected = [each / (M * dim) for each in (costs.exact(M, dim), costs.projected(M, dim, Rotated().k))]
            cells.append(f"{exact / read:.1f} / {projected / read:.1f} ({expected[0]:.1f} / {expected[1]:.1f})")
            measured.append(exact / projected)
            done.append(M)
        progress.close()
        crossings = [meeting(done, measured), meeting(options.clients, predicted)]
        print(f"| {short(dim)} | {' | '.join([*cells, *crossings])} |", flush=True)


if __name__ == "__main__":
    main()
