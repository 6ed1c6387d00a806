"""The clients of a run: their parts of the data, and the Byzantine ones, drawn from the seed."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property, lru_cache
from pathlib import Path

import numpy as np

from bartizan._util.types import Array
from bartizan.attacks import Poison
from bartizan.lab import data
from bartizan.lab.config.experiment import Experiment
from bartizan.lab.data import Dataset, Images, partition
from bartizan.lab.training.reproducible import generator


@dataclass(frozen=True, eq=False)
class Population:
    """All clients of a run, numbered 0 to M - 1."""

    experiment: Experiment
    dataset: Dataset
    parts: list[Array]
    """Indices of the training images, one array per client."""
    chosen: frozenset[int]
    """Clients that are drawn as Byzantine, for any attack, rule and sketch."""

    @classmethod
    def of(cls, experiment: Experiment) -> Population:
        """Load the data and split it; every client gets at least one batch, or of a small sample an equal part."""
        clients, seed = experiment.clients, experiment.seed
        dataset = _loaded(experiment.data.name, experiment.data.folder, experiment.data.validation)
        parts = partition.split(
            experiment.split.name,
            dataset.train.labels,
            clients.count,
            generator(seed, "split"),
            least=max(1, min(clients.batch, len(dataset.train.labels) // clients.count)),
            **experiment.split.settings,
        )
        attackers = generator(seed, "byzantine").choice(clients.count, clients.n_byzantine, replace=False)
        return cls(experiment, dataset, parts, frozenset(int(attacker) for attacker in attackers))

    @property
    def byzantine(self) -> frozenset[int]:
        """Return the clients that attack; none without an attack."""
        return frozenset() if self.experiment.attack.name == "none" else self.chosen

    @cached_property
    def sizes(self) -> Array:
        return np.array([len(part) for part in self.parts])

    @cached_property
    def durations(self) -> Array:
        """Return the time that each client works: from 1 to `clients.speed`, its logarithm uniform.

        Attackers are as fast as the fastest, and an attack with a `rate` so many times faster.
        """
        given = self.experiment
        drawn = max(1.0, given.clients.speed) ** generator(given.seed, "speed").random(len(self.parts))
        drawn[sorted(self.byzantine)] = 1 / given.attack.settings.get("rate", 1.0)
        return drawn

    @property
    def note(self) -> str:
        """Return a warning about the split, or an empty string."""
        batch, least = self.experiment.clients.batch, int(self.sizes.min())
        if least >= batch:
            return ""
        return f"Some clients hold {least} examples, fewer than a batch of {batch}: some come twice or more in it."

    def taking_part(self, round: int) -> list[int]:
        """Draw the clients that take part in a round, in order."""
        M, m = self.experiment.clients.count, self.experiment.clients.taking_part
        if m == M:
            return list(range(M))
        drawn = generator(self.experiment.seed, "participants", round).choice(M, m, replace=False)
        return sorted(int(client) for client in drawn)

    def ratio(self) -> dict[str, float]:
        """Return b, the Byzantine fraction of the clients, and of the data as the paper defines it."""
        attackers = sorted(self.byzantine)
        return {
            "count": len(attackers) / len(self.parts),
            "data": float(self.sizes[attackers].sum() / self.sizes.sum()),
        }

    def trusted(self) -> Array:
        """Draw the indices of the training images that the server holds itself."""
        n = min(self.experiment.clients.trusted, len(self.dataset.train.labels))
        rng = generator(self.experiment.seed, "trusted")
        return rng.choice(len(self.dataset.train.labels), n, replace=False)

    def poisoned(self, poison: Poison) -> tuple[Images, list[Array]]:
        """Return the training images followed by the attackers' poisoned copies, and all clients' indices into them."""
        train, parts = self.dataset.train, list(self.parts)
        pixels, labels, length = [train.pixels], [train.labels], len(train.labels)
        for nth, attacker in enumerate(sorted(self.byzantine)):
            mine, rng = parts[attacker], generator(self.experiment.seed, "poison", attacker)
            p, y = poison.of_attacker(nth).poison(train.pixels[mine], train.labels[mine], self.dataset.n_classes, rng)
            pixels.append(p)
            labels.append(y)
            parts[attacker] = np.arange(length, length + len(y))
            length += len(y)
        return type(train)(np.concatenate(pixels), np.concatenate(labels)), parts


@lru_cache(maxsize=1)
def _loaded(name: str, folder: str, validation: float) -> Dataset:
    """Load a data set and keep it, as the runs of a sweep mostly share one."""
    dataset = data.load(name, Path(folder) if folder else None)
    return dataset.validated(validation) if validation else dataset
