"""The null space of a projection, computed by applying the projection and its transpose, never its matrix."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from bartizan._util.seeds import key_of
from bartizan._util.types import Array, Floats
from bartizan.kernels import reference
from bartizan.measure import Achlioptas, Exact, Gaussian, Rotated, Sketch

WORDS_PER_DRAW = 2**20  # random numbers that are drawn at a time
RESIDUAL_TOLERANCE = 1e-8  # of the first residual; the second pass reduces the rest
MAX_STEPS = 500


@dataclass(frozen=True)
class Maps:
    """The projections of several seeds as one map P, R^p -> R^(k n), and its transpose."""

    sketch: Sketch
    seeds: tuple[int, ...]
    p: int

    def down(self, x: Floats) -> Floats:
        return np.concatenate([self.sketch(x[None], seed=seed)[0] for seed in self.seeds])

    def up(self, y: Floats) -> Floats:
        out = np.zeros(self.p)
        for seed, part in zip(self.seeds, np.split(y, len(self.seeds)), strict=True):
            for start, columns in lifted(self.sketch, seed, self.p, part):
                out[start : start + len(columns)] += columns
        return out


def hidden_part(d: Floats, sketch: Sketch, seeds: Sequence[int]) -> Floats:
    r"""Return the part of d that the projections of all these seeds map to zero: :math:`d - P^T (P P^T)^{-1} P d`.

    By conjugate gradients, so that P is only ever applied: two or three steps for `Rotated`, whose blocks are
    isometries, some dozens for a dense matrix of many more columns than rows. Zero where nothing is hidden (`Exact`,
    p <= k).

    >>> d = np.random.default_rng(0).normal(size=1000)
    >>> z = hidden_part(d, Rotated(k=64), [7])
    >>> bool(np.abs(Rotated(k=64)(z[None], seed=7)).max() < 1e-12), bool(z @ z > 0.9 * (d @ d))
    (True, True)
    """
    nothing = np.zeros_like(d)
    if isinstance(sketch, Exact) or not seeds or not np.isfinite(d).all():
        return nothing
    P, z = Maps(sketch, tuple(seeds), len(d)), d
    for _ in range(2):  # the second pass removes the rounding errors of the first
        z = z - P.up(_solved(P, P.down(z)))
    return z if z @ z > 1e-12 * (d @ d) else nothing


def _solved(P: Maps, b: Floats) -> Floats:
    """Solve P P^T y = b for y by conjugate gradients."""
    y, r = np.zeros_like(b), b
    step, square = r, r @ r
    least = RESIDUAL_TOLERANCE**2 * square
    for _ in range(MAX_STEPS):
        if square <= least:
            break
        moved = P.down(P.up(step))
        curve = step @ moved
        if not curve > 0:
            break
        y, r = y + square / curve * step, r - square / curve * moved
        before, square = square, r @ r
        step = r + square / before * step
    return y


def lifted(sketch: Sketch, seed: int, p: int, y: Floats) -> Iterator[tuple[int, Floats]]:
    """Yield P^T y in blocks of columns: (first column, numbers)."""
    key, k = key_of(seed), len(y)
    if isinstance(sketch, Rotated):
        n, L = sketch.mixing, k // sketch.mixing
        H, cells, lanes = reference.hadamard(n), y.reshape(n, L), np.arange(L)
        for block, words in enumerate(_words(key, -(-p // k), k, n)):
            swaps, before, after, offsets = reference.unpacked(words, k, n)
            back = np.take_along_axis(cells, (lanes + offsets[:, None]) % L, axis=1)
            x: Array = reference.swapped(before * (H @ (after * back)) / np.sqrt(n), swaps).ravel()
            yield block * k, x[: p - block * k]
        return
    if not isinstance(sketch, (Achlioptas, Gaussian)):
        raise TypeError(f"Wanted Rotated, Achlioptas or Gaussian, whose transpose is known; got {sketch!r}.")
    width = max(1, WORDS_PER_DRAW // k)
    for start in range(0, p, width):
        yield start, _columns(sketch, key, start, min(width, p - start)) @ y


def _words(key: Array, n_blocks: int, k: int, mixing: int) -> Iterator[Array]:
    """Yield the random words of each block of `Rotated`, by the compiled generator: they take most of the time."""
    from bartizan.kernels.cpu import rotation_words

    at_once = -(-WORDS_PER_DRAW // k)
    for first in range(0, n_blocks, at_once):
        yield from rotation_words(key, first, min(at_once, n_blocks - first), k, mixing)


def _columns(sketch: Achlioptas | Gaussian, key: Array, start: int, width: int) -> Floats:
    """Return columns of a dense matrix, one per row; a column's words fill whole ChaCha blocks."""
    from bartizan.kernels.random_matrices import fill_words

    dense = isinstance(sketch, Gaussian)
    stream, count = (reference.GAUSSIAN, 2 * sketch.k) if dense else (reference.ACHLIOPTAS, sketch.k)
    aligned = 16 * -(-count // 16)
    words = np.empty(width * aligned, np.uint32)
    fill_words(key, np.uint64(stream), np.uint64(start * aligned), words)
    own = words.reshape(width, aligned)[:, :count]
    if isinstance(sketch, Achlioptas):
        return reference.achlioptas_columns(own, sketch.s)
    return reference.gaussian_columns(own)
