"""Surface: named pipes, devices, sockets, folders, links and huge files in the place of every file that is read."""

import json
import os
import shutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
from hypothesis import strategies as st
from safetensors.numpy import load as load_safetensors

import bartizan as bz
from bartizan import files, records
from bartizan.lab.config.experiment import Experiment
from bartizan.lab.data.loaders import load
from bartizan.lab.report.load import load as load_report
from bartizan.lab.report.write import _remove_old
from bartizan.lab.runs.checkpoint import Checkpoint
from bartizan.lab.runs.folder import recorded
from bartizan.updates.spill import remove_leftovers
from fuzz.lab.data import FORMATS, written
from fuzz.lab.runs import END, EXPERIMENT, ROUNDS, RUN, SAVED, WHOLE, line_of
from fuzz.surfaces import ACCEPTED, COMPARED, LONGEST_MESSAGE, RefusedError, Surface, fair, on_purpose, require
from fuzz.updates.files import NPY, TENSORS
from tests.support.places import KINDS

OWN = b"".join(map(line_of, [RUN | {"id": EXPERIMENT.id}, *ROUNDS, END]))
HONEST = [np.arange(6, dtype=np.float32) + m for m in range(3)]
SPARSE = 2**40
SHARD, INDEX = "model-00001-of-00001.safetensors", "model.safetensors.index.json"
Put = Callable[[Path, bytes], Any]


@dataclass(frozen=True)
class Reader:
    """Something that reads a file: the file's name, its sound content, the call, and the files beside it."""

    name: str
    content: bytes
    read: Callable[[Path], Any]
    beside: Mapping[str, bytes] = field(default_factory=dict)


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


def _index(shard):
    return json.dumps({"weight_map": dict.fromkeys(load_safetensors(shard), SHARD)}).encode()


def _reported(path):
    found = load_report(path.parent)
    require(len(found.runs) + len(found.broken) == 1, "the run is neither loaded nor listed as broken")
    if found.broken:
        require(
            10 < len(found.broken[0][1]) < LONGEST_MESSAGE, "the message about a broken run is too long or too short"
        )
        raise RefusedError


def _data_set(name, format):
    content, *_ = written(FORMATS[format], 0)
    return [Reader(one, content[one], lambda path: load(name, _root(path)), content) for one in content]


def _root(path):
    return next(one for one in path.parents if one.name == "case")


def _job(path):
    from bartizan.nvflare import load_reputation

    load_reputation(path.parent)


READERS = [
    Reader("a.npy", NPY[0], _aggregated),
    Reader("a.safetensors", TENSORS[1], files.open_update),
    Reader(SHARD, TENSORS[1], lambda path: files.open_update(path.parent)),
    Reader(SHARD, TENSORS[1], lambda path: files.open_update(path.parent), {INDEX: _index(TENSORS[1])}),
    Reader(INDEX, _index(TENSORS[1]), lambda path: files.open_update(path.parent), {SHARD: TENSORS[1]}),
    Reader("a.bin", bytes(24), lambda path: files.open_update(path, dtype="f4", shape=6)),
    Reader("results.jsonl", WHOLE, _reported),
    Reader("results.jsonl", WHOLE, lambda path: records.read(path.parent)),
    Reader("results.jsonl", OWN, lambda path: recorded(path.parent, EXPERIMENT)),
    Reader("checkpoint.pt", SAVED, lambda path: Checkpoint.load(path.parent)),
    Reader("a.toml", b"rounds = 3", Experiment.from_toml),
    Reader("accuracy.png", b"", _remove_old),
    Reader("bartizan-round-1.lock", b"", lambda path: remove_leftovers(path.parent)),
    *_data_set("cifar10", "cifar10"),
    *_data_set("mnist", "idx"),
    *_data_set("mnist", "packed"),
    *_data_set("tiny-imagenet", "tiny-imagenet"),
    *([Reader("bartizan.json", json.dumps({"reputation": {}}).encode(), _job)] if find_spec("nvflare") else []),
]


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
    shutil.rmtree(root, ignore_errors=True)
    for name, content in {**reader.beside, reader.name: reader.content}.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        if name != reader.name:
            (root / name).write_bytes(content)
    path = root / reader.name
    PLACES[kind](path, other if kind == "other bytes" else reader.content)
    try:
        reader.read(path)
    except (ValueError, OSError) as error:
        require(kind not in SOUND or reader.content == b"", f"{kind} in place of {reader.name} was refused: {error}")
        require(_explained(error, path), f"{kind} in place of {reader.name} gives {str(error)[:200]}")
        raise RefusedError from None
    return COMPARED if kind in SOUND else ACCEPTED


def _explained(error, path):
    """Return whether an error names the file, and was raised by the library or by the system's `open`."""
    named = path.name.removesuffix(".gz") in str(error) or (not path.is_symlink() and not path.exists())
    named |= str(path.parent / "train") in str(error)  # a folder that TinyImageNet's wnids.txt names
    return named and (on_purpose(error) or (isinstance(error, OSError) and error.errno is not None))


def surface(folder):
    os.environ["XDG_CACHE_HOME"] = str(folder / "cache")
    cases = {"reader": st.sampled_from(READERS), "kind": st.sampled_from([*PLACES]), "other": st.binary()}
    return Surface(partial(check, folder / "case"), cases)
