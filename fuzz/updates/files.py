"""Surfaces: files of updates and folders of shards, beside NumPy's and safetensors' readers."""

import io
import json
import shutil
from functools import partial

import numpy as np
import torch
from hypothesis import strategies as st
from safetensors.numpy import load, save

import bartizan as bz
from bartizan import files
from fuzz.surfaces import ACCEPTED, COMPARED, RefusedError, Surface, documented, require, surface_of_calls
from fuzz.values import ARRAYS, changed_json, edited
from fuzz.values import files as files_like

HONEST = np.arange(6, dtype=np.float32)


def npy(array, version=(1, 0)):
    out = io.BytesIO()
    np.lib.format.write_array(out, array, version=version)
    return out.getvalue()


NPY = (npy(HONEST), npy(np.asfortranarray(np.ones((2, 3)))), npy(np.zeros((2, 0), ">f4")), npy(np.float64(3), (2, 0)))
TENSORS = (
    save({"w": HONEST, "b": np.ones((2, 2), np.float16), "n": np.array(3)}),
    save({"a": np.zeros((0, 3), np.float32)}, metadata={"by": "us"}),
)
HEADER = {name: {"dtype": dtype, "shape": shape, "data_offsets": places} for name, dtype, shape, places in
          [("w", "F32", [2, 3], [0, 24]), ("b", "BF16", [2], [24, 28])]} | {"__metadata__": {"by": "us"}}  # fmt: skip
WRONG_HEADERS = st.builds(
    lambda text, n: len(text).to_bytes(8, "little") + text + bytes(n),
    changed_json(HEADER),
    st.sampled_from([28, 0, 24]),
)
DAMAGED = st.one_of(
    files_like(*NPY).map(lambda one: {"case.npy": one}),
    st.one_of(files_like(*TENSORS), WRONG_HEADERS).map(lambda one: {"case.safetensors": one}),
)
ORDERS = st.sampled_from([np.asarray, np.asfortranarray])
VALID = st.one_of(
    st.builds(lambda a, order, v: {"case.npy": npy(order(a), v)}, ARRAYS, ORDERS, st.sampled_from([(1, 0), (2, 0)])),
    st.builds(
        lambda arrays, about: {"case.safetensors": save(arrays, about)},
        st.dictionaries(
            st.sampled_from(["w", "b", "layers.0.weight", ""]),
            ARRAYS.map(lambda a: a.astype(a.dtype.newbyteorder("="))),
            min_size=1,
        ),
        st.sampled_from([None, {"by": "us"}]),
    ),
)
"""Files as others write them, of any supported dtype, in any shape and order."""

INDEX = "model.safetensors.index.json"
FIRST, SECOND = SHARD_NAMES = [f"model-{n:05}-of-00002.safetensors" for n in (1, 2)]
SHARDS = {FIRST: save({"a": HONEST, "n": np.array(3)}), SECOND: save({"b": np.ones((2, 2), "f2"), "c": HONEST + 1})}
PLACES = {"a": FIRST, "n": FIRST, "b": SECOND, "c": SECOND}
OTHERS = ["../x.safetensors", "/etc/passwd", ".safetensors", "x" * 300 + ".safetensors", "a/b.safetensors", "é", INDEX]
ABOUT = {"metadata": {"total_size": 60}, "weight_map": PLACES}
WHOLE = SHARDS | {INDEX: json.dumps(ABOUT).encode()}
INDEXES = st.one_of(
    *(edited(WHOLE[INDEX]), changed_json(ABOUT)),
    st.builds(lambda name, shard: json.dumps(ABOUT | {"weight_map": PLACES | {name: shard}}).encode(),
              st.sampled_from([*PLACES]), st.sampled_from([*OTHERS, *SHARDS])),
)  # fmt: skip
WHOLE_FOLDERS = st.sampled_from([SHARDS, WHOLE])
FOLDERS = st.one_of(
    INDEXES.map(lambda index: SHARDS | {INDEX: index}),
    st.builds(lambda content, shard: content | {SECOND: shard}, WHOLE_FOLDERS, edited(SHARDS[SECOND])),
    st.sampled_from([{FIRST: SHARDS[FIRST]}, {FIRST: SHARDS[FIRST], INDEX: WHOLE[INDEX]}]),
)
STRICTER = ("and nothing else", "has a name twice", "__metadata__ must", "format has version", "not as NumPy writes it")
"""Parts of the messages for what this library refuses and others accept."""


def _local(root, content, sound):
    """Open a file, or a folder of several, and compare it with what others read."""
    place = _written(root, content)
    found, theirs = _opened(place), _read_by_others(content)
    require(not sound or theirs is not None, "others can't read a valid file")
    if place != root and len(content[place.name]) % 8 == 0:  # slower than all the rest
        out = bz.aggregate([place, *[HONEST] * 3], bz.Mean())
        require(set(out.quarantined) <= {0}, f"valid updates were quarantined: {out.quarantined}")
        require(np.isfinite(out.update).all(), "the result is not finite")
    if isinstance(found, str):
        require(not sound, f"a sound input was refused: {found}")
        stricter = place == root or any(word in found for word in STRICTER)
        require(theirs is None or stricter, f"others read it: {found[-100:]}")
        raise RefusedError
    if place.suffix == ".safetensors":  # each byte behind the header is in one array, whether others read it or not
        data = content[place.name]
        size = 8 + int.from_bytes(data[:8], "little") + sum(one.nbytes for one in found.values())
        require(size == len(data), "the arrays overlap, leave holes or do not end with the file")
    if theirs is None:
        return ACCEPTED
    theirs = {name: theirs[name] for name in found} if place == root else theirs  # an index may name some only
    require(set(found) == set(theirs), f"names {sorted(found)}, and others read {sorted(theirs)}")
    for name, one in found.items():
        require(one.tobytes() == theirs[name].tobytes(), f"{name!r} has other numbers than others read")
        same = one.dtype == theirs[name].dtype and one.shape == theirs[name].shape
        require(same, f"{name!r} has another dtype or shape than others read")
    return COMPARED


def _written(root, content):
    shutil.rmtree(root, ignore_errors=True)
    root.mkdir(parents=True)
    for name, one in content.items():
        (root / name).write_bytes(one)
    return root / min(content) if min(content).startswith("case") else root


def _opened(place):
    """Return the arrays of an update by their names, or why it was refused."""
    try:
        with documented(ValueError):
            update = files.open_update(place)
    except RefusedError as refused:
        return str(refused.__cause__)
    found = update if isinstance(update, dict) else {"": update}
    return {name: one.view(torch.uint16).numpy() if isinstance(one, torch.Tensor) else np.asarray(one)
            for name, one in found.items()}  # fmt: skip


def _read_by_others(content):
    """Return what NumPy or safetensors reads; None where they refuse it or the dtype is not supported."""
    found = {}
    try:
        for name, data in content.items():
            if name.endswith(".npy"):
                stream = io.BytesIO(data)
                found[""] = np.load(stream, allow_pickle=False)
                if data[:6] != b"\x93NUMPY" or stream.read(1):  # a zip file, or more than the array
                    return None
            elif b"BF16" in data:
                return None
            elif name != INDEX:
                found |= load(data)
    except Exception:  # other readers may raise any error
        return None
    return found if all(one.dtype.kind in "fiub" and one.itemsize <= 8 for one in found.values()) else None


def _raw(path, dtype, shape, content):
    path.write_bytes(content)
    with documented(ValueError):
        found = files.open_update(path, dtype=dtype, shape=tuple(shape))
    require(found.shape == tuple(shape) and found.nbytes == len(content), "the array is not the whole file")
    return ACCEPTED


RAW = st.tuples(
    st.sampled_from(["f4", "f8", "i1", "c8", "O", "U3", "f2", "M8[s]", ">f4"]),
    st.lists(st.sampled_from([0, 1, 2, 3, 6, -1, 2**40, 2**63]), max_size=3),
    st.binary(max_size=48),
)


def surface(folder):
    return surface_of_calls(
        st.one_of(
            DAMAGED.map(lambda one: partial(_local, folder / "case", one, False)),
            VALID.map(lambda one: partial(_local, folder / "case", one, True)),
            RAW.map(lambda one: partial(_raw, folder / "case.bin", *one)),
        )
    )


FOLDER_CASES = st.one_of(FOLDERS.map(lambda one: (one, False)), WHOLE_FOLDERS.map(lambda one: (one, True)))


def shards(folder):
    return Surface(lambda case: _local(folder / "client", *case), {"case": FOLDER_CASES})
