"""Attackers whose every update is an honest one."""

from __future__ import annotations

import numpy as np

from bartizan._util.types import Floats
from bartizan.attacks.honest_updates import Matrix, agreed, copied, squared_distances
from bartizan.attacks.parameters import INDEX_OR_NONE, attack
from bartizan.updates.layout import is_tensor


@attack(client=INDEX_OR_NONE)
def mimic(honest: Matrix, count: int, rng: np.random.Generator, *, client: int | None = None) -> Matrix:
    """All copy one honest client: row `client`, or who stands out most in this round (Karimireddy et al., 2022).

    That is the one farthest from the mean along the direction of largest variance. The source looks for it in the first
    rounds and then stays with it; to stay, give its row.

    >>> mimic([[0.0, 0.0], [1.0, 5.0], [0.0, -1.0]], 2, np.random.default_rng(0)).tolist()
    [[1.0, 5.0], [1.0, 5.0]]
    """
    if client is not None and client >= len(honest):
        raise ValueError(f"mimic needs client, the row of an honest update, 0 to {len(honest) - 1}; got {client}.")
    row = honest[_outstanding(squared_distances(honest)) if client is None else client]
    return agreed(copied(row), count)


def _outstanding(D: Floats) -> int:
    """Of the inner products about the mean, -J D J / 2, the top eigenvector has everyone's place on that direction."""
    if not np.isfinite(D).all():
        return 0  # somebody has diverged: there is no direction to speak of
    G = D.mean(axis=0) + D.mean(axis=1)[:, None] - D - D.mean()
    return int(np.abs(np.linalg.eigh(G)[1][:, -1]).argmax())


@attack()
def none(honest: Matrix, count: int, rng: np.random.Generator) -> Matrix:
    """Nobody lies, the attack-free baseline: stand-ins send copies of honest updates that are drawn at random.

    None is drawn twice while there are enough. Where the clients in question can be trained, train them instead, as a
    run does: copies are closer to each other than honest updates are.
    """
    H = len(honest)
    drawn = np.concatenate([rng.permutation(H) for _ in range(-(-count // H))] or [np.empty(0, dtype=np.intp)])[:count]
    if is_tensor(honest):
        import torch

        return honest[torch.from_numpy(drawn).to(honest.device)]
    return honest[drawn]
