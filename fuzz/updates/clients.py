"""Strategies of the clients of one round: clean updates in every container and memory layout, and malformed ones."""

from collections import OrderedDict
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from hypothesis import strategies as st

from fuzz.updates.malformed import BAD, BITS, MALFORMED, value_of
from fuzz.values import pick, rarely

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

    def indices(self, kind):
        return {m for m, one in enumerate(self.known) if one == kind}

    @property
    def majority(self):
        """Whether clean clients are a majority, so that it is known who must be quarantined."""
        return 2 * len(self.indices(CLEAN)) > len(self.known)

    def _repr_pretty_(self, printer, cycle):
        """Show hostile objects, too, in what Hypothesis prints."""
        sent = "\n".join(f"  {known}: {shown(one)}" for known, one in zip(self.known, self.sent, strict=False))
        printer.text(f"Clients of {self.x.shape[1]} numbers, {self.form}, {self.dtype}:\n{sent}")


def shown(thing):
    """Return a short text of an object, which may not be printable."""
    try:
        return repr(thing).replace("\n", "")[:150]
    except Exception as error:
        return f"{type(thing).__name__}, which can't be printed: {type(error).__name__}"


@st.composite
def clients(draw, most=12):
    """Draw 1 to `most` clients; in most cases at most half of them are hostile."""
    M, p = draw(st.integers(1, most)), draw(st.integers(1, 300))
    dtype, form, hostility = pick(draw, DTYPES), pick(draw, FORMS), draw(st.integers(0, 7))
    x = stored(numbers(draw, M, p), dtype)
    made = Clients(form, dtype, widened(x, dtype))
    for row in x:
        hostile = hostility and draw(st.integers(0, 8 + hostility)) > 8
        sent, known = (hostile_update if hostile else clean_update)(draw, row, form, dtype)
        made.sent.append(sent)
        made.known.append(known)
    return made


@st.composite
def matrix(draw):
    """Draw one array with a row per client: only its numbers can be bad."""
    M, p, dtype = draw(st.integers(1, 12)), draw(st.integers(1, 300)), pick(draw, DTYPES[:3])
    x, known = stored(numbers(draw, M, p), dtype), [CLEAN] * M
    for m in range(M):
        if draw(rarely(6)) and (value := value_of(pick(draw, [*BITS]), dtype)) is not None:
            x[m, draw(st.integers(0, p - 1))], known[m] = value, BAD
    return Clients("matrix", dtype, x.astype(np.float64), [pick(draw, MATRIX_LAYOUTS)(x)], known)


def numbers(draw, M, p):
    """Draw rows around a common point, at some scale; some may coincide, be zero or be far away."""
    start, special, m = draw(st.integers(0, 65535)), draw(st.integers(0, 11)), draw(st.integers(0, M - 1))
    x = POOL[np.arange(start, start + M * p) % len(POOL)].reshape(M, p) + 3 * POOL[start]
    if special == 1:
        x[:] = x[0]
    elif special == 2:
        x = np.where(x > 3 * POOL[start], -0.0, 0.0)
    elif special == 3:
        x[m] *= 1e3
    elif special == 4:
        x[m, draw(st.integers(0, p - 1))] = 3e4
    elif special == 5:
        x += 1e3
    return x * {6: 1e-42, 7: 1e-310}.get(special, 1.0)


def stored(x, dtype):
    """Return the numbers as the dtype stores them: bfloat16 as the upper half of float32."""
    if dtype == "bfloat16":
        return (np.ascontiguousarray(x, np.float32).view(np.uint32) >> 16).astype(np.uint16)
    return x.astype(dtype)


def widened(x, dtype):
    if dtype == "bfloat16":
        x = (x.astype(np.uint32) << 16).view(np.float32)
    return x.astype(np.float64)


def leaf(row, form, dtype):
    """Return the numbers as a NumPy array or a torch tensor, as the form requires."""
    if dtype == "bfloat16":
        return torch.from_numpy(row.copy()).view(torch.bfloat16)
    return torch.from_numpy(row.copy()) if form in ("tensor", "state dict") else row


def pack(leaf, form):
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


def clean_update(draw, row, form, dtype):
    """Return a valid update, in some memory layout."""
    packed = pack(pick(draw, [*[lambda a: a] * len(LAYOUTS), *LAYOUTS])(leaf(row, form, dtype)), form)
    if isinstance(packed, dict) and draw(rarely(8)):
        packed = type(packed)(reversed(packed.items()))
    return packed, CLEAN


def hostile_update(draw, row, form, dtype):
    """Return an update that must be quarantined; in a few cases one that may be."""
    if draw(rarely(3)):
        value, bad = value_of(pick(draw, [*BITS]), dtype), row.copy()
        if value is not None:
            bad[draw(st.integers(0, len(bad) - 1))] = value
        return pack(leaf(bad, form, dtype), form), CLEAN if value is None else BAD
    return pick(draw, MALFORMED)(draw, pack(leaf(row, form, dtype), form), leaf(row, form, dtype))


def _read_only(a):
    a = a.copy()
    a.flags.writeable = False
    return a


def _swapped(a):
    return a.astype(a.dtype.newbyteorder())


def _either(of_arrays, of_tensors=lambda a: a):
    return lambda a: of_arrays(a) if isinstance(a, np.ndarray) else of_tensors(a)


LAYOUTS = [
    _either(lambda a: np.repeat(a, 2)[::2], lambda a: a.repeat_interleave(2)[::2]),
    _either(lambda a: a[::-1].copy()[::-1], lambda a: torch._neg_view(-a)),
    _either(lambda a: np.asfortranarray(np.stack([a, a]))[1], lambda a: torch.stack([a, a], 1)[:, 1]),
    _either(lambda a: a.view(np.memmap), lambda a: torch.nn.Parameter(a, requires_grad=True)),
    _either(lambda a: torch.from_numpy(a.copy()), lambda a: a if a.dtype is torch.bfloat16 else a.numpy()),
    _either(lambda a: np.frombuffer(b"x" + a.tobytes(), a.dtype, offset=1)),
    *(_either(_read_only), _either(_swapped)),
]
MATRIX_LAYOUTS = [
    *(lambda a: a, np.asfortranarray, lambda a: np.repeat(a, 2, axis=1)[:, ::2], torch.from_numpy, _swapped),
    lambda a: a[::-1, ::-1].copy()[::-1, ::-1],
]
