"""Updates cut into shards, one call per rank, and what is expected of the answers."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest

from ranks import Answer

M, P, SEED = 13, 9001, 2**100 + 7
# Where the columns are cut: shards of 0 and 1 columns, and none that begins with a block.
CUTS = {1: [], 2: [4097], 3: [1, 5003], 4: [130, 130, 9000]}


def numbers(dtype=np.float64, p=P):
    x = np.random.default_rng(0).normal(size=(M, p)) + 0.3
    x[:2] -= 4
    return x.astype(dtype)


def parts(array, cuts):
    """The columns between the cuts, and where they begin."""
    edges = [0, *cuts, np.shape(array)[-1]]
    return [(a, array[..., a:b]) for a, b in pairwise(edges)]


def calls(x, cuts, arguments, form="numpy", points=None, **settings):
    """One call a rank: its shard, its offset, its columns of the points."""
    made = []
    for i, (offset, shard) in enumerate(parts(x, cuts)):
        own = {name: parts(point, cuts)[i][1] for name, point in (points or {}).items()}
        made.append((arguments, form, {"shard": shard, "offset": offset} | own | settings))
    return made


def same(answers, alone, tolerance=1e-9):
    assert all(isinstance(answer, Answer) for answer in answers), answers
    whole = np.concatenate([answer.update for answer in answers])
    np.testing.assert_allclose(whole, alone.update, rtol=0, atol=tolerance)
    for answer in answers:
        assert answer.quarantined.keys() == alone.quarantined.keys()
        assert answer.quarantined == answers[0].quarantined
        if alone.weights is not None:
            np.testing.assert_array_equal(answer.weights, answers[0].weights)
            np.testing.assert_allclose(answer.weights, alone.weights, rtol=0, atol=tolerance)
        assert (answer.scores is None) == (alone.scores is None)
        if alone.scores is not None:
            np.testing.assert_allclose(answer.scores, alone.scores, rtol=tolerance, atol=100 * tolerance)


def all_raise(answers, error, message):
    for answer in answers:
        assert isinstance(answer, tuple), answer
        assert answer[0] == error
        assert pytest.RaisesExc(ValueError, match=message).matches(ValueError(answer[1])), answer[1]
