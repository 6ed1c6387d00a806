"""Updates in any container: their arrays, their numbers, and all but their numbers."""

from __future__ import annotations

import numpy as np


def leaves(update):
    """The arrays and tensors of an update, in order."""
    if isinstance(update, dict):
        return [leaf for child in update.values() for leaf in leaves(child)]
    if isinstance(update, (list, tuple)):
        return [leaf for child in update for leaf in leaves(child)]
    return [update]


def to_numpy(leaf):
    if hasattr(leaf, "detach"):
        leaf = leaf.detach()
        return (leaf.double() if leaf.is_floating_point() else leaf).numpy()
    return np.asarray(leaf)


def flat(update):
    """All numbers of an update in float64."""
    return np.concatenate([to_numpy(leaf).astype(np.float64).reshape(-1) for leaf in leaves(update)])


def skeleton(update):
    """All of an update but its numbers: containers, keys, libraries, dtypes, shapes."""
    if isinstance(update, dict):
        return type(update), [(key, skeleton(child)) for key, child in update.items()]
    if isinstance(update, (list, tuple)):
        return type(update), [skeleton(child) for child in update]
    return hasattr(update, "detach"), update.dtype, tuple(update.shape)


def streamed(aggregator, updates, **settings):
    """The result of a round that gets these updates one by one, in their order."""
    with aggregator.round(**settings) as opened:
        for client, update in enumerate(updates):
            opened.add(update, client)
        return opened.close()
