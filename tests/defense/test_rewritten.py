"""What is measured is what is summed: clients that rewrite their files between the two readings are found."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import safetensors.torch
import torch

import bartizan as bz
from bartizan.updates.files import open_update

CHANGED = "its file changed between measuring and summing"
RULES = [
    *(bz.Mean(), bz.Krum(2), bz.MultiKrum(2), bz.GeometricMedian(), bz.Bulyan(2), bz.CGE(2), bz.CenteredClipping(1.0)),
    *(bz.Median(), bz.TrimmedMean(2), bz.MeaMed(2), bz.NNM(2) >> bz.GeometricMedian(), bz.NNM(2) >> bz.Median()),
    *(bz.Bucketing(2) >> bz.TrimmedMean(1), bz.Clipping(2) >> bz.Mean(), bz.FLAME(noise=0.0)),
]
SKETCHES = [bz.Exact(), bz.Rotated(k=64), bz.Achlioptas(k=64)]
CASES = [
    (rule, sketch)
    for rule in RULES
    for sketch in SKETCHES
    if isinstance(sketch, bz.Exact) or not isinstance(rule, (bz.Median, bz.TrimmedMean, bz.MeaMed))
]
DTYPES = ["float16", "bfloat16", "float32", "float64"]
M, P = 11, 5000


def made(dtype: str = "float32", seed: int = 0, m: int = M, p: int = P) -> list[torch.Tensor]:
    rng = np.random.default_rng(seed)
    common = rng.normal(size=p)
    return [torch.tensor(common + 0.5 * rng.normal(size=p)).to(getattr(torch, dtype)) for _ in range(m)]


def saved(folder: Path, updates: list[torch.Tensor]) -> list[Path]:
    """bfloat16 as .safetensors, which hold two arrays each; the rest as .npy."""
    paths = []
    for m, update in enumerate(updates):
        if update.dtype == torch.bfloat16:
            paths.append(folder / f"{m:02}.safetensors")
            cut = update.numel() // 3
            safetensors.torch.save_file({"a": update[:cut].clone(), "b": update[cut:].clone()}, paths[-1])
        else:
            paths.append(folder / f"{m:02}.npy")
            np.save(paths[-1], update.numpy())
    return paths


def numbers(update) -> np.ndarray:
    if isinstance(update, dict):
        return np.concatenate([numbers(part) for part in update.values()])
    return update.double().numpy() if isinstance(update, torch.Tensor) else np.asarray(update, float)


class Rewriter:
    """A client that writes to its file in place after chosen blocks, told by the progress of the call."""

    def __init__(self, path: Path, *contents: np.ndarray | torch.Tensor | float, at: str = "sketch") -> None:
        self.path, self.at = path, at
        data = path.read_bytes()
        own = open_update(path)
        self.size = sum(array.nbytes for array in (own.values() if isinstance(own, dict) else [own]))
        self.head, self.honest = len(data) - self.size, data[-self.size :]
        self.dtype = next(iter(own.values())).dtype if isinstance(own, dict) else own.dtype
        self.contents = [self._bytes(content) for content in contents]

    def _bytes(self, content) -> bytes:
        if isinstance(self.dtype, torch.dtype):
            tensor = torch.as_tensor(np.broadcast_to(content, self.size // 2).copy()).to(self.dtype)
            return tensor.view(torch.uint16).numpy().tobytes()
        return np.broadcast_to(content, self.size // self.dtype.itemsize).astype(self.dtype).tobytes()

    def write(self, data: bytes) -> None:
        with open(self.path, "r+b") as file:
            file.seek(self.head)
            file.write(data)

    def __call__(self, stage: str, done: int, total: int) -> None:
        if stage == self.at and done == total and self.contents:
            self.write(self.contents.pop(0))


def both(paths: list[Path], rule, sketch, rewrite, **options):
    """The call with a client that rewrites, and the one in which it was never there."""
    out = bz.aggregate(paths, rule, sketch=sketch, seed=5, progress=rewrite, **options)
    return out


@pytest.mark.parametrize(("rule", "sketch"), CASES, ids=repr)
def test_a_client_that_rewrites_its_file_is_quarantined_and_the_others_decide(rule, sketch, tmp_path):
    updates = made()
    paths = saved(tmp_path, updates)
    plain = bz.aggregate(paths, rule, sketch=sketch, seed=5)
    assert not plain.quarantined
    chosen = int(np.argmax(plain.weights)) if plain.weights is not None else 3
    out = bz.aggregate(paths, rule, sketch=sketch, seed=5, progress=Rewriter(paths[chosen], 1e3))
    assert out.quarantined == {chosen: CHANGED}
    # The rule ran again as if the client were out: what it had written reached nothing.
    rest = [np.full(P, np.nan, np.float32) if m == chosen else update.numpy() for m, update in enumerate(updates)]
    wanted = bz.aggregate(rest, rule, sketch=sketch, seed=5)
    np.testing.assert_array_equal(out.update, wanted.update)
    assert out.n_byzantine == wanted.n_byzantine


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("rule", [bz.Krum(2), bz.GeometricMedian(), bz.Median(), bz.NNM(2) >> bz.Median()], ids=repr)
def test_files_of_any_dtype_are_checked(rule, dtype, tmp_path):
    paths = saved(tmp_path, made(dtype))
    out = bz.aggregate(paths, rule, seed=5, progress=Rewriter(paths[0], 77.0))
    plain = bz.aggregate(paths[1:], rule, seed=5)
    used = out.weights is None or isinstance(rule, (bz.Median, bz.GeometricMedian)) or 0 in out.quarantined
    assert (out.quarantined == {0: CHANGED}) == used
    assert np.abs(numbers(out.update)).max() < 10
    assert np.abs(numbers(plain.update)).max() < 10
