"""The factors of many adapters, stacked, and their exact inner products: tr((B2' B1)(A1 A2')), never a product."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from bartizan._util.types import Array, Floats
from bartizan.lora.adapters import Adapter, Factors, wide
from bartizan.updates.layout import dtype_name, is_tensor, on_gpu

STEP, LEAST_STEP = 4096, 256  # columns of factors in host memory that are copied at a time
MANY = 2**25  # numbers from which on they are fewer
CANCELLED = 1e-2  # below this part of what factors could make, float32 sums lack digits


@dataclass(frozen=True)
class Stack:
    """The factors of one module of several adapters as rows b_a and a_a: adapter i is the sum of its c_a b_a a_a'.

    With `about`, the adapters are taken from that one, X_i - X_m. Where rank and scale agree that is
    (B_i - B_m) A_i + B_m (A_i - A_m), in which the digits that both share are gone before anything is multiplied.
    """

    factors: Sequence[Factors]
    about: Factors | None = None
    narrow: bool = False
    """Read the numbers in float32, or on a GPU as they are, instead of float64."""
    multiple_of: int = 1
    """Columns that are read together, a power of two."""

    @cached_property
    def counts(self) -> list[int]:
        """Rows of each adapter."""
        more = 0 if self.about is None else self.about.rank
        return [one.rank + more for one in self.factors]

    @cached_property
    def groups(self) -> list[tuple[Any, Any]]:
        """(adapters, their rows) for each number of rows; the whole range where all have the same."""
        counts, ends = np.array(self.counts), np.cumsum(self.counts)
        if len(set(self.counts)) == 1:
            return [(slice(None), slice(None))]
        chosen = [np.flatnonzero(counts == count) for count in sorted(set(self.counts))]
        return [(who, (ends[who, None] - counts[who, None] + np.arange(counts[who[0]])).ravel()) for who in chosen]

    @cached_property
    def coefficients(self) -> Floats:
        """The c_a of all rows."""
        parts = []
        for one in self.factors:
            parts.append(np.full(one.rank, one.scale))
            if self.about is not None:
                sign = one.scale if self._alike(one) else -self.about.scale
                parts.append(np.full(self.about.rank, sign))
        return np.concatenate(parts)

    def sums(self, x: Any) -> Any:
        """The sum of the rows of each adapter; one that is not finite spoils its own sum only."""
        if not is_tensor(x):
            return np.add.reduceat(x, np.cumsum([0, *self.counts[:-1]]), axis=0)
        if len(self.groups) == 1:
            return x.reshape(len(self.counts), self.counts[0], -1).sum(1).reshape(-1, *x.shape[1:])
        return sys.modules["torch"].stack([part.sum(0) for part in x.split(self.counts)])

    def rows_of(self, adapter: int) -> slice:
        stop = sum(self.counts[: adapter + 1])
        return slice(stop - self.counts[adapter], stop)

    def _alike(self, one: Factors) -> bool:
        m = self.about
        return m is not None and one.rank == m.rank and one.scale == m.scale

    def width(self, side: str) -> int:
        return int(self.factors[0].B.shape[0] if side == "B" else self.factors[0].A.shape[1])

    def pieces(self, side: str) -> Iterator[tuple[int, Any]]:
        """All rows b_a (side "B") or a_a (side "A"), some columns at a time, with the first column."""
        width, m, axis = self.width(side), self.about, 1 if side == "B" else 0
        gpu = on_gpu(self.factors[0].A)
        if gpu and self.narrow and m is None:  # there may be many thousand tensors: next to nothing is done for each
            tensors = [one.B for one in self.factors] if side == "B" else [one.A for one in self.factors]
            whole = sys.modules["torch"].concatenate(tensors, axis=axis).detach()
            yield 0, whole.T if side == "B" else whole
            return
        step = width if gpu else STEP
        while not gpu and step > max(LEAST_STEP, self.multiple_of) and step * sum(self.counts) > MANY:
            step //= 2
        for low in range(0, width, step):
            middle = None if m is None else self._read(m, side, slice(low, low + step))
            blocks = []
            for one in self.factors:
                x = self._read(one, side, slice(low, low + step))
                if middle is None:
                    blocks.append(x)
                elif not self._alike(one):
                    blocks += [x, middle]
                else:
                    blocks += [x - middle, middle] if side == "B" else [x, x - middle]
            stacked = library(blocks[0]).concatenate(blocks, axis=axis)
            yield low, stacked.T if side == "B" else stacked

    def _read(self, one: Factors, side: str, columns: slice) -> Any:
        x = one.B[columns] if side == "B" else one.A[:, columns]
        if not self.narrow or dtype_name(x) == "float64":
            return wide(x)
        if on_gpu(x):
            return x.detach().float()
        return x.detach().float().numpy() if is_tensor(x) else x.astype(np.float32)


@dataclass(frozen=True)
class Measured:
    """Inner products of adapters, from one read of their factors."""

    gram: Floats
    """Of all pairs, exact or sketched."""
    squared_norms: Floats
    """Exact."""
    dots: Floats
    """Exact inner products with some of the adapters, one a column."""
    kept: Floats
    """Each squared norm over the largest that factors of such lengths can have; near 0 they cancel each other."""


def exact(adapters: Sequence[Adapter], fixed: Sequence[int] = (), about: Adapter | None = None) -> Measured:
    """All inner products, in float64; float16 and bfloat16 on a GPU by its matrix units where float32 sums suffice."""
    fast = sums_in_float32(adapters, about)
    found = _exact(adapters, fixed, about, fast)
    return _exact(adapters, fixed, about, False) if fast and (found.kept < CANCELLED).any() else found


def sums_in_float32(adapters: Sequence[Adapter], about: Adapter | None = None) -> bool:
    """Whether all factors are of 16 bits and on a GPU, whose matrix units then multiply them without loss."""
    dtypes = {dtype for one in adapters for dtype in one.dtypes}
    return about is None and adapters[0].device != "cpu" and len(dtypes) == 1 and dtypes <= {"float16", "bfloat16"}


def _exact(adapters: Sequence[Adapter], fixed: Sequence[int], about: Adapter | None, narrow: bool) -> Measured:
    total: Any = 0.0
    longest: Any = 0.0
    known: dict[bytes, Any] = {}
    with np.errstate(over="ignore", invalid="ignore"):  # such clients are quarantined
        for stack in stacks(adapters, about, narrow):
            P, Q = (sum(_product(x, x.T) for _, x in stack.pieces(side)) for side in "BA")
            c = placed_once(stack.coefficients, P, known)
            total = total + stack.sums(stack.sums(c[:, None] * P * Q * c).T)
            longest = longest + stack.sums(abs(c) * (P.diagonal() * Q.diagonal()) ** 0.5) ** 2
        gram, most = on_host(total), on_host(longest)
    gram = (gram + gram.T) / 2
    squares = np.diag(gram).copy()
    return Measured(gram, squares, gram[:, list(fixed)], kept_part(squares, most))


def stacks(
    adapters: Sequence[Adapter], about: Adapter | None = None, narrow: bool = False, multiple_of: int = 1
) -> Iterator[Stack]:
    """One stack a module, in the order of the modules' names."""
    for name in sorted(adapters[0].modules):
        point = None if about is None else about.modules[name]
        yield Stack([one.modules[name] for one in adapters], point, narrow, multiple_of)


def kept_part(squares: Floats, most: Floats) -> Floats:
    with np.errstate(invalid="ignore"):  # of numbers that are not finite, which is told by the norms
        return np.divide(squares, most, out=np.ones_like(most), where=most > 0)


def _product(x: Any, y: Any) -> Any:
    """x @ y in float64; of 16-bit numbers on a GPU with sums in float32."""
    return matmul(x, y).double() if is_tensor(x) else x @ y


def matmul(x: Any, y: Any) -> Any:
    """x @ y, of 16-bit numbers with sums and result in float32; matrices, or batches of them."""
    if not is_tensor(x) or x.dtype.itemsize > 2:
        return x @ y
    torch = sys.modules["torch"]
    if not (x.is_cuda and hasattr(torch.ops.aten.mm, "dtype")):  # elsewhere torch can't widen the result
        return x.float() @ y.float()
    return (torch.mm if x.dim() == 2 else torch.bmm)(x, y, out_dtype=torch.float32)


def library(array: Any) -> Any:
    """The module torch or numpy, whose functions take this array."""
    return sys.modules["torch"] if is_tensor(array) else np


def placed(array: Array, like: Any) -> Any:
    """A NumPy array on the device of `like`."""
    return sys.modules["torch"].from_numpy(array).to(like.device) if is_tensor(like) else array


def placed_once(array: Floats, like: Any, known: dict[bytes, Any]) -> Any:
    """The same, copied to a device only once for equal arrays: modules have mostly the same."""
    key = array.tobytes()
    if key not in known:
        known[key] = placed(array, like)
    return known[key]


def on_host(array: Any) -> Floats:
    host: Floats = array.cpu().numpy() if is_tensor(array) else array
    return host
