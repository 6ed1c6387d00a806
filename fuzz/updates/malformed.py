"""Malformed updates: each returns what a client sends and whether it must be quarantined."""

from __future__ import annotations

import datetime
import decimal
from collections import deque
from collections.abc import Callable
from typing import Any

import numpy as np
import torch

from fuzz.draw import Draw
from fuzz.surfaces import CLIENT_MEMORY_ERROR
from fuzz.updates import hostile_objects as hostile

BAD, EITHER = "bad", "either"
BITS = {"nan": 0x7FC0, "inf": 0x7F80, "-inf": 0xFF80, "max": 0x7F7F}  # of bfloat16


def _value(name: str) -> Callable[[str], Any]:
    def of(dtype: str) -> Any:
        if dtype == "bfloat16":
            return BITS[name]
        if name == "max":
            return None if dtype == "float16" else np.finfo(dtype).max  # squares of float16 overflow nothing
        return float(name)

    return of


VALUES = [_value(name) for name in BITS]
"""Numbers that no update may hold, by dtype; None where the dtype has no such number."""

Made = tuple[Any, str]


def _cyclic_list() -> Any:
    node: list[Any] = []
    node.append(node)
    return node


def _cyclic_dict() -> Any:
    node: dict[Any, Any] = {}
    node["w"] = node
    return node


def _deep_list() -> Any:
    node: Any = None
    for _ in range(1100):
        node = [node]
    return node


NO_UPDATES: list[Callable[[], Any]] = [
    *(lambda: None, lambda: 7, lambda: 7.5, lambda: "text", lambda: b"bytes" * 9, lambda: {1.0}, lambda: range(4)),
    *(lambda: datetime.date(2020, 1, 1), lambda: decimal.Decimal(1), lambda: len, lambda: np.ndarray, lambda: object()),
    *(lambda: iter([1.0]), lambda: deque([1.0]), lambda: memoryview(b"1234"), lambda: 1j, lambda: Ellipsis),
    *(dict, list, tuple, _cyclic_list, _cyclic_dict, _deep_list, lambda: [[]], lambda: {"w": {}}),
    *(lambda: [10**400, 1], lambda: [1.0, "b"], lambda: [float("nan")] * 3, lambda: np.float32(1)),
    *(lambda: np.zeros(0, np.float32), lambda: np.array(1.0, np.float32), lambda: np.zeros((0, 5))),
    *(lambda: np.broadcast_to(np.float32(0), (10**6, 10**7)), lambda: np.zeros((1,) * 32, np.float32)),
    *(lambda: np.zeros(3, [("a", "f4")]), lambda: np.zeros(3, "M8[s]"), lambda: np.zeros(3, "U4")),
    *(lambda: np.array([None, 1]), lambda: np.ma.masked_array([1.0, 2.0], [True, False])),
    *(lambda: torch.zeros(3).to_sparse(), lambda: torch.zeros(3, device="meta"), lambda: torch.zeros(3, 2).mT),
    *(lambda: torch.zeros(3, dtype=torch.float8_e5m2), lambda: torch.zeros(3, dtype=torch.complex64).conj()),
    *(
        hostile.RaisesOnConversion,
        hostile.PretendsArray,
        lambda: np.zeros((3, 1, 1), np.float32).view(hostile.OverstatesShape),
    ),
    *(
        lambda: hostile.HostileMapping(error=OSError("cut short")),
        lambda: hostile.HostileMapping(error=hostile.UnprintableError()),
    ),
    *(
        lambda: hostile.HostileMapping(error=MemoryError(CLIENT_MEMORY_ERROR)),
        lambda: hostile.HostileMapping(error=RecursionError()),
        lambda: hostile.HostileMapping(error=StopIteration()),
    ),
    *(lambda: {hostile.UnprintableKey(): np.zeros(3, np.float32)}, lambda: {hostile.UnprintableKey(): "text"}),
    *(
        lambda: hostile.HostileMapping([(hostile.UnhashableKey(), np.zeros(3, np.float32))]),
        lambda: hostile.HostileMapping([(["k"], np.zeros(3))]),
    ),
    *(lambda: hostile.InconsistentList(), lambda: {"x" * 10**5: np.zeros(3, np.float32)}, lambda: {None: None}),
    *(lambda: {"\ud800": np.zeros(3, np.float32)}, lambda: {float("nan"): np.zeros(3, np.float32)}),
    lambda: {("w", 1): np.zeros(2)},
]


def replaced(draw: Draw, packed: Any, leaf: Any) -> Made:
    """Another object in place of the update."""
    return draw.pick(NO_UPDATES)(), BAD


def with_another_object(draw: Draw, packed: Any, leaf: Any) -> Made:
    """Another object in place of the update's first array."""
    odd = draw.pick(NO_UPDATES)()
    known = BAD if len(leaf) >= 3 else EITHER  # the first array of so short an update is empty, as some of these are
    if isinstance(packed, dict):
        key = next(iter(packed))
        return type(packed)({**packed, key: odd}), known
    return ([odd, *packed[1:]], known) if isinstance(packed, list) else (odd, BAD)


def with_another_kind(draw: Draw, packed: Any, leaf: Any) -> Made:
    kind = draw.pick(["complex64", "int64", "bool", "uint8", "complex128", "int16"])
    if isinstance(leaf, torch.Tensor):
        return _with_leaf(packed, leaf.float().to(getattr(torch, kind))), BAD
    with np.errstate(invalid="ignore", over="ignore"):
        return _with_leaf(packed, leaf.astype(kind)), BAD


def with_another_precision(draw: Draw, packed: Any, leaf: Any) -> Made:
    if isinstance(leaf, torch.Tensor):
        return _with_leaf(packed, leaf.to(torch.float64 if leaf.dtype != torch.float64 else torch.float32)), BAD
    wider = np.float64 if leaf.dtype != np.float64 else np.longdouble
    return _with_leaf(packed, leaf.astype(wider)), BAD


def as_text_or_objects(draw: Draw, packed: Any, leaf: Any) -> Made:
    """Numbers as text, bytes or objects."""
    plain = leaf.float().numpy() if isinstance(leaf, torch.Tensor) else leaf
    return _with_leaf(packed, plain.astype(draw.pick(["U", "S", object]))), BAD


def _with_leaf(packed: Any, leaf: Any) -> Any:
    """Return the update with every array taken from this one: dtypes change, shapes stay."""
    if isinstance(packed, dict):
        return type(packed)((key, _with_leaf(child, leaf)) for key, child in packed.items())
    if isinstance(packed, (list, tuple)):
        return type(packed)(_with_leaf(child, leaf) for child in packed)
    return leaf[: int(np.prod(packed.shape))].reshape(tuple(packed.shape))


def longer(draw: Draw, packed: Any, leaf: Any) -> Made:
    twice = torch.cat([leaf, leaf]) if isinstance(leaf, torch.Tensor) else np.concatenate([leaf, leaf])
    return (twice if not isinstance(packed, (dict, list)) else [twice]), BAD


def without_an_entry(draw: Draw, packed: Any, leaf: Any) -> Made:
    if isinstance(packed, dict):
        gone = draw.pick(list(packed))
        return {key: value for key, value in packed.items() if key != gone}, BAD
    return packed[:-1], BAD


def with_another_entry(draw: Draw, packed: Any, leaf: Any) -> Made:
    extra = np.zeros(3, np.float32)
    if isinstance(packed, dict):
        return {**packed, draw.pick(["extra", 0, None, "", hostile.UnprintableKey()]): extra}, BAD
    return [*packed, extra] if isinstance(packed, list) else [packed, extra], BAD


def wrapped(draw: Draw, packed: Any, leaf: Any) -> Made:
    return (draw.pick([lambda u: [u], lambda u: {"state": u}, lambda u: (u, u)]))(packed), BAD


def with_overstated_shape(draw: Draw, packed: Any, leaf: Any) -> Made:
    """An array that claims a larger shape, where its true shape would be valid."""
    if isinstance(leaf, torch.Tensor):
        return "a tensor", BAD
    view = leaf.view(hostile.OverstatesShape)
    return (view, EITHER) if not isinstance(packed, (dict, list)) else ([view], BAD)


def readable_times(draw: Draw, packed: Any, leaf: Any) -> Made:
    """A mapping that can be read once or twice."""
    if not isinstance(packed, dict):
        return hostile.HostileMapping([("w", leaf)], reads=draw.below(3)), BAD
    return hostile.HostileMapping(packed.items(), reads=draw.below(3)), EITHER


MALFORMED: list[Callable[[Draw, Any, Any], Made]] = [
    *(replaced, with_another_object, with_another_kind, with_another_precision, as_text_or_objects, longer),
    *(without_an_entry, with_another_entry, wrapped, with_overstated_shape, readable_times),
]
