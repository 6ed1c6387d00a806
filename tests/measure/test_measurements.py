"""The laws of measurements: they add over columns, and are joined over clients."""

from __future__ import annotations

import pickle

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import bartizan as bz
from bartizan.measure.measurements import Measurements
from bartizan.measure.sketches import Norms
from bartizan.updates import parse_updates

SKETCHES = [bz.Exact(), Norms(), bz.Rotated(k=64), bz.Gaussian(k=5), bz.Achlioptas(k=5)]
FIELDS = "squared_norms", "sketches", "gram", "trusted_dots"


def arrays(measured):
    return {name: getattr(measured, name) for name in FIELDS if getattr(measured, name) is not None}


def updates(M, p, trusted, seed=0):
    x = np.random.default_rng(seed).normal(size=(M + 1, p))
    return x[:M], x[M] if trusted else None


@settings(deadline=None, max_examples=40)
@given(which=st.integers(0, len(SKETCHES) - 1), M=st.integers(1, 6), at=st.integers(1, 9), trusted=st.booleans())
def test_measurements_of_columns_add_up_to_those_of_all(which, M, at, trusted):
    sketch = SKETCHES[which]
    x, own = updates(M, 640, trusted)
    low = 64 * at  # a shard of Rotated(64) begins at one of its blocks
    whole = sketch.measure(parse_updates(x, trusted=own), 3)
    parts = []
    for first, columns in ((0, slice(0, low)), (low, slice(low, 640))):
        shard = parse_updates(x[:, columns], trusted=None if own is None else own[columns])
        object.__setattr__(shard, "first", first)
        parts.append(sketch.measure(shard, 3))
    for name, sums in arrays(parts[0] + parts[1]).items():
        np.testing.assert_allclose(sums, getattr(whole, name), rtol=1e-12, atol=1e-12)


@settings(deadline=None, max_examples=40)
@given(which=st.integers(1, len(SKETCHES) - 1), M=st.integers(2, 7), cut=st.integers(1, 6), trusted=st.booleans())
def test_measurements_of_clients_are_joined_to_the_bit(which, M, cut, trusted):
    sketch, cut = SKETCHES[which], min(cut, M - 1)
    x, own = updates(M, 300, trusted)
    clients = parse_updates(x, trusted=own)
    whole = sketch.measure(clients, 3)
    joined = Measurements.joined([sketch.measure(clients.only(rows), 3) for rows in (range(cut), range(cut, M))])
    assert joined.clients == whole.clients
    for name, values in arrays(whole.on_host()).items():
        np.testing.assert_array_equal(getattr(joined.on_host(), name), values)


def test_gram_matrices_of_separate_clients_are_not_joined():
    x = np.eye(4)
    with pytest.raises(ValueError, match="wanted sketches"):
        Measurements.joined([bz.Exact().measure(parse_updates(part), 0) for part in (x[:2], x[2:])])


@pytest.mark.parametrize("sketch", SKETCHES, ids=repr)
def test_some_clients_keep_their_numbers_and_their_trusted_update(sketch):
    x, own = updates(6, 300, trusted=True)
    whole = sketch.measure(parse_updates(x, trusted=own), 3).on_host()
    some = whole.without({1, 4})
    assert some.clients == (0, 2, 3, 5)
    rows = [0, 2, 3, 5, 6]
    np.testing.assert_array_equal(some.squared_norms, whole.squared_norms[rows])
    np.testing.assert_array_equal(some.gram, whole.gram[np.ix_(rows, rows)])
    np.testing.assert_array_equal(some.trusted_dots, whole.trusted_dots[rows])


@pytest.mark.parametrize("sketch", SKETCHES, ids=repr)
def test_they_pickle_and_tell_no_seed(sketch):
    measured = sketch.measure(parse_updates(np.eye(3, 90)), 123456789)
    again = pickle.loads(pickle.dumps(measured))
    assert (again.clients, again.sketch, again.seed) == (measured.clients, sketch, 123456789)
    for name, values in arrays(measured).items():
        np.testing.assert_array_equal(getattr(again, name), values)
    assert "123456789" not in repr(measured)
