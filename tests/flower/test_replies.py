"""Replies are checked against the model before anything is allocated for them."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from flwr.app import Array
from hypothesis import given
from hypothesis import strategies as st

import bartizan as bz
from bartizan.flower import RobustStrategy
from bartizan.updates.headers import read_npy_header
from flower_nodes import HOSTILE_ARRAYS, MODEL, LocalGrid, arrays, as_record, run, sends


def test_a_valid_reply_is_a_view_of_its_bytes():
    sent = as_record(arrays(2.0))
    decoded = MODEL.decode(sent)
    for name, wanted in arrays(2.0).items():
        assert decoded[name].dtype == wanted.dtype
        np.testing.assert_array_equal(decoded[name], wanted)
    start = np.frombuffer(sent["w"].data, np.uint8).ctypes.data
    assert start < decoded["w"].ctypes.data < start + len(sent["w"].data)


def test_fortran_order_and_unaligned_offsets_are_read():
    w = np.arange(12, dtype=np.float32).reshape(3, 4)
    np.testing.assert_array_equal(MODEL.decode(as_record({**arrays(), "w": np.asfortranarray(w)}))["w"], w)
    head = b"{'descr': '<f4', 'fortran_order': False, 'shape': (3, 4), }\n"
    data = b"\x93NUMPY\x01\x00" + (len(head) + 1).to_bytes(2, "little") + head[:-1] + b" \n" + w.tobytes()
    odd = as_record(arrays())
    odd["w"] = Array("float32", (3, 4), "numpy.ndarray", data)
    found = MODEL.decode(odd)["w"]
    assert found.flags.aligned
    np.testing.assert_array_equal(found, w)


@pytest.mark.parametrize("array", HOSTILE_ARRAYS.values(), ids=HOSTILE_ARRAYS)
def test_a_hostile_array_is_refused_with_a_reason(array):
    bad = as_record(arrays())
    bad["w"] = array
    with pytest.raises(ValueError, match="array 'w': "):
        MODEL.decode(bad)


@given(st.binary(max_size=300), st.sampled_from([b"", b"\x93NUMPY", b"\x93NUMPY\x01\x00", b"\x93NUMPY\x02\x00"]))
def test_bytes_that_are_no_header_are_a_value_error(data, begin):
    try:
        read_npy_header(begin + data)
    except ValueError:
        return
    raise AssertionError("random bytes are no header")


@given(st.lists(st.integers(0, 4), max_size=6), st.sampled_from(["<f2", "<f4", ">f8", "<i8", "|u1", "|b1"]))
def test_every_header_that_numpy_writes_is_read(shape, dtype):
    array = np.zeros(shape, dtype)
    header = read_npy_header(Array(array).data)
    assert (header.dtype, header.shape) == (array.dtype.str, array.shape)


def test_a_model_that_can_not_be_aggregated_is_an_error_before_anything_is_sent():
    strategy = RobustStrategy(bz.Krum(1))
    with pytest.raises(ValueError, match="'name' can't be aggregated: its numbers are <U5"):
        strategy.start(LocalGrid({}), as_record({"w": np.zeros(3), "name": np.array("hello")}))
    with pytest.raises(ValueError, match="no floating-point numbers"):
        strategy.start(LocalGrid({}), as_record({"steps": np.array(3)}))


def test_bfloat16_is_refused_before_anything_is_sent():
    """A .npy file holds it as nameless bytes, and torch does not hand it to NumPy at all."""
    with pytest.raises(TypeError, match="BFloat16"):
        Array(torch.zeros(3, dtype=torch.bfloat16))
    nameless = as_record(arrays())
    nameless["w"] = Array(np.zeros(3, "V2"))
    with pytest.raises(
        ValueError, match=r"'w' can't be aggregated: its numbers are \|V2; wanted float16, float32, float64 or"
    ):
        RobustStrategy(bz.Krum(1)).start(LocalGrid({}), nameless)


ODD = {
    "a scalar": {"w": np.full((3, 4), 2.0, np.float32), "scale": np.array(5.0, np.float32)},
    "nothing inside": {"w": np.full(3, 2.0, np.float32), "none": np.zeros((0, 7), np.float32)},
    "columns first": {"w": np.asfortranarray(np.arange(12, dtype=np.float32).reshape(3, 4))},
    "the other byte order": {"w": np.arange(12, dtype=">f4"), "v": np.arange(5, dtype=">f8")},
    "many small ones": {f"layer.{n}": np.full((2, 1), n % 7, np.float32) for n in range(2000)},
}


@pytest.mark.parametrize("start", ODD.values(), ids=ODD)
def test_models_of_unusual_arrays_keep_their_shapes_and_dtypes(start):
    """Five nodes step by 1, and one goes far away."""

    def moved(step: float) -> dict[str, np.ndarray]:
        return {name: np.asarray(array + step, dtype=array.dtype) for name, array in start.items()}

    nodes = {n: sends(moved(step)) for n, step in enumerate([1, 1, 1, 1, 1, 60], start=1)}
    strategy, result = run(nodes, rule=bz.MultiKrum(1), model=start)
    assert not strategy.quarantined
    for name, wanted in moved(1).items():
        came = result.arrays[name].numpy()
        assert (came.shape, came.dtype) == (wanted.shape, wanted.dtype)
        np.testing.assert_allclose(came, wanted, rtol=1e-6)
