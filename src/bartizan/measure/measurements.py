"""The measurements of one round: the arrays that one pass over the columns computes of the clients."""

from __future__ import annotations

import sys
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import chain
from typing import Any

import numpy as np

from bartizan._util.types import Floats
from bartizan.updates.columns import inner_products
from bartizan.updates.layout import is_tensor

# From as many clients on, and unless rows are much longer than clients are many, rules pass over the rows of sketches:
# below, a matrix of all pairs costs less than a few passes.
ROWS_FROM_CLIENTS, MAX_ROW_LENGTHS = 4096, 1
STRIPE_BYTES = 2**26  # of the distances of all pairs that are computed at a time

# Below this ratio of squared distance to squared norm a Gram matrix about the origin has too few digits left.
SHORT_OF_DIGITS = 1e-9
# The same where float32 differences from a reference are mixed, and where their products are summed in float32.
SHORT_OF_FLOAT32_DIGITS, SHORT_OF_FLOAT32_SUMS = 1e-4, 0.04


def rows_pay(n_clients: int, k: int) -> bool:
    """Return whether rules are to pass over the rows of sketches, instead of making inner products of all pairs."""
    return n_clients >= ROWS_FROM_CLIENTS and k <= MAX_ROW_LENGTHS * n_clients


def distance_bytes(n_clients: int, k: int, bytes_per_pair: float) -> int:
    """Return the memory of judging clients by their distances, besides their sketches."""
    if not rows_pay(n_clients, k):
        return 128 * n_clients**2
    return int(bytes_per_pair * n_clients**2) + 3 * STRIPE_BYTES + 256 * n_clients


@dataclass(frozen=True, eq=False)
class Measurements:
    """Sketches, or a Gram matrix, and exact norms of some clients; a trusted update has the last row.

    All are sums over columns: the measurements of shards add up to those of whole updates (to rounding), and those of
    several groups of clients are `joined` (to the bit, without a Gram matrix). They pickle. Arrays may be tensors on a
    GPU until `on_host`, which judges want.
    """

    clients: tuple[int, ...]
    squared_norms: Any = field(repr=False)
    """Exact, one per row."""
    sketches: Any = field(default=None, repr=False)
    """One per row, (rows, k); k = 0 if only norms were measured. None beside the Gram matrix of `Exact`."""
    gram: Any = field(default=None, repr=False)
    """Inner products of all rows about the reference, made of the sketches by `on_host`; None where `rows_pay`."""
    trusted_dots: Any = field(default=None, repr=False)
    """Exact inner products of all rows with the trusted one."""
    short_of_digits: float = SHORT_OF_DIGITS
    """The least ratio of squared distance to squared norm for which the Gram matrix has enough digits."""
    scale: float | None = None
    """The factor on the updates, read in float64, if they were so tiny that their squares underflow."""
    sketch: Any = None
    """The sketch that they were measured by, with this seed."""
    seed: int = field(default=0, repr=False)
    negligible: float = 0.0
    """Squared norms up to this have lost their digits to the reference that they were taken from."""

    @property
    def has_trusted(self) -> bool:
        return len(self.squared_norms) > len(self.clients)

    @cached_property
    def norms_only(self) -> bool:
        return self.sketches is not None and not self.sketches.shape[1]

    @property
    def by_rows(self) -> bool:
        """Whether the clients are judged by the rows of their sketches."""
        return self.gram is None and isinstance(self.sketches, np.ndarray) and not self.norms_only

    @cached_property
    def shown(self) -> Floats:
        """Squared norms of the sketches, on the host."""
        if not self.by_rows:
            return np.asarray(self.gram.diagonal())
        from bartizan.kernels import row_passes

        zeros = np.zeros(self.sketches.shape[1])
        return row_passes.squares(self.sketches, zeros, zeros)[0]

    @property
    def unit(self) -> float:
        """The unit of all lengths: 1 but for tiny updates."""
        return 1.0 if self.scale is None else 1 / self.scale

    def __add__(self, other: Measurements) -> Measurements:
        """The measurements of the same clients in these columns and in those of the other."""
        return replace(
            self,
            squared_norms=self.squared_norms + other.squared_norms,
            sketches=None if self.sketches is None else self.sketches + other.sketches,
            gram=None if self.sketches is not None else self.gram + other.gram,
            trusted_dots=None if self.trusted_dots is None else self.trusted_dots + other.trusted_dots,
        )

    @classmethod
    def joined(cls, parts: Sequence[Measurements]) -> Measurements:
        """The clients of all parts, in their order, and the trusted update of the last part."""
        if len(parts) == 1:
            return parts[0]
        if any(part.sketches is None for part in parts):
            raise ValueError("Gram matrices of separate clients can't be joined: wanted sketches.")
        ends = [len(part.clients) for part in parts]
        ends[-1] += parts[-1].has_trusted

        def joined(name: str) -> Any:
            arrays = [getattr(part, name)[:end] for part, end in zip(parts, ends, strict=True)]
            return sys.modules["torch"].cat(arrays) if is_tensor(arrays[0]) else np.concatenate(arrays)

        return replace(
            parts[0],
            clients=tuple(chain.from_iterable([part.clients for part in parts])),
            squared_norms=joined("squared_norms"),
            sketches=joined("sketches"),
            gram=None,
            trusted_dots=None if parts[0].trusted_dots is None else joined("trusted_dots"),
        )

    def of(self, clients: Collection[int]) -> Measurements:
        """The measurements of these clients, in this order, and of the trusted update."""
        if tuple(clients) == self.clients:
            return self
        row_of = {client: row for row, client in enumerate(self.clients)}
        rows = [row_of[client] for client in clients]
        own = [*rows, len(self.clients)] if self.has_trusted else rows
        gram = self.gram
        if gram is not None:
            gram = gram[: len(own), : len(own)] if self.norms_only else gram[np.ix_(own, own)]
        return replace(
            self,
            clients=tuple(clients),
            squared_norms=self.squared_norms[own],
            sketches=None if self.sketches is None else self.sketches[own],
            gram=gram,
            trusted_dots=None if self.trusted_dots is None else self.trusted_dots[own],
        )

    def without(self, clients: Collection[int]) -> Measurements:
        """The measurements of all but these clients."""
        return self.of([client for client in self.clients if client not in clients])

    def on_host(self) -> Measurements:
        """The same with norms and Gram matrix in host memory, by one transfer from a GPU; of many clients, as it is."""
        if type(self.gram) is np.ndarray or (self.by_rows and rows_pay(len(self.clients), self.sketches.shape[1])):
            return self
        norms, gram, dots, on_gpu = self.squared_norms, self.gram, self.trusted_dots, is_tensor(self.squared_norms)
        if gram is None and not self.norms_only:
            gram = self.sketches @ self.sketches.T if on_gpu else inner_products(self.sketches)
        if on_gpu:
            from bartizan.updates.gpu_rows import host

            gram, norms, dots = host(gram, norms, dots)
            if self.sketches is None:
                norms, dots = gram.diagonal().copy(), None if dots is None else gram[-1]
        if gram is None:
            gram = np.broadcast_to(np.float64(0), (len(norms), len(norms)))
        return replace(self, squared_norms=norms, gram=gram, trusted_dots=dots)
