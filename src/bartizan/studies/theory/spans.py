"""Subspaces to embed: dense, sparse, heavy-tailed, and of real gradients, each as M rows."""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache

import numpy as np

from bartizan._util.types import Floats

WIDE = 2**14  # coordinates that a span fills, or is scattered over
# Entries of Gaussian and Achlioptas matrices are independent: which coordinates a span has does not matter to them,
# and how many there are hardly does.
FEW = 256


def dense(n: int, rng: np.random.Generator, p: int) -> Floats:
    return rng.normal(size=(n, p))


def heavy_tailed(n: int, rng: np.random.Generator, p: int) -> Floats:
    """Student's t with 1.5 degrees of freedom: no variance, so a few coordinates carry most of each vector."""
    return rng.standard_t(1.5, size=(n, p))


def sparse(each: int) -> Callable[[int, np.random.Generator, int], Floats]:
    """Every vector has coordinates of its own, `each` of them."""

    def draw(n: int, rng: np.random.Generator, p: int) -> Floats:
        x = np.zeros((n, p))
        places = rng.choice(p, n * each, replace=False).reshape(n, each)
        np.put_along_axis(x, places, rng.normal(size=(n, each)), axis=1)
        return x

    return draw


def shared(n: int, rng: np.random.Generator, p: int) -> Floats:
    """All vectors have the same 64 coordinates."""
    x = np.zeros((n, p))
    x[:, rng.choice(p, 64, replace=False)] = rng.normal(size=(n, 64))
    return x


def common_part(n: int, rng: np.random.Generator, p: int) -> Floats:
    """Holds the vector of ones, as gradients do that share a part: all its coordinates have the same sign."""
    x = rng.normal(size=(n, p))
    x[0] = 1
    return x


def gradients(n: int, rng: np.random.Generator, p: int) -> Floats:
    """Return gradients of n clients: the network `cnn` on the embedded images, batches of 32; p is the network's."""
    return _gradients(n, int(rng.integers(4)))


@lru_cache(maxsize=8)
def _gradients(n: int, draw: int) -> Floats:
    from bartizan.lab import data
    from bartizan.lab.data import partition
    from bartizan.lab.data.device_images import OnDevice
    from bartizan.lab.models.networks import build
    from bartizan.lab.training.clients import Clients
    from bartizan.lab.training.flat_model import FlatLayout
    from bartizan.lab.training.torch_import import torch

    images = data.load("fashion-mnist-mini").train
    rng = np.random.default_rng(draw)
    parts = partition.split("dirichlet", images.labels, n, rng, least=32, beta=0.6)
    model = build("cnn", 10, images.shape, seed=draw)
    clients = Clients(model, OnDevice(images), [torch.from_numpy(part) for part in parts], seed=draw)
    weights = FlatLayout.of(model).read(model)
    return clients.updates(weights, range(n), round=1).updates.double().numpy()


SPANS: dict[str, Callable[[int, np.random.Generator, int], Floats]] = {
    "dense": dense,
    "common part": common_part,
    "heavy-tailed": heavy_tailed,
    "1 coordinate": sparse(1),
    "8 coordinates": sparse(8),
    "64 coordinates": sparse(64),
    "64 shared": shared,
    "gradients": gradients,
}
FULL = ("dense", "common part", "heavy-tailed", "gradients")


def basis(name: str, n: int, rng: np.random.Generator, *, independent: bool) -> Floats:
    """Return an orthonormal basis of a named span, by rows; `independent` for sketches with independent entries."""
    if name == "any":
        return np.eye(n)
    p = FEW if independent and name in FULL else WIDE
    x = SPANS[name](n, rng, p)
    if independent and name not in FULL:
        x = x[:, x.any(axis=0)]
    return np.ascontiguousarray(np.linalg.qr(x.T)[0].T)
