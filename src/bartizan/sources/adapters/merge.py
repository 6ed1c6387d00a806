"""Combine adapters by their weights: their products, factored again to a wanted rank."""

from __future__ import annotations

import math
from collections.abc import Hashable, Iterable
from dataclasses import dataclass
from itertools import product
from typing import Any

import numpy as np

from bartizan._util.seeds import generator_of
from bartizan._util.types import Floats
from bartizan.sources.adapters.adapters import Adapter, Adapters, LoRA
from bartizan.sources.adapters.factor_stacks import joined, library, on_host, placed
from bartizan.updates.build import weighted_median
from bartizan.updates.dlpack import in_own_type
from bartizan.updates.layout import FLOATS, is_tensor
from bartizan.updates.updates import form_of

PADDING = 2**20  # number of the draw (`generator_of`) for components without a product
NOTHING = 1e-7  # of the largest singular value: below it a component adds nothing to float32 factors


@dataclass(frozen=True)
class Template:
    """Names, ranks and scales of the result, by module, and arrays whose type and dtype its factors have."""

    names: tuple[tuple[str, str], ...]
    order: tuple[str, ...]
    ranks: tuple[int, ...]
    scales: tuple[float, ...]
    alpha: float
    leaves: tuple[tuple[Any, Any], ...]
    """Arrays like B and A, one pair per module."""

    @classmethod
    def of(cls, clients: Adapters, weights: Floats, settings: LoRA) -> Template:
        """Return the form of the reference, or else the one that most of the weight has.

        Ranks, alpha and dtypes are weighted medians, so they are between those of honest clients even where no two
        clients agree. Without a reference and any weight, those of a trusted adapter, or of all clients, count.
        """
        fixed = clients.reference or (None if weights.any() else clients.trusted)
        if fixed is not None:
            voters, votes = [fixed], np.ones(1)
        else:
            votes = weights if weights.any() else np.ones(len(clients))
            voters = [clients.adapters[row] for row in np.flatnonzero(votes)]
            votes = votes[votes > 0]
        kinds: dict[Hashable, tuple[Adapter, float]] = {}  # most clients are of one
        for one, vote in zip(voters, votes.tolist(), strict=True):
            first, total = kinds.get(kind := (one.form, form_of(one.B[0])), (one, 0.0))
            kinds[kind] = first, total + vote
        forms, shares = [one.form for one, _ in kinds.values()], np.array([total for _, total in kinds.values()])
        named = _heaviest(((form.order, form.names), form, share) for form, share in zip(forms, shares, strict=True))
        ranks = weighted_median(np.array([form.ranks for form in forms]), shares).tolist()
        scales = [list(map(settings.rescaled, form.scales, form.ranks, ranks)) for form in forms]
        alpha = weighted_median(np.array([[form.alpha] for form in forms]), shares)
        precisions = np.array([[FLOATS.index(name) for pair in form.dtypes for name in pair] for form in forms])
        dtypes = [FLOATS[at] for at in weighted_median(precisions, shares)]
        leaves = [
            _heaviest(
                (form_of(own := (one.B, one.A)[side][i]), own, total)
                for one, total in kinds.values()
                if one.form.dtypes[i][side] == dtype
            )
            for (i, side), dtype in zip(product(range(len(ranks)), (0, 1)), dtypes, strict=True)
        ]
        pairs = tuple(zip(leaves[::2], leaves[1::2], strict=True))
        usual = weighted_median(np.array(scales), shares).tolist()
        return cls(named.names, named.order, tuple(ranks), tuple(usual), float(alpha[0]), pairs)


def _heaviest(candidates: Iterable[tuple[Hashable, Any, float]]) -> Any:
    """The first of the candidates, (kind, candidate, weight), whose kind has most weight."""
    first: dict[Hashable, Any] = {}
    total: dict[Hashable, float] = {}
    for kind, candidate, weight in candidates:
        first.setdefault(kind, candidate)
        total[kind] = total.get(kind, 0.0) + weight
    return first[max(total, key=total.__getitem__)]


def combined(clients: Adapters, weights: Floats, settings: LoRA, seed: int) -> tuple[dict[str, Any], float, float]:
    """The factors of sum_m w_m X_m, what the weights lack of 1 at the reference; their alpha, and what truncation lost.

    Clients of weight 0 are not read.
    """
    like, rest = Template.of(clients, weights, settings), 1 - float(weights.sum())
    parts = [(one, float(w)) for one, w in zip(clients.adapters, weights, strict=True) if w]
    if clients.reference is not None and abs(rest) > 1e-12:
        parts.append((clients.reference, rest))
    parts = parts or [(clients.adapters[0], 0.0)]
    w = np.array([weight for _, weight in parts])
    update: dict[str, Any] = {}
    lost = total = 0.0
    rng = generator_of(seed, PADDING)
    for i, (r, own, leaves) in enumerate(zip(like.ranks, like.scales, like.leaves, strict=True)):
        rank = settings.rank or r
        scale = settings.rescaled(own, r, rank)
        c = w * [one.form.scales[i] for one, _ in parts] / scale
        ranks = [one.form.ranks[i] for one, _ in parts]
        B, A = joined([one.B[i] for one, _ in parts], axis=1), joined([one.A[i] for one, _ in parts], axis=0)
        B, A = placed(B, leaves[0]), placed(A, leaves[1])  # in torch callers can limit the threads, in NumPy they can't
        B, A, sigma = _refactored(B * placed(np.repeat(c, ranks), B), A, rank, rng)
        lost += float(scale**2 * (sigma[rank:] ** 2).sum())
        total += float(scale**2 * (sigma**2).sum())
        for name, array, leaf in zip(like.names[i], (B, A), leaves, strict=True):
            update[name] = _like(array, leaf)
    update = {name: update[name] for name in like.order}
    return update, like.alpha, math.sqrt(lost / total) if total else 0.0


def _refactored(B: Any, A: Any, rank: int, rng: np.random.Generator) -> tuple[Any, Any, Floats]:
    """Factors of this rank whose product is nearest to B A, and all singular values of B A.

    With B = Q R and A' = Q' R' they are those of the small matrix R R''. A component that adds nothing gets B = 0 and
    a random A, as LoRA begins: if both were 0, training could never change it.
    """
    xp = library(B)
    d_out, d_in = len(B), A.shape[1]
    if min(d_out, d_in) <= len(A):  # many clients: the product has fewer columns or rows than its factors
        identity = placed(np.eye(min(d_out, d_in)), B)
        B, A = (B @ A, identity) if d_in <= d_out else (identity, B @ A)
    Qb, Rb = xp.linalg.qr(B)
    Qa, Ra = xp.linalg.qr(A.T)
    U, sigma, V = xp.linalg.svd(Rb @ Ra.T, full_matrices=False)
    values = on_host(sigma)
    n = int((values[:rank] > NOTHING * values[0]).sum())
    root = sigma[:n] ** 0.5
    begin = placed(rng.normal(size=(rank - n, d_in)) / math.sqrt(d_in), B)
    zero = placed(np.zeros((d_out, rank - n)), B)
    B = xp.concatenate([Qb @ U[:, :n] * root, zero], axis=1)
    return B, xp.concatenate([root[:, None] * (V[:n] @ Qa.T), begin], axis=0), values


def _like(array: Any, leaf: Any) -> Any:
    """A float64 array in the dtype of this one, and of its own type; what that can't hold becomes its largest number.

    A client may send a wider dtype than that of the result, and no rule but Mean gives it so much weight.
    """
    largest = float(library(leaf).finfo(leaf.dtype).max)
    array = array.clip(-largest, largest)
    if is_tensor(leaf):
        return in_own_type(array.to(leaf.dtype).contiguous(), leaf)
    return in_own_type(np.ascontiguousarray(array, dtype=leaf.dtype), leaf)
