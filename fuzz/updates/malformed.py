"""Malformed updates: each function draws what a client sends and says whether it must be quarantined."""

import datetime
import decimal
from collections import deque

import numpy as np
import torch
from hypothesis import strategies as st

from fuzz.surfaces import CLIENT_MEMORY_ERROR
from fuzz.values import nested, pick, rebuilt
from tests.support import hostile_objects as hostile

BAD, EITHER = "bad", "either"
BITS = {"nan": 0x7FC0, "inf": 0x7F80, "-inf": 0xFF80, "max": 0x7F7F}  # of bfloat16


def value_of(name, dtype):
    """Return a number that no update may hold; None where the dtype has no such number."""
    if dtype == "bfloat16":
        return BITS[name]
    if name == "max":
        return None if dtype == "float16" else np.finfo(dtype).max  # squares of float16 overflow nothing
    return float(name)


def _cyclic(node):
    node.append(node) if isinstance(node, list) else node.update(w=node)
    return node


def _zeros():
    return np.zeros(3, np.float32)


NO_UPDATES = [
    *(lambda: None, lambda: 7, lambda: 7.5, lambda: "text", lambda: b"bytes" * 9, lambda: {1.0}, lambda: range(4)),
    *(lambda: datetime.date(2020, 1, 1), lambda: decimal.Decimal(1), lambda: len, lambda: np.ndarray, lambda: object()),
    *(lambda: iter([1.0]), lambda: deque([1.0]), lambda: memoryview(b"1234"), lambda: 1j, lambda: Ellipsis),
    *(dict, list, tuple, lambda: _cyclic([]), lambda: _cyclic({})),
    *(lambda: nested(1100), lambda: [[]], lambda: {"w": {}}),
    *(lambda: [10**400, 1], lambda: [1.0, "b"], lambda: [float("nan")] * 3, lambda: np.float32(1)),
    *(lambda: np.zeros(0, np.float32), lambda: np.array(1.0, np.float32), lambda: np.zeros((0, 5))),
    *(lambda: np.broadcast_to(np.float32(0), (10**6, 10**7)), lambda: np.zeros((1,) * 32, np.float32)),
    *(lambda: np.zeros(3, [("a", "f4")]), lambda: np.zeros(3, "M8[s]"), lambda: np.zeros(3, "U4")),
    *(lambda: np.array([None, 1]), lambda: np.ma.masked_array([1.0, 2.0], [True, False])),
    *(lambda: torch.zeros(3).to_sparse(), lambda: torch.zeros(3, device="meta"), lambda: torch.zeros(3, 2).mT),
    *(lambda: torch.zeros(3, dtype=torch.float8_e5m2), lambda: torch.zeros(3, dtype=torch.complex64).conj()),
    *(hostile.RaisesOnConversion, hostile.PretendsArray, hostile.InconsistentList),
    lambda: _zeros().reshape(3, 1, 1).view(hostile.OverstatesShape),
    lambda: hostile.HostileMapping(error=OSError("cut short")),
    lambda: hostile.HostileMapping(error=hostile.UnprintableError()),
    lambda: hostile.HostileMapping(error=MemoryError(CLIENT_MEMORY_ERROR)),
    *(lambda: hostile.HostileMapping(error=RecursionError()), lambda: hostile.HostileMapping(error=StopIteration())),
    *(lambda: {hostile.UnprintableKey(): _zeros()}, lambda: {hostile.UnprintableKey(): "text"}),
    *(lambda: hostile.HostileMapping([(hostile.UnhashableKey(), _zeros())]), lambda: {("w", 1): np.zeros(2)}),
    *(lambda: hostile.HostileMapping([(["k"], np.zeros(3))]), lambda: {"x" * 10**5: _zeros()}, lambda: {None: None}),
    *(lambda: {"\ud800": _zeros()}, lambda: {float("nan"): _zeros()}),
]


def replaced(draw, packed, leaf):
    return pick(draw, NO_UPDATES)(), BAD


def with_another_object(draw, packed, leaf):
    """Another object in place of the update's first array."""
    odd = pick(draw, NO_UPDATES)()
    known = BAD if len(leaf) >= 3 else EITHER  # the first array of so short an update is empty, as some of these are
    if isinstance(packed, dict):
        return type(packed)({**packed, next(iter(packed)): odd}), known
    return ([odd, *packed[1:]], known) if isinstance(packed, list) else (odd, BAD)


def with_another_dtype(draw, packed, leaf):
    """Other kinds of numbers, another precision, and numbers as text, bytes or objects."""
    kind = pick(draw, ["complex64", "int64", "bool", "uint8", "int16", "float64", "float32", "U", "S", object])
    if isinstance(leaf, torch.Tensor):
        of_torch = getattr(torch, str(kind), None)
        leaf = (
            leaf.float().numpy() if of_torch is None else leaf.to(of_torch if leaf.dtype != of_torch else torch.float16)
        )
    if isinstance(leaf, np.ndarray):
        with np.errstate(invalid="ignore", over="ignore"):
            leaf = leaf.astype(kind if leaf.dtype != kind else np.longdouble)
    return rebuilt(packed, of_leaf=lambda one: leaf[: int(np.prod(one.shape))].reshape(tuple(one.shape))), BAD


def longer(draw, packed, leaf):
    twice = (torch.cat if isinstance(leaf, torch.Tensor) else np.concatenate)([leaf, leaf])
    return (twice if not isinstance(packed, (dict, list)) else [twice]), BAD


def without_an_entry(draw, packed, leaf):
    if isinstance(packed, dict):
        gone = pick(draw, list(packed))
        return {key: value for key, value in packed.items() if key != gone}, BAD
    return packed[:-1], BAD


def with_another_entry(draw, packed, leaf):
    if isinstance(packed, dict):
        return {**packed, pick(draw, ["extra", 0, None, "", hostile.UnprintableKey()]): _zeros()}, BAD
    return [*packed, _zeros()] if isinstance(packed, list) else [packed, _zeros()], BAD


def wrapped(draw, packed, leaf):
    return pick(draw, [[packed], {"state": packed}, (packed, packed)]), BAD


def with_overstated_shape(draw, packed, leaf):
    """An array that claims a larger shape, where its true shape would be valid."""
    if isinstance(leaf, torch.Tensor):
        return "a tensor", BAD
    view = leaf.view(hostile.OverstatesShape)
    return (view, EITHER) if not isinstance(packed, (dict, list)) else ([view], BAD)


def readable_times(draw, packed, leaf):
    """A mapping that can be read once or twice."""
    content, known = (packed.items(), EITHER) if isinstance(packed, dict) else ([("w", leaf)], BAD)
    return hostile.HostileMapping(content, reads=draw(st.integers(0, 2))), known


MALFORMED = [
    *(replaced, with_another_object, with_another_dtype, with_another_dtype, with_another_dtype, longer),
    *(without_an_entry, with_another_entry, wrapped, with_overstated_shape, readable_times),
]
