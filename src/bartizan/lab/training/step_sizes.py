"""Scalar step sizes that tune themselves, from the gradients so far and the distance of the weights from the first.

Each is called with the weights and the gradient of a round, and returns the factor of that gradient.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from math import sqrt
from typing import Annotated, Any, ClassVar, TypedDict

from bartizan._util.schema import LARGEST, Between
from bartizan.lab.torch_import import Tensor, torch

NotNegative = Annotated[float, Between(0.0, LARGEST)]


class StepSize(ABC):
    """A step size, whose state are numbers, one field per number, and vectors of the weights' length."""

    numbers: ClassVar[type[Any]]
    """Names and types of the numbers."""
    vectors: ClassVar[tuple[str, ...]] = ()

    @abstractmethod
    def __init__(self, weights: Tensor, has_batchnorm: bool) -> None:
        """Begin before the first gradient."""

    @abstractmethod
    def __call__(self, weights: Tensor, gradient: Tensor) -> float: ...

    def state(self) -> dict[str, Any]:
        return {name: getattr(self, name) for name in (*self.numbers.__annotations__, *self.vectors)}


class SquareSum(TypedDict):
    """The state of AdaGrad-norm."""

    squares: NotNegative


class AdaGradNorm(StepSize):
    r"""AdaGrad-norm (Ward, Wu and Bottou, 2019) with :math:`b_0 = 0`: :math:`1 / \sqrt{\sum_{i \le t} \|g_i\|^2}`."""

    numbers = SquareSum

    def __init__(self, weights: Tensor, has_batchnorm: bool) -> None:
        self.squares = 0.0

    def __call__(self, weights: Tensor, gradient: Tensor) -> float:
        self.squares += squared_norm(gradient)
        return 1 / sqrt(self.squares) if self.squares else 0.0


class DistanceAndSquares(TypedDict):
    """The state of DoG beside the first weights."""

    squares: NotNegative
    distance: NotNegative


class DoG(StepSize):
    r"""Distance over gradients (Ivgi, Hinder and Carmon, 2023).

    :math:`\max(r, \max_{i \le t} \|w_i - w_0\|) / \sqrt{10^{-8} + \sum_{i \le t} \|g_i\|^2}`, where r is
    :math:`10^{-6} (1 + \|w_0\|)`; for a network with BatchNorm :math:`10^{-4} (1 + \|w_0\|)`, as its authors advise.
    """

    numbers, vectors = DistanceAndSquares, ("start",)

    def __init__(self, weights: Tensor, has_batchnorm: bool) -> None:
        self.start, self.squares = weights.clone(), 1e-8
        self.distance = (1e-4 if has_batchnorm else 1e-6) * (1 + sqrt(squared_norm(weights)))

    def __call__(self, weights: Tensor, gradient: Tensor) -> float:
        self.squares += squared_norm(gradient)
        self.distance = max(self.distance, sqrt(squared_norm(weights - self.start)))
        return self.distance / sqrt(self.squares)


def squared_norm(vector: Tensor) -> float:
    norm = float(torch.linalg.vector_norm(vector, dtype=torch.float64))
    return norm * norm


STEP_SIZES: dict[str, type[StepSize]] = {"dog": DoG, "adagrad-norm": AdaGradNorm}
