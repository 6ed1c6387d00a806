"""Objects that behave differently when they are inspected and when they are read."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
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


class RaisingMapping(Mapping[Any, Any]):
    """A mapping that raises the given error when a value is read."""

    def __init__(self, error: BaseException) -> None:
        self.error = error

    def __getitem__(self, key: Any) -> Any:
        raise self.error

    def __iter__(self) -> Iterator[Any]:
        return iter(["w"])

    def __len__(self) -> int:
        return 1


class UnprintableError(Exception):
    """An error that can't be printed."""

    def __str__(self) -> str:
        raise RuntimeError("nor this one")


class ReadableTimes(Mapping[Any, Any]):
    """A mapping that can be iterated a given number of times."""

    def __init__(self, content: Mapping[Any, Any], times: int) -> None:
        self.content, self.left = content, times

    def __getitem__(self, key: Any) -> Any:
        return self.content[key]

    def __iter__(self) -> Iterator[Any]:
        self.left -= 1
        if self.left < 0:
            raise OSError("the file is gone")
        return iter(self.content)

    def __len__(self) -> int:
        return len(self.content)


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


class OneKeyMapping(Mapping[Any, Any]):
    """A mapping with one key of any kind."""

    def __init__(self, key: Any, value: Any) -> None:
        self.key, self.value = key, value

    def __getitem__(self, key: Any) -> Any:
        return self.value

    def __iter__(self) -> Iterator[Any]:
        return iter([self.key])

    def __len__(self) -> int:
        return 1


class InconsistentList(list[Any]):
    """A list whose length and truth contradict what it holds."""

    def __iter__(self) -> Iterator[Any]:
        return iter([0.5, "text"])

    def __len__(self) -> int:
        return 10**9

    def __bool__(self) -> bool:
        return True
