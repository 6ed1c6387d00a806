"""The server's optimiser, which moves the model by the aggregate of a round."""

from __future__ import annotations

from math import cos, pi
from typing import Any, NotRequired, TypedDict

from bartizan._util import schema
from bartizan._util.text import quoted
from bartizan.lab.config.sections import ServerSettings
from bartizan.lab.torch_import import Tensor, nn, torch
from bartizan.lab.training.step_sizes import STEP_SIZES

MIN_VARIANCE = 1e-5  # of BatchNorm's running variances, which attackers may push below zero


class Estimates(TypedDict):
    """The numbers that Prodigy changes in its group of parameters, beside its settings."""

    d: float
    d_max: float
    d_numerator: float
    d_denom: NotRequired[float]
    d_hat: NotRequired[float]
    k: int


class ServerState(TypedDict):
    """The number that every server keeps beside its vectors."""

    round: int


class Steps(TypedDict):
    """The number that Prodigy keeps beside its vectors."""

    step: int


class Server:
    r"""The model's vector, and the optimiser that moves it against the aggregate.

    `sgd`: :math:`w \leftarrow w - \eta u`. `momentum`: :math:`v \leftarrow \mu v + u,\ w \leftarrow w - \eta v`.
    `prodigy`: Adam whose step size is estimated from the distance that the weights have gone (Mishchenko and
    Defazio, 2024), here with `step_size` as a factor, 1 unless there is a reason. `dog` and `adagrad-norm`:
    `sgd` with a step size of `STEP_SIZES`, and that factor.

    BatchNorm's statistics, the coordinates from `n_parameters` on, move by the aggregate itself.

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
        self._velocity = torch.zeros_like(self._parameters) if settings.optimiser == "momentum" else None
        self._prodigy = _prodigy(self._parameters, step_size) if settings.optimiser == "prodigy" else None
        tuned = STEP_SIZES.get(settings.optimiser)
        self._tuned = tuned(self._parameters, n_parameters < len(weights)) if tuned else None

    @property
    def _parameters(self) -> Tensor:
        return self.weights[: self.n_parameters]

    def step(self, update: Tensor) -> float:
        """Move the model by an aggregate, and return the step size; 0 if the aggregate is not finite, and ignored."""
        factor = self.factor
        self.skip()
        if not bool(update.isfinite().all()):
            return 0.0
        update = update.to(self.weights)
        if self.last is not None:
            self.last.copy_(update)
        gradient, change = update[: self.n_parameters], update[self.n_parameters :]
        used = self._move(gradient, factor)
        statistics = self.weights[self.n_parameters :]
        statistics -= change
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

    def _move(self, gradient: Tensor, factor: float) -> float:
        used = self.step_size * factor
        if self._prodigy is not None:
            group = self._prodigy.param_groups[0]
            group["lr"] = used
            used = float(used * group["d"])  # a step is taken with the estimate from before it
            group["params"][0].grad = gradient
            self._prodigy.step()
            group["params"][0].grad = None
            return used
        if self._velocity is not None:
            gradient = self._velocity.mul_(self.settings.momentum).add_(gradient)
        if self._tuned is not None:
            used *= self._tuned(self._parameters, gradient)
        self._parameters.sub_(gradient, alpha=used)
        return used

    def state_dict(self) -> dict[str, Any]:
        """Return the state that a resumed run needs: tensors, numbers and strings only."""
        state: dict[str, Any] = {"optimiser": self.settings.optimiser, "round": self.round, "weights": self.weights}
        if self.last is not None:
            state["last"] = self.last
        if self._velocity is not None:
            state["velocity"] = self._velocity
        if self._prodigy is not None:
            state["prodigy"] = self._prodigy.state_dict()
        if self._tuned is not None:
            state["tuned"] = self._tuned.state()
        return state

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue from such a state; raise ValueError or TypeError if an optimiser could not use it."""
        if state["optimiser"] != self.settings.optimiser:
            raise ValueError(
                f"this state is of a server with {quoted(state['optimiser'], 60)}, not with {self.settings.optimiser}"
            )
        schema.check(ServerState, state)
        self.weights.copy_(_copied(state, "weights", self.weights))
        if self.last is not None:
            self.last.copy_(_copied(state, "last", self.last))
        if self._velocity is not None:
            self._velocity.copy_(_copied(state, "velocity", self._velocity))
        if self._prodigy is not None:
            (given,), states = state["prodigy"]["param_groups"], state["prodigy"]["state"]
            (group,) = self._prodigy.param_groups
            (parameters,) = group["params"]
            schema.check(Estimates, given, "prodigy.")
            group.update({name: given[name] for name in Estimates.__annotations__ if name in given})
            if 0 in states:  # not before its first step
                own = self._prodigy.state[parameters]
                schema.check(Steps, states[0], "prodigy.")
                own["step"] = states[0]["step"]
                for name in ("s", "p0", "exp_avg", "exp_avg_sq"):
                    own[name] = _copied(states[0], name, parameters.detach())
        if self._tuned is not None:
            schema.check(self._tuned.numbers, state["tuned"], "tuned.")
            for name in self._tuned.numbers.__annotations__:
                setattr(self._tuned, name, state["tuned"][name])
            for name in self._tuned.vectors:
                setattr(self._tuned, name, _copied(state["tuned"], name, self._parameters))
        self.round = state["round"]


def _copied(state: dict[str, Any], name: str, like: Tensor) -> Tensor:
    """Copy a state's tensor of the shape and dtype of `like`; Prodigy keeps one number for a vector of zeros."""
    found, shapes = state[name], (like.shape, torch.Size()) if name == "p0" else (like.shape,)
    if not isinstance(found, Tensor) or found.dtype != like.dtype or found.shape not in shapes:
        got = f"{found.dtype} of shape {tuple(found.shape)}" if isinstance(found, Tensor) else quoted(found, 60)
        raise ValueError(f"{name} must be a tensor, {like.dtype} of shape {tuple(like.shape)}, got {got}")
    return torch.empty_like(like if found.shape else like.sum()).copy_(found)


def _prodigy(parameters: Tensor, step_size: float) -> Any:
    """Return prodigyopt's optimiser, which changes this view of the weights."""
    try:
        from prodigyopt import Prodigy  # type: ignore[import-untyped]
    except ModuleNotFoundError as missing:
        raise ModuleNotFoundError(
            "server.optimiser 'prodigy' needs prodigyopt: pip install 'bartizan[lab]'"
        ) from missing
    return Prodigy([nn.Parameter(parameters)], lr=step_size)
