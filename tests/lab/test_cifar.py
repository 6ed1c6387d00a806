"""CIFAR: what is read equals what was written, in all its forms, and a hostile pickle does nothing but be named."""

from __future__ import annotations

import os
import pickle
import struct
import tracemalloc

import numpy as np
import pytest

from bartizan.lab.data import DataError, load
from bartizan.lab.data import safe_pickle as pickled
from image_files import pixels, same


def python2(labels, rows):
    """Return a pickle as Python 2 wrote it in 2009: protocol 2, strings without an encoding."""

    def string(data):
        return (b"U" + bytes([len(data)]) if len(data) < 256 else b"T" + struct.pack("<I", len(data))) + data

    listed = b"](" + b"".join(b"K" + bytes([label]) for label in labels) + b"e"
    dtype = b"cnumpy\ndtype\n" + string(b"u1") + b"K\0K\1\x87R(K\3" + string(b"|") + b"NNN" + b"J\xff\xff\xff\xff" * 2
    shape = b"".join(b"M" + struct.pack("<H", side) for side in rows.shape) + b"\x86"
    array = b"cnumpy.core.multiarray\n_reconstruct\ncnumpy\nndarray\nK\0\x85" + string(b"b") + b"\x87R(K\1" + shape
    array += dtype + b"K\0tb\x89" + string(rows.tobytes()) + b"tb"
    return b"\x80\2}q\1(" + string(b"labels") + listed + string(b"data") + array + b"u."


def python3(protocol, kind=str):
    def write(labels, rows):
        keys = ("data", "labels") if kind is str else (b"data", b"labels")
        return pickle.dumps(dict(zip(keys, (rows, list(labels)), strict=True)), protocol)

    return write


WRITERS = {"python 2": python2, "protocol 2": python3(2), "protocol 4": python3(4), "bytes": python3(4, bytes)}


def write_cifar10(folder, write=python2):
    folder.mkdir(parents=True, exist_ok=True)
    rows = pixels(12, 3072)
    for number in range(5):
        own = slice(2 * number, 2 * number + 2)
        (folder / f"data_batch_{number + 1}").write_bytes(write([number, 9], rows[own]))
    (folder / "test_batch").write_bytes(write([3, 4], rows[10:]))
    return rows.reshape(-1, 3, 32, 32)


@pytest.mark.parametrize("below", ["", "cifar-10-batches-py"])
@pytest.mark.parametrize("writer", WRITERS)
def test_cifar10_pickles_come_back_as_written(writer, below, tmp_path):
    rows = write_cifar10(tmp_path / below, WRITERS[writer])
    data = load("cifar10", tmp_path)
    assert same(data.train, rows[:10], [0, 9, 1, 9, 2, 9, 3, 9, 4, 9])
    assert same(data.test, rows[10:], [3, 4])


def test_an_array_by_columns_keeps_its_places_and_keys_of_bytes_are_read_whatever_the_protocol():
    rows = np.asfortranarray(pixels(4, 3072))
    assert np.array_equal(pickled.array(pickled.loads(pickle.dumps(rows, 4))), rows)
    for protocol in range(5):
        assert pickled.loads(pickle.dumps({b"labels": [3, 1]}, protocol=protocol)) == {b"labels": [3, 1]}


def test_cifar100_comes_back_as_written(tmp_path):
    names, rows = [f"thing {number}" for number in range(100)], pixels(5, 3072)
    fine = [0, 99, 50, 1, 2]
    folder = tmp_path / "cifar-100-python"
    folder.mkdir()
    for part, own in (("train", slice(0, 3)), ("test", slice(3, 5))):
        read = {"data": rows[own], "fine_labels": fine[own], "coarse_labels": [0] * len(fine[own])}
        (folder / part).write_bytes(pickle.dumps(read, 2))
    (folder / "meta").write_bytes(pickle.dumps({"fine_label_names": names}, 0))
    data = load("cifar100", tmp_path)
    assert data.classes == tuple(names)
    assert same(data.train, rows[:3].reshape(-1, 3, 32, 32), fine[:3])
    assert same(data.test, rows[3:].reshape(-1, 3, 32, 32), fine[3:])
    (folder / "meta").write_bytes(pickle.dumps({"fine_label_names": names[1:]}, 0))
    with pytest.raises(DataError, match="meta is corrupt: it has 99 names for 100 classes"):
        load("cifar100", tmp_path)


def test_a_missing_batch_is_named_with_its_size(tmp_path):
    write_cifar10(tmp_path)
    (tmp_path / "data_batch_3").unlink()
    with pytest.raises(
        DataError, match=r"data_batch_3 is missing \(a pickle of about 31 MB\).*cifar-10-python\.tar\.gz"
    ):
        load("cifar10", tmp_path)


class Runs:
    """Runs a command when it is unpickled."""

    def __init__(self, call, *arguments):
        self.made = call, arguments

    def __reduce__(self):
        return self.made


def hostile(marker):
    """Pickles that execute, change the reader, or ask for memory or stack."""
    command = f"touch {marker}"
    one = pixels(1, 3072)
    build = b"cnumpy\ndtype\n}U\x0c__setstate__K\1sb."
    return {
        "system": pickle.dumps({"data": Runs(os.system, command)}, 2),
        "eval": pickle.dumps({"data": Runs(eval, f"open({str(marker)!r}, 'w')")}, 4),
        "instance": f"(S'{command}'\nios\nsystem\n.".encode(),
        "object": f"(cos\nsystem\nS'{command}'\no.".encode(),
        "new object": b"\x80\2cos\nsystem\n)\x81.",
        "a call of an allowed name that is no function": b"cnumpy\nndarray\n(tR.",
        "a call of a string": b"U\1x(tR.",
        "a change of what is imported": build,
        "persistent": b"Pwhat\n.",
        "extension": b"\x80\2\x82\1.",
        "a long string": b"\x80\4\x8e" + struct.pack("<Q", 2**40) + b"x.",
        "a long frame": b"\x80\4\x95" + struct.pack("<Q", 2**62) + b"K\1.",
        "a high memo": b"\x80\2}r" + struct.pack("<I", 2**32 - 1) + b".",
        "a deep key": b"\x80\2}" + b")" + b"\x85" * 200_000 + b"K\1s.",
        "a deep name": b"\x80\4)" + b"\x85" * 200_000 + b"\x8c\1x\x93.",
        "an empty file": b"",
        "no mark": b"\x80\2t.",
        "nothing there": b"\x80\2.",
        "a cycle": b"\x80\2]q\1h\1a.",
        "an array of objects": pickle.dumps({"data": np.array([[None] * 3072]), "labels": [1]}, 4),
        "an array of floats": pickle.dumps({"data": np.zeros((1, 3072)), "labels": [1]}, 4),
        "a shape of more": python2([1], pixels(1, 3072)).replace(b"M\1\0M\0\x0c", b"M\xff\xffM\0\x0c"),
        "a shape of many axes": python2([1], one).replace(b"M\1\0M\0\x0c\x86", b"(" + b"K\1" * 99 + b"M\0\x0ct"),
        "a shape of nothing and much": python2([1], pixels(0, 3072)).replace(b"M\0\x0c", b"\x8a\x0a" + b"\x7f" * 10),
        "a long name": b"c" + b"x" * 10**6 + b"\nsystem\n.",
        "labels of another kind": pickle.dumps({"data": pixels(1, 3072), "labels": ["1"]}, 4),
        "labels too high": pickle.dumps({"data": pixels(1, 3072), "labels": [10]}, 4),
        "labels too few": pickle.dumps({"data": pixels(2, 3072), "labels": [1]}, 4),
        "no images": pickle.dumps({"data": pixels(0, 3072), "labels": []}, 4),
    }


@pytest.mark.parametrize("case", hostile("x"))
def test_a_hostile_pickle_executes_nothing_takes_no_memory_and_is_named(case, tmp_path):
    write_cifar10(tmp_path)
    data = hostile(tmp_path / "marker")[case]
    (tmp_path / "data_batch_2").write_bytes(data)
    tracemalloc.start()
    with pytest.raises(DataError, match=r"cifar10: .*data_batch_2 is corrupt: .* Download") as refused:
        load("cifar10", tmp_path)
    assert len(str(refused.value)) < 1000
    assert tracemalloc.get_traced_memory()[1] < 80e6
    tracemalloc.stop()
    assert not (tmp_path / "marker").exists()
    assert callable(np.dtype("u1").__setstate__)


def test_a_pickle_of_endless_instructions_is_given_up():
    with pytest.raises(pickled.NotDataError, match="more than 1,000,000 instructions"):
        pickled.loads(b"N" * (pickled.MAX_INSTRUCTIONS + 1))
