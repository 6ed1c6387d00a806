"""Combine the original updates into the result, in the container of one client's update."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol

import numpy as np

from bartizan._util.seeds import generator_of
from bartizan._util.types import Array, Floats
from bartizan.kernels.protocol import Kernels
from bartizan.kernels.rows import Mixing, Rows
from bartizan.updates.columns import GRANULE, SCRATCH, HostRows, Row, on_device
from bartizan.updates.dlpack import in_own_type
from bartizan.updates.layout import Layout, Path, is_array, is_tensor, leaves_of, like_leaf, on_host, rebuild
from bartizan.updates.updates import Updates

MIN_COLUMNS = 64  # that are mixed at a time
COPIED_BY_ONE_THREAD = 2**18  # coordinates of a single update, up to which several threads copy no faster
NOISE_BLOCK = 2**16  # coordinates that are drawn at a time, by a generator of their own


class ColumnFunction(Protocol):
    """A function of each column of the clients, of some of them, or of mixtures of them."""

    @property
    def mixing(self) -> Floats | None: ...

    def used(self, n_clients: int) -> Array: ...

    def reduce(self, columns: Array) -> Floats: ...

    def kernel(self, kernels: Kernels) -> Callable[..., None] | None: ...


@dataclass(frozen=True)
class Noise:
    """Gaussian noise of standard deviation `std`; coordinates count from `first`, so that shards add parts of one."""

    std: float
    seed: int
    first: int = 0

    def values(self, low: int, high: int) -> Floats:
        """Return the noise of coordinates low to high.

        >>> whole = Noise(2.0, seed=7).values(0, 9)
        >>> bool((Noise(2.0, seed=7, first=4).values(0, 5) == whole[4:]).all())
        True
        """
        low, high = self.first + low, self.first + high
        start = low // NOISE_BLOCK
        # Bucketing draws by the generators from 0 up.
        drawn = [
            generator_of(self.seed, 2**32 + b).standard_normal(NOISE_BLOCK)
            for b in range(start, -(-high // NOISE_BLOCK))
        ]
        values: Floats = self.std * np.concatenate(drawn)[low - start * NOISE_BLOCK : high - start * NOISE_BLOCK]
        return values

    def add_to(self, floats: Sequence[Any], layout: Layout) -> None:
        """Add the noise to the flat arrays of a result, one per entry, in place."""
        if not self.std:
            return
        p = int(layout.ends[-1])
        if any(map(is_tensor, floats)):
            import torch

            for array, end in zip(floats, layout.ends.tolist(), strict=True):
                flat, size = array.view(-1), array.numel()
                for low in range(0, size, NOISE_BLOCK):
                    high = min(low + NOISE_BLOCK, size)
                    flat[low:high] += torch.from_numpy(self.values(end - size + low, end - size + high)).to(flat)
            return
        from bartizan.kernels import cpu

        written = HostRows.of([Row(tuple(floats), ())], layout)
        for low in range(0, p, NOISE_BLOCK):
            high = min(low + NOISE_BLOCK, p)
            part = written.part(low, high)
            noisy = Rows.of(np.asarray(part, dtype=np.float64) + self.values(low, high))
            cpu.weighted_sum(noisy, np.ones(1), 0.0, None, part)


def combine(
    clients: Updates,
    weights: Floats,
    then: ColumnFunction | None = None,
    noise: Noise | None = None,
    check: Callable[[Sequence[Any]], None] | None = None,
    floats: Sequence[Any] | None = None,
) -> Any:
    """Return the weighted sum of the clients, or a column function of them; integer entries by the weights' median.

    `check` takes the floats, and may raise an exception; noise is added to them after it. `floats` is the weighted sum
    where it is known.
    """
    if clients.column_pass.watched:
        clients.column_pass.begin("combine")
    if floats is None:
        floats = _weighted_sum(clients, weights) if then is None else reduce_columns(clients, then)
    if check is not None:
        check(floats)
    return _built(clients, floats, weights, noise)


def finish_sum(clients: Updates, weights: Floats, rest: float, noise: Noise | None = None) -> Any:
    """The result where `clients.rows` are sums that other processes made, with `rest` of the reference, and noise."""
    floats = write_sum(clients, np.ones(len(clients.rows)), rest, _empty_result(clients))
    return _built(clients, floats, weights, noise)


def _built(clients: Updates, floats: Sequence[Any], weights: Floats, noise: Noise | None) -> Any:
    """The result in the caller's arrays, or in the container of one client's update."""
    like = clients.like_of(weights)
    if noise is not None and noise.std:
        _add_noise(noise, floats, clients.layout, like)
    integers = _integers(clients, weights) if len(clients.layout.entries) > len(floats) else {}
    if clients.target is not None:
        return clients.target.filled(floats, integers.values())
    if type(like) is np.ndarray:
        return like_leaf(floats[0], like)
    if is_array(like):
        return in_own_type(like_leaf(floats[0], like), like)
    arrays = dict(zip((entry.path for entry in clients.layout.float_entries), floats, strict=True)) | integers
    return rebuild(like, lambda path, leaf: in_own_type(like_leaf(arrays[path], leaf), leaf))


def _add_noise(noise: Noise, floats: Sequence[Any], layout: Layout, like: Any) -> None:
    """Add noise that counts coordinates in the order of the result, which no client without weight decides."""
    arrays = dict(zip(layout.float_entries, floats, strict=True))
    own = {entry.path: entry for entry in arrays}
    entries = tuple(own[path] for path in leaves_of(like) if path in own)
    noise.add_to([arrays[entry] for entry in entries], Layout(entries))


def _weighted_sum(clients: Updates, weights: Floats) -> tuple[Any, ...]:
    """sum_m w_m x_m + (1 - sum_m w_m) reference."""
    rest = rest_of(weights)
    single = int(weights.argmax()) if np.count_nonzero(weights) == 1 and weights.max() == 1 and not rest else None
    if on_device(clients.rows):
        if single is not None:
            return tuple(array.clone() for array in clients.rows.arrays[single])
        return clients.rows.weighted_sum(weights, rest, clients.reference_row)
    out = _empty_result(clients)
    if single is None or clients.layout.dim > COPIED_BY_ONE_THREAD or clients.rows.needs_copy or clients.watch:
        return write_sum(clients, weights, rest, out)
    for to, array in zip(out.floats, clients.rows.arrays[single], strict=True):
        to[...] = array.reshape(-1)
    return out.floats


def rest_of(weights: Floats) -> float:
    """1 minus the sum of the weights, 0 if that is rounding: the weight of the reference."""
    rest = 1 - np.add.reduce(weights)
    return float(rest) if abs(rest) > 1e-12 else 0.0


def sum_and_norms(clients: Updates, weights: Floats) -> tuple[tuple[Any, ...], Floats]:
    """Return the weighted sum of clients in host memory, and their squared norms about the reference, in one read."""
    norms = np.zeros(len(clients))
    return write_sum(clients, weights, 0.0, _empty_result(clients), norms), norms


def write_sum(clients: Updates, weights: Floats, rest: float, out: Row, norms: Floats | None = None) -> tuple[Any, ...]:
    """Write the weighted sum of clients in host memory, and `rest` of the reference; weights of 0 are not read.

    Their squared norms about the reference are added to `norms`, if given.
    """
    from bartizan.kernels import cpu

    read, written = clients.rows, HostRows.of([out], clients.layout)
    if np.count_nonzero(weights) < len(weights):
        chosen = np.flatnonzero(weights) if weights.any() else np.array([0])  # else the reference, or zero
        read, weights = read.take(chosen), weights[chosen]
    for start, rows, origin in clients.blocks(read):
        assert isinstance(rows, Rows)  # in host memory
        part = written.part(start, start + rows.width)
        cpu.weighted_sum(rows, weights, rest, origin, part, norms)
        if clients.column_pass.spare is not None:
            clients.column_pass.release(clients.layout, [out.floats], start, start + rows.width)
    return out.floats


def reduce_columns(clients: Updates, then: ColumnFunction) -> tuple[Any, ...]:
    """A function of the columns, by its kernel or on copies; a row of `mixing` has the rest to 1 at the reference."""
    chosen, mixing = then.used(len(clients)), then.mixing
    rows, rest = clients.rows, np.zeros(0)
    if len(chosen) < len(clients):
        rows, mixing = rows.take(chosen), None if mixing is None else mixing[:, chosen]
    if mixing is not None:
        rest = 1 - mixing.sum(axis=1)
        rest[np.abs(rest) <= 1e-12] = 0.0
    if on_device(rows):
        return rows.reduce(then, mixing, rest, clients.reference_row)
    from bartizan.kernels import cpu

    out, kernel = _empty_result(clients), then.kernel(cpu)
    written = HostRows.of([out], clients.layout)
    M = len(rows) if mixing is None else len(mixing)
    narrow = max(MIN_COLUMNS, SCRATCH // (8 * M))  # columns that are mixed or copied at a time
    most = max(GRANULE, narrow // GRANULE * GRANULE) if mixing is None and kernel is None else None
    most = clients.column_pass.most(max(len(rows), M), 24, GRANULE, most)  # a number is read, mixed and reduced
    for start, block, origin in clients.blocks(rows, most=most):
        if kernel is not None:
            if mixing is not None:
                assert isinstance(block, Rows)
                block = replace(block, mixing=Mixing(mixing, rest, origin))
            kernel(block, out=written.part(start, start + block.width))
        step = block.width if mixing is None else narrow
        for low in range(0, 0 if kernel is not None else block.width, step):
            part, high = block, block.width
            if mixing is not None:
                high = min(low + narrow, block.width)
                mixtures = np.empty((M, high - low))
                block.kernels.mixed(block, mixing, rest, origin, low, mixtures)
                part = Rows.of(mixtures)
            result = Rows.of(np.asarray(then.reduce(np.asarray(part)), dtype=np.float64)[None])
            cpu.weighted_sum(result, np.ones(1), 0.0, None, written.part(start + low, start + high))
        clients.column_pass.release(clients.layout, [out.floats], start, start + block.width)
    return out.floats


def _empty_result(clients: Updates) -> Row:
    """Return flat arrays for the result (bfloat16 as uint16): the caller's own if kernels can write to them."""
    layout, target = clients.layout, clients.target
    if target is not None and not HostRows.of([target.row], layout).needs_copy:
        return target.row
    arrays = [np.empty(e.size, "uint16" if e.dtype == "bfloat16" else e.dtype) for e in layout.float_entries]
    return Row(tuple(arrays), ())


def _integers(clients: Updates, weights: Floats) -> dict[Path, Array]:
    """Return integer entries, flat: the weighted median of the clients; the reference has the rest of the weight."""
    rows = list(clients.integers)
    if clients.reference is not None:
        rows.append(clients.reference.integers)
        weights = np.append(weights, max(0.0, 1 - weights.sum()))
    if weights.any():  # those of weight 0 change no median, and are not read
        rows, weights = [rows[i] for i in np.flatnonzero(weights)], weights[weights != 0]
    step = max(GRANULE, SCRATCH // (8 * len(rows)))
    out = {}
    for i, entry in enumerate(entry for entry in clients.layout.entries if not entry.is_float):
        arrays = [np.asarray(on_host(row[i])).reshape(-1) for row in rows]
        out[entry.path] = np.empty(entry.size, arrays[0].dtype)
        for low in range(0, entry.size, step):
            columns = np.stack([array[low : low + step] for array in arrays])
            out[entry.path][low : low + step] = weighted_median(columns, weights)
    return out


def weighted_median(values: Array, weights: Floats) -> Array:
    """The weighted lower median of each column; equal weights where all are 0."""
    weights = weights if weights.sum() > 0 else np.ones(len(values))
    order = np.argsort(values, axis=0, kind="stable")
    reached = np.cumsum(weights[order], axis=0) >= weights.sum() / 2 * (1 - 1e-12)
    return np.take_along_axis(values, np.take_along_axis(order, reached.argmax(axis=0)[None], axis=0), axis=0)[0]
