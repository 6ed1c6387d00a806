"""A sixth source, as a user would write one: updates in an SQLite table, read one row at a time."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from dataclasses import replace

import numpy as np
import pytest

import bartizan as bz
from bartizan.aggregate import run
from bartizan.errors import LostClients
from bartizan.measure.measurements import Measurements
from bartizan.measure.sketches import StreamingSketch, settled
from bartizan.source import WHOLE, Combined, Roster
from bartizan.updates import parse_updates
from rule_cases import CASES

M, P, SEED = 15, 700, 7


class TableUpdates:
    """The updates in a table with columns `id` and `numbers`, which holds float32."""

    def __init__(self, table, dim, trusted=None):
        self.table, self.trusted = table, trusted
        ids = [name for (name,) in table.execute("SELECT id FROM updates ORDER BY id")]
        self.roster = Roster(len(ids), dim, np.dtype(np.float32), ids=ids)
        lengths = {m: self.read(m).size for m in range(len(ids))}
        self.roster = self.roster.without({m: f"it has {n} numbers" for m, n in lengths.items() if n != dim})

    def read(self, client):
        found = self.table.execute("SELECT numbers FROM updates WHERE id = ?", (self.roster.ids[client],)).fetchone()
        if found is None:
            raise LostClients({client: "its row is gone"})
        return np.frombuffer(found[0], np.float32)

    def refuses(self, rule, sketch):
        if rule.ends_coordinate_wise() or not isinstance(sketch, StreamingSketch):
            return f"a table is read row by row, which is not enough for {rule!r} with {sketch!r}"
        return None

    def settle(self, rule, sketch, seed):
        return settled(sketch, rule.needs_distances, lambda: False), SEED if seed is None else seed

    def measure(self, sketch, seed, reading=WHOLE):
        clients, about, scale = reading
        centre = None if about is None else parse_updates(self.read(about)[None]).rows
        if clients is None:
            clients = [m for m in range(self.roster.n_sent) if m not in self.roster.quarantined]
        rows = (parse_updates(self.read(m)[None], trusted=self.trusted) for m in clients)
        scaled = (row if scale is None else row.scaled(scale) for row in rows)
        parts = [sketch.measure(row, seed, centre) for row in scaled]
        return Measurements.joined([replace(part, clients=(m,)) for m, part in zip(clients, parts, strict=True)])

    def explain(self, clients):
        return {m: f"{np.count_nonzero(~np.isfinite(self.read(m)))} numbers are not finite" for m in clients}

    def combine(self, judgement):
        total = np.zeros(self.roster.dim)
        for client, weight in zip(judgement.clients, judgement.decision.weights, strict=True):
            total += weight * self.read(client) if weight else 0
        return Combined(total.astype(np.float32))


@pytest.fixture
def table():
    with closing(sqlite3.connect(":memory:")) as connection:
        connection.execute("CREATE TABLE updates (id TEXT PRIMARY KEY, numbers BLOB)")
        yield connection


def filled(table, x):
    table.executemany("INSERT INTO updates VALUES (?, ?)", [(f"{m:03}", row.tobytes()) for m, row in enumerate(x)])
    return table


def numbers():
    return np.random.default_rng(0).normal(1, 1, size=(M, P)).astype(np.float32)


RULES = [*(case.rule for case in CASES), bz.Median(), bz.NNM(2) >> bz.TrimmedMean(2), bz.Bulyan(2, trim=True)]


@pytest.mark.parametrize("rule", RULES, ids=repr)
def test_it_gives_the_weights_of_the_same_updates_in_memory(table, rule):
    x = numbers()
    x[4, 3] = np.nan
    trusted = x[2] if rule.needs_trusted else None
    source = TableUpdates(filled(table, x), P, trusted)
    aggregator = bz.Aggregator(rule) if rule.ends_coordinate_wise() else bz.Aggregator(rule, bz.Rotated(k=64))
    if rule.ends_coordinate_wise():
        with pytest.raises(ValueError, match="row by row"):
            run(source, aggregator)
        return
    out = run(source, aggregator)
    same = aggregator(x, seed=SEED, trusted=trusted)
    np.testing.assert_array_equal(out.weights, same.weights)
    np.testing.assert_allclose(out.update, same.update, rtol=1e-5, atol=1e-6)
    assert out.quarantined == {"004": "1 numbers are not finite"}


def test_a_client_of_another_length_is_quarantined(table):
    table.execute("INSERT INTO updates VALUES ('short', x'00000000')")
    out = run(TableUpdates(filled(table, numbers()), P), bz.Aggregator(bz.GeometricMedian()))
    assert out.quarantined == {"short": "it has 1 numbers"}
    assert out.sketch == bz.Rotated()


def test_a_client_whose_row_vanishes_is_quarantined_and_the_others_are_judged_without_it(table):
    x = numbers()
    source = TableUpdates(filled(table, x), P)
    combine = source.combine

    def vanishing(judgement):
        table.execute("DELETE FROM updates WHERE id = '007'")
        return combine(judgement)

    source.combine = vanishing
    out = run(source, bz.Aggregator(bz.GeometricMedian(), bz.Rotated(k=64)))
    assert out.quarantined == {"007": "its row is gone"}
    rest = np.delete(np.arange(M), 7)
    same = bz.aggregate(x[rest], bz.GeometricMedian(), sketch=bz.Rotated(k=64), seed=SEED)
    np.testing.assert_array_equal(out.weights[rest], same.weights)
    assert out.weights[7] == 0


def test_updates_far_from_the_origin_keep_their_digits(table):
    """They are read again, about one of the clients."""
    far = 1e4 + 1e-2 * numbers()
    source = TableUpdates(filled(table, far), P)
    rule = bz.Krum(2)
    out = run(source, bz.Aggregator(rule, bz.Rotated(k=64)))
    np.testing.assert_array_equal(out.weights, bz.aggregate(far, rule, sketch=bz.Rotated(k=64), seed=SEED).weights)
