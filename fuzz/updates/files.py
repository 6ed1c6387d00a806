"""Surface: .npy, .safetensors and raw files of updates, compared with the readers of NumPy and safetensors."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.numpy import load as load_safetensors
from safetensors.numpy import save as save_safetensors

import bartizan as bz
from bartizan import files
from bartizan.updates.layout import leaves_of
from fuzz.draw import Draw
from fuzz.mutate import mutated_bytes, mutated_json
from fuzz.surfaces import ACCEPTED, COMPARED, RefusedError, Surface, documented, require

HONEST = np.arange(6, dtype=np.float32)


def npy(array: np.ndarray, version: tuple[int, int] = (1, 0)) -> bytes:
    out = io.BytesIO()
    np.lib.format.write_array(out, array, version=version)
    return out.getvalue()


NPY = [
    npy(HONEST),
    npy(np.asfortranarray(np.ones((2, 3)))),
    npy(np.zeros((2, 0), ">f4")),
    npy(np.float64(3), (2, 0)),
]
TENSORS = [
    save_safetensors({"w": HONEST, "b": np.ones((2, 2), np.float16), "n": np.array(3)}),
    save_safetensors({"a": np.zeros((0, 3), np.float32)}, metadata={"by": "us"}),
]


class Files:
    """A folder with three valid files and one that each case writes."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        folder.mkdir(parents=True, exist_ok=True)
        self.good = [folder / f"good{m}.npy" for m in range(3)]
        for path in self.good:
            np.save(path, HONEST)
        self._aggregate_with(self.good[0])  # compiles the kernels

    def case(self, data: bytes) -> str:
        """The first byte selects the kind of file; the others are the file itself, or choices for a valid one."""
        draw = Draw(data)
        kind = draw.below(8)
        if kind > 5:
            suffix, content = _valid(draw, kind == 7)
        elif kind < 2:
            suffix, content = ".npy", draw.rest() if kind else mutated_bytes(draw.pick(NPY), draw)
        elif kind < 5:
            suffix = ".safetensors"
            content = [draw.rest, lambda: mutated_bytes(draw.pick(TENSORS), draw), lambda: _with_wrong_header(draw)][
                kind - 2
            ]()
        else:
            return self._raw(draw)
        path = self.folder / f"case{suffix}"
        path.write_bytes(content)
        if len(content) % 8 == 0:  # slower than all the rest
            self._aggregate_with(path)
        theirs = _read_by_others(suffix, content)
        try:
            with documented(ValueError, sound=kind > 5):
                update = files.open_update(path)
        except RefusedError as refused:
            message = str(refused.__cause__)
            require(theirs is None or any(word in message for word in STRICTER), f"others read it: {message[-100:]}")
            raise
        found = {".".join(map(str, key)): np.asarray(_array(one)) for key, one in leaves_of(update).items()}
        require(kind < 6 or theirs is not None, "others can't read a valid file")
        if theirs is not None:
            require(set(found) == set(theirs), f"names {sorted(found)} where others read {sorted(theirs)}")
            for name, one in found.items():
                require(one.tobytes() == theirs[name].tobytes(), f"{name!r} has other numbers than others read")
                require(one.shape == theirs[name].shape, f"{name!r} has another shape than others read")
        return ACCEPTED if theirs is None else COMPARED

    def _aggregate_with(self, path: Path) -> None:
        """Require that the three valid files are aggregated, whatever is in the fourth."""
        out = bz.aggregate([path, *self.good], bz.Mean())
        require(set(out.quarantined) <= {0}, f"valid files were quarantined: {out.quarantined}")
        require(np.isfinite(out.update).all(), "the result is not finite")

    def _raw(self, draw: Draw) -> str:
        shape = tuple(draw.pick([0, 1, 2, 3, 6, -1, 2**40, 2**63]) for _ in range(draw.below(4)))
        dtype = draw.pick(["f4", "f8", "i1", "c8", "O", "U3", "f2", "M8[s]", ">f4"])
        path = self.folder / "case.bin"
        path.write_bytes(draw.rest())
        with documented(ValueError):
            found = files.open_update(path, dtype=dtype, shape=shape)
        require(found.shape == shape and found.nbytes == path.stat().st_size, "the array is not the whole file")
        return ACCEPTED


def _valid(draw: Draw, tensors: bool) -> tuple[str, bytes]:
    """Return a file as others write it, of any supported dtype, in any shape and order."""
    arrays = {}
    for name in draw.pick([["w"], ["w", "b"], ["layers.0.weight", "", "n"]]) if tensors else [""]:
        shape = tuple(draw.pick([2, 1, 3, 0, 5]) for _ in range(draw.below(4)))
        count = int(np.prod(shape))
        raw = (draw.rest()[: 8 * count] if draw.chance(8) else b"").ljust(8 * count, bytes([draw.byte()]))
        dtype = np.dtype(draw.pick(["f4", "f8", "f2", "i8", "i4", "i2", "i1", "u8", "u4", "u2", "u1", "?"]))
        array = np.frombuffer(raw, dtype, count).reshape(shape)
        arrays[name] = array if dtype.kind != "b" else np.asarray(array.view(np.uint8) > 99)
    if tensors:
        return ".safetensors", save_safetensors(arrays, metadata=draw.pick([None, {"by": "us"}]))
    array = arrays[""]
    if draw.chance(2):
        array = np.asfortranarray(array)
    if draw.chance(3):
        array = array.astype(array.dtype.newbyteorder())
    return ".npy", npy(array, draw.pick([(1, 0), (2, 0)]))


def _with_wrong_header(draw: Draw) -> bytes:
    """Return a safetensors file whose header has the stated length and wrong values."""
    head = {
        "w": {"dtype": "F32", "shape": [2, 3], "data_offsets": [0, 24]},
        "b": {"dtype": "BF16", "shape": [2], "data_offsets": [24, 28]},
        "__metadata__": {"by": "us"},
    }
    text = mutated_json(head, draw)
    body = bytes(draw.pick([28, 0, 24, 100]))
    return len(text).to_bytes(8, "little") + text + body


def _array(one: Any) -> Any:
    return one if isinstance(one, np.ndarray) else one.view(torch.uint16).numpy()


STRICTER = ("and nothing else", "has a name twice", "__metadata__ must", "format has version", "not as NumPy writes it")
"""Parts of the messages for what this library refuses and others accept."""


def _read_by_others(suffix: str, content: bytes) -> dict[str, np.ndarray] | None:
    """Return what NumPy or safetensors reads; None where they refuse it or the dtype is not supported."""
    try:
        if suffix == ".npy":
            stream = io.BytesIO(content)
            found = {"": np.load(stream, allow_pickle=False)}
            if content[:6] != b"\x93NUMPY" or stream.read(1):  # a zip file, or more than the array
                return None
        elif b"BF16" in content:
            return None
        else:
            found = load_safetensors(content)
    except Exception:  # other readers may raise any error
        return None
    return found if all(one.dtype.kind in "fiub" and one.itemsize <= 8 for one in found.values()) else None


def surface(folder: Path) -> Surface:
    seeds = [bytes([1]) + one for one in NPY] + [bytes([2]) + one for one in TENSORS]
    seeds += [bytes([kind]) + bytes(range(10, 40)) for kind in (0, 3, 4, 5, 6, 7)]
    return Surface(Files(folder).case, seeds)
