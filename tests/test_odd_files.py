"""Whatever stands in the place of a file that is read is named in time: pipes, devices, folders, links, a tebibyte."""

from __future__ import annotations

import json
import os

import numpy as np
import pytest

pytest.importorskip("torch")
pytest.importorskip("safetensors")
pytest.importorskip("PIL")

from safetensors.numpy import save

from bartizan import files
from bartizan.lab.config.experiment import Experiment
from bartizan.lab.data.loaders import load
from bartizan.lab.report.write import _remove_old
from fuzz.lab.data import FORMATS, written
from places import KINDS


def sparse(path):
    path.touch()
    os.truncate(path, 2**40)


PLACES = KINDS | {"a link to nothing": lambda path: path.symlink_to("nowhere"), "a sparse file": sparse}
TENSORS = save({"w": np.arange(6, dtype=np.float32)})
SHARD, INDEX = "model-00001-of-00001.safetensors", "model.safetensors.index.json"
WEIGHT_MAP = json.dumps({"weight_map": {"w": SHARD}}).encode()
SETS = [("mnist", "idx"), ("mnist", "packed"), ("tiny-imagenet", "tiny-imagenet"), ("cifar100", "cifar100")]
READERS = [
    (SHARD, {SHARD: TENSORS, INDEX: WEIGHT_MAP}, files.open_update),
    (INDEX, {SHARD: TENSORS, INDEX: WEIGHT_MAP}, files.open_update),
    ("a.bin", {"a.bin": bytes(24)}, lambda folder: files.open_update(folder / "a.bin", dtype="f4", shape=6)),
    ("a.toml", {"a.toml": b"rounds = 3"}, lambda folder: Experiment.from_toml(folder / "a.toml")),
] + [
    (one, content, lambda folder, name=name: load(name, folder))
    for name, form in SETS
    for content in [written(FORMATS[form], 0)[0]]
    for one in content
]
"""What reads a file: its name, the sound folder around it, and the call."""


@pytest.mark.parametrize(("name", "content", "read"), READERS, ids=lambda one: one if isinstance(one, str) else "")
def test_an_odd_file_is_named_and_a_link_to_a_sound_one_is_read(name, content, read, tmp_path):
    folder = tmp_path / "case"
    path = folder / name
    for one, data in content.items():
        (folder / one).parent.mkdir(parents=True, exist_ok=True)
        (folder / one).write_bytes(data)
    path.rename(tmp_path / "elsewhere")
    path.symlink_to(tmp_path / "elsewhere")
    read(folder)
    for place in PLACES:
        stand_in(place, path)
        told = answer(read, folder)
        assert path.name.removesuffix(".gz") in told or (name, told) == ("words.txt", "read"), place  # no need of words


def answer(read, folder):
    try:
        read(folder)
    except (ValueError, OSError) as error:
        return str(error)
    return "read"


@pytest.mark.parametrize("place", PLACES)
def test_a_picture_that_may_be_removed_is_not_waited_for(place, tmp_path):
    stand_in(place, tmp_path / "accuracy.png")
    _remove_old(tmp_path / "accuracy.png")


def stand_in(place, path):
    if path.is_dir() and not path.is_symlink():
        path.rmdir()
    path.unlink(missing_ok=True)
    PLACES[place](path)
