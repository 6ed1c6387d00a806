"""The errors of sketched distances between adapters."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

import bartizan as bz
from bartizan.lora import LoRA, TwoSided
from studies.options import add_parts
from studies.rows import keep
from studies.tables import table_of

QUANTILES = {"median": 0.5, "90%": 0.9, "99%": 0.99, "largest": 1.0}


def add_to(commands: Any) -> None:
    add_parts(commands, "adapters", "errors of distances between adapters", (tails,))


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
