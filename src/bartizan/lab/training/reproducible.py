"""Reproducible runs: generators derived from (seed, purpose, numbers), and torch's deterministic algorithms."""

from __future__ import annotations

import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np

from bartizan.lab.torch_import import torch


def seed_sequence(seed: int, purpose: str, *numbers: int) -> np.random.SeedSequence:
    """Return the seed for one purpose, such as a client's batches of a round.

    It depends on its arguments only, so a resumed run needs no saved generators.
    """
    return np.random.SeedSequence(seed, spawn_key=(zlib.crc32(purpose.encode()), *numbers))


def generator(seed: int, purpose: str, *numbers: int) -> np.random.Generator:
    """Return a NumPy generator for one purpose.

    >>> int(generator(0, "batches", 3, 7).integers(1000)) == int(generator(0, "batches", 3, 7).integers(1000))
    True
    """
    return np.random.Generator(np.random.PCG64(seed_sequence(seed, purpose, *numbers)))


def torch_generator(device: torch.device, seed: int, purpose: str, *numbers: int) -> torch.Generator:
    """Return a torch generator for one purpose, on this device."""
    drawn = int(seed_sequence(seed, purpose, *numbers).generate_state(1, np.uint64)[0])
    return torch.Generator(device).manual_seed(drawn)


def round_seed(seed: int, purpose: str, round: int) -> int:
    """Return a seed of 128 bits for one round, such as that of its projection."""
    high, low = seed_sequence(seed, purpose, round).generate_state(2, np.uint64)
    return int(high) << 64 | int(low)


@contextmanager
def deterministic(device: str, threads: int | None = None) -> Iterator[None]:
    """Make torch deterministic, to the bit on a CPU, on a GPU where cuDNN can; then restore its settings.

    Sums depend on the number of threads, so a resumed run passes the number that it began with.
    """
    strict = torch.are_deterministic_algorithms_enabled()
    warn_only = torch.is_deterministic_algorithms_warn_only_enabled()
    memory: Any = torch.utils.deterministic
    cudnn: Any = torch.backends.cudnn
    before = memory.fill_uninitialized_memory, torch.get_num_threads(), cudnn.deterministic, cudnn.benchmark
    try:
        if device == "cpu":
            torch.use_deterministic_algorithms(True)
            memory.fill_uninitialized_memory = False
        cudnn.deterministic, cudnn.benchmark = True, False
        torch.set_num_threads(threads or before[1])
        yield
    finally:
        torch.use_deterministic_algorithms(strict, warn_only=warn_only)
        memory.fill_uninitialized_memory, n_threads, cudnn.deterministic, cudnn.benchmark = before
        torch.set_num_threads(n_threads)
