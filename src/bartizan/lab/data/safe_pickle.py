"""Read pickles that hold only data: dicts, lists, tuples, strings, numbers and arrays of bytes.

`pickle.load` imports and calls whatever a file names. Here a first pass over the file's instructions
(`pickletools.genops`) refuses all but the few that data needs, and those that would take memory or stack without bound.
Then the standard library's unpickler runs, but its `find_class` imports nothing: each name that NumPy writes for an
array becomes a `Name`, and calling it records the call.
"""

from __future__ import annotations

import io
import pickle
import pickletools
from dataclasses import dataclass
from itertools import islice
from math import prod
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

MAX_INSTRUCTIONS = 1_000_000  # instructions; CIFAR-100's largest file has some 200,000
MAX_TUPLES = 1_000  # in one file: the hash of a deeply nested one would overrun the C stack
MAX_AXES = 4  # of an array
INSTRUCTIONS = {
    *("PROTO", "FRAME", "MARK", "STOP", "NONE", "NEWTRUE", "NEWFALSE"),
    *("BININT", "BININT1", "BININT2", "LONG1", "INT", "LONG"),
    *("SHORT_BINSTRING", "BINSTRING", "STRING", "SHORT_BINBYTES", "BINBYTES", "BINBYTES8"),
    *("SHORT_BINUNICODE", "BINUNICODE", "UNICODE"),
    *("EMPTY_LIST", "LIST", "APPEND", "APPENDS", "EMPTY_DICT", "DICT", "SETITEM", "SETITEMS"),
    *("EMPTY_TUPLE", "TUPLE", "TUPLE1", "TUPLE2", "TUPLE3"),
    *("PUT", "BINPUT", "LONG_BINPUT", "MEMOIZE", "GET", "BINGET", "LONG_BINGET"),
    *("GLOBAL", "STACK_GLOBAL", "REDUCE", "BUILD"),
}


class NotDataError(ValueError):
    """A pickle that is broken, or that holds more than data."""


class Name(NamedTuple):
    """A name that a file asks to import. It has no `__dict__` and no `__setstate__`, so a file can't change it."""

    module: str
    name: str

    def __call__(self, *arguments: Any) -> Call | bytes:
        if self == NDARRAY or not arguments:
            raise NotDataError("it makes a call, which data does not need.")
        if self == ENCODE:  # how Python 3 writes bytes for Python 2
            return text(arguments[0]).encode("latin-1")
        return Call(self, arguments)


DTYPE, NDARRAY, ENCODE = Name("numpy", "dtype"), Name("numpy", "ndarray"), Name("_codecs", "encode")
RECONSTRUCT = {Name(f"numpy.{core}.multiarray", "_reconstruct") for core in ("core", "_core")}
ALLOWED = {DTYPE, NDARRAY, ENCODE, *RECONSTRUCT}


@dataclass(eq=False)
class Call:
    """A call in a file, which is not made, and the state that the file gives to its result."""

    name: Name
    arguments: tuple[Any, ...]
    state: Any = None

    def __setstate__(self, state: Any) -> None:
        self.state = state


class _Unpickler(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Name:
        wanted = Name(module, name)
        if wanted not in ALLOWED:
            raise NotDataError(f"it wants to import {'.'.join(wanted)[:60]!r}, which data does not need.")
        return wanted


def loads(data: bytes) -> Any:
    """Return the value in a pickle; strings of Python 2 become str.

    >>> loads(pickle.dumps({"labels": [3, 1], "done": (True, None)}))
    {'labels': [3, 1], 'done': (True, None)}
    >>> loads(b"cos\\nsystem\\n(S'echo'\\ntR.")
    Traceback (most recent call last):
    bartizan.lab.data.safe_pickle.NotDataError: it wants to import 'os.system', which data does not need.
    """
    try:
        _check_instructions(data)
        return _Unpickler(io.BytesIO(data), encoding="latin-1").load()
    except NotDataError:
        raise
    except Exception as broken:  # the standard library raises many kinds
        raise NotDataError(f"expected a complete pickle ({str(broken)[:200]}).") from broken


def _check_instructions(data: bytes) -> None:
    tuples = 0
    argument: Any
    for count, (instruction, argument, _) in enumerate(islice(pickletools.genops(io.BytesIO(data)), MAX_INSTRUCTIONS)):
        if instruction.name not in INSTRUCTIONS:
            raise NotDataError(f"it has the instruction {instruction.name}, which data does not need.")
        tuples += instruction.name.startswith("TUPLE")
        # Unpickling takes memory for as many numbered values as the highest number says.
        if tuples > MAX_TUPLES or (instruction.name.endswith("PUT") and not 0 <= argument <= count):
            raise NotDataError(f"it has more than {MAX_TUPLES:,} tuples, or a memo index that is too large.")
        if instruction.name == "STOP":
            return
    raise NotDataError(f"it has more than {MAX_INSTRUCTIONS:,} instructions.")


def array(value: Any) -> npt.NDArray[np.uint8]:
    """Return the array of bytes that a value of `loads` stands for."""
    state = value.state if type(value) is Call and value.name in RECONSTRUCT else None
    if type(state) is not tuple or len(state) != 5:
        raise NotDataError("expected an array, got another value.")
    _, shape, dtype, by_column, data = state
    if type(dtype) is not Call or dtype.name != DTYPE or text(dtype.arguments[0]).lstrip("|") not in ("u1", "uint8"):
        raise NotDataError("expected an array of bytes (uint8), got another dtype.")
    try:
        data = data.encode("latin-1") if type(data) is str else data
    except UnicodeEncodeError:
        data = None
    if type(data) is not bytes or type(shape) is not tuple or len(shape) > MAX_AXES:
        raise NotDataError("expected the shape and the bytes of an array, got other values.")
    if not all(type(side) is int and 0 <= side <= len(data) for side in shape) or prod(shape) != len(data):
        raise NotDataError(f"its array's shape does not match its {len(data):,} bytes.")
    return np.frombuffer(data, np.uint8).reshape(shape, order="F" if by_column is True else "C")


def text(value: Any) -> str:
    """Return a string, decoded if it is bytes."""
    if type(value) not in (str, bytes):
        raise NotDataError(f"expected a string, got {type(value).__name__}.")
    return value.decode("latin-1") if type(value) is bytes else value
