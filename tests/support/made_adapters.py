"""Adapters for tests: random ones, their dense products, and other factors of the same products."""

from __future__ import annotations

import numpy as np

MODULES = {"h.0.q_proj": (40, 30), "h.0.v_proj": (17, 30), "h.1.q_proj": (40, 30)}


def adapter(rng, rank, dtype=np.float32, modules=MODULES, around=None, spread=1.0):
    made = {}
    for name, (d_out, d_in) in modules.items():
        made[f"{name}.lora_A.weight"] = rng.normal(size=(rank, d_in)).astype(dtype)
        made[f"{name}.lora_B.weight"] = rng.normal(size=(d_out, rank)).astype(dtype)
    if around is not None:
        made = {name: (around[name] + spread * array).astype(dtype) for name, array in made.items()}
    return made


def dense(update, alpha):
    """The definition: alpha / r B A of all modules in one vector, in float64."""
    out = []
    for name in sorted(name for name in update if "lora_A" in name):
        A, B = (np.asarray(update[key], np.float64) for key in (name, name.replace("lora_A", "lora_B")))
        out.append((alpha / len(A) * B @ A).ravel())
    return np.concatenate(out)


def rotated(update, rng):
    """The same products by other factors."""
    turned = {}
    for name in (name for name in update if "lora_A" in name):
        A, B = update[name], update[name.replace("lora_A", "lora_B")]
        M = np.linalg.qr(rng.normal(size=(len(A), len(A))))[0] * rng.uniform(0.1, 10, size=len(A))
        turned[name] = np.linalg.solve(M, A.astype(np.float64)).astype(A.dtype)
        turned[name.replace("lora_A", "lora_B")] = (B.astype(np.float64) @ M).astype(A.dtype)
    return turned


START = adapter(np.random.default_rng(0), 4)


def trained(number, rank=4):
    """A step from START by factors of this rank, rotated."""
    rng = np.random.default_rng([1, number])
    if rank == 4:
        return rotated(adapter(rng, 4, around=START, spread=0.1), rng)
    return adapter(rng, rank)


def flipped(number):
    return {name: array if "lora_A" in name else -20 * array for name, array in trained(number).items()}
