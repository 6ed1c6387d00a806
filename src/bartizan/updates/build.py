"""Combine the original updates into the result, in the container of one client's update."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

import numpy as np

from bartizan._util.types import Array, Floats
from bartizan.kernels.protocol import Kernels
from bartizan.kernels.rows import Rows
from bartizan.updates.columns import GRANULE, SCRATCH, HostRows, Row, on_device
from bartizan.updates.layout import Path, like_leaf, on_host, rebuild
from bartizan.updates.result_noise import Noise
from bartizan.updates.updates import Updates

LEAST = 64  # columns that are mixed at a time, at least


class ColumnFunction(Protocol):
    """A function of each column of the clients, of some of them, or of mixtures of them."""

    @property
    def mixing(self) -> Floats | None: ...

    def used(self, n_clients: int) -> Array: ...

    def reduce(self, columns: Array) -> Floats: ...

    def kernel(self, kernels: Kernels) -> Callable[..., None] | None: ...


def combine(clients: Updates, weights: Floats, then: ColumnFunction | None = None, noise: Noise | None = None) -> Any:
    """The weighted sum of the clients, or a column function of them; integer entries by the weights' median.

    Noise is added to the floats.
    """
    clients.column_pass.begin("combine")
    floats = _weighted_sum(clients, weights) if then is None else _reduce(clients, then)
    if noise is not None:
        noise.add_to(floats, clients.layout)
    integers = _integers(clients, weights)
    if clients.target is not None:
        return clients.target.filled(floats, integers.values())
    arrays = dict(zip((entry.path for entry in clients.layout.float_entries), floats, strict=True)) | integers
    return rebuild(clients.like, lambda path, leaf: like_leaf(arrays[path], leaf))


def _weighted_sum(clients: Updates, weights: Floats) -> tuple[Any, ...]:
    """sum_m w_m x_m, and what is missing from 1 at the reference; clients of weight 0 are not read."""
    chosen = np.flatnonzero(weights)
    if not len(chosen):
        chosen = np.array([0])  # at weight 0: the answer is the reference, or zero
    rest = 1 - weights.sum()
    rest = rest if abs(rest) > 1e-12 else 0.0
    if on_device(clients.rows):
        return clients.rows.weighted_sum(weights, rest, clients.reference_row)
    out = _empty_result(clients)
    written = HostRows.of([out], clients.layout)
    for start, rows, origin in clients.blocks(clients.rows.take(chosen)):
        part = written.part(start, start + rows.width)
        rows.kernels.weighted_sum(rows, weights[chosen], rest, origin, part)
        clients.column_pass.release(clients.layout, [out.floats], start, start + rows.width)
    return out.floats


def _reduce(clients: Updates, then: ColumnFunction) -> tuple[Any, ...]:
    """A function of the columns, by its kernel or on copies; what a row of the mixing lacks of 1 is the reference."""
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
    narrow = max(LEAST, SCRATCH // (8 * M))  # columns that are mixed or copied at a time
    most = max(GRANULE, narrow // GRANULE * GRANULE) if mixing is None and kernel is None else None
    most = clients.column_pass.most(max(len(rows), M), 24, GRANULE, most)  # a number is read, mixed and reduced
    for start, block, origin in clients.blocks(rows, most=most):
        for low in range(0, block.width, block.width if mixing is None else narrow):
            part, high = block, block.width
            if mixing is not None:
                high = min(low + narrow, block.width)
                mixtures = np.empty((M, high - low))
                block.kernels.mixed(block, mixing, rest, origin, low, mixtures)
                part = Rows.of(mixtures)
            to = written.part(start + low, start + high)
            if kernel is not None:
                kernel(part, out=to)
            else:
                result = Rows.of(np.asarray(then.reduce(np.asarray(part)), dtype=np.float64)[None])
                cpu.weighted_sum(result, np.ones(1), 0.0, None, to)
        clients.column_pass.release(clients.layout, [out.floats], start, start + block.width)
    return out.floats


def _empty_result(clients: Updates) -> Row:
    """Flat arrays of the entries' dtypes, bfloat16 as uint16; the caller's own if kernels can write to them."""
    layout, target = clients.layout, clients.target
    if target is not None and not HostRows.of([target.row], layout).needs_copy:
        return target.row
    dtypes = ["uint16" if e.dtype == "bfloat16" else e.dtype for e in layout.float_entries]
    return Row(tuple(np.empty(e.size, dtype) for e, dtype in zip(layout.float_entries, dtypes, strict=True)), ())


def _integers(clients: Updates, weights: Floats) -> dict[Path, Array]:
    """Integer entries as the weighted median of the clients (and of the reference, for what stays there), flat."""
    rows = list(clients.integers)
    if clients.reference is not None:
        rows.append(clients.reference.integers)
        weights = np.append(weights, max(0.0, 1 - weights.sum()))
    out = {}
    for i, entry in enumerate(entry for entry in clients.layout.entries if not entry.is_float):
        arrays = [np.asarray(on_host(row[i])).reshape(-1) for row in rows]
        out[entry.path] = np.empty(entry.size, arrays[0].dtype)
        for low in range(0, entry.size, GRANULE):
            columns = np.stack([array[low : low + GRANULE] for array in arrays])
            out[entry.path][low : low + GRANULE] = weighted_median(columns, weights)
    return out


def weighted_median(values: Array, weights: Floats) -> Array:
    """The weighted lower median of each column; equal weights where all are 0."""
    weights = weights if weights.sum() > 0 else np.ones(len(values))
    order = np.argsort(values, axis=0, kind="stable")
    reached = np.cumsum(weights[order], axis=0) >= weights.sum() / 2 * (1 - 1e-12)
    return np.take_along_axis(values, np.take_along_axis(order, reached.argmax(axis=0)[None], axis=0), axis=0)[0]
