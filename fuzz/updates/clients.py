"""Draw the clients of one round: clean updates in every container and memory layout, and malformed ones."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch

from fuzz.draw import Draw
from fuzz.updates.malformed import BAD, MALFORMED, VALUES

POOL = np.random.default_rng(20260101).normal(size=70_000)
"""Numbers of all cases."""
DTYPES = ("float32", "float64", "float16", "bfloat16")
FORMS = ("array", "layers", "dict", "nested", "tensor", "state dict")
CLEAN = "clean"


@dataclass
class Clients:
    """The updates that clients send, and whether each must be quarantined."""

    form: str
    dtype: str
    x: np.ndarray
    """(M, p) numbers of each client, rounded to its dtype, in float64."""
    sent: list[Any] = field(default_factory=list)
    known: list[str] = field(default_factory=list)

    def indices(self, kind: str) -> set[int]:
        return {m for m, one in enumerate(self.known) if one == kind}

    @property
    def majority(self) -> bool:
        """Whether clean clients are a majority, so that it is known who must be quarantined."""
        return 2 * len(self.indices(CLEAN)) > len(self.known)


def draw_clients(draw: Draw, most: int = 12) -> Clients:
    """Draw 1 to `most` clients; in most cases at most half of them are hostile."""
    M, p = 1 + draw.below(most), 1 + draw.below(300)
    dtype, form = draw.pick(DTYPES), draw.pick(FORMS)
    x = stored(numbers(draw, M, p), dtype)
    made = Clients(form, dtype, widened(x, dtype))
    hostility = draw.below(8)
    for m in range(M):
        hostile = hostility and draw.below(9 + hostility) >= 9
        sent, known = (
            hostile_update(draw, x[m], form, dtype) if hostile else (clean_update(draw, x[m], form, dtype), CLEAN)
        )
        made.sent.append(sent)
        made.known.append(known)
    return made


def numbers(draw: Draw, M: int, p: int) -> np.ndarray:
    """Draw rows around a common point, at some scale; some may coincide, be zero or be far away."""
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
    """Return the numbers as the dtype stores them: bfloat16 as the upper half of float32."""
    if dtype == "bfloat16":
        return (np.ascontiguousarray(x, np.float32).view(np.uint32) >> 16).astype(np.uint16)
    return x.astype(dtype)


def widened(x: np.ndarray, dtype: str) -> np.ndarray:
    if dtype == "bfloat16":
        x = (x.astype(np.uint32) << 16).view(np.float32)
    return x.astype(np.float64)


def leaf(row: np.ndarray, form: str, dtype: str) -> Any:
    """Return the numbers as a NumPy array or a torch tensor, as the form requires."""
    if dtype == "bfloat16":
        return torch.from_numpy(row.copy()).view(torch.bfloat16)
    return torch.from_numpy(row.copy()) if form in ("tensor", "state dict") else row


def pack(leaf: Any, form: str) -> Any:
    """Return one flat array as an update of this form."""
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


def clean_update(draw: Draw, row: np.ndarray, form: str, dtype: str) -> Any:
    """Return a valid update, in some memory layout."""
    made = leaf(row, form, dtype)
    layout = LAYOUTS[draw.below(4 * len(LAYOUTS)) % len(LAYOUTS)] if draw.chance(2) else None
    if layout is not None:
        made = layout(made)
    packed = pack(made, form)
    if isinstance(packed, dict) and draw.chance(8):
        packed = type(packed)(reversed(packed.items()))
    return packed


def hostile_update(draw: Draw, row: np.ndarray, form: str, dtype: str) -> tuple[Any, str]:
    """Return an update that must be quarantined; in a few cases one that may be."""
    if draw.chance(3):
        value = draw.pick(VALUES)(dtype)
        bad = row.copy()
        if value is None:
            return pack(leaf(bad, form, dtype), form), CLEAN
        bad[draw.below(len(bad))] = value
        return pack(leaf(bad, form, dtype), form), BAD
    made, known = draw.pick(MALFORMED)(draw, pack(leaf(row, form, dtype), form), leaf(row, form, dtype))
    return made, known


def _subclassed(a: Any) -> Any:
    return a.view(np.memmap) if isinstance(a, np.ndarray) else torch.nn.Parameter(a, requires_grad=True)


def _strided(a: Any) -> Any:
    return np.repeat(a, 2)[::2] if isinstance(a, np.ndarray) else a.repeat_interleave(2)[::2]


def _reversed(a: Any) -> Any:
    return a[::-1].copy()[::-1] if isinstance(a, np.ndarray) else a.flip(0).flip(0)


def _read_only(a: Any) -> Any:
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


LAYOUTS: list[Callable[[Any], Any]] = [
    *(_strided, _reversed, _read_only, _swapped, _unaligned, _other_library, _lazily_negated, _column, _subclassed),
]
