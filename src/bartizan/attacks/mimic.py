"""Attackers who send copies of honest updates."""

from __future__ import annotations

import numpy as np

from bartizan._util.types import Floats
from bartizan.attacks.honest_updates import Matrix, agreed, copied, squared_distances
from bartizan.attacks.parameters import INDEX_OR_NONE, attack
from bartizan.updates.layout import is_tensor


@attack(client=INDEX_OR_NONE)
def mimic(honest: Matrix, count: int, rng: np.random.Generator, *, client: int | None = None) -> Matrix:
    """Send copies of one honest client: row `client`, or the outermost one of the round (Karimireddy et al., 2022).

    The outermost is farthest from the mean along the direction of largest variance. In the source it is chosen in the
    first rounds and then kept; to keep one, give its row.

    >>> mimic([[0.0, 0.0], [1.0, 5.0], [0.0, -1.0]], 2, np.random.default_rng(0)).tolist()
    [[1.0, 5.0], [1.0, 5.0]]
    """
    if client is not None and client >= len(honest):
        raise ValueError(f"mimic needs client, the row of an honest update, 0 to {len(honest) - 1}; got {client}.")
    row = honest[_outermost(squared_distances(honest)) if client is None else client]
    return agreed(copied(row), count)


def _outermost(D: Floats) -> int:
    """The row with the largest entry in the top eigenvector of -J D J / 2, the inner products about the mean."""
    if not np.isfinite(D).all():
        return 0  # a client has diverged, and there is no such direction
    G = D.mean(axis=0) + D.mean(axis=1)[:, None] - D - D.mean()
    return int(np.abs(np.linalg.eigh(G)[1][:, -1]).argmax())


@attack()
def none(honest: Matrix, count: int, rng: np.random.Generator) -> Matrix:
    """Send copies of honest updates drawn at random: the baseline without an attack.

    No update is drawn twice while there are enough. A run trains these clients instead: copies are closer to each
    other than honest updates are.
    """
    H = len(honest)
    drawn = np.concatenate([rng.permutation(H) for _ in range(-(-count // H))] or [np.empty(0, dtype=np.intp)])[:count]
    if is_tensor(honest):
        import torch

        return honest[torch.from_numpy(drawn).to(honest.device)]
    return honest[drawn]
