"""Who takes part in a run: the data, each client's part of it, who lies. All of it follows from the seed."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property, lru_cache
from pathlib import Path
from typing import Any

import numpy as np

from bartizan._util.types import Array
from bartizan.lab import data
from bartizan.lab.config.experiment import Experiment
from bartizan.lab.data import Dataset, Images, partition
from bartizan.lab.training.reproducible import generator


@dataclass(frozen=True, eq=False)
class Population:
    """The clients by number, 0 to M - 1."""

    experiment: Experiment
    dataset: Dataset
    parts: list[Array]
    """Indices into the training images, one array a client."""
    chosen: frozenset[int]
    """Who is Byzantine by the seed; the same clients whatever the attack, the rule or the sketch."""

    @classmethod
    def of(cls, experiment: Experiment) -> Population:
        """Load and divide; every client gets at least one batch."""
        clients, seed = experiment.clients, experiment.seed
        dataset = _loaded(experiment.data.name, experiment.data.folder)
        parts = partition.split(
            experiment.split.name,
            dataset.train.labels,
            clients.count,
            generator(seed, "split"),
            least=clients.batch,
            **experiment.split.settings,
        )
        attackers = generator(seed, "byzantine").choice(clients.count, clients.n_byzantine, replace=False)
        return cls(experiment, dataset, parts, frozenset(int(attacker) for attacker in attackers))

    @property
    def byzantine(self) -> frozenset[int]:
        """The true attackers: nobody, where there is no attack."""
        return frozenset() if self.experiment.attack.name == "none" else self.chosen

    @cached_property
    def sizes(self) -> Array:
        return np.array([len(part) for part in self.parts])

    @property
    def n_classes(self) -> int:
        return len(self.dataset.classes)

    def taking_part(self, round: int) -> list[int]:
        """Who is asked in a round, in order."""
        M, m = self.experiment.clients.count, self.experiment.clients.taking_part
        if m == M:
            return list(range(M))
        drawn = generator(self.experiment.seed, "participants", round).choice(M, m, replace=False)
        return sorted(int(client) for client in drawn)

    def ratio(self) -> dict[str, float]:
        """b by heads, and by data as the paper defines it."""
        attackers = sorted(self.byzantine)
        return {
            "count": len(attackers) / len(self.parts),
            "data": float(self.sizes[attackers].sum() / self.sizes.sum()),
        }

    def counts(self) -> Array:
        """Examples by client and class."""
        return partition.counts(self.parts, self.dataset.train.labels, self.n_classes)

    def trusted(self) -> Array:
        """What the server itself holds: a random draw of the training images, which clients hold too."""
        n = min(self.experiment.clients.trusted, len(self.dataset.train.labels))
        rng = generator(self.experiment.seed, "trusted")
        return rng.choice(len(self.dataset.train.labels), n, replace=False)

    def poisoned(self, poison: Any) -> tuple[Images, list[Array]]:
        """The training images with the attackers' own versions behind, and the parts that point to them."""
        train, parts = self.dataset.train, list(self.parts)
        pixels, labels, length = [train.pixels], [train.labels], len(train.labels)
        for attacker in sorted(self.byzantine):
            mine, rng = parts[attacker], generator(self.experiment.seed, "poison", attacker)
            p, y = poison.poison(train.pixels[mine], train.labels[mine], self.n_classes, rng)
            pixels.append(p)
            labels.append(y)
            parts[attacker] = np.arange(length, length + len(y))
            length += len(y)
        return Images(np.concatenate(pixels), np.concatenate(labels)), parts


@lru_cache(maxsize=1)
def _loaded(name: str, folder: str) -> Dataset:
    """One data set is kept: the runs of a sweep mostly share it."""
    return data.load(name, Path(folder) if folder else None)
