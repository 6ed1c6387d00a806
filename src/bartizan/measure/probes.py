"""Secret probes: a few numbers per update that depend on each of its coordinates, read where norms are."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property

import numpy as np

from bartizan._util.seeds import fresh_seed, generator_of
from bartizan._util.types import Array, Floats
from bartizan.kernels.protocol import ColumnBlock, Vector
from bartizan.kernels.rows import UNIT, Rows
from bartizan.measure.sketches import Norms

PROBES = 4  # numbers per update
TILE, STRIP = 4096, 256  # as in `kernels.cpu`


@dataclass(frozen=True, eq=False)
class Probes(Norms):
    r"""The exact norms, to the bit as `Norms` gives them, and four inner products with secret random vectors.

    Vector j is :math:`u_j \otimes v`: :math:`v` has 4096 entries, random signs times numbers from 1 to 2, and
    :math:`u_j` a Gaussian number for each 4096 coordinates. So each coordinate weighs at least 1 in :math:`v`, four
    probes cost what one does, and what changed in one place cancels in none of them. A row's probes depend neither on
    other rows, nor on threads or blocks. They are taken of the copies that a Gram matrix is made of; where only norms
    are, of the same 4096 numbers while these are in cache.

    The key is fresh entropy, never the round's seed: who knows that one must not be able to find a change that is
    orthogonal to all four.
    """

    most = UNIT

    wide: bool = False
    """Whether float32 updates are summed in float64, as in a Gram matrix, and not in float32."""
    key: int = field(default_factory=fresh_seed, repr=False)

    @property
    def multiple_of(self) -> int:
        return UNIT

    def working_set(self) -> tuple[int, int | None]:
        return PROBES, self.unit

    def add(self, rows: ColumnBlock, origin: Vector | None, start: int, seed: int, out: Vector, norms: Vector) -> None:
        from bartizan.kernels import cpu

        assert isinstance(rows, Rows)
        products = self.products(rows)
        weights = self._within if self.wide else self._within.astype(rows.dtype)
        cpu.probed_norms(rows, origin, norms, (weights, products))
        self._add_products(products, start, out)

    def add_gram(self, out: Vector, rows: ColumnBlock, origin: Vector | None, start: int, gram: Vector) -> None:
        """Add the rows' inner products to `gram`, to the bit as without probes, and their probes to `out`."""
        from bartizan.kernels import cpu

        assert isinstance(rows, Rows)
        products = self.products(rows)
        cpu.gram(rows, origin, gram, (self._within, products))
        self._add_products(products, start, out)

    def products(self, rows: ColumnBlock) -> Floats:
        return np.empty((len(rows), -(-rows.width // STRIP)))

    def _add_products(self, products: Floats, start: int, out: Vector) -> None:
        from bartizan.kernels import cpu

        tiles = -(-products.shape[1] * STRIP // TILE)
        first = start // TILE
        cpu.add_probes(products, self._across(first + tiles)[first : first + tiles], out)

    @cached_property
    def _within(self) -> Array:
        generator = generator_of(self.key)
        return generator.uniform(1, 2, TILE) * generator.choice([-1.0, 1.0], TILE)

    def _across(self, tiles: int) -> Floats:
        """The first rows of the u, at least so many: drawn again from the start where more are needed."""
        known: Floats = self.__dict__.get("across", np.empty((0, PROBES)))
        if len(known) < tiles:
            known = generator_of(self.key, 1).standard_normal((max(tiles, 2 * len(known)), PROBES))
            self.__dict__["across"] = known
        return known
