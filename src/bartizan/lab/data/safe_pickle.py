"""Pickles read as data: dicts, lists, tuples, strings, numbers and byte arrays, and nothing is ever called.

`pickle.load` runs what a file names. Here the standard library only cuts the file into its instructions
(`pickletools.genops`); a stack of our own builds plain values from the few that data needs. What stands for a call in
the file becomes a `Call` that nobody makes, and only those that numpy writes for an array of bytes may stand there.
"""

from __future__ import annotations

import io
import pickletools
from dataclasses import dataclass
from itertools import islice
from math import prod
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

MOST = 1_000_000  # instructions; CIFAR-100's largest file has some 200,000
AXES = 4  # of an array
CONSTANTS = {"NONE": None, "NEWTRUE": True, "NEWFALSE": False}
EMPTY: dict[str, type[Any]] = {"EMPTY_DICT": dict, "EMPTY_LIST": list, "EMPTY_TUPLE": tuple}
VALUES = {
    *("BININT", "BININT1", "BININT2", "LONG1", "INT", "LONG"),
    *("SHORT_BINSTRING", "BINSTRING", "STRING", "SHORT_BINBYTES", "BINBYTES", "BINBYTES8"),
    *("SHORT_BINUNICODE", "BINUNICODE", "UNICODE"),
}
TUPLES = {"TUPLE1": 1, "TUPLE2": 2, "TUPLE3": 3}


class Name(NamedTuple):
    """What a file wants to import; it is compared, never looked up."""

    module: str
    name: str


DTYPE, NDARRAY, ENCODE = Name("numpy", "dtype"), Name("numpy", "ndarray"), Name("_codecs", "encode")
RECONSTRUCT = {Name(f"numpy.{core}.multiarray", "_reconstruct") for core in ("core", "_core")}
ALLOWED = {DTYPE, NDARRAY, ENCODE, *RECONSTRUCT}


class NotDataError(ValueError):
    """A pickle that is broken, or that holds more than data."""


@dataclass(eq=False)
class Call:
    """What a file wants to call, with what; `state` is what it wants the result to be given."""

    name: Any
    arguments: Any
    state: Any = None


def loads(data: bytes) -> Any:
    """The value in a pickle; strings of Python 2 become str.

    >>> import pickle
    >>> loads(pickle.dumps({"labels": [3, 1], "done": (True, None)}))
    {'labels': [3, 1], 'done': (True, None)}
    >>> loads(b"cos\\nsystem\\n(S'echo'\\ntR.")
    Traceback (most recent call last):
    bartizan.lab.data.safe_pickle.NotDataError: it wants to import 'os.system', which data does not need.
    """
    machine = _Machine()
    try:
        # A stream in memory reads no further than its end, whatever length the file claims.
        for operation, argument, _ in islice(pickletools.genops(io.BytesIO(data)), MOST):
            if operation.name == "STOP":
                return machine.stack.pop()
            machine.step(operation.name, argument)
    except NotDataError:
        raise
    except (ValueError, IndexError, KeyError, TypeError, Warning) as broken:  # newer Pythons warn of odd escapes
        raise NotDataError(f"it is no whole pickle ({broken}).") from broken
    raise NotDataError(f"it has more than {MOST:,} instructions.")


def array(value: Any) -> npt.NDArray[np.uint8]:
    """The array of bytes that a value of `loads` stands for."""
    state = value.state if type(value) is Call and value.name in RECONSTRUCT else None
    if type(state) is not tuple or len(state) != 5:
        raise NotDataError("it has something else where an array was wanted.")
    _, shape, dtype, by_column, data = state
    if type(dtype) is not Call or dtype.name != DTYPE or text(dtype.arguments[0]).lstrip("|") not in ("u1", "uint8"):
        raise NotDataError("its array is not of bytes (uint8).")
    try:
        data = data.encode("latin-1") if type(data) is str else data
    except UnicodeEncodeError:
        data = None
    if type(data) is not bytes or type(shape) is not tuple or len(shape) > AXES:
        raise NotDataError("its array is not as numpy writes one.")
    if not all(type(side) is int and 0 <= side <= len(data) for side in shape) or prod(shape) != len(data):
        raise NotDataError(f"its array's shape and its {len(data):,} bytes do not fit.")
    return np.frombuffer(data, np.uint8).reshape(shape, order="F" if by_column is True else "C")


def text(value: Any) -> str:
    """A string, be it one of bytes."""
    if type(value) not in (str, bytes):
        raise NotDataError("it has something else where a string was wanted.")
    return value.decode("latin-1") if type(value) is bytes else value


class _Machine:
    def __init__(self) -> None:
        self.stack: list[Any] = []
        self.below: list[list[Any]] = []  # what stood there before each open mark
        self.memo: dict[int, Any] = {}

    def step(self, name: str, argument: Any) -> None:
        push, pop = self.stack.append, self.stack.pop
        if name in VALUES:
            push(argument)
        elif name in CONSTANTS:
            push(CONSTANTS[name])
        elif name in EMPTY:
            push(EMPTY[name]())
        elif name in TUPLES:
            count = TUPLES[name]
            if len(self.stack) < count:
                raise NotDataError("it is no whole pickle (a tuple of too little).")
            self.stack[-count:] = [tuple(self.stack[-count:])]
        elif name in ("BINPUT", "LONG_BINPUT", "PUT"):
            self.memo[argument] = self.stack[-1]
        elif name == "MEMOIZE":
            self.memo[len(self.memo)] = self.stack[-1]
        elif name in ("BINGET", "LONG_BINGET", "GET"):
            push(self.memo[argument])
        elif name == "MARK":
            self.below.append(self.stack)
            self.stack = []
        elif name in ("TUPLE", "LIST", "DICT", "APPENDS", "SETITEMS"):
            self._gather(name)
        elif name == "APPEND":
            one = pop()
            self._top(list).append(one)
        elif name == "SETITEM":
            one, key = pop(), pop()
            self._top(dict)[_key(key)] = one
        elif name == "GLOBAL":
            push(_allowed(*argument.split(" ", 1)))
        elif name == "STACK_GLOBAL":
            last, module = pop(), pop()
            push(_allowed(module, last))
        elif name == "REDUCE":
            arguments = pop()
            push(_called(pop(), arguments))
        elif name == "BUILD":
            state = pop()
            self._top(Call).state = state
        elif name not in ("PROTO", "FRAME"):
            raise NotDataError(f"it has the instruction {name}, which data does not need.")

    def _gather(self, name: str) -> None:
        """What was put there since the last mark becomes one value, or goes into the one below."""
        items, self.stack = self.stack, self.below.pop()
        if name == "TUPLE":
            self.stack.append(tuple(items))
        elif name == "LIST":
            self.stack.append(items)
        elif name == "APPENDS":
            self._top(list).extend(items)
        else:
            if name == "DICT":
                self.stack.append({})
            self._top(dict).update(zip(map(_key, items[::2]), items[1::2], strict=True))

    def _top(self, kind: type[Any]) -> Any:
        if type(self.stack[-1]) is not kind:
            raise NotDataError(f"it is no whole pickle (a {type(self.stack[-1]).__name__}, not a {kind.__name__}).")
        return self.stack[-1]


def _key(value: Any) -> Any:
    if type(value) not in (str, bytes, int):  # a deep tuple's hash would overrun the C stack
        raise NotDataError("it has a dict whose keys are neither strings nor numbers.")
    return value


def _allowed(module: Any, name: Any) -> Name:
    wanted = Name(text(module), text(name))
    if wanted not in ALLOWED:
        raise NotDataError(f"it wants to import {'.'.join(wanted)[:60]!r}, which data does not need.")
    return wanted


def _called(name: Any, arguments: Any) -> Call | bytes:
    if type(name) is not Name or name == NDARRAY or type(arguments) is not tuple or not arguments:
        raise NotDataError("it wants to call what data does not need.")
    if name == ENCODE:  # how Python 3 writes bytes for Python 2
        return text(arguments[0]).encode("latin-1")
    return Call(name, arguments)
