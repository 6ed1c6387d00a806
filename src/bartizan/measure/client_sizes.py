"""The clients' data sizes as the caller gives them."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np

from bartizan._util.text import quoted
from bartizan._util.types import Floats

# Data sizes: all counts of 64 bits, and their reciprocals. Shares of them are above 0, and so are products of several.
LEAST_SIZE, LARGEST_SIZE = 2.0**-64, 2.0**64
SIZE_RANGE = "a positive number from 2^-64 to 2^64"
NO_SIZES = {bool, str, bytes, np.bool_, np.str_, np.bytes_}  # of which NumPy would make numbers


def client_sizes(sizes: Any, n_clients: int) -> Floats:
    """The clients' data sizes as an array, ones if not given; values are checked later, of clients that take part."""
    try:
        given = np.ones(n_clients) if sizes is None else np.asarray(sizes, dtype=np.float64)
        kind = "f" if sizes is None else "O" if isinstance(sizes, (list, tuple)) else np.asarray(sizes).dtype.kind
        numbers = NO_SIZES.isdisjoint(map(type, sizes)) if kind == "O" else kind in "iuf"
        if not numbers:
            raise TypeError
    except (TypeError, ValueError, OverflowError, RuntimeError):
        raise ValueError(f"sizes must be {n_clients} positive numbers, one per client; got {quoted(sizes)}.") from None
    if given.shape != (n_clients,):
        raise ValueError(f"sizes must be {n_clients} positive numbers, one per client; got shape {given.shape}.")
    return given


def checked_sizes(sizes: Floats) -> Floats:
    """The sizes as parts of the largest one; ValueError if one is out of range."""
    largest = sizes.max()
    if not (sizes.min() >= LEAST_SIZE and largest <= LARGEST_SIZE):  # False for NaN too
        wrong = sizes[~((sizes >= LEAST_SIZE) & (sizes <= LARGEST_SIZE))][0]
        raise ValueError(f"sizes must be {SIZE_RANGE} for each client, got {wrong}.")
    return sizes / largest


def shares_of(sizes: Floats | None, n_clients: int) -> Floats:
    """Return data sizes as parts of 1."""
    sizes = np.ones(n_clients) if sizes is None else checked_sizes(sizes)
    return sizes / np.add.reduce(sizes)


def sizes_of(clients: Iterable[Any], sizes: Mapping[Any, Any]) -> list[Any]:
    """Return the sizes of these clients; raise ValueError where one has none."""
    for client in clients:
        if not is_size(sizes.get(client)):
            given = quoted(sizes.get(client), 60)
            raise ValueError(f"sizes must give each client {SIZE_RANGE}; client {quoted(client, 60)} has {given}.")
    return [sizes[client] for client in clients]


def is_size(size: Any) -> bool:
    """Return whether this is a number in the range of data sizes."""
    try:
        in_range = math.isfinite(size) and LEAST_SIZE <= float(size) <= LARGEST_SIZE
        return in_range and not isinstance(size, (bool, np.bool_))
    except (TypeError, ValueError, ArithmeticError):  # no number, or an integer beyond floats
        return False
