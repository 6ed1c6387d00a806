"""Choose what the result of adapters is like, apart from its numbers, by the clients that have weight."""

from __future__ import annotations

from collections.abc import Hashable, Iterable
from dataclasses import dataclass
from itertools import product
from typing import Any

import numpy as np

from bartizan._util.types import Floats
from bartizan.sources.adapters.adapters import Adapter, Adapters, LoRA
from bartizan.updates.build import weighted_median
from bartizan.updates.layout import FLOATS
from bartizan.updates.updates import form_of


@dataclass(frozen=True)
class Template:
    """Names, ranks and scales of the result, by module, and arrays whose type and dtype its factors have."""

    names: tuple[tuple[str, str], ...]
    order: tuple[str, ...]
    ranks: tuple[int, ...]
    scales: tuple[float, ...]
    alpha: float
    leaves: tuple[tuple[Any, Any], ...]
    """Of B and A."""

    @classmethod
    def of(cls, clients: Adapters, weights: Floats, settings: LoRA) -> Template:
        """That of the reference, or what most weight agrees on: a minority of the weight decides nothing.

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
