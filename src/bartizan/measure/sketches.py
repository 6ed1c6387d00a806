"""Sketches: linear maps R^p -> R^k that are pure functions of (seed, k, p), exact distances, and what "auto" means."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Any, ClassVar

import numpy as np

from bartizan._util.seeds import checked_seed, fresh_seed, key_of
from bartizan._util.types import Array, Floats
from bartizan.kernels.protocol import ColumnBlock, Vector
from bartizan.kernels.rows import UNIT, unit_of
from bartizan.measure.guarantees import achlioptas_range, gaussian_range, rotated_range
from bartizan.measure.measurements import (
    ROWS_FROM_CLIENTS,
    SHORT_OF_DIGITS,
    SHORT_OF_FLOAT32_DIGITS,
    SHORT_OF_FLOAT32_SUMS,
    Measurements,
)
from bartizan.updates import UpdateRows, Updates, parse_updates
from bartizan.updates.layout import Layout, on_host

UseBlock = Callable[[Updates, int, ColumnBlock], None]
"""Takes some clients, the first column of a block, and the block's rows of these clients."""
AddProbed = Callable[[ColumnBlock, Vector | None, int, Vector], None]
PROBABILITY_OF_ERROR = 1e-9  # per round, of quarantining an honest client by the norm of its sketch
USUAL_K = 4096  # of a sketch that is named or chosen without a dimension
LEAST_K, COORDINATES_PER_CELL = 256, 8  # of a sketch of many clients, which is read some 30 times as float64
MAX_EXACT_ROW = 4 * LEAST_K  # coordinates of many clients that cost no more than their sketches
MAX_SKETCH_BYTES = 2**31  # of all sketches of many clients
COLUMNS_READ_TWICE = 2**15  # of a block that is read for the sketch and for the dots: it stays in cache


class Sketch(ABC):
    """A linear map of the updates from which the clients' distances are computed."""

    version: ClassVar[int] = 1
    """The version of the map: another one draws other numbers from the same seed. Run files and reports name it."""

    @abstractmethod
    def __call__(self, updates: Any, *, seed: int | None = None) -> Array:
        """Sketch each client's update to a row of k numbers; without a seed, a fresh secret one is drawn."""

    def norm_ratio_range(self, odds: float) -> tuple[float, float]:
        """Return the range of |Px|^2 / |x|^2 for a vector x that was chosen without the seed.

        The ratio is below the first number, and above the second, each with at most this probability. (0, inf) is no
        guarantee.
        """
        return 0.0, np.inf

    def working_set(self) -> tuple[int, int | None]:
        """Return the numbers that are kept per client, and the columns read in place at a time (None if none are)."""
        return 0, None


class ColumnSketch(Sketch):
    """A sketch of the columns of updates."""

    @abstractmethod
    def measure(self, clients: Updates, seed: int, about: UpdateRows | None = None) -> Measurements:
        """Measure all clients, a trusted update last, in one pass over the columns.

        Rows are taken from the reference, or from the one row of `about`.
        """


class StreamingSketch(ColumnSketch):
    """A sketch that reads each update separately, so that a round can sketch updates as they arrive.

    A row depends on the update, its layout and the seed, never on the other rows: a round that sketches updates as
    they arrive keeps the same numbers, to the bit, as one call that has them all.
    """

    most: ClassVar[int | None] = None
    """The most columns of a block that `add` takes; None: as many as memory admits."""

    @property
    def unit(self) -> int:
        """Columns of a row that are summed separately."""
        return UNIT

    @property
    def multiple_of(self) -> int:
        """The divisor of the width of every block that `add` takes, but the last one."""
        return 1

    @abstractmethod
    def add(self, rows: ColumnBlock, origin: Vector | None, start: int, seed: int, out: Vector, norms: Vector) -> None:
        """Add the contribution of these columns to the rows' sketches and to their exact squared norms."""

    def measure(
        self, clients: Updates, seed: int, about: UpdateRows | None = None, use: UseBlock | None = None
    ) -> Measurements:
        """Measure as many clients at a time as memory admits; `use` gets each block of columns too, as it is read."""
        trusted, (k, _), tile, measured = clients.trusted is not None, self.working_set(), self.multiple_of, []
        most = self.widest_block(trusted=trusted)
        short = self.short_of_digits(clients.layout, centred=clients.reference is not None)
        for part in clients.parts(self.unit):
            M = len(part.clients) + trusted
            flat = part.rows.zeros(M * (k + 1 + trusted))  # where the rows are, in one allocation
            sketches, norms = flat[: M * k].reshape(M, k), flat[M * k : M * (k + 1)]
            dots = flat[M * (k + 1) :] if trusted else None
            for start, rows, origin in part.units(self.unit if most is None else tile, most, about, tile):
                self.add(rows, origin, start, seed, sketches, norms)
                if dots is not None:
                    rows.kernels.dots(rows, origin, dots)
                if use is not None:
                    use(part, start, rows)
            found = Measurements(part.clients, norms, sketches, None, dots, short, part.scale, self, seed)
            measured.append(found)
        return Measurements.joined(measured)

    def short_of_digits(self, layout: Layout, *, centred: bool) -> float:
        """Return the least ratio of squared distance to squared norm whose digits survive."""
        return SHORT_OF_DIGITS

    def widest_block(self, *, trusted: bool) -> int | None:
        """The most columns that `add` takes at a time, on which the last digits may depend; None: any whole units."""
        return self.most or (COLUMNS_READ_TWICE if trusted and self.working_set()[0] else None)

    def working_set(self) -> tuple[int, int | None]:
        return 0, self.unit


@dataclass(frozen=True)
class Exact(ColumnSketch):
    """The identity: distances of the updates themselves, at a cost of M^2 p / 2 multiplications.

    >>> Exact()([[3.0, 4.0]]).tolist()
    [[3.0, 4.0]]
    """

    def __call__(self, updates: Any, *, seed: int | None = None) -> Array:
        """The updates as one (M, p) array; copied unless they are one already. Aggregation never calls this."""
        if isinstance(updates, np.ndarray) and updates.ndim == 2:
            return updates
        clients = parse_updates(updates, strict=True)
        return np.hstack([np.asarray(rows) for _, rows, _ in clients.blocks(clients.rows)])

    def measure(
        self, clients: Updates, seed: int, about: UpdateRows | None = None, probe: AddProbed | None = None
    ) -> Measurements:
        """Measure exact inner products; a `probe` replaces the kernel for each block, and may measure more."""
        every = clients.all_rows
        M, on_gpu = len(every), every.on_gpu
        gram = every.zeros(M, M)
        for start, rows, origin in clients.blocks(every):
            if about is not None:
                origin = about.row(0, start, start + rows.width)
            if probe is None:
                rows.kernels.gram(rows, origin, gram)
            else:
                probe(rows, origin, start, gram)
        norms = gram.diagonal() if on_gpu else gram.diagonal().copy()
        dots = gram[-1] if clients.trusted is not None else None
        short = SHORT_OF_FLOAT32_SUMS if on_gpu and clients.layout.widest.itemsize < 8 else SHORT_OF_DIGITS
        return Measurements(clients.clients, norms, None, gram, dots, short, clients.scale, self, seed)

    def rows(self, clients: Updates, seed: int, about: UpdateRows | None = None) -> Measurements:
        """Return the updates themselves, in float64: for many clients of few coordinates."""
        from bartizan.kernels import row_passes

        every = clients.all_rows
        out = np.empty((len(every), clients.layout.dim))
        for start, rows, origin in clients.blocks(every):
            stop = start + rows.width
            out[:, start:stop] = np.asarray(rows)
            origin = origin if about is None else about.row(0, start, stop)
            if origin is not None:
                out[:, start:stop] -= origin
        norms = np.einsum("ij,ij->i", out, out)
        zeros = np.zeros(out.shape[1])
        dots = row_passes.squares(out, zeros, zeros, out[-1])[1] if clients.trusted is not None else None
        return Measurements(clients.clients, norms, out, None, dots, SHORT_OF_DIGITS, clients.scale, self, seed)


@dataclass(frozen=True)
class Norms(StreamingSketch):
    """The exact norms of the updates, at the cost of one read."""

    def __call__(self, updates: Any, *, seed: int | None = None) -> Array:
        clients = parse_updates(updates, strict=True)
        return np.sqrt(on_host(self.measure(clients, 0).squared_norms))[:, None]

    def add(self, rows: ColumnBlock, origin: Vector | None, start: int, seed: int, out: Vector, norms: Vector) -> None:
        rows.kernels.squared_norms(rows, origin, norms)


@dataclass(frozen=True)
class Projection(StreamingSketch):
    """A random k x p matrix that is a function of the seed and is never stored."""

    k: int

    def __post_init__(self) -> None:
        if not isinstance(self.k, (int, np.integer)) or self.k < 1:
            raise ValueError(f"{type(self).__name__} needs k, a positive whole number of dimensions; got {self.k!r}.")

    def working_set(self) -> tuple[int, int | None]:
        return self.k, self.unit

    def typical_norm_ratio_range(self, odds: float) -> tuple[float, float]:
        """The same range for vectors that were not fitted to the structure of the sketch."""
        return self.norm_ratio_range(odds)

    def __call__(self, updates: Any, *, seed: int | None = None) -> Floats:
        """
        >>> from bartizan import Rotated
        >>> Rotated(k=64)([[1.0, 2.0], [0.5, -1.0]], seed=7).shape
        (2, 64)
        """
        clients = parse_updates(updates, strict=True)
        return on_host(self.measure(clients, fresh_seed() if seed is None else checked_seed(seed)).sketches)

    def short_of_digits(self, layout: Layout, *, centred: bool) -> float:
        return SHORT_OF_FLOAT32_DIGITS if centred and layout.widest.itemsize < 8 else SHORT_OF_DIGITS


@dataclass(frozen=True)
class Rotated(Projection):
    r"""Swap, sign, mix, sign, rotate, add: `mixing` non-zeros per column, log2(mixing) + 1 additions per coordinate.

    Coordinates are cut into blocks of k, a block into n = `mixing` sub-blocks of L = k/n lanes. Each sub-block swaps
    its lanes by its own random number s (lane l goes to l XOR s); each coordinate gets a random sign; a Hadamard
    transform mixes the n sub-blocks, lane by lane; each result gets a second sign; each mixed sub-block is rotated by
    its own random offset inside its own L cells, and added there:

    .. math:: P = \sum_b R_b \, D'_b \, (H_n / \sqrt n \otimes I_L) \, D_b \, S_b \, E_b

    with :math:`E_b` the block's coordinates. One block alone is mapped isometrically; errors come only from blocks
    that meet. The subspace embedding theorem as the paper states it is not proven, and neither is the bound for pairs:
    vectors of a few coordinates have heavier far tails than under a Gaussian matrix. For what is proven, what is
    measured and what an attacker can guess see `docs/explanation/sketches.md`.

    >>> x = np.random.default_rng(0).normal(size=(2, 10_000))
    >>> y = Rotated(k=4096)(x, seed=1)
    >>> bool(0.9 < np.sum((y[0] - y[1])**2) / np.sum((x[0] - x[1])**2) < 1.1)
    True

    `bartizan.sketch.guarantee` returns what is proven of a round: the span and pairs on a condition or with more
    mixing; for every span at the default mixing only norms, which are exact.
    """

    version: ClassVar[int] = 2  # 1 did not swap lanes

    k: int = 4096
    mixing: int = 32

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.k < 64 or self.k & (self.k - 1):
            raise ValueError(
                f"Rotated needs k, a power of two from 64 up; got {self.k}. "
                f"The next one is {max(64, 2 ** math.ceil(math.log2(self.k)))}."
            )
        n = self.mixing
        if not isinstance(n, (int, np.integer)) or n < 1 or n & (n - 1) or n > self.k:
            raise ValueError(f"Rotated needs mixing, a power of two from 1 to k = {self.k}; got {n!r}.")

    @property
    def multiple_of(self) -> int:
        return self.k

    @cached_property
    def unit(self) -> int:
        return unit_of(self.k)

    def norm_ratio_range(self, odds: float) -> tuple[float, float]:
        return rotated_range(int(self.k), int(self.mixing), odds)

    def typical_norm_ratio_range(self, odds: float) -> tuple[float, float]:
        # With less mixing any two large numbers may cancel: vectors of every client are the worst ones.
        return gaussian_range(int(self.k), odds) if self.mixing >= 16 else self.norm_ratio_range(odds)

    def add(self, rows: ColumnBlock, origin: Vector | None, start: int, seed: int, out: Vector, norms: Vector) -> None:
        rows.kernels.rotated(rows, origin, start, key_of(seed), self.mixing, out, norms)


@dataclass(frozen=True)
class Achlioptas(Projection):
    r"""The paper's sparse matrix: independent entries sqrt(s/k) {+1, 0, -1} with probabilities 1/2s, 1 - 1/s, 1/2s.

    After Achlioptas (2003), who has s = 3. Each column holds about k/s non-zeros, so a sketch costs k/s additions per
    coordinate (512 at the paper's k=4096, s=8): a reference to compare `Rotated` with.
    `bartizan.sketch.guarantee` returns what it is proven to keep of spans and pairs, for every s.

    >>> np.unique(Achlioptas(k=64, s=4)([[1.0]], seed=1)).tolist()
    [-0.25, 0.0, 0.25]
    """

    s: int = 8

    most: ClassVar[int | None] = 4096

    def __post_init__(self) -> None:
        super().__post_init__()
        if not isinstance(self.s, (int, np.integer)) or not 1 <= self.s < 2**31:
            raise ValueError(
                f"Achlioptas needs s, a whole number from 1 on (one entry in s is not zero); got {self.s!r}."
            )

    def norm_ratio_range(self, odds: float) -> tuple[float, float]:
        return achlioptas_range(int(self.k), int(self.s), odds)

    def add(self, rows: ColumnBlock, origin: Vector | None, start: int, seed: int, out: Vector, norms: Vector) -> None:
        rows.kernels.achlioptas(rows, origin, start, key_of(seed), self.s, out, norms)


@dataclass(frozen=True)
class Gaussian(Projection):
    """Independent entries N(0, 1/k), for which the embedding theorem holds, at k multiplications per coordinate.

    `bartizan.sketch.guarantee` returns what it keeps of spans and pairs.

    >>> Gaussian(k=16)([[1.0, 2.0, 3.0]], seed=0).shape
    (1, 16)
    """

    most: ClassVar[int | None] = 4096

    def norm_ratio_range(self, odds: float) -> tuple[float, float]:
        return gaussian_range(int(self.k), odds)

    def add(self, rows: ColumnBlock, origin: Vector | None, start: int, seed: int, out: Vector, norms: Vector) -> None:
        rows.kernels.gaussian(rows, origin, start, key_of(seed), out, norms)


def named(sketch: Sketch) -> dict[str, Any]:
    """Return the fields of a record that say what a seed was used with."""
    return {"sketch": repr(sketch), "sketch_version": sketch.version}


@dataclass(frozen=True)
class StageCosts:
    """Costs of the stages on a device, in units of reading one float32 number from memory.

    With M clients, p coordinates and k dimensions one read of the updates costs M p.
    """

    gram: float  # a number in the exact Gram matrix: M p of them
    gram_pair: float  # a product in the exact Gram matrix: M^2 p
    draw: float  # the random signs of a coordinate, which all clients share: p
    rotate: float  # a number that `Rotated` projects: M p
    cell: float  # a cell of a sketch: M k
    sketch_pair: float  # a product in the Gram matrix of the sketches: M^2 k
    write: float  # a coordinate of the result: p
    combine: float  # a number of a client with positive weight: p for each

    def exact(self, M: int, p: int) -> float:
        """Return the cost of exact distances: the Gram matrix of M clients in all p coordinates."""
        return self.gram * M * p + self.gram_pair * M * M * p

    def projected(self, M: int, p: int, k: int) -> float:
        """Return the cost of the sketches of `Rotated(k)` and their Gram matrix."""
        return self.draw * p + self.rotate * M * p + self.cell * M * k + self.sketch_pair * M * M * k

    def combined(self, n_weighted: int, p: int) -> float:
        """Return the cost of the weighted sum of `n_weighted` clients."""
        return self.write * p + self.combine * n_weighted * p


# The CPU's are the middle of two servers (Xeon at 2.8 GHz, Zen 4), two cores each; the GPU's are an H200's.
COSTS = {
    "cpu": StageCosts(
        gram=2.8, gram_pair=0.09, draw=3.0, rotate=2.4, cell=16.0, sketch_pair=0.055, write=3.5, combine=1.2
    ),
    "cuda": StageCosts(
        gram=1.75, gram_pair=0.018, draw=0.0, rotate=1.33, cell=9.7, sketch_pair=0.097, write=2.9, combine=1.0
    ),
}


def costs_of(device: str) -> StageCosts:
    """Return the costs on "cpu" or "cuda"."""
    if device not in COSTS:
        raise ValueError(f"device must be 'cpu' or 'cuda', got {device!r}.")
    return COSTS[device]


def exact_is_faster(n_clients: int, dim: int, device: str = "cpu", k: int = USUAL_K) -> bool:
    """Return whether exact distances of this number of clients and coordinates cost less than those of `Rotated(k)`.

    >>> exact_is_faster(8, 10_000), exact_is_faster(200, 1_000_000)
    (True, False)
    """
    costs = costs_of(device)
    if n_clients >= ROWS_FROM_CLIENTS and device == "cpu":
        return dim <= MAX_EXACT_ROW
    return k >= dim or costs.exact(n_clients, dim) <= costs.projected(n_clients, dim, k)


USUAL = Rotated()


def usual_projection(n_clients: int, dim: int) -> Rotated:
    """Return the projection of "auto": of many clients, whose rows are read often, to fewer dimensions.

    >>> usual_projection(50, 10_000), usual_projection(100_000, 10_000).k, usual_projection(100_000, 10**7).k
    (Rotated(k=4096, mixing=32), 1024, 2048)
    """
    if n_clients < ROWS_FROM_CLIENTS:
        return USUAL
    wanted = min(dim / COORDINATES_PER_CELL, MAX_SKETCH_BYTES / (8 * n_clients), USUAL_K)
    return Rotated(k=max(LEAST_K, 2 ** int(math.log2(wanted))))


def settled(
    sketch: Sketch | str, needs_distances: bool, exact: Callable[[], bool], projection: Sketch = Rotated()
) -> Sketch:
    """The sketch that a source measures by: norms alone if the rule needs no distances, else the one given.

    This is the one meaning of "auto": exact distances where the source says that they cost no more, else a projection.
    """
    if not needs_distances:
        return Norms()
    if isinstance(sketch, Sketch):
        return sketch
    return Exact() if exact() else projection
