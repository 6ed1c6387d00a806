"""What a client may send that is no update, or not one of this round; each is known to be bad."""

from __future__ import annotations

import datetime
import decimal
from collections import deque
from collections.abc import Callable
from typing import Any

import numpy as np
import torch

from fuzz import attackers
from fuzz.draw import Draw
from fuzz.surface import NO_MEMORY

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
"""Numbers that no update may hold; None where this dtype has no such."""

Made = tuple[Any, str]


def _endless_list() -> Any:
    node: list[Any] = []
    node.append(node)
    return node


def _endless_dict() -> Any:
    node: dict[Any, Any] = {}
    node["w"] = node
    return node


def _chain() -> Any:
    node: Any = None
    for _ in range(1100):
        node = [node]
    return node


ALONE: list[Callable[[], Any]] = [
    *(lambda: None, lambda: 7, lambda: 7.5, lambda: "text", lambda: b"bytes" * 9, lambda: {1.0}, lambda: range(4)),
    *(lambda: datetime.date(2020, 1, 1), lambda: decimal.Decimal(1), lambda: len, lambda: np.ndarray, lambda: object()),
    *(lambda: iter([1.0]), lambda: deque([1.0]), lambda: memoryview(b"1234"), lambda: 1j, lambda: Ellipsis),
    *(dict, list, tuple, _endless_list, _endless_dict, _chain, lambda: [[]], lambda: {"w": {}}),
    *(lambda: [10**400, 1], lambda: [1.0, "b"], lambda: [float("nan")] * 3, lambda: np.float32(1)),
    *(lambda: np.zeros(0, np.float32), lambda: np.array(1.0, np.float32), lambda: np.zeros((0, 5))),
    *(lambda: np.broadcast_to(np.float32(0), (10**6, 10**7)), lambda: np.zeros((1,) * 32, np.float32)),
    *(lambda: np.zeros(3, [("a", "f4")]), lambda: np.zeros(3, "M8[s]"), lambda: np.zeros(3, "U4")),
    *(lambda: np.array([None, 1]), lambda: np.ma.masked_array([1.0, 2.0], [True, False])),
    *(lambda: torch.zeros(3).to_sparse(), lambda: torch.zeros(3, device="meta"), lambda: torch.zeros(3, 2).mT),
    *(lambda: torch.zeros(3, dtype=torch.float8_e5m2), lambda: torch.zeros(3, dtype=torch.complex64).conj()),
    *(attackers.Raising, attackers.Posing, lambda: np.zeros((3, 1, 1), np.float32).view(attackers.Boasting)),
    *(lambda: attackers.Broken(OSError("cut short")), lambda: attackers.Broken(attackers.Mumbling())),
    *(
        lambda: attackers.Broken(MemoryError(NO_MEMORY)),
        lambda: attackers.Broken(RecursionError()),
        lambda: attackers.Broken(StopIteration()),
    ),
    *(lambda: {attackers.Name(): np.zeros(3, np.float32)}, lambda: {attackers.Name(): "text"}),
    *(
        lambda: attackers.Odd(attackers.Unhashable(), np.zeros(3, np.float32)),
        lambda: attackers.Odd(["k"], np.zeros(3)),
    ),
    *(lambda: attackers.Crooked(), lambda: {"x" * 10**5: np.zeros(3, np.float32)}, lambda: {None: None}),
    *(lambda: {"\ud800": np.zeros(3, np.float32)}, lambda: {float("nan"): np.zeros(3, np.float32)}),
    lambda: {("w", 1): np.zeros(2)},
]


def alone(draw: Draw, packed: Any, leaf: Any) -> Made:
    """Something else in the update's place."""
    return draw.pick(ALONE)(), BAD


def inside(draw: Draw, packed: Any, leaf: Any) -> Made:
    """Something else in the place of the update's first array."""
    odd = draw.pick(ALONE)()
    known = BAD if len(leaf) >= 3 else EITHER  # the first array of so short an update is empty, as some of these are
    if isinstance(packed, dict):
        key = next(iter(packed))
        return type(packed)({**packed, key: odd}), known
    return ([odd, *packed[1:]], known) if isinstance(packed, list) else (odd, BAD)


def of_another_dtype(draw: Draw, packed: Any, leaf: Any) -> Made:
    kind = draw.pick(["complex64", "int64", "bool", "uint8", "complex128", "int16"])
    if isinstance(leaf, torch.Tensor):
        return _replaced(packed, leaf.float().to(getattr(torch, kind))), BAD
    with np.errstate(invalid="ignore", over="ignore"):
        return _replaced(packed, leaf.astype(kind)), BAD


def of_another_width(draw: Draw, packed: Any, leaf: Any) -> Made:
    if isinstance(leaf, torch.Tensor):
        return _replaced(packed, leaf.to(torch.float64 if leaf.dtype != torch.float64 else torch.float32)), BAD
    wider = np.float64 if leaf.dtype != np.float64 else np.longdouble
    return _replaced(packed, leaf.astype(wider)), BAD


def as_something(draw: Draw, packed: Any, leaf: Any) -> Made:
    """Numbers as texts, objects, bytes."""
    plain = leaf.float().numpy() if isinstance(leaf, torch.Tensor) else leaf
    return _replaced(packed, plain.astype(draw.pick(["U", "S", object]))), BAD


def _replaced(packed: Any, leaf: Any) -> Any:
    """All arrays of floats of the update, made of this one instead: kinds change, shapes don't."""
    if isinstance(packed, dict):
        return type(packed)((key, _replaced(child, leaf)) for key, child in packed.items())
    if isinstance(packed, (list, tuple)):
        return type(packed)(_replaced(child, leaf) for child in packed)
    return leaf[: int(np.prod(packed.shape))].reshape(tuple(packed.shape))


def longer(draw: Draw, packed: Any, leaf: Any) -> Made:
    twice = torch.cat([leaf, leaf]) if isinstance(leaf, torch.Tensor) else np.concatenate([leaf, leaf])
    return (twice if not isinstance(packed, (dict, list)) else [twice]), BAD


def without_a_part(draw: Draw, packed: Any, leaf: Any) -> Made:
    if isinstance(packed, dict):
        gone = draw.pick(list(packed))
        return {key: value for key, value in packed.items() if key != gone}, BAD
    return packed[:-1], BAD


def with_a_part_more(draw: Draw, packed: Any, leaf: Any) -> Made:
    extra = np.zeros(3, np.float32)
    if isinstance(packed, dict):
        return {**packed, draw.pick(["extra", 0, None, "", attackers.Name()]): extra}, BAD
    return [*packed, extra] if isinstance(packed, list) else [packed, extra], BAD


def wrapped(draw: Draw, packed: Any, leaf: Any) -> Made:
    return (draw.pick([lambda u: [u], lambda u: {"state": u}, lambda u: (u, u)]))(packed), BAD


def boasting(draw: Draw, packed: Any, leaf: Any) -> Made:
    """An array that lies about its shape, in a place where its true shape would do."""
    if isinstance(leaf, torch.Tensor):
        return "a tensor", BAD
    view = leaf.view(attackers.Boasting)
    return (view, EITHER) if not isinstance(packed, (dict, list)) else ([view], BAD)


def fickle(draw: Draw, packed: Any, leaf: Any) -> Made:
    """What can be read once or twice."""
    if not isinstance(packed, dict):
        return attackers.Fickle({"w": leaf}, draw.below(3)), BAD
    return attackers.Fickle(packed, draw.below(3)), EITHER


FLAWS: list[Callable[[Draw, Any, Any], Made]] = [
    *(alone, inside, of_another_dtype, of_another_width, as_something, longer, without_a_part, with_a_part_more),
    *(wrapped, boasting, fickle),
]
