"""Check that the ranks' shards and arguments agree; every rank checks the same list, so that all raise, or none."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, fields, is_dataclass
from functools import cached_property
from typing import Any

import numpy as np

from bartizan._util.text import short
from bartizan.errors import BadClientError


@dataclass(frozen=True)
class ShardInfo:
    """A rank's shard and arguments, compared among ranks before any number is read."""

    rank: int  # global rank
    same: dict[str, Any]  # what all ranks must pass alike, by name; bytes are compared and not shown
    dtypes: tuple[str, ...]  # none where there is no floating-point entry
    first: int | None
    width: int
    device: str
    quarantined: dict[int, str]


def agree(
    shards: Sequence[ShardInfo], n_shards: int, strict: bool = False
) -> tuple[tuple[int, ...], np.dtype, dict[int, str]]:
    """Return the first column of each rank's shard, the widest dtype, and the clients quarantined so far.

    The first `n_shards` ranks hold all columns, the others copies in the same order.
    """
    first = shards[0]
    for shard in shards:
        for name, value in first.same.items():
            _check_same(name, first, value, shard, shard.same[name])
    with_floats = [shard for shard in shards if shard.dtypes]
    for shard in with_floats:
        _check_same("the dtypes of the updates", with_floats[0], with_floats[0].dtypes, shard, shard.dtypes)
    firsts = _first_columns(shards[:n_shards])
    for rank, shard in enumerate(shards):
        _check_copy(shard, shards[rank % n_shards])
    quarantined: dict[int, str] = {}
    for shard in shards:
        for client, reason in shard.quarantined.items():
            quarantined.setdefault(client, f"rank {shard.rank}: {reason}")
    quarantined = dict(sorted(quarantined.items()))
    if quarantined and strict:
        raise BadClientError(*next(iter(quarantined.items())))
    widest = np.dtype(np.float64 if "float64" in with_floats[0].dtypes else np.float32)
    return firsts * (len(shards) // n_shards), widest, quarantined


def _check_same(name: str, shard: ShardInfo, value: Any, other: ShardInfo, other_value: Any) -> None:
    if value == other_value:
        return
    came = f": rank {shard.rank} has {short(value)}, rank {other.rank} has {short(other_value)}"
    if isinstance(value, bytes):
        came = f" (ranks {shard.rank} and {other.rank})"
    raise ValueError(f"The ranks disagree on {name}{came}. Pass the same on every rank.")


def _check_copy(shard: ShardInfo, original: ShardInfo) -> None:
    if (shard.first, shard.width) != (original.first, original.width):
        raise ValueError(
            f"rank {shard.rank} must hold a copy of rank {original.rank}'s {original.width} columns from "
            f"{original.first} on; got {shard.width} from {shard.first} on."
        )


def _first_columns(shards: Sequence[ShardInfo]) -> tuple[int, ...]:
    """The first column of each shard: by the offsets given, or one shard after the other."""
    given = [shard.first for shard in shards if shard.first is not None]
    if given and len(given) < len(shards):
        missing = next(shard.rank for shard in shards if shard.first is None)
        raise ValueError(f"rank {missing} passed no offset, but others did. Pass it on every rank, or on none.")
    firsts = given or [sum(shard.width for shard in shards[:n]) for n in range(len(shards))]
    dim, last = 0, None
    for first, shard in sorted(zip(firsts, shards, strict=True), key=lambda each: each[0]):
        if not shard.width:
            continue
        if first > dim:
            raise ValueError(f"Columns {dim} to {first} are held by no rank: the next ones are rank {shard.rank}'s.")
        if first < dim:
            raise ValueError(
                f"Columns {first} to {min(dim, first + shard.width)} are held twice, by ranks {last} and {shard.rank}. "
                f"Each must be held once."
            )
        dim, last = first + shard.width, shard.rank
    if not dim:
        raise ValueError("No rank holds any column: there is nothing to aggregate.")
    return tuple(firsts)


def describe(value: Any) -> str:
    """Like repr, but the same in every process: classes, functions and their settings by name, arrays by their bytes.

    >>> class Own:
    ...     def __init__(self, limit):
    ...         self.limit = limit
    >>> describe(Own(2)) == describe(Own(2)) != describe(Own(3))
    True
    """
    if isinstance(value, np.ndarray):
        digest = hashlib.sha256(np.ascontiguousarray(value).tobytes()).hexdigest()
        return f"array({value.dtype}, {value.shape}, {digest})"
    if isinstance(value, dict):
        return f"{{{', '.join(f'{describe(key)}: {describe(each)}' for key, each in value.items())}}}"
    if isinstance(value, (list, tuple, set, frozenset)):
        parts = map(describe, value) if isinstance(value, (list, tuple)) else sorted(map(describe, value))
        return f"{type(value).__name__}({', '.join(parts)})"
    if callable(value) and hasattr(value, "__qualname__"):
        return f"{value.__module__}.{value.__qualname__}"
    kind = type(value)
    if is_dataclass(value):
        settings = {each.name: getattr(value, each.name) for each in fields(value)}
    elif kind.__repr__ == object.__repr__:  # type: ignore[comparison-overlap]
        # A cached property is no setting: it may have been computed on one rank only.
        own = getattr(value, "__dict__", {})
        settings = {n: each for n, each in own.items() if not isinstance(getattr(kind, n, None), cached_property)}
    else:
        return repr(value)
    shown = ", ".join(f"{name}={describe(each)}" for name, each in settings.items())
    return f"{kind.__module__}.{kind.__qualname__}({shown})"
