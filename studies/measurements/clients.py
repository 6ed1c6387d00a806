"""The time of the gradients of all clients in a round, by every method of computing them."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import median
from typing import Annotated, Any, Literal

import torch

from bartizan.lab import models
from bartizan.lab.training.flat_model import FlatLayout
from bartizan.lab.training.gradients import Grouped, Loop, Vmapped
from studies.options import command
from studies.timing import in_turns

METHODS = {"loop": Loop, "vmapped": Vmapped, "grouped": Grouped}
EXACT_BELOW = 1e-6  # relative distance to the loop in float64, above which a method is wrong and not timed


def clients(
    *,
    device: Literal["cpu", "cuda"] = "cpu",
    model: str = "resnet18",
    norm: str = "group",
    channels: int = 3,
    side: Annotated[int, "pixels of an image"] = 32,
    classes: int = 10,
    clients: int = 50,
    batch: int = 32,
    at_once: Annotated[int | None, "clients of one call (default all)"] = None,
    local_steps: Annotated[bool, "weights of their own, as after a local step"] = False,
    methods: Sequence[str] = tuple(METHODS),
    repeats: int = 5,
) -> None:
    """Time rounds with TF32, median and peak memory; a method that differs from a loop in float64 is not timed."""
    torch.backends.cudnn.allow_tf32 = True
    torch.set_float32_matmul_precision("high")
    network = models.build(model, classes, (channels, side, side), norm).to(device)

    def drawn(count: int, dtype: torch.dtype) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Return weights, shared or of each client, images and labels."""
        g = torch.Generator().manual_seed(0)
        weights = FlatLayout.of(network).read(network).to(dtype)
        if local_steps:
            weights = weights * (1 + 0.1 * torch.rand(count, 1, generator=g, dtype=dtype).to(weights.device))
        images = torch.randn(count, batch, channels, side, side, generator=g).to(weights)
        return weights, images, torch.randint(classes, (count, batch), generator=g).to(weights.device)

    def distance(method: Any, dtype: torch.dtype) -> float:
        """Return the distance to the loop's gradients in float64, relative to their norm, on three clients."""
        weights, images, labels = drawn(3, torch.float64)
        exact = Loop(network.double())(weights, images, labels).rows
        rows = method(network.to(dtype))(weights.to(dtype), images.to(dtype), labels).rows.double()
        network.float()
        return float((rows - exact).norm() / exact.norm())

    def one_round(gradients: Any, inputs: tuple[torch.Tensor, ...], out: torch.Tensor) -> None:
        weights, images, labels = inputs
        for start in range(0, clients, at_once or clients):
            some = slice(start, start + (at_once or clients))
            gradients(weights if weights.ndim == 1 else weights[some], images[some], labels[some], out=out[some])

    size = FlatLayout.of(network).size
    print(f"{model} {norm}, {size:,} coordinates, {clients} clients x {batch}")
    for name in methods:
        off = [distance(METHODS[name], dtype) for dtype in (torch.float64, torch.float32)]
        if not off[0] < EXACT_BELOW:
            print(f"{name:10} differs from the loop by {off[0]:.1e}: not timed")
            continue
        gradients, inputs = METHODS[name](network), drawn(clients, torch.float32)
        out = torch.empty(clients, size, device=device)
        one_round(gradients, inputs, out)
        if device == "cuda":
            torch.cuda.reset_peak_memory_stats()
        times = in_turns({name: lambda g=gradients, i=inputs, o=out: one_round(g, i, o)}, repeats, device)
        memory = torch.cuda.max_memory_allocated() if device == "cuda" else 0
        took = f"{1000 * median(times[name]):9.1f} ms {memory / 2**30:7.2f} GiB"
        print(f"{name:10} {took}   off by {off[0]:.0e}, {off[1]:.0e} in float32")


add_to = command(clients)
