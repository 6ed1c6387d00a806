"""Surface: named pipes, devices, sockets, folders, links and huge files in the place of every file that is read."""

import json
import os
import shutil
from functools import partial
from importlib.util import find_spec
from pathlib import Path

import numpy as np
from hypothesis import strategies as st
from safetensors.numpy import load as load_safetensors

import bartizan as bz
from bartizan import files, records
from bartizan.lab.config.experiment import Experiment
from bartizan.lab.data.loaders import load
from bartizan.lab.report.write import _remove_old
from bartizan.lab.runs.checkpoint import Checkpoint
from bartizan.lab.runs.folder import recorded
from fuzz.lab.data import FORMATS, written
from fuzz.lab.runs import END, EXPERIMENT, ROUNDS, RUN, SAVED, WHOLE, line_of, reported
from fuzz.surfaces import ACCEPTED, COMPARED, RefusedError, Surface, fair, on_purpose, require
from fuzz.updates.files import NPY, TENSORS
from tests.support.places import KINDS

OWN = b"".join(map(line_of, [RUN | {"id": EXPERIMENT.id}, *ROUNDS, END]))
HONEST = [np.arange(6, dtype=np.float32) + m for m in range(3)]
SPARSE = 2**40
DATA_SETS = [("cifar10", "cifar10"), ("mnist", "idx"), ("mnist", "packed"), ("tiny-imagenet", "tiny-imagenet")]
SHARD, INDEX = "model-00001-of-00001.safetensors", "model.safetensors.index.json"
WEIGHT_MAP = json.dumps({"weight_map": dict.fromkeys(load_safetensors(TENSORS[1]), SHARD)}).encode()


def _aggregated(path):
    """Aggregate a client's file: it takes part or is quarantined, and no call fails."""
    out = bz.aggregate([path, *HONEST], bz.Mean(), seed=1)
    require(set(out.quarantined) <= {0} and np.isfinite(out.update).all(), "one file changed the fate of others")
    require(all(map(fair, out.quarantined.values())), f"reasons: {out.quarantined}")
    with bz.Aggregator(bz.Mean()).round(seed=1) as r:
        for client, update in enumerate([path, *HONEST]):
            r.add(update, client)
        require(set(r.close().quarantined) == set(out.quarantined), "a round quarantines others than one call")
    if out.quarantined:
        raise RefusedError


def _data_set(name, format):
    content, *_ = written(FORMATS[format], 0)
    return [(one, content[one], lambda path: load(name, _root(path)), content) for one in content]


def _root(path):
    return next(one for one in path.parents if one.name == "case")


def _job(path):
    from bartizan.nvflare import load_reputation

    load_reputation(path.parent)


def _in_folder(read, *more):
    return lambda path: read(path.parent, *more)


READERS = [
    ("a.npy", NPY[0], _aggregated, {}),
    ("a.safetensors", TENSORS[1], files.open_update, {}),
    (SHARD, TENSORS[1], _in_folder(files.open_update), {}),
    (SHARD, TENSORS[1], _in_folder(files.open_update), {INDEX: WEIGHT_MAP}),
    (INDEX, WEIGHT_MAP, _in_folder(files.open_update), {SHARD: TENSORS[1]}),
    ("a.bin", bytes(24), lambda path: files.open_update(path, dtype="f4", shape=6), {}),
    *(("results.jsonl", WHOLE, _in_folder(read), {}) for read in (reported, records.read)),
    ("results.jsonl", OWN, _in_folder(recorded, EXPERIMENT), {}),
    ("checkpoint.pt", SAVED, _in_folder(Checkpoint.load), {}),
    ("a.toml", b"rounds = 3", Experiment.from_toml, {}),
    ("accuracy.png", b"", _remove_old, {}),
    *[reader for name, format in DATA_SETS for reader in _data_set(name, format)],
    *([("bartizan.json", json.dumps({"reputation": {}}).encode(), _job, {})] if find_spec("nvflare") else []),
]
"""Everything that reads a file: its name, its sound content, the call, and the files beside it."""


def _beside(path, content):
    path.with_name("elsewhere").write_bytes(content)
    path.symlink_to(path.with_name("elsewhere"))


def _unreadable(path, content):
    path.write_bytes(content)
    path.chmod(0)


def _sparse(path, content):
    path.write_bytes(content)
    os.truncate(path, SPARSE)


SOUND = {"the file": Path.write_bytes, "a link to it": _beside}
PLACES = {
    **SOUND,
    **{kind: lambda path, content, make=make: make(path) for kind, make in KINDS.items()},
    "nothing": lambda path, content: None,
    "a link to nothing": lambda path, content: path.symlink_to("nowhere"),
    "other bytes": Path.write_bytes,
    "an unreadable file": _unreadable,
    "a sparse file": _sparse,
}


def check(root, reader, kind, other):
    name, content, read, beside = reader
    path = root / name
    shutil.rmtree(root, ignore_errors=True)
    for one in {**beside, name: content}:
        (root / one).parent.mkdir(parents=True, exist_ok=True)
        if one != name:
            (root / one).write_bytes(beside[one])
    PLACES[kind](path, other if kind == "other bytes" else content)
    try:
        read(path)
    except (ValueError, OSError) as error:
        require(kind not in SOUND or content == b"", f"{kind} in place of {name} was refused: {error}")
        require(_explained(error, path), f"{kind} in place of {name} gives {str(error)[:200]}")
        raise RefusedError from None
    return COMPARED if kind in SOUND else ACCEPTED


def _explained(error, path):
    """Return whether an error names the file, and was raised by the library or by the system's `open`."""
    named = path.name.removesuffix(".gz") in str(error) or (not path.is_symlink() and not path.exists())
    named |= str(path.parent / "train") in str(error)  # a folder that TinyImageNet's wnids.txt names
    return named and (on_purpose(error) or (isinstance(error, OSError) and error.errno is not None))


def surface(folder):
    cases = {"reader": st.sampled_from(READERS), "kind": st.sampled_from([*PLACES]), "other": st.binary()}
    return Surface(partial(check, folder / "case"), cases)
