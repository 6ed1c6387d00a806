"""`bartizan.files`: .npy, .safetensors and plain files of strangers, beside the readers that others wrote."""

from __future__ import annotations

import io
import json
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors import SafetensorError
from safetensors.numpy import load as load_safetensors
from safetensors.numpy import save as save_safetensors

import bartizan as bz
from bartizan import files
from bartizan.layout import leaves_of
from fuzz.draw import Draw
from fuzz.surface import ACCEPTED, RefusedError, Surface, documented, require
from fuzz.warp import mutated, warped

HONEST = np.arange(6, dtype=np.float32)


def _npy(array: np.ndarray, version: tuple[int, int] = (1, 0)) -> bytes:
    out = io.BytesIO()
    np.lib.format.write_array(out, array, version=version)
    return out.getvalue()


NPY = [
    _npy(HONEST),
    _npy(np.asfortranarray(np.ones((2, 3)))),
    _npy(np.zeros((2, 0), ">f4")),
    _npy(np.float64(3), (2, 0)),
]
TENSORS = [
    save_safetensors({"w": HONEST, "b": np.ones((2, 2), np.float16), "n": np.array(3)}),
    save_safetensors({"a": np.zeros((0, 3), np.float32)}, metadata={"by": "us"}),
]


class Files:
    """A folder with three good files and one that is a case."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        folder.mkdir(parents=True, exist_ok=True)
        self.good = [folder / f"good{m}.npy" for m in range(3)]
        for path in self.good:
            np.save(path, HONEST)
        self._in_a_round(self.good[0])  # compiled

    def case(self, data: bytes) -> str:
        """The first byte says which kind; the others are the file, or choices for one with a sound frame."""
        draw = Draw(data)
        kind = draw.below(6)
        if kind < 2:
            suffix, content = ".npy", draw.rest() if kind else mutated(draw.pick(NPY), draw)
        elif kind < 5:
            suffix = ".safetensors"
            content = [draw.rest, lambda: mutated(draw.pick(TENSORS), draw), lambda: _framed(draw)][kind - 2]()
        else:
            return self._raw(draw)
        path = self.folder / f"case{suffix}"
        path.write_bytes(content)
        if len(content) % 8 == 0:  # slower than all the rest
            self._in_a_round(path)
        with documented(ValueError):
            update = files.open_update(path)
        found = {".".join(map(str, key)): np.asarray(_plain(one)) for key, one in leaves_of(update).items()}
        theirs = _others(suffix, content)
        if theirs is not None:
            require(set(found) == set(theirs), f"names {sorted(found)} where others find {sorted(theirs)}")
            for name, one in found.items():
                require(one.tobytes() == theirs[name].tobytes(), f"{name!r} has other numbers than others find")
                require(one.shape == theirs[name].shape, f"{name!r} has another shape than others find")
        return ACCEPTED

    def _in_a_round(self, path: Path) -> None:
        """Whatever is in the file, the three others are aggregated."""
        out = bz.aggregate([path, *self.good], bz.Mean())
        require(set(out.quarantined) <= {0}, f"good files were quarantined: {out.quarantined}")
        require(np.isfinite(out.update).all(), "the result is not finite")

    def _raw(self, draw: Draw) -> str:
        shape = tuple(draw.pick([0, 1, 2, 3, 6, -1, 2**40, 2**63]) for _ in range(draw.below(4)))
        dtype = draw.pick(["f4", "f8", "i1", "c8", "O", "U3", "f2", "M8[s]", ">f4"])
        path = self.folder / "case.bin"
        path.write_bytes(draw.rest())
        with documented(ValueError):
            found = files.open_update(path, dtype=dtype, shape=shape)
        require(found.shape == shape and found.nbytes == path.stat().st_size, "not the whole file, or more")
        return ACCEPTED


def _framed(draw: Draw) -> bytes:
    """A safetensors file whose first eight bytes fit, with a header that lies."""
    head = {
        "w": {"dtype": "F32", "shape": [2, 3], "data_offsets": [0, 24]},
        "b": {"dtype": "BF16", "shape": [2], "data_offsets": [24, 28]},
        "__metadata__": {"by": "us"},
    }
    try:
        text = json.dumps(warped(head, draw)).encode("utf-8", "surrogatepass")
    except (ValueError, RecursionError):
        raise RefusedError from None
    body = bytes(draw.pick([28, 0, 24, 100]))
    return len(text).to_bytes(8, "little") + text + body


def _plain(one: Any) -> Any:
    return one if isinstance(one, np.ndarray) else one.view(torch.uint16).numpy()


def _others(suffix: str, content: bytes) -> dict[str, np.ndarray] | None:
    """What NumPy or safetensors makes of it; None where they refuse, or know no such numbers."""
    try:
        if suffix == ".npy":
            return {"": np.load(io.BytesIO(content), allow_pickle=False)}
        if b"BF16" in content:
            return None
        return load_safetensors(content)
    except (ValueError, SafetensorError, EOFError, KeyError, TypeError, SyntaxError, MemoryError, OverflowError):
        return None


def surface(folder: Path) -> Surface:
    seeds = [bytes([1]) + one for one in NPY] + [bytes([2]) + one for one in TENSORS]
    seeds += [bytes([kind]) + bytes(range(10, 40)) for kind in (0, 3, 4, 5)]
    return Surface(Files(folder).case, seeds)
