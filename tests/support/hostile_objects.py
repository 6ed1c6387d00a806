"""Objects that behave differently when they are inspected and when they are read."""

import errno
from collections.abc import Mapping
from pathlib import PosixPath

import numpy as np

from bartizan.errors import ServerResourceError


class RaisesOnConversion:
    def __array__(self, *args, **kwargs):
        raise RuntimeError("no array today")


class PretendsArray:
    """An object that claims to be an array, with the attributes that are read first."""

    dtype, shape, ndim, size = np.dtype("f4"), (3,), 1, 3
    __class__ = property(lambda self: np.ndarray)


class OverstatesShape(np.ndarray):
    """An array that claims a larger shape than it has."""

    shape = property(lambda self: (10**6, *np.asarray(self).shape))
    size = property(lambda self: 10**9)


class HostileMapping(Mapping):
    """A mapping with any keys, which may raise an error for its values or after being iterated `reads` times."""

    def __init__(self, items=(("w", None),), error=None, reads=10**9):
        self.items_, self.error, self.reads = list(items), error, reads

    def __getitem__(self, key):
        if self.error is not None:
            raise self.error
        return next(value for own, value in self.items_ if own is key or own == key)

    def __iter__(self):
        self.reads -= 1
        if self.reads < 0:
            raise OSError("the file is gone")
        return iter([key for key, _ in self.items_])

    def __len__(self):
        return len(self.items_)


class UnprintableError(Exception):
    def __str__(self):
        raise RuntimeError("nor this one")


class UnprintableKey:
    """A key that can be hashed and compared, but not printed."""

    def __hash__(self):
        return 1

    def __eq__(self, other):
        return self is other

    def __str__(self):
        raise RuntimeError("no name")

    __repr__ = __str__


class UnhashableKey(UnprintableKey):
    """A key of a mapping that is no dict."""

    def __hash__(self):
        raise RuntimeError("no hash")


class InconsistentList(list):
    """A list whose length and truth contradict what it holds."""

    def __iter__(self):
        return iter([0.5, "text"])

    def __len__(self):
        return 10**9

    def __bool__(self):
        return True


class Unclassed:
    """An object that raises when it is asked for its class."""

    @property
    def __class__(self):
        raise RuntimeError("not telling")


class ClaimingPath(PosixPath):
    """A path that claims that the server is at fault, from the time when `claims` is set."""

    claims = False

    def __getattribute__(self, name):
        if ClaimingPath.claims:
            raise ServerResourceError(errno.EMFILE, "Too many open files")
        return super().__getattribute__(name)
