"""Time every way to compute the gradients of all clients in a round: `python benchmarks/clients.py`.

Each variant is first compared with a loop over three clients in float64; one that differs is not timed, except those in
bfloat16, whose distance is shown. On a GPU the times are of whole rounds, the launches of kernels included, with the
most memory that a round took.
"""

from __future__ import annotations

import argparse
import statistics
import time
from functools import partial

import torch

from bartizan.lab import models
from bartizan.lab.training.flat_model import FlatLayout
from bartizan.lab.training.gradients import Grouped, Loop, Vmapped

KINDS = {"loop": Loop, "vmapped": Vmapped, "grouped": Grouped}
ON_A_GPU = {
    "loop16": partial(Loop, precision=torch.bfloat16),
    "compiled": partial(Loop, compiled=True),
    "compiled16": partial(Loop, compiled=True, precision=torch.bfloat16),
}
if torch.cuda.is_available():
    KINDS |= ON_A_GPU


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--model", default="resnet18", choices=models.MODELS)
    parser.add_argument("--norm", default="group")
    parser.add_argument("--image", type=int, nargs=3, default=[3, 32, 32])
    parser.add_argument("--classes", type=int, default=10)
    parser.add_argument("--clients", type=int, default=50)
    parser.add_argument("--batch", type=int, default=32)
    parser.add_argument("--at-once", type=int, default=None)
    parser.add_argument("--local-steps", action="store_true", help="weights of their own, as after a local step")
    parser.add_argument("--variants", nargs="+", default=list(KINDS), choices=KINDS)
    parser.add_argument("--repeats", type=int, default=5)
    asked = parser.parse_args()
    device = torch.device(asked.device)
    torch.backends.cudnn.allow_tf32 = True
    torch.set_float32_matmul_precision("high")
    model = models.build(asked.model, asked.classes, tuple(asked.image), asked.norm).to(device)
    size = FlatLayout.of(model).size
    print(f"{asked.model} {asked.norm}, {size:,} coordinates, {asked.clients} clients x {asked.batch}")
    for name in asked.variants:
        off = distance(KINDS[name], model, asked)
        if not off < 1e-6 and not name.endswith("16"):
            print(f"{name:10} differs from the loop by {off:.1e}: not timed")
            continue
        seconds, memory = timed(KINDS[name](model), model, asked)
        worst = distance(KINDS[name], model, asked, torch.float32)
        took = f"{1000 * seconds:9.1f} ms {memory / 2**30:7.2f} GiB"
        print(f"{name:10} {took}   off by {off:.0e}, {worst:.0e} in float32")


def problem(model, asked, clients, dtype):
    g = torch.Generator().manual_seed(0)
    weights = FlatLayout.of(model).read(model).to(dtype)
    if asked.local_steps:
        noise = torch.rand(clients, 1, generator=g, dtype=dtype).to(weights.device)
        weights = weights * (1 + 0.1 * noise)
    images = torch.randn(clients, asked.batch, *asked.image, generator=g).to(weights)
    labels = torch.randint(asked.classes, (clients, asked.batch), generator=g).to(weights.device)
    return weights, images, labels


def distance(kind, model, asked, dtype=torch.float64):
    """Return the distance to the loop's gradients in float64, relative to their norm, on three clients."""
    weights, images, labels = problem(model, asked, 3, torch.float64)
    exact = Loop(model.double())(weights, images, labels).rows
    rows = kind(model.to(dtype))(weights.to(dtype), images.to(dtype), labels).rows.double()
    model.float()
    return float((rows - exact).norm() / exact.norm())


def timed(gradients, model, asked):
    weights, images, labels = problem(model, asked, asked.clients, torch.float32)
    out = torch.empty(asked.clients, weights.shape[-1], device=weights.device)
    at_once = asked.at_once or asked.clients
    cuda = weights.device.type == "cuda"

    def round_():
        for start in range(0, asked.clients, at_once):
            some = slice(start, start + at_once)
            gradients(weights if weights.ndim == 1 else weights[some], images[some], labels[some], out=out[some])
        if cuda:
            torch.cuda.synchronize()

    round_()
    round_()
    if cuda:
        torch.cuda.reset_peak_memory_stats()
    times = []
    for _ in range(asked.repeats):
        start = time.perf_counter()
        round_()
        times.append(time.perf_counter() - start)
    return statistics.median(times), torch.cuda.max_memory_allocated() if cuda else 0


if __name__ == "__main__":
    main()
