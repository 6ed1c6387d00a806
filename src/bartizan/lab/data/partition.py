r"""Split a training set among clients: every example goes to one client.

A split is a frozen dataclass, called with labels, a number of clients and a generator; `split` takes it by its name.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from heapq import heapify, heapreplace
from typing import Any

import numpy as np
import numpy.typing as npt

from bartizan import registry

Indices = npt.NDArray[np.int64]


@dataclass(frozen=True)
class _Concentrated:
    beta: float

    def __post_init__(self) -> None:
        if not 1e-6 <= self.beta <= 1e6:
            raise ValueError(f"beta must lie from 1e-06 to 1e+06 (large is nearly IID), got {self.beta!r}.")


@dataclass(frozen=True)
class Dirichlet(_Concentrated):
    r"""Divide each class by proportions of its own, drawn from a Dirichlet distribution over the clients.

    For class c, :math:`q_c \sim \mathrm{Dir}(\beta, \ldots, \beta)` over the M clients, and client j gets the part
    :math:`q_{cj}` of the class: mean 1/M, variance :math:`(M - 1) / (M^2 (M \beta + 1))` (Yurochkin et al., 2019; Li et
    al., 2022). So labels and amounts both differ between clients; `ClientDirichlet` is the other common form.
    """

    def __call__(self, labels: Indices, n_clients: int, rng: np.random.Generator) -> list[Indices]:
        parts: list[list[Indices]] = [[] for _ in range(n_clients)]
        for label in np.unique(labels):
            members = rng.permutation(np.flatnonzero(labels == label))
            shares = rng.dirichlet(np.full(n_clients, float(self.beta)))
            cuts = np.rint(np.cumsum(shares)[:-1] * len(members)).astype(np.int64)
            for part, piece in zip(parts, np.split(members, cuts), strict=True):
                part.append(piece)
        return [rng.permutation(np.concatenate(part)) for part in parts]


@dataclass(frozen=True)
class ClientDirichlet(_Concentrated):
    r"""Give all clients equally many examples, by a label distribution that each draws from a Dirichlet distribution.

    Client j draws :math:`q_j \sim \mathrm{Dir}(\beta, \ldots, \beta)` over the classes (Hsu et al., 2019). In turns
    each client draws a label from its :math:`q_j`, and an example of it, until none is left; a class without examples
    drops out of all distributions, so the last turns are less like :math:`q_j` than the first.
    """

    def __call__(self, labels: Indices, n_clients: int, rng: np.random.Generator) -> list[Indices]:
        classes, members = np.unique(labels, return_inverse=True)
        left = [rng.permutation(np.flatnonzero(members == one)).tolist() for one in range(len(classes))]
        shares = rng.dirichlet(np.full(len(classes), float(self.beta)), n_clients)
        draws, turns = rng.random(len(labels)), rng.permutation(n_clients)
        parts: list[list[int]] = [[] for _ in range(n_clients)]
        limits = np.cumsum(shares, axis=1)
        for turn, draw in enumerate(draws):
            client = turns[turn % n_clients]
            total = limits[client, -1]
            label = int(np.searchsorted(limits[client], min(draw * total, np.nextafter(total, 0)), side="right"))
            parts[client].append(left[label].pop())
            if not left[label] and turn + 1 < len(draws):
                shares[:, label] = 0
                shares[shares.sum(axis=1) == 0] = [len(of) for of in left]  # of clients whose classes are all gone
                limits = np.cumsum(shares, axis=1)
        return [rng.permutation(np.array(part, np.int64)) for part in parts]


@dataclass(frozen=True)
class IID:
    """Deal out a shuffled set; sizes differ by one at most."""

    def __call__(self, labels: Indices, n_clients: int, rng: np.random.Generator) -> list[Indices]:
        return np.array_split(rng.permutation(len(labels)), n_clients)


@dataclass(frozen=True)
class Shards:
    """Sort by label, cut into equal shards, and give each client `per_client` of them (McMahan et al., 2017)."""

    per_client: int = 2

    def __post_init__(self) -> None:
        if not (isinstance(self.per_client, int) and self.per_client >= 1):
            raise ValueError(f"per_client must be a whole number of shards, 1 or more, got {self.per_client!r}.")

    def __call__(self, labels: Indices, n_clients: int, rng: np.random.Generator) -> list[Indices]:
        n_shards = n_clients * self.per_client
        if n_shards > len(labels):
            raise ValueError(
                f"{n_clients} clients with {self.per_client} shards each need {n_shards} examples, got {len(labels)}. "
                f"per_client can be at most {len(labels) // n_clients}."
            )
        shards = np.array_split(_by_label(labels, rng.permutation(len(labels))), n_shards)
        dealt = rng.permutation(n_shards).reshape(n_clients, self.per_client)
        return [rng.permutation(np.concatenate([shards[shard] for shard in own])) for own in dealt]


@dataclass(frozen=True)
class Similarity:
    r"""Deal out the part `gamma` of the set at random, and the rest sorted by label (Karimireddy et al., 2020).

    At 1 it is IID, at 0 each client holds one stretch of the sorted set; which, is drawn.
    """

    gamma: float

    def __post_init__(self) -> None:
        if not 0 <= self.gamma <= 1:
            raise ValueError(f"gamma must lie from 0 (sorted by label) to 1 (IID), got {self.gamma!r}.")

    def __call__(self, labels: Indices, n_clients: int, rng: np.random.Generator) -> list[Indices]:
        order = rng.permutation(len(labels))
        n_alike = round(self.gamma * len(labels))
        # Reversed, as the first pieces of both would be the longer ones.
        alike = np.array_split(order[:n_alike], n_clients)[::-1]
        pieces = np.array_split(_by_label(labels, order[n_alike:]), n_clients)
        dealt = rng.permutation(n_clients)
        return [rng.permutation(np.concatenate([alike[one], pieces[one]])) for one in dealt]


@dataclass(frozen=True)
class Natural:
    """Give each client whole classes that follow one another, such as the texts of one author."""

    def __call__(self, labels: Indices, n_clients: int, rng: np.random.Generator) -> list[Indices]:
        classes = np.unique(labels)
        if n_clients > len(classes):
            raise ValueError(
                f"A natural split of {len(classes)} classes has that many clients at most, got {n_clients}."
            )
        own = np.array_split(classes, n_clients)
        return [rng.permutation(np.flatnonzero(np.isin(labels, some))) for some in own]


SPLITS = registry.Registry(
    "split",
    {
        "dirichlet": Dirichlet,
        "client-dirichlet": ClientDirichlet,
        "iid": IID,
        "shards": Shards,
        "similarity": Similarity,
        "natural": Natural,
    },
    check=registry.frozen_dataclass(object),
)


def split(
    kind: str, labels: Any, n_clients: int, rng: np.random.Generator, *, least: int = 1, **settings: Any
) -> list[Indices]:
    """Split examples among clients; returns one sorted index array for each client.

    A client with fewer than `least` examples (one batch) receives random examples, one at a time, from the client that
    has the most at that moment.

    >>> labels = np.repeat([0, 1], 6)
    >>> parts = split("shards", labels, 3, np.random.default_rng(0), least=4, per_client=1)
    >>> counts(parts, labels, 2).tolist()
    [[0, 4], [2, 2], [4, 0]]
    """
    labels = np.asarray(labels)
    found = SPLITS.find(kind)
    registry.only_known(kind, settings, registry.settings_of(found))
    if n_clients * least > len(labels):
        raise ValueError(
            f"{n_clients} clients with at least {least} examples each need {n_clients * least}, got {len(labels)}. "
            f"With these there can be {len(labels) // least} clients, or {len(labels) // n_clients} examples each."
        )
    parts: list[Indices] = registry.build(found, settings)(labels, n_clients, rng)
    return [np.sort(np.array(part, np.int64)) for part in _with_at_least(least, parts)]


def counts(parts: Sequence[Indices], labels: Any, n_classes: int) -> npt.NDArray[np.int64]:
    """Return the number of examples of each class (column) that each client (row) holds."""
    labels = np.asarray(labels)
    return np.array([np.bincount(labels[part], minlength=n_classes) for part in parts])


def _by_label(labels: Indices, order: Indices) -> Indices:
    """Return indices sorted by label, each class in its random order."""
    return order[np.argsort(labels[order], kind="stable")]


def _with_at_least(least: int, parts: list[Indices]) -> list[list[int]]:
    """Move examples, from the ends of the largest shuffled arrays, until every client has `least`."""
    held = [part.tolist() for part in parts]
    largest = [(-len(own), client) for client, own in enumerate(held)]
    heapify(largest)
    for small in held:
        while len(small) < least:
            client = largest[0][1]
            small.append(held[client].pop())
            heapreplace(largest, (-len(held[client]), client))
    return held
