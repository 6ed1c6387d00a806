"""All randomness of a run, as a function of (seed, purpose, numbers): there is no state that a resume would need."""

from __future__ import annotations

import zlib

import numpy as np

from bartizan.lab.training.torch_import import torch


def sequence(seed: int, purpose: str, *numbers: int) -> np.random.SeedSequence:
    """The root of what is drawn for one purpose, such as a client's batches of a round."""
    return np.random.SeedSequence(seed, spawn_key=(zlib.crc32(purpose.encode()), *numbers))


def generator(seed: int, purpose: str, *numbers: int) -> np.random.Generator:
    """A NumPy generator for one purpose.

    >>> int(generator(0, "batches", 3, 7).integers(1000)) == int(generator(0, "batches", 3, 7).integers(1000))
    True
    """
    return np.random.Generator(np.random.PCG64(sequence(seed, purpose, *numbers)))


def on_device(device: torch.device, seed: int, purpose: str, *numbers: int) -> torch.Generator:
    """A torch generator for one purpose, where the tensors are."""
    drawn = int(sequence(seed, purpose, *numbers).generate_state(1, np.uint64)[0])
    return torch.Generator(device).manual_seed(drawn)
