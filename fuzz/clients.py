"""Clients of one round, drawn from bytes: clean ones in all forms, and bad ones that are known to be bad."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch

from fuzz.draw import Draw
from fuzz.flaws import FLAWS, VALUES

POOL = np.random.default_rng(20260101).normal(size=70_000)
"""Numbers for all cases: which of them a case takes is its bytes' choice."""
DTYPES = ("float32", "float64", "float16", "bfloat16")
FORMS = ("array", "layers", "dict", "nested", "tensor", "state dict")
CLEAN, BAD, EITHER = "clean", "bad", "either"


@dataclass
class Cast:
    """Who sends what, and what is known of it."""

    form: str
    dtype: str
    x: np.ndarray
    """(M, p) the numbers of each client, as its dtype holds them, in float64."""
    sent: list[Any] = field(default_factory=list)
    known: list[str] = field(default_factory=list)

    def who(self, kind: str) -> set[int]:
        return {m for m, one in enumerate(self.known) if one == kind}

    @property
    def majority(self) -> bool:
        """Whether the clean are more than all others: then it is known who must be quarantined."""
        return 2 * len(self.who(CLEAN)) > len(self.known)


def cast(draw: Draw, most: int = 12) -> Cast:
    """Some clients, half of them hostile at most in most cases."""
    M, p = 1 + draw.below(most), 1 + draw.below(300)
    dtype, form = draw.pick(DTYPES), draw.pick(FORMS)
    x = stored(numbers(draw, M, p), dtype)
    made = Cast(form, dtype, widened(x, dtype))
    eager = draw.below(8)
    for m in range(M):
        hostile = eager and draw.below(9 + eager) >= 9
        sent, known = hostile_update(draw, x[m], form, dtype) if hostile else (clean(draw, x[m], form, dtype), CLEAN)
        made.sent.append(sent)
        made.known.append(known)
    return made


def numbers(draw: Draw, M: int, p: int) -> np.ndarray:
    """Rows about a common point, at some scale, of which some may coincide, be zero or far away."""
    start = draw.below(65536)
    x = POOL[np.arange(start, start + M * p) % len(POOL)].reshape(M, p) + 3 * POOL[start]
    special = draw.below(12)
    if special == 1:
        x = x * 1e-42
    elif special == 2:
        x = x * 1e-310
    elif special == 3:
        x[:] = x[0]
    elif special == 4:
        x = np.where(x > 3 * POOL[start], -0.0, 0.0)
    elif special == 5:
        x[draw.below(M)] *= 1e3
    elif special == 6:
        x += 1e3
    elif special == 7:
        x[draw.below(M), draw.below(p)] = 3e4
    return x


def stored(x: np.ndarray, dtype: str) -> np.ndarray:
    """In the storage of the dtype: bfloat16 as the upper half of float32."""
    if dtype == "bfloat16":
        return (np.ascontiguousarray(x, np.float32).view(np.uint32) >> 16).astype(np.uint16)
    return x.astype(dtype)


def widened(x: np.ndarray, dtype: str) -> np.ndarray:
    if dtype == "bfloat16":
        x = (x.astype(np.uint32) << 16).view(np.float32)
    return x.astype(np.float64)


def leaf(row: np.ndarray, form: str, dtype: str) -> Any:
    """Numbers as an array of the library that the form is of."""
    if dtype == "bfloat16":
        return torch.from_numpy(row.copy()).view(torch.bfloat16)
    return torch.from_numpy(row.copy()) if form in ("tensor", "state dict") else row


def pack(leaf: Any, form: str) -> Any:
    """One flat array as an update of this form."""
    cut = len(leaf) // 3
    if form == "layers":
        return [leaf[:cut].reshape(1, cut), leaf[cut:]]
    if form == "dict":
        return {"w": leaf[:cut].reshape(cut, 1), "b": leaf[cut:]}
    if form == "nested":
        return {"body": [leaf[:cut], {"head": (leaf[cut:],)}], "n": np.array([3])}
    if form == "state dict":
        return OrderedDict(w=leaf[:cut], b=leaf[cut:], n=torch.tensor(3))
    return leaf


def clean(draw: Draw, row: np.ndarray, form: str, dtype: str) -> Any:
    """An update that can take part, however it lies in memory."""
    made = leaf(row, form, dtype)
    disguise = DISGUISES[draw.below(4 * len(DISGUISES)) % len(DISGUISES)] if draw.chance(2) else None
    if disguise is not None:
        made = disguise(made)
    packed = pack(made, form)
    if isinstance(packed, dict) and draw.chance(8):
        packed = type(packed)(reversed(packed.items()))
    return packed


def hostile_update(draw: Draw, row: np.ndarray, form: str, dtype: str) -> tuple[Any, str]:
    """An update that can't take part; in a few cases one that may or may not."""
    if draw.chance(3):
        value = draw.pick(VALUES)(dtype)
        bad = row.copy()
        if value is None:
            return pack(leaf(bad, form, dtype), form), CLEAN
        bad[draw.below(len(bad))] = value
        return pack(leaf(bad, form, dtype), form), BAD
    made, known = draw.pick(FLAWS)(draw, pack(leaf(row, form, dtype), form), leaf(row, form, dtype))
    return made, known


def _subclassed(a: Any) -> Any:
    return a.view(np.memmap) if isinstance(a, np.ndarray) else torch.nn.Parameter(a, requires_grad=True)


def _strided(a: Any) -> Any:
    return np.repeat(a, 2)[::2] if isinstance(a, np.ndarray) else a.repeat_interleave(2)[::2]


def _reversed(a: Any) -> Any:
    return a[::-1].copy()[::-1] if isinstance(a, np.ndarray) else a.flip(0).flip(0)


def _locked(a: Any) -> Any:
    if isinstance(a, np.ndarray):
        a = a.copy()
        a.flags.writeable = False
    return a


def _swapped(a: Any) -> Any:
    return a.astype(a.dtype.newbyteorder()) if isinstance(a, np.ndarray) else a


def _unaligned(a: Any) -> Any:
    return np.frombuffer(b"x" + a.tobytes(), a.dtype, offset=1) if isinstance(a, np.ndarray) else a


def _other_library(a: Any) -> Any:
    if isinstance(a, np.ndarray):
        return torch.from_numpy(a.copy())
    return a if a.dtype is torch.bfloat16 else a.numpy()


def _lazily_negated(a: Any) -> Any:
    return a if isinstance(a, np.ndarray) else torch._neg_view(-a)


def _column(a: Any) -> Any:
    return np.asfortranarray(np.stack([a, a]))[1] if isinstance(a, np.ndarray) else torch.stack([a, a], 1)[:, 1]


DISGUISES: list[Callable[[Any], Any]] = [
    *(_strided, _reversed, _locked, _swapped, _unaligned, _other_library, _lazily_negated, _column, _subclassed),
]
