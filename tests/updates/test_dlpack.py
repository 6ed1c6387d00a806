"""Arrays that speak DLPack are read in place and returned in their own type."""

from __future__ import annotations

import numpy as np
import pytest

import bartizan as bz
from bartizan import lora
from bartizan.updates.layout import leaves_of
from made_adapters import adapter, dense

X = np.random.default_rng(0).normal(size=(6, 40)).astype(np.float32)


class Speaker:
    """An array of a library that speaks DLPack and nothing else."""

    def __init__(self, numbers, device=None):
        self.numbers, self.device = numbers, device

    def __dlpack__(self, **asked):
        return self.numbers.__dlpack__(**asked)

    def __dlpack_device__(self):
        return self.numbers.__dlpack_device__() if self.device is None else (self.device, 0)

    def __array_namespace__(self):
        return Speaker

    @classmethod
    def from_dlpack(cls, other):
        return cls(np.from_dlpack(other))


class Silent(Speaker):
    def __dlpack__(self, **asked):
        raise BufferError("this memory can't be shared")


def update(row, kind=Speaker):
    return {"w": kind(row[:30].reshape(5, 6)), "b": kind(row[30:])}


def test_an_array_is_read_in_place():
    (leaf,) = leaves_of(Speaker(X[0])).values()
    assert np.shares_memory(leaf, X)


def test_results_are_in_the_callers_own_type():
    rule = bz.GeometricMedian()
    wanted = bz.aggregate(X, rule, sketch=bz.Rotated(), seed=1)
    whole = bz.aggregate(Speaker(X), rule, sketch=bz.Rotated(), seed=1)
    rows = bz.aggregate([update(row) for row in X], rule, sketch=bz.Rotated(), seed=1, reference=update(0 * X[0]))
    assert type(whole.update) is type(rows.update["w"]) is Speaker
    np.testing.assert_array_equal(whole.update.numbers, wanted.update)
    assert rows.update["w"].numbers.shape == (5, 6)
    np.testing.assert_allclose(rows.update["b"].numbers, wanted.update[30:], rtol=1e-5)


def test_a_round_returns_them_too_with_spill_and_copies(tmp_path):
    for settings in ({}, {"copy": True}, {"spill": tmp_path}):
        with bz.Aggregator(bz.Mean()).round(**settings) as opened:
            for client, row in enumerate(X):
                assert opened.add(update(row), client) is None
            out = opened.close()
        np.testing.assert_allclose(out.update["b"].numbers, X[:, 30:].mean(axis=0), atol=1e-6)


def test_most_clients_decide_the_type_and_odd_ones_are_quarantined():
    sent = [Speaker(X[0]), X[1], X[2], Silent(X[3]), Speaker(X[4], device=7), Speaker(X[5].astype(complex)), X[0]]
    out = bz.aggregate(sent, bz.Mean())
    assert type(out.update) is np.ndarray
    assert list(out.quarantined) == [3, 4, 5]
    assert "can't be read by DLPack" in out.quarantined[3]
    assert "device type 7" in out.quarantined[4]


def test_a_mask_is_not_read_past():
    with pytest.raises(bz.TooFewClientsError, match="fill its mask first"):
        bz.aggregate(np.ma.masked_array(X, X > 1), bz.Mean())


def test_adapters_may_be_such_arrays():
    rng = np.random.default_rng(1)
    sent = [adapter(rng, 2) for _ in range(5)]
    speaking = [{name: Speaker(array) for name, array in one.items()} for one in sent]
    out = lora.aggregate(speaking, bz.Mean(), lora.LoRA(alpha=2, rank=30))
    made = {name: array.numbers for name, array in out.update.items()}
    mean = np.mean([dense(one, 2) for one in sent], axis=0)
    np.testing.assert_allclose(dense(made, 2), mean, atol=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
def test_jax_arrays_come_back_as_jax_arrays(dtype):
    jax = pytest.importorskip("jax", reason="JAX is not installed; `make test-slow` installs it")
    rows = jax.numpy.asarray(X).astype(dtype)
    (leaf,) = leaves_of(rows).values()
    assert leaf.ctypes.data == rows.unsafe_buffer_pointer()
    wanted = bz.aggregate(np.asarray(rows.astype("float32")), bz.MultiKrum(1), seed=2)
    for sent in (rows, list(rows), [{"w": row.reshape(4, 10)} for row in rows]):
        out = bz.aggregate(sent, bz.MultiKrum(1), seed=2)
        (array,) = jax.tree.leaves(out.update)
        assert isinstance(array, jax.Array)
        assert array.dtype == dtype
        np.testing.assert_allclose(out.weights, wanted.weights)
        found = np.asarray(array.astype("float32")).ravel()
        np.testing.assert_allclose(
            found, wanted.update, atol={"float32": 1e-6, "float16": 2e-3, "bfloat16": 1e-2}[dtype]
        )
