"""The errors of sketched distances between adapters, and the costs of exact and projected ones."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any, Literal

import numpy as np

import bartizan as bz
from bartizan.lora import LoRA, TwoSided
from bartizan.sources.adapters import factor_stacks
from bartizan.sources.adapters.adapters import parse_adapter
from studies.options import add_parts
from studies.rows import keep
from studies.tables import table_of
from studies.timing import in_turns

QUANTILES = {"median": 0.5, "90%": 0.9, "99%": 0.99, "largest": 1.0}
# (d_out, d_in) of the modules of a layer of a 70B model with grouped queries
LAYER = {
    "q_proj": (8192, 8192),
    "k_proj": (1024, 8192),
    "v_proj": (1024, 8192),
    "o_proj": (8192, 8192),
    "gate_proj": (28672, 8192),
    "up_proj": (28672, 8192),
    "down_proj": (8192, 28672),
}


def add_to(commands: Any) -> None:
    add_parts(commands, "adapters", "errors and costs of distances between adapters", (tails, speed))


def factors(modules, rank):
    """Yield the name and the shape of every factor."""
    for name, (d_out, d_in) in modules.items():
        yield f"{name}.lora_A.weight", (rank, d_in)
        yield f"{name}.lora_B.weight", (d_out, rank)


def made(rng, modules, rank):
    return {name: rng.normal(size=shape).astype(np.float32) for name, shape in factors(modules, rank)}


def dense(update):
    """Return the product of the factors, all modules one after the other."""
    names = sorted(name for name in update if "lora_A" in name)
    return np.concatenate([(update[n.replace("lora_A", "lora_B")] @ update[n]).ravel() / len(update[n]) for n in names])


def on_few_coordinates(rng, modules, rank):
    """Return factors of two coordinates each, which a blind attacker would aim at."""
    update = {name: np.zeros_like(array) for name, array in made(rng, modules, rank).items()}
    for name, array in update.items():
        flat = array if "lora_A" in name else array.T
        for row in flat:
            row[rng.choice(len(row), 2, replace=False)] = 1
    return update


def tails(*, seeds: int = 400, out: Path | None = None) -> None:
    """Measure relative errors |estimate / truth - 1| of one squared distance at k = 4096, beside those of `Rotated`."""
    one, many = {"m": (2048, 1536)}, {f"m{i:02}": (256, 384) for i in range(32)}
    rng, rows = np.random.default_rng(0), []
    cases = {
        "rank 1 in one module": made(rng, one, 1),
        "rank 16 in one module": made(rng, one, 16),
        "rank 1 in each of 32 modules": made(rng, many, 1),
        "rank 16 in each of 32 modules": made(rng, many, 16),
        "rank 1, two coordinates, one module": on_few_coordinates(rng, one, 1),
    }
    sketches = [TwoSided(rows=64), TwoSided(), TwoSided(rows=512), bz.Rotated()]
    for case, update in cases.items():
        row, n_modules = dense(update)[None], len(update) // 2
        truth = float((row.astype(np.float64) ** 2).sum())
        rank = len(next(array for name, array in update.items() if "lora_A" in name))
        for sketch in sketches:
            if isinstance(sketch, TwoSided):
                found = [(sketch([update], seed=seed, settings=LoRA(alpha=1)) ** 2).sum() for seed in range(seeds)]
                parts = n_modules * rank
                stated = (4 / (parts * sketch.rows) + (2 + 2 / parts) / sketch.k) ** 0.5
            else:
                found = [(sketch(row, seed=seed) ** 2).sum() for seed in range(seeds)]
                stated = (2 / sketch.k) ** 0.5
            errors = np.abs(np.array(found) / truth - 1)
            quantiles = {name: float(np.quantile(errors, q)) for name, q in QUANTILES.items()}
            rows.append({"difference": case, "sketch": f"`{sketch!r}`", **quantiles, "proven deviation": stated})
    print(table_of(rows))
    keep(out, rows)


def speed(
    *, device: Literal["cpu", "cuda"] = "cpu", clients: int = 50, layers: int = 80, rank: int = 16, repeats: int = 3
) -> None:
    """Time the distances of adapters of a 70B model: 80 layers, rank 16, 207M numbers, bfloat16 on a GPU.

    A read is the time that the device needs to read all factors once. `--layers 2` is for smaller machines.
    """
    import torch

    dtype = torch.bfloat16 if device == "cuda" else torch.float32
    modules = {f"layers.{i:02}.{name}": shape for i in range(layers) for name, shape in LAYER.items()}
    torch.manual_seed(0)
    shapes = dict(factors(modules, rank))
    sent = [
        {name: (torch.randn(shape, device=device) / 100).to(dtype) for name, shape in shapes.items()}
        for _ in range(clients)
    ]
    numbers = sum(tensor.numel() for tensor in sent[0].values())
    print(f"{clients} adapters of {numbers / 1e6:.1f}M numbers, rank {rank}, {dtype}, {torch.__version__} on {device}")
    size = clients * numbers * dtype.itemsize
    flat = torch.empty(min(size, 2**33) // 4, dtype=torch.float32, device=device).fill_(1.0)
    forms: dict[Any, Any] = {}
    adapters = [parse_adapter(update, LoRA(alpha=rank), forms) for update in sent]
    sketches = [TwoSided(rows=rows) for rows in (64, 128, 256)]
    calls = {"read": flat.sum, "exact": partial(factor_stacks.exact, adapters)}
    calls |= {repr(sketch): partial(sketch.measure, adapters, (), None, 1) for sketch in sketches}
    seconds = {name: min(spent) for name, spent in in_turns(calls, repeats, device, label="adapters").items()}
    read = seconds["read"] * size / (flat.numel() * 4)
    print(f"one read of all factors: {1e3 * read:.2f} ms, {size / read / 1e9:.0f} GB/s")
    flops, spent = 2 * clients * rank * clients * numbers, seconds["exact"]
    print(f"exact: {1e3 * spent:.1f} ms, {spent / read:.1f} reads, {flops / spent / 1e12:.1f} TFLOP/s")
    distances = squared_distances(calls["exact"]().gram)
    for sketch in sketches:
        off = np.abs(squared_distances(calls[repr(sketch)]().gram) / distances - 1).max()
        spent = seconds[repr(sketch)]
        print(f"{sketch!r}: {1e3 * spent:.1f} ms, {spent / read:.1f} reads; largest error of a distance^2 {off:.3f}")
    layer = [{name: tensor for name, tensor in one.items() if "layers.00" in name} for one in sent[:3]]
    wide = [{name: tensor.double() for name, tensor in one.items()} for one in layer]
    grams = [factor_stacks.exact([parse_adapter(u, LoRA(alpha=rank)) for u in some]).gram for some in (layer, wide)]
    off = np.abs(grams[0] / grams[1] - 1).max()
    print(f"exact against float64, one layer: {off:.1e} relative, off-diagonal included")


def squared_distances(gram):
    D = np.diag(gram)[:, None] + np.diag(gram) - 2 * gram
    return D[np.triu_indices(len(D), 1)]
