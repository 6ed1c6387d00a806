"""Objects that behave differently when they are inspected and when they are read."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import numpy as np


class RaisesOnConversion:
    """Raises when it is converted to an array."""

    def __array__(self, *args: Any, **kwargs: Any) -> Any:
        raise RuntimeError("no array today")


class PretendsArray:
    """Claims to be an array, with the attributes that are read first."""

    dtype, shape, ndim, size = np.dtype("f4"), (3,), 1, 3

    @property
    def __class__(self) -> Any:
        return np.ndarray


class OverstatesShape(np.ndarray):
    """An array that claims a larger shape than it has."""

    @property
    def shape(self) -> Any:
        return (10**6, *np.asarray(self).shape)

    @property
    def size(self) -> Any:
        return 10**9


class HostileMapping(Mapping[Any, Any]):
    """A mapping with any keys, which may raise an error for its values or after being iterated `reads` times."""

    def __init__(
        self, items: Iterable[tuple[Any, Any]] = (("w", None),), error: BaseException | None = None, reads: int = 10**9
    ) -> None:
        self.items_, self.error, self.reads = list(items), error, reads

    def __getitem__(self, key: Any) -> Any:
        if self.error is not None:
            raise self.error
        return next(value for own, value in self.items_ if own is key or own == key)

    def __iter__(self) -> Iterator[Any]:
        self.reads -= 1
        if self.reads < 0:
            raise OSError("the file is gone")
        return iter([key for key, _ in self.items_])

    def __len__(self) -> int:
        return len(self.items_)


class UnprintableError(Exception):
    """An error that can't be printed."""

    def __str__(self) -> str:
        raise RuntimeError("nor this one")


class UnprintableKey:
    """A key that can be hashed and compared, but not printed."""

    def __hash__(self) -> int:
        return 1

    def __eq__(self, other: object) -> bool:
        return self is other

    def __str__(self) -> str:
        raise RuntimeError("no name")

    __repr__ = __str__


class UnhashableKey(UnprintableKey):
    """A key of a mapping that is no dict."""

    def __hash__(self) -> int:
        raise RuntimeError("no hash")


class InconsistentList(list[Any]):
    """A list whose length and truth contradict what it holds."""

    def __iter__(self) -> Iterator[Any]:
        return iter([0.5, "text"])

    def __len__(self) -> int:
        return 10**9

    def __bool__(self) -> bool:
        return True
