"""The server's optimisers: each moves the weights in place against an aggregate, and returns the step size taken."""

from __future__ import annotations

from math import sqrt
from typing import Any, ClassVar, NotRequired, TypedDict

from bartizan._util import schema
from bartizan._util.extras import missing_extra
from bartizan._util.text import quoted
from bartizan.lab.config.sections import ServerSettings
from bartizan.lab.torch_import import Tensor, nn, torch


class SGD:
    r""":math:`w \leftarrow w - \eta u`; the base of optimisers whose state are numbers and vectors, one field each."""

    fields: ClassVar[tuple[str, ...]] = ()

    def __init__(self, weights: Tensor, settings: ServerSettings, has_batchnorm: bool) -> None:
        """Begin before the first gradient; the arguments are those of all optimisers."""

    def move(self, weights: Tensor, gradient: Tensor, step_size: float) -> float:
        used = step_size * self.factor(weights, gradient)
        weights.sub_(gradient, alpha=used)
        return used

    def factor(self, weights: Tensor, gradient: Tensor) -> float:
        """Return the factor of the step size that is tuned by the gradients so far; 1 if it is not tuned."""
        return 1.0

    def state_dict(self) -> dict[str, Any]:
        return {name: getattr(self, name) for name in self.fields}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Load a state whose numbers the server has checked."""
        for name in self.fields:
            own = getattr(self, name)
            setattr(self, name, copied(state, name, own) if isinstance(own, Tensor) else state[name])


class Momentum(SGD):
    r""":math:`v \leftarrow \mu v + u,\ w \leftarrow w - \eta v`."""

    fields = ("velocity",)

    def __init__(self, weights: Tensor, settings: ServerSettings, has_batchnorm: bool) -> None:
        self.velocity, self.momentum = torch.zeros_like(weights), settings.momentum

    def move(self, weights: Tensor, gradient: Tensor, step_size: float) -> float:
        return super().move(weights, self.velocity.mul_(self.momentum).add_(gradient), step_size)


class AdaGradNorm(SGD):
    r"""AdaGrad-norm (Ward, Wu and Bottou, 2019) with :math:`b_0 = 0`: :math:`1 / \sqrt{\sum_{i \le t} \|g_i\|^2}`."""

    fields = ("squares",)

    def __init__(self, weights: Tensor, settings: ServerSettings, has_batchnorm: bool) -> None:
        self.squares = 0.0

    def factor(self, weights: Tensor, gradient: Tensor) -> float:
        self.squares += squared_norm(gradient)
        return 1 / sqrt(self.squares) if self.squares else 0.0


class DoG(SGD):
    r"""Distance over gradients (Ivgi, Hinder and Carmon, 2023).

    :math:`\max(r, \max_{i \le t} \|w_i - w_0\|) / \sqrt{10^{-8} + \sum_{i \le t} \|g_i\|^2}`, where r is
    :math:`10^{-6} (1 + \|w_0\|)`; for a network with BatchNorm :math:`10^{-4} (1 + \|w_0\|)`, as its authors advise.
    """

    fields = ("squares", "distance", "start")

    def __init__(self, weights: Tensor, settings: ServerSettings, has_batchnorm: bool) -> None:
        self.start, self.squares = weights.clone(), 1e-8
        self.distance = (1e-4 if has_batchnorm else 1e-6) * (1 + sqrt(squared_norm(weights)))

    def factor(self, weights: Tensor, gradient: Tensor) -> float:
        self.squares += squared_norm(gradient)
        self.distance = max(self.distance, sqrt(squared_norm(weights - self.start)))
        return self.distance / sqrt(self.squares)


class Estimates(TypedDict):
    """The numbers that Prodigy changes in its group of parameters, beside its settings."""

    d: float
    d_max: float
    d_numerator: float
    d_denom: NotRequired[float]
    d_hat: NotRequired[float]
    k: int


class Steps(TypedDict):
    """The number that Prodigy keeps beside its vectors."""

    step: int


class Prodigy(SGD):
    """Adam whose step size is estimated from the distance that the weights have gone (Mishchenko and Defazio, 2024)."""

    def __init__(self, weights: Tensor, settings: ServerSettings, has_batchnorm: bool) -> None:
        try:
            from prodigyopt import Prodigy as Published  # type: ignore[import-untyped]
        except ModuleNotFoundError as missing:
            raise missing_extra("server.optimiser 'prodigy' needs prodigyopt", "lab") from missing
        self.parameters = nn.Parameter(weights)  # the same memory
        self.prodigy: Any = Published([self.parameters])

    def move(self, weights: Tensor, gradient: Tensor, step_size: float) -> float:
        (group,) = self.prodigy.param_groups
        group["lr"] = step_size
        used = float(step_size * group["d"])  # a step is taken with the estimate from before it
        self.parameters.grad = gradient
        self.prodigy.step()
        self.parameters.grad = None
        return used

    def state_dict(self) -> dict[str, Any]:
        return {"prodigy": self.prodigy.state_dict()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        (given,), states = state["prodigy"]["param_groups"], state["prodigy"]["state"]
        schema.check(Estimates, given, "prodigy.")
        self.prodigy.param_groups[0].update({name: given[name] for name in Estimates.__annotations__ if name in given})
        if 0 in states:  # not before its first step
            own = self.prodigy.state[self.parameters]
            schema.check(Steps, states[0], "prodigy.")
            own["step"] = states[0]["step"]
            for name in ("s", "p0", "exp_avg", "exp_avg_sq"):
                own[name] = copied(states[0], name, self.parameters.detach())


def squared_norm(vector: Tensor) -> float:
    norm = float(torch.linalg.vector_norm(vector, dtype=torch.float64))
    return norm * norm


def copied(state: dict[str, Any], name: str, like: Tensor) -> Tensor:
    """Copy a state's tensor of the shape and dtype of `like`; Prodigy keeps one number for a vector of zeros."""
    found, shapes = state[name], (like.shape, torch.Size()) if name == "p0" else (like.shape,)
    if not isinstance(found, Tensor) or found.dtype != like.dtype or found.shape not in shapes:
        got = f"{found.dtype} of shape {tuple(found.shape)}" if isinstance(found, Tensor) else quoted(found, 60)
        raise ValueError(f"{name} must be a tensor, {like.dtype} of shape {tuple(like.shape)}, got {got}")
    return torch.empty_like(like if found.shape else like.sum()).copy_(found)


OPTIMISERS: dict[str, type[SGD]] = {
    "sgd": SGD,
    "momentum": Momentum,
    "prodigy": Prodigy,
    "dog": DoG,
    "adagrad-norm": AdaGradNorm,
}
