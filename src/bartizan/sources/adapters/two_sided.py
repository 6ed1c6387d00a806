"""Sketch the products of adapters from both sides, through their factors."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from math import exp, lgamma, log
from typing import Any

import numpy as np
import numpy.typing as npt

from bartizan._util.seeds import checked_seed, fresh_seed
from bartizan._util.types import Array, Floats
from bartizan.measure.sketches import Sketch
from bartizan.sources.adapters.adapters import Adapter, Form, LoRA, parse_adapter
from bartizan.sources.adapters.factor_stacks import (
    MIN_STEP,
    Measured,
    Stack,
    kept_part,
    library,
    matmul,
    on_host,
    placed,
    stacks,
    widened,
)
from bartizan.updates.layout import is_tensor

MOMENTS = 80  # of the largest number tried; from about 2 ln(1 / probability) on they are no help


@dataclass(frozen=True)
class TwoSided(Sketch):
    r"""Random projections of B and of A whose product is a sketch of B A: linear in B A, and unbiased.

    Each module has its own secret S and T, of `rows` rows of independent random signs. Both are cut into
    g = rows^2 / k groups of q = k / rows rows, and

    .. math:: Y = \sum_{modules} s \, (S_j B)(A T_j^\top) / \sqrt k, \quad j = 1 .. g

    are the k numbers of an adapter. The squared norm of any difference is estimated with a relative variance of at most
    4 / rows + 4 / k, where `Rotated(k)` has 2 / k. Rank 1 in a single module is the worst; spread over n equal modules
    it has at most 4 / (n rows) + (2 + 2/n) / k. No difference of any kind, sparse ones included, leaves
    `norm_ratio_range(odds)` more often than that says. See `docs/guides/adapters.md`.

    >>> rng = np.random.default_rng(0)
    >>> adapter = {"m.lora_A.weight": rng.normal(size=(4, 90)), "m.lora_B.weight": rng.normal(size=(70, 4))}
    >>> TwoSided()([adapter], seed=1, settings=LoRA(alpha=4)).shape
    (1, 4096)
    """

    k: int = 4096
    rows: int = 256

    def __post_init__(self) -> None:
        for name, value in (("k", self.k), ("rows", self.rows)):
            if not isinstance(value, (int, np.integer)) or value < 1 or value & (value - 1):
                raise ValueError(f"TwoSided needs {name}, a power of two; got {value!r}.")
        if not self.rows <= self.k <= self.rows**2 or self.rows > 4096:
            raise ValueError(
                f"TwoSided needs rows <= k <= rows^2, and rows of at most 4096; got k={self.k}, rows={self.rows}."
            )

    def norm_ratio_range(self, odds: float) -> tuple[float, float]:
        return two_sided_range(int(self.k), int(self.rows), odds)

    def __call__(self, updates: Any, *, seed: int | None = None, settings: LoRA | None = None) -> Array:
        """Sketch adapters, one row of k numbers each."""
        forms: dict[Any, Form] = {}
        adapters = [parse_adapter(update, settings or LoRA(), forms) for update in updates]
        seed = fresh_seed() if seed is None else checked_seed(seed)
        return _sums(adapters, (), None, self, seed)[0]

    def measure(self, adapters: Sequence[Adapter], fixed: Sequence[int], about: Adapter | None, seed: int) -> Measured:
        """Sketched inner products of all pairs; norms, and products with the `fixed` ones, are exact."""
        Y, squares, dots, most = _sums(adapters, fixed, about, self, seed)
        squares = np.where(np.isfinite(Y).all(axis=1), squares, np.inf)  # its sketch overflowed: it can't be judged
        with np.errstate(invalid="ignore", over="ignore"):
            return Measured(Y @ Y.T, squares, dots, kept_part(squares, most))


def norms(adapters: Sequence[Adapter], fixed: Sequence[int] = (), about: Adapter | None = None) -> Measured:
    """Exact squared norms, for rules that need no distances; the Gram matrix is a view of one zero."""
    _, squares, dots, most = _sums(adapters, fixed, about, None, 0)
    return Measured(np.broadcast_to(0.0, 2 * squares.shape), squares, dots, kept_part(squares, most))


def _sums(
    adapters: Sequence[Adapter], fixed: Sequence[int], about: Adapter | None, sketch: TwoSided | None, seed: int
) -> tuple[Floats, Floats, Floats, Floats]:
    """Sketches, squared norms, inner products with the `fixed` adapters, and the largest norms of such factors."""
    Y: Any = None
    M = len(adapters)
    totals: list[Any] = [np.zeros(M), np.zeros(M), np.zeros((M, len(fixed)))]
    maps = None if sketch is None else RandomSigns(sketch.rows, seed, adapters[0].form.shapes)
    with np.errstate(over="ignore", invalid="ignore"):  # such clients are quarantined
        for stack in stacks(adapters, about, True, 1 if sketch is None else sketch.rows):
            (U, own_B, fixed_B), (V, own_A, fixed_A) = (_products(stack, side, fixed, maps) for side in "BA")
            c = placed(stack.coefficients, own_B[0])
            if sketch is not None:
                Y = _add_products(Y, stack, U, V, c, sketch)
            for (who, rows, shape), P, Q in zip(stack.groups, own_B, own_A, strict=True):
                own = c[rows].reshape(shape)
                lengths = (abs(own) * (P.diagonal(0, 2, 3) * Q.diagonal(0, 2, 3)) ** 0.5).sum(-1) ** 2
                totals[0] = _added(totals[0], who, (own[:, :, None] * (P * Q).sum(0) * own[:, None, :]).sum((1, 2)))
                totals[1] = _added(totals[1], who, lengths.sum(0))
            for column, (adapter, P, Q) in enumerate(zip(fixed, fixed_B, fixed_A, strict=True)):
                products = stack.sums(c * ((P * Q).sum(0) @ c[stack.rows_of(adapter)]))
                totals[2] = _added(totals[2], (slice(None), column), products)
    squares, longest, dots = (on_host(total) for total in totals)
    sketches = np.zeros((M, 0))
    if sketch is not None:
        sketches = on_host(Y).astype(np.float64).reshape(M, -1) / sketch.k**0.5
    return sketches, squares, dots, longest


def _added(total: Any, where: Any, more: Any) -> Any:
    """The total with these numbers added, on the device of those."""
    total = placed(total, more)
    total[where] += more
    return total


def _products(
    stack: Stack, side: str, fixed: Sequence[int], maps: RandomSigns | None
) -> tuple[Any, Sequence[Any], Sequence[Any]]:
    """Return the results of one read of the factors of one side, each with the modules first.

    Projected rows, (rows of the stack, rows of the sketch), or None; inner products of the rows of each adapter,
    (adapters, count, count) for each group of the stack; those of all rows with the rows of each fixed adapter.
    """
    found: list[Any] = []
    for low, x in stack.pieces(side):
        parts = [] if maps is None else [matmul(x, maps.columns(stack.modules, side, low, x))]
        exact = x if is_tensor(x) else x.astype(np.float64)
        for _, rows, (n, count) in stack.groups:
            own = exact[:, rows].reshape(len(x) * n, count, -1)
            parts.append(widened(matmul(own, own.swapaxes(1, 2))).reshape(len(x), n, count, count))
        parts += [widened(matmul(exact, exact[:, stack.rows_of(one)].swapaxes(1, 2))) for one in fixed]
        found = [a + b for a, b in zip(found, parts, strict=True)] if found else parts
    projected = None if maps is None else found.pop(0)
    return projected, found[: len(stack.groups)], found[len(stack.groups) :]


class RandomSigns:
    """Independent random signs: `rows` for each column of each factor of all modules, from one keyed stream.

    Signs that are not independent, such as those of Hadamard matrices, leave some sparse products B A without a trace.
    """

    def __init__(self, rows: int, seed: int, shapes: Sequence[tuple[str, int, int]]) -> None:
        self.rows = rows
        self.key = np.random.SeedSequence(seed, spawn_key=(2,)).generate_state(2, np.uint64)
        # Philox gives 256 bits for each step of its counter, and factors are read from multiples of 256 columns.
        steps = [-(-width // MIN_STEP) * rows for _, d_out, d_in in shapes for width in (d_out, d_in)]
        self.starts = np.cumsum([0, *steps]).tolist()

    def columns(self, modules: npt.NDArray[np.intp], side: str, low: int, x: Any) -> Any:
        """Return signs for columns of these modules' factors from `low` on, (modules, columns, rows), as `x` is."""
        n, _, width = x.shape
        words = np.empty((n, -(-width * self.rows // 64)), "<u8")
        for own, module in zip(words, modules.tolist(), strict=True):
            counter = self.starts[2 * module + "BA".index(side)] + low // MIN_STEP * self.rows
            own[:] = np.random.Philox(key=self.key, counter=counter).random_raw(words.shape[1])
        signs = _signs(words.view(np.uint8), x)
        return signs.reshape(n, -1)[:, : width * self.rows].reshape(n, width, self.rows)


def _signs(octets: npt.NDArray[np.uint8], like: Any) -> Any:
    """Return one sign per bit, where `like` is and of its dtype."""
    bits = np.unpackbits(np.arange(256, dtype=np.uint8)[:, None], axis=1)
    table = _cast(placed(1.0 - 2 * bits, like), like)
    if is_tensor(like):
        return table.index_select(0, placed(octets.ravel(), like).int())
    return np.take(table, octets.ravel(), axis=0)


def _cast(array: Any, like: Any) -> Any:
    return array.to(like.dtype) if is_tensor(array) else array.astype(like.dtype)


def _add_products(Y: Any, stack: Stack, U: Any, V: Any, c: Any, sketch: TwoSided) -> Any:
    """Y_i += sum of c_a u_a v_a' over the rows of adapter i, for each group of cells; (adapters, groups, q, q)."""
    q, n = sketch.k // sketch.rows, len(stack.modules)
    U = U * (c.to(U.dtype) if is_tensor(U) else c)[:, None]
    if Y is None:
        shape = (len(stack.counts), sketch.rows // q, q, q)
        Y = U.new_zeros(shape) if is_tensor(U) else np.zeros(shape)
    for who, rows, each in stack.groups:
        u, v = (library(x).moveaxis(x[:, rows].reshape(n, *each, -1, q), (1, 3), (0, 1)) for x in (U, V))
        u, v = (x.reshape(*x.shape[:2], -1, q) for x in (u, v))  # (adapters, groups, modules times rows, q)
        Y[who] += u.swapaxes(2, 3) @ v
    return Y


@lru_cache
def two_sided_range(k: int, rows: int, odds: float) -> tuple[float, float]:
    r"""Return the range that |Y|^2 / |X|^2 leaves below, and above, with at most this probability; proven for every X.

    With rows s of S and t of T in g = rows / q groups of q, the ratio of squared norms is

    .. math:: \frac1k \sum_j \sum_{s,\, t \in j} (s^\top X t)^2, \quad |X|_F = 1, \quad k = q \cdot rows,

    X block-diagonal with the modules' s B A on its diagonal. Given T, each s contributes the positive quadratic form
    s' V_j s, and each t contributes t' X'X t to the trace of V_j.

    >>> [round(part, 2) for part in two_sided_range(4096, 256, 1e-9)]
    [0.35, 2.18]
    """
    return _least_ratio(k // rows, rows, odds), _largest_ratio(k // rows, rows, odds)


def _least_ratio(q: int, rows: int, odds: float) -> float:
    """Return the lower end, by Chernoff's bound.

    A quadratic form of signs is not negative and has a second moment of at most 3 times its squared mean w. Of all such
    variables, 3w with probability 1/3 and else 0 has the largest E exp(-x z). For the traces the same holds again: what
    is left of the forms is a mixture of exponentials in them. So the bound is that of rows and columns that are 3 or 0.
    """
    x = np.geomspace(1e-4, 1e3, 2000)[:, None]
    n = np.arange(q + 1)  # columns of a group that are not 0
    each = np.array([lgamma(q + 1) - lgamma(i + 1) - lgamma(q - i + 1) + i * log(1 / 2) + q * log(2 / 3) for i in n])
    terms = each + q * np.log(2 / 3 + np.exp(-9 * x * n / q) / 3)
    largest = terms.max(axis=1, keepdims=True)
    moment = rows / q * (largest[:, 0] + np.log(np.exp(terms - largest).sum(axis=1)))
    return max(0.0, float(((log(odds) - moment) / (x[:, 0] * rows)).max()))


def _largest_ratio(q: int, rows: int, odds: float) -> float:
    """Return the upper end, by Markov's inequality for the moments of Gaussian rows, which no signs exceed.

    E (s'Vs)^i is at most that of normal numbers, by Khinchin's inequality for even powers, and that is at most the
    trace of V times a chi-square's. The ratio becomes a mean of rows / q products of two chi-squares of q degrees.
    """
    i = np.arange(MOMENTS + 1)
    factorial = np.array([lgamma(j + 1) for j in i])
    product = np.exp(2 * np.cumsum(np.log1p(2 * np.append(0, i[:-1]) / q) * (i > 0)) - factorial)
    total, power, left = (i == 0).astype(float), product, rows // q
    while left:
        if left & 1:
            total = np.convolve(total, power)[: MOMENTS + 1]
        power, left = np.convolve(power, power)[: MOMENTS + 1], left >> 1
    moments = (np.log(total) + factorial - i * log(rows // q))[1:]
    return exp(float(((moments - log(odds)) / i[1:]).min()))
