"""Objects that behave one way when they are looked at, and another when they are read."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np


class Raising:
    """Raises when it is made an array."""

    def __array__(self, *args: Any, **kwargs: Any) -> Any:
        raise RuntimeError("no array today")


class Posing:
    """Says that it is an array, and has what one is asked for first."""

    dtype, shape, ndim, size = np.dtype("f4"), (3,), 1, 3

    @property
    def __class__(self) -> Any:
        return np.ndarray


class Boasting(np.ndarray):
    """An array that says it is longer than it is."""

    @property
    def shape(self) -> Any:
        return (10**6, *np.asarray(self).shape)

    @property
    def size(self) -> Any:
        return 10**9


class Broken(Mapping[Any, Any]):
    """A container that raises something when it is looked into."""

    def __init__(self, error: BaseException) -> None:
        self.error = error

    def __getitem__(self, key: Any) -> Any:
        raise self.error

    def __iter__(self) -> Iterator[Any]:
        return iter(["w"])

    def __len__(self) -> int:
        return 1


class Mumbling(Exception):
    """An error that can't be printed."""

    def __str__(self) -> str:
        raise RuntimeError("nor this one")


class Fickle(Mapping[Any, Any]):
    """A container that can be read so many times, and then no more."""

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


class Name:
    """A key that can be hashed and compared, and not shown."""

    def __hash__(self) -> int:
        return 1

    def __eq__(self, other: object) -> bool:
        return self is other

    def __str__(self) -> str:
        raise RuntimeError("no name")

    __repr__ = __str__


class Unhashable(Name):
    """A key of a container that is no dict."""

    def __hash__(self) -> int:
        raise RuntimeError("no hash")


class Odd(Mapping[Any, Any]):
    """A container with one key of any kind."""

    def __init__(self, key: Any, value: Any) -> None:
        self.key, self.value = key, value

    def __getitem__(self, key: Any) -> Any:
        return self.value

    def __iter__(self) -> Iterator[Any]:
        return iter([self.key])

    def __len__(self) -> int:
        return 1


class Crooked(list[Any]):
    """A list that says it is empty, or full of numbers, as it likes."""

    def __iter__(self) -> Iterator[Any]:
        return iter([0.5, "text"])

    def __len__(self) -> int:
        return 10**9

    def __bool__(self) -> bool:
        return True
