"""The factors of many adapters, stacked, and their exact inner products: tr((B2' B1)(A1 A2')), never a product."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property, reduce
from itertools import chain
from operator import add
from typing import Any

import numpy as np
import numpy.typing as npt

from bartizan._util.types import Floats
from bartizan.sources.adapters.adapters import Adapter
from bartizan.updates.layout import is_tensor, on_gpu

STEP, MIN_STEP = 4096, 256  # columns of factors in host memory that are copied at a time, powers of two
MAX_PIECE = 2**25  # numbers in host memory from which on they are fewer
STACK_SIZE, STACK_SIZE_ON_GPU = 2**22, 2**28  # numbers of modules that are stacked together, if it is more than one
CANCELLED = 1e-2  # below this part of what factors could make, float32 sums lack digits


@dataclass(frozen=True)
class Stack:
    """The factors of n alike modules of several adapters as rows b_a and a_a: adapter i is the sum of its c_a b_a a_a'.

    With `about`, the adapters are taken from that one, X_i - X_m. Where rank and scale agree that is
    (B_i - B_m) A_i - B_m (A_m - A_i), in which the digits that both share are gone before anything is multiplied.
    """

    modules: npt.NDArray[np.intp]
    """Their numbers in the order of names."""
    factors: dict[str, list[Any]]
    """All B and all A, module by module; with `about` its factor follows that of each adapter."""
    ranks: npt.NDArray[np.intp]
    """The ranks of one module's factors, in the same order."""
    scales: Floats
    about: bool
    narrow: bool
    """Read the numbers in float32, or on a GPU as they are, instead of float64."""

    @cached_property
    def counts(self) -> npt.NDArray[np.intp]:
        """Rows of each adapter in one module."""
        return self.ranks[::2] + self.ranks[1::2] if self.about else self.ranks

    @cached_property
    def groups(self) -> list[tuple[Any, Any, tuple[int, int]]]:
        """(adapters, their rows, (how many, rows each)) for each number of rows; slices where all have the same."""
        ends = np.cumsum(self.counts)
        if (self.counts == self.counts[0]).all():
            return [(slice(None), slice(None), (len(ends), int(self.counts[0])))]
        chosen = [(np.flatnonzero(self.counts == count), count) for count in np.unique(self.counts)]
        return [
            (who, (ends[who, None] - np.arange(count, 0, -1)).ravel(), (len(who), int(count))) for who, count in chosen
        ]

    @cached_property
    def coefficients(self) -> Floats:
        """The c_a of all rows, the same in each module."""
        signs = np.resize([1, -1], len(self.scales)) if self.about else 1
        return np.repeat(signs * self.scales, self.ranks)

    def sums(self, x: Any) -> Any:
        """The sum of the rows of each adapter; one that is not finite spoils its own sum only."""
        if not is_tensor(x):
            return np.add.reduceat(x, np.cumsum(self.counts) - self.counts, axis=0)
        out = x.new_empty((len(self.counts), *x.shape[1:]))
        for who, rows, shape in self.groups:
            out[who] = x[rows].reshape(*shape, *x.shape[1:]).sum(1)
        return out

    def rows_of(self, adapter: int) -> slice:
        stop = int(self.counts[: adapter + 1].sum())
        return slice(stop - int(self.counts[adapter]), stop)

    def pieces(self, side: str) -> Iterator[tuple[int, Any]]:
        """All rows b_a (side "B") or a_a (side "A"), (n, rows, columns), some columns at a time; with the first one."""
        factors, n, rows = self.factors[side], len(self.modules), len(self.coefficients)
        width = int(factors[0].shape["BA".index(side)])
        step = width if on_gpu(factors[0]) else STEP
        while step < width and step > MIN_STEP and step * rows > MAX_PIECE:
            step //= 2
        for low in range(0, width, step):
            parts, columns = factors, slice(low, low + step)
            if step < width:  # else there is nothing to do for each of what may be many thousand tensors
                parts = [one[columns] if side == "B" else one[:, columns] for one in factors]
            if side == "B":
                x = joined(parts, 1, self.narrow).reshape(-1, n, rows).swapaxes(0, 1).swapaxes(1, 2)
            else:
                x = joined(parts, 0, self.narrow).reshape(n, rows, -1)
            yield low, self._differences(x, side) if self.about else x

    def _differences(self, x: Any, side: str) -> Any:
        """The same with B_i - B_m for B_i, and A_m - A_i for the A_m that follows A_i, where rank and scale agree."""
        x = x.float() if is_tensor(x) and x.dtype.itemsize == 2 else x
        alike = (self.ranks[::2] == self.ranks[1::2]) & (self.scales[::2] == self.scales[1::2])
        for some in [x] if alike.all() else [x[:, self.rows_of(int(i))] for i in np.flatnonzero(alike)]:
            pairs = some.reshape(len(x), -1, 2, int(self.ranks[1]), x.shape[2])
            changed, other = (0, 1) if side == "B" else (1, 0)
            pairs[:, :, changed] -= pairs[:, :, other]
        return x


@dataclass(frozen=True)
class Measured:
    """Inner products of adapters, from one read of their factors."""

    gram: Floats
    """Inner products of all pairs, exact or sketched."""
    squared_norms: Floats
    """Exact."""
    dots: Floats
    """Exact inner products with some of the adapters, one per column."""
    kept: Floats
    """Each squared norm over the largest that factors of such lengths can have; near 0 they cancel each other."""


def exact(adapters: Sequence[Adapter], fixed: Sequence[int] = (), about: Adapter | None = None) -> Measured:
    """All inner products, in float64; float16 and bfloat16 on a GPU by its matrix units where float32 sums suffice."""
    fast = sums_in_float32(adapters, about)
    found = _exact(adapters, fixed, about, fast)
    return _exact(adapters, fixed, about, False) if fast and (found.kept < CANCELLED).any() else found


def sums_in_float32(adapters: Sequence[Adapter], about: Adapter | None = None) -> bool:
    """Return whether all factors are of 16 bits and on a GPU, whose matrix units then multiply them without loss."""
    dtypes = {dtype for form in {one.form for one in adapters} for pair in form.dtypes for dtype in pair}
    return about is None and adapters[0].form.device != "cpu" and len(dtypes) == 1 and dtypes <= {"float16", "bfloat16"}


def _exact(adapters: Sequence[Adapter], fixed: Sequence[int], about: Adapter | None, narrow: bool) -> Measured:
    total: Any = 0.0
    longest: Any = 0.0
    with np.errstate(over="ignore", invalid="ignore"):  # such clients are quarantined
        for stack in stacks(adapters, about, narrow):
            P, Q = (reduce(add, (matmul(x, x.swapaxes(1, 2)) for _, x in stack.pieces(side))) for side in "BA")
            P = widened(P)
            c = placed(stack.coefficients, P)
            lengths = abs(c) * (P.diagonal(0, 1, 2) * Q.diagonal(0, 1, 2)) ** 0.5
            longest = longest + (stack.sums(lengths.T) ** 2).sum(1)
            P *= Q
            total = total + stack.sums(stack.sums(c[:, None] * P.sum(0) * c).T)
        gram, most = on_host(total), on_host(longest)
    gram = (gram + gram.T) / 2
    squares = np.diag(gram).copy()
    return Measured(gram, squares, gram[:, list(fixed)], kept_part(squares, most))


def stacks(
    adapters: Sequence[Adapter], about: Adapter | None = None, narrow: bool = False, map_rows: int = 1
) -> Iterator[Stack]:
    """All modules, those of equal shapes, ranks and scales together, as many as memory admits.

    Each factor is multiplied by a matrix of `map_rows` rows, which takes memory too.
    """
    each = adapters if about is None else list(chain.from_iterable((one, about) for one in adapters))
    factors = {side: list(zip(*(getattr(one, side) for one in each), strict=True)) for side in "BA"}
    forms = {one.form: None for one in each}
    alike: dict[Any, list[int]] = {}
    for i, (_, d_out, d_in) in enumerate(adapters[0].form.shapes):
        alike.setdefault((d_out, d_in, *((one.ranks[i], one.scales[i]) for one in forms)), []).append(i)
    for (d_out, d_in, *_), modules in alike.items():
        ranks = np.array([one.form.ranks[modules[0]] for one in each])
        scales = np.array([one.form.scales[modules[0]] for one in each])
        most = STACK_SIZE_ON_GPU if on_gpu(each[0].A[0]) else STACK_SIZE
        n = max(1, most // int((ranks.sum() + map_rows) * (max(d_out, d_in) + ranks.sum())))
        for some in (modules[low : low + n] for low in range(0, len(modules), n)):
            own = {side: list(chain.from_iterable(factors[side][i] for i in some)) for side in "BA"}
            yield Stack(np.array(some), own, ranks, scales, about is not None, narrow)


def kept_part(squares: Floats, most: Floats) -> Floats:
    with np.errstate(invalid="ignore"):  # of numbers that are not finite, which is told by the norms
        return np.divide(squares, most, out=np.ones_like(most), where=most > 0)


def joined(arrays: Sequence[Any], axis: int, narrow: bool = False) -> Any:
    """Join matrices side by side in float64; if `narrow`, in float32 where none is wider, and unchanged on a GPU."""
    if on_gpu(arrays[0]):
        whole = sys.modules["torch"].concatenate(arrays, axis=axis).detach()
        return whole if narrow else whole.double()
    host = [
        (one.float() if one.dtype.itemsize == 2 else one).numpy(force=True) if is_tensor(one) else one for one in arrays
    ]
    dtype = np.float32 if narrow and not any(one.dtype == np.float64 for one in host) else np.float64
    with np.errstate(invalid="ignore"):  # of a NaN that signals
        return np.concatenate(host, axis=axis, dtype=dtype, casting="unsafe")


def widened(x: Any) -> Any:
    return x.double() if is_tensor(x) else x.astype(np.float64, copy=False)


def matmul(x: Any, y: Any) -> Any:
    """x @ y of batches of matrices, of 16-bit numbers with sums and result in float32."""
    if not is_tensor(x) or x.dtype.itemsize > 2:
        return x @ y
    torch = sys.modules["torch"]
    if not (x.is_cuda and hasattr(torch.ops.aten.bmm, "dtype")):  # elsewhere torch can't widen the result
        return torch.bmm(x.float(), y.float())
    return torch.bmm(x, y, out_dtype=torch.float32)


def library(array: Any) -> Any:
    """The module torch or numpy, whose functions take this array."""
    return sys.modules["torch"] if is_tensor(array) else np


def placed(array: Any, like: Any) -> Any:
    """The array as a tensor on the device of `like`, which is not waited for, if `like` is a tensor."""
    return sys.modules["torch"].as_tensor(array).to(like.device, non_blocking=True) if is_tensor(like) else array


def on_host(array: Any) -> Floats:
    host: Floats = array.cpu().numpy() if is_tensor(array) else array
    return host
