"""A sketch that keeps no distances, to show that a comparison with the exact rule can fail: not for a server."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from bartizan.kernels.protocol import ColumnBlock, Vector
from bartizan.kernels.rows import Rows
from bartizan.measure.sketches import Projection


@dataclass(frozen=True)
class UnsignedSum(Projection):
    """A count sketch without random signs and places: entry i is the sum of coordinates i, i + k, i + 2k, ....

    What has the same sums is the same to it, whatever the seed, so that distances between updates are lost; and a shift
    of all coordinates in one direction, which LIE, ALIE and Min-Max send, adds up to what no true distance shows. An
    attacker who knows that only has to shift half of the coordinates the other way.

    >>> UnsignedSum(k=2)([[1.0, 2.0, 3.0], [4.0, 0.0, 0.0]], seed=0).tolist()
    [[4.0, 2.0], [4.0, 0.0]]
    """

    def add(self, rows: ColumnBlock, origin: Vector | None, start: int, seed: int, out: Vector, norms: Vector) -> None:
        rows.kernels.squared_norms(rows, origin, norms)
        k = int(self.k)
        if isinstance(rows, Rows):
            given = np.asarray(rows).astype(np.float64) - (0.0 if origin is None else origin)
            whole = np.pad(given, ((0, 0), (0, -rows.width % k)))
            out += np.roll(whole.reshape(len(rows), -1, k).sum(axis=1), start % k, axis=1)
            return
        from bartizan.kernels.gpu import DeviceRows, copied

        assert isinstance(rows, DeviceRows)
        for first, padded in copied(rows, origin, multiple_of=k):
            out += padded.view(len(rows), -1, k).sum(1).roll((start + first) % k, 1)
