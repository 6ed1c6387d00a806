"""The server's model, moved by the aggregate of a round."""

from __future__ import annotations

from math import cos, pi
from typing import Annotated, Any, NotRequired, TypedDict

from bartizan._util import schema
from bartizan._util.schema import LARGEST, Between
from bartizan._util.text import quoted
from bartizan.lab.config.sections import ServerSettings
from bartizan.lab.torch_import import Tensor, torch
from bartizan.lab.training.optimisers import OPTIMISERS, copied

MIN_VARIANCE = 1e-5  # of BatchNorm's running variances, which attackers may push below zero


class ServerState(TypedDict):
    """The numbers that a server and its optimiser keep beside their vectors."""

    round: int
    squares: NotRequired[Annotated[float, Between(0.0, LARGEST)]]
    distance: NotRequired[Annotated[float, Between(0.0, LARGEST)]]


class Server:
    """The model's vector, and the optimiser that moves it against the aggregate.

    `step_size` is a factor, 1 unless there is a reason, where the optimiser tunes the step size itself. BatchNorm's
    statistics, the coordinates from `n_parameters` on, move by the aggregate itself.

    >>> server = Server(torch.ones(3), 3, step_size=0.5)
    >>> server.step(torch.tensor([1.0, 2.0, 0.0]))
    0.5
    >>> server.weights
    tensor([0.5000, 0.0000, 1.0000])
    """

    def __init__(
        self,
        weights: Tensor,
        n_parameters: int,
        settings: ServerSettings = ServerSettings(),
        *,
        step_size: float,
        rounds: int = 1,
        keep_last: bool = False,
    ) -> None:
        """Copy the weights; a cosine schedule reaches zero after `rounds`; `last` is the last aggregate, if kept."""
        self.weights = weights.detach().clone()
        self.n_parameters, self.settings, self.step_size, self.rounds = n_parameters, settings, step_size, rounds
        self.round = 0
        self.last = torch.zeros_like(self.weights) if keep_last else None
        has_batchnorm = n_parameters < len(weights)
        self.optimiser = OPTIMISERS[settings.optimiser](self.weights[:n_parameters], settings, has_batchnorm)

    def step(self, update: Tensor) -> float:
        """Update the model and return the step size; an aggregate that is not finite is ignored, with step size 0."""
        step_size = self.step_size * self.factor
        self.skip()
        if not bool(update.isfinite().all()):
            return 0.0
        update = update.to(self.weights)
        if self.last is not None:
            self.last.copy_(update)
        n = self.n_parameters
        used = self.optimiser.move(self.weights[:n], update[:n], step_size)
        statistics = self.weights[n:]
        statistics -= update[n:]
        statistics[len(statistics) // 2 :].clamp_(min=MIN_VARIANCE)
        return used

    def skip(self) -> None:
        """Count a round without an aggregate, for the schedule."""
        self.round += 1

    @property
    def factor(self) -> float:
        """Return the schedule's factor of the step size in this round."""
        if self.settings.schedule == "constant":
            return 1.0
        return (1 + cos(pi * min(self.round / self.rounds, 1.0))) / 2

    def state_dict(self) -> dict[str, Any]:
        """Return the state that a resumed run needs: tensors, numbers and strings only."""
        state: dict[str, Any] = {"optimiser": self.settings.optimiser, "round": self.round, "weights": self.weights}
        return state | ({} if self.last is None else {"last": self.last}) | self.optimiser.state_dict()

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue from such a state; raise ValueError or TypeError if an optimiser could not use it."""
        if state["optimiser"] != self.settings.optimiser:
            raise ValueError(
                f"this state is of a server with {quoted(state['optimiser'], 60)}, not with {self.settings.optimiser}"
            )
        schema.check(ServerState, state)
        self.weights.copy_(copied(state, "weights", self.weights))
        if self.last is not None:
            self.last.copy_(copied(state, "last", self.last))
        self.optimiser.load_state_dict(state)
        self.round = state["round"]
