"""Strategies of values that several surfaces draw: arrays, changed bytes and changed JSON."""

import json
from functools import lru_cache, partial

import numpy as np
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp


def nested(depth):
    """Return an empty list in lists."""
    node = []
    for _ in range(depth):
        node = [node]
    return node


def rebuilt(update, kinds=None, order=iter, of_leaf=lambda leaf: leaf):
    """Return an update in other kinds of containers, with dicts in another order, or with other leaves."""
    kind = (kinds or {}).get(type(update), type(update))
    if isinstance(update, dict):
        return kind(order([(key, rebuilt(child, kinds, order, of_leaf)) for key, child in update.items()]))
    if isinstance(update, (list, tuple)):
        return kind(rebuilt(child, kinds, order, of_leaf) for child in update)
    return of_leaf(update)


JUNK = st.sampled_from(
    [
        *(None, True, 0, -1, 1, 2**31, 2**63, 10**400, 100_001, 0.5, -0.0, 1e308, float("nan"), float("inf"), "", "x"),
        *("\x00\x7f\u202e", "y" * 5000, [], [[]], [None], [1, "1"], {}, {"": {}}, {"name": None}, [0.1] * 100, "nan"),
        *("1e400", nested(300), "nnm >> krum", "krum", "../x", [1, 2, 3], "\ud800"),
    ]
)


NUMBERS = [3, 1, 0, -1, 0.5, -0.0, 2**63 - 1, 1e-320, float("nan"), float("inf"), [1, 2], []]
DTYPES = [np.dtype(one) for one in (*np.typecodes["AllInteger"], "f4", "f8", "f2", "?", ">f4", ">f8", ">i2")]
ARRAYS = st.one_of(
    [hnp.arrays(one, hnp.array_shapes(min_dims=0, max_dims=3, min_side=0, max_side=5)) for one in DTYPES]
)
"""Arrays of every dtype that files and messages may have, in any small shape, of any numbers."""


def pick(draw, things):
    """Draw one of these: much faster than a new `sampled_from` each time."""
    return things[draw(st.integers(0, len(things) - 1))]


def rarely(one_in):
    """Return a strategy that is true once in so many cases."""
    return st.sampled_from([False] * (one_in - 1) + [True])


@lru_cache
def edited(data):
    """Return a strategy of these bytes with one to four places overwritten, removed, doubled or inserted."""
    place = st.integers(0, max(0, len(data) - 1))
    put = st.one_of(
        st.binary(min_size=1, max_size=1),
        st.sampled_from([b"", b"\xff" * 4, bytes(4), b"\x7f\xff\xff\xff", b"9999", b"(", b"nan "]),
        place.map(lambda at: data[at : at + 32]),
    )
    edit = st.tuples(place, st.sampled_from([None, None, None, 0, 4, 16, len(data)]), put)
    return st.lists(edit, min_size=1, max_size=4).map(partial(_apply, data))


def _apply(data, edits):
    for at, length, put in edits:
        data = data[:at] + put + data[at + (len(put) if length is None else length) :]
    return data


def files(*valid):
    """Return a strategy of files in the place of these: one of them, one of them edited, or any bytes."""
    one = st.sampled_from(valid)
    return st.one_of(one, one.flatmap(edited), one.flatmap(edited), st.binary(max_size=200))


@st.composite
def changed(draw, value):
    """Draw a JSON value of which one to three parts are replaced, removed, doubled or renamed."""
    for _ in range(draw(st.integers(1, 3))):
        value = _changed_once(draw, value)
    return value


def _changed_once(draw, value):
    how = draw(st.integers(0, 7))
    if not (isinstance(value, (dict, list)) and value) or how == 0:
        return draw(JUNK)
    if isinstance(value, dict):
        key = draw(st.sampled_from(list(value)))
        if how == 1:
            return {name: child for name, child in value.items() if name != key}
        if how == 2:
            return {**value, draw(st.sampled_from(["", "extra", "kind", "name", f"{key}x"])): draw(JUNK)}
        return {**value, key: _changed_once(draw, value[key])}
    at = draw(st.integers(0, len(value) - 1))
    middle = [] if how == 1 else [value[at]] * 2 if how == 2 else [_changed_once(draw, value[at])]
    return [*value[:at], *middle, *value[at + 1 :]]


def changed_json(value):
    """Return a strategy of the text of a changed value."""
    return changed(value).map(lambda made: json.dumps(made).encode("utf-8", "surrogatepass"))
