"""What a client does in a round, and which of its examples it takes for it."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass

import numpy as np

from bartizan._util.types import Array


class Work(ABC):
    """How many steps a client takes from the server's weights, and how long they are."""

    @abstractmethod
    def n_steps(self, batches_in_part: int) -> int:
        """Steps of a client whose part holds so many whole batches, at least one."""


@dataclass(frozen=True)
class OneGradient(Work):
    """The gradient on one batch, as in the paper's Algorithm 1."""

    def n_steps(self, batches_in_part: int) -> int:
        return 1


class Local(Work):
    """Steps of SGD on the client's own weights; what it sends is the way back, server's weights minus its own."""

    step_size: float
    momentum: float

    def __post_init__(self) -> None:
        if not self.step_size > 0 or not 0 <= self.momentum < 1:
            raise ValueError(
                f"Local work needs step_size > 0 and 0 <= momentum < 1, got {self.step_size} and {self.momentum}."
            )


@dataclass(frozen=True)
class LocalSteps(Local):
    """A number of steps, the same for all clients."""

    steps: int = 1
    step_size: float = 0.1
    momentum: float = 0.0

    def __post_init__(self) -> None:
        super().__post_init__()
        _at_least_one("steps", self.steps)

    def n_steps(self, batches_in_part: int) -> int:
        return self.steps


@dataclass(frozen=True)
class LocalEpochs(Local):
    """Passes over the client's whole part, so that clients with more data take more steps."""

    epochs: int = 1
    step_size: float = 0.1
    momentum: float = 0.0

    def __post_init__(self) -> None:
        super().__post_init__()
        _at_least_one("epochs", self.epochs)

    def n_steps(self, batches_in_part: int) -> int:
        return self.epochs * batches_in_part


def batches(part: Array, batch: int, work: Work, rng: np.random.Generator) -> Array:
    """A client's examples for a round, (steps, batch): cuts of a fresh order of its part for every pass over it.

    No example comes twice in a pass; what is left of a pass and fills no batch is dropped. All batches must be of one
    size, so a client with fewer examples than a batch goes through them again, in another order, until it is full.

    >>> rng = np.random.default_rng(0)
    >>> batches(np.array([4, 5, 6]), 7, OneGradient(), rng).shape
    (1, 7)
    """
    n = len(part)
    in_part = max(1, n // batch)
    steps = work.n_steps(in_part)
    passes = []
    for _ in range(-(-steps // in_part)):
        orders = [rng.permutation(n) for _ in range(-(-batch * in_part // n))]
        passes.append(np.concatenate(orders)[: in_part * batch].reshape(in_part, batch))
    return part[np.concatenate(passes)[:steps]]


def _at_least_one(what: str, value: int) -> None:
    if value < 1:
        raise ValueError(f"{what} must be at least 1, got {value}.")
