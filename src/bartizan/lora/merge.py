"""Combine adapters by their weights: products, factored again to a wanted rank, or factor by factor."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from bartizan._util.seeds import generator_of
from bartizan._util.types import Floats
from bartizan.lora.adapters import Adapters, Factors, LoRA, wide
from bartizan.lora.factor_stacks import library, on_host, placed
from bartizan.updates.dlpack import in_own_type
from bartizan.updates.layout import is_tensor

PADDING = 2**20  # number of the draw (`generator_of`) for components without a product
NOTHING = 1e-7  # of the largest singular value: below it a component adds nothing to float32 factors


def combined(clients: Adapters, weights: Floats, settings: LoRA, seed: int) -> tuple[dict[str, Any], float]:
    """The factors of sum_m w_m X_m, what the weights lack of 1 at the reference; and the relative error of truncation.

    Clients of weight 0 are not read. The result has the names, device and dtype of the reference or of most clients.
    """
    like, rest = clients.usual, 1 - float(weights.sum())
    parts = [(one, float(w)) for one, w in zip(clients.adapters, weights, strict=True) if w]
    if clients.reference is not None and abs(rest) > 1e-12:
        parts.append((clients.reference, rest))
    update: dict[str, Any] = {}
    lost = total = 0.0
    rng = generator_of(seed, PADDING)
    for module, own in like.modules.items():
        weighted = [(one.modules[module], w) for one, w in parts]
        if settings.combine == "factors":
            B = sum((w * f.scale / own.scale * wide(f.B) for f, w in weighted), 0 * wide(own.B))
            A = sum((w * wide(f.A) for f, w in weighted), 0 * wide(own.A))
        else:
            rank = settings.rank or own.rank
            B, A, sigma = _refactored(weighted, own, rank, settings.rescaled(own, rank), rng)
            lost, total = lost + float((sigma[rank:] ** 2).sum()), total + float((sigma**2).sum())
        for name, array, leaf in zip(like.names[module], (B, A), own[:2], strict=True):
            update[name] = _like(array, leaf)
    return {name: update[name] for name in like.order}, math.sqrt(lost / total) if total else 0.0


def _refactored(
    weighted: list[tuple[Factors, float]], own: Factors, rank: int, scale: float, rng: np.random.Generator
) -> tuple[Any, Any, Floats]:
    """B and A of this rank with scale B A nearest to the weighted sum, and all singular values of that.

    With the stacks of all clients' factors B = Q R and A' = Q' R', the singular values of B A are those of the small
    matrix R R''. A component that adds nothing gets B = 0 and a random A, as LoRA begins: if both were 0, training
    could never change it.
    """
    d_out, d_in = own.B.shape[0], own.A.shape[1]
    begin = placed(rng.normal(size=(rank, d_in)) / math.sqrt(d_in), wide(own.A[:0]))
    zero = placed(np.zeros((d_out, rank)), begin)
    if not weighted:
        return zero, begin, np.zeros(0)
    xp = library(begin)
    Qb, Rb = xp.linalg.qr(xp.concatenate([w * f.scale / scale * wide(f.B) for f, w in weighted], axis=1))
    Qa, Ra = xp.linalg.qr(xp.concatenate([wide(f.A) for f, _ in weighted], axis=0).T)
    U, sigma, V = xp.linalg.svd(Rb @ Ra.T, full_matrices=False)
    values = on_host(sigma)
    n = int((values[:rank] > NOTHING * values[0]).sum())
    root = sigma[:n] ** 0.5
    B = xp.concatenate([Qb @ U[:, :n] * root, zero[:, n:]], axis=1)
    A = xp.concatenate([root[:, None] * (V[:n] @ Qa.T), begin[n:]], axis=0)
    return B, A, values * scale


def _like(array: Any, leaf: Any) -> Any:
    """A float64 array in the library, dtype and place of this one."""
    if not is_tensor(leaf):
        return in_own_type(np.ascontiguousarray(array, dtype=leaf.dtype), leaf)
    tensor = array if is_tensor(array) else placed(np.ascontiguousarray(array), leaf)
    return in_own_type(tensor.to(leaf.dtype).contiguous(), leaf)
