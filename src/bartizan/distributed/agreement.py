"""Check what all ranks must have in common, on each rank from the same list: all raise, or none."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, field, fields, is_dataclass
from functools import cached_property
from typing import Any

import numpy as np

from bartizan.distributed.failure import Failure
from bartizan.errors import BadClientError

SAME = {
    "rule": "the rule",
    "sketch": "the sketch",
    "n_clients": "the number of clients",
    "dtypes": "the dtypes of the updates",
    "reference": "whether there is a reference",
    "trusted": "whether there is a trusted update",
    "history": "the history",
    "strict": "strict",
}
SAME_NOT_SHOWN = {"sizes": "the clients' sizes", "seed": "the seed"}


@dataclass(frozen=True, repr=False)
class Fingerprint:
    """The repr of a value, and a digest of its settings by which ranks compare it."""

    shown: str = field(compare=False)
    digest: bytes

    @classmethod
    def of(cls, value: Any) -> Fingerprint:
        return cls(repr(value), hashlib.sha256(describe(value).encode()).digest())

    def __repr__(self) -> str:
        return self.shown


@dataclass(frozen=True)
class ShardInfo:
    """A rank's shard and arguments, compared among ranks before any number is read."""

    rank: int  # global rank
    rule: Fingerprint
    sketch: Fingerprint
    n_clients: int
    dtypes: tuple[str, ...]  # none where there is no floating-point entry
    reference: bool
    trusted: bool
    history: Fingerprint
    strict: bool
    sizes: bytes | None  # as bytes, so that NaN equals NaN
    seed: int | None
    first: int | None
    width: int
    dim: int | None
    device: str
    quarantined: dict[int, str]


@dataclass(frozen=True)
class Agreement:
    """First column and width of each rank's shard, columns in all, their dtypes, and clients quarantined so far."""

    firsts: tuple[int, ...]
    widths: tuple[int, ...]
    dim: int
    dtypes: tuple[str, ...]
    quarantined: dict[int, str]


def agree(infos: Sequence[ShardInfo | Failure], n_shards: int) -> Agreement:
    """Of `n_shards` ranks that hold all columns, and after them ranks that hold copies, in the same order."""
    shards = []
    for info in infos:
        if isinstance(info, Failure):
            raise info.error()
        shards.append(info)
    with_floats = [shard for shard in shards if shard.dtypes]
    for name, words in (SAME | SAME_NOT_SHOWN).items():
        _check_same(name, words, with_floats if name == "dtypes" else shards)
    firsts, dim = _first_columns(shards[:n_shards])
    for rank, shard in enumerate(shards):
        _check_copy(shard, shards[rank % n_shards])
    quarantined: dict[int, str] = {}
    for shard in shards:
        for client, reason in shard.quarantined.items():
            quarantined.setdefault(client, f"rank {shard.rank}: {reason}")
    quarantined = dict(sorted(quarantined.items()))
    if quarantined and shards[0].strict:
        raise BadClientError(*next(iter(quarantined.items())))
    n_copies = len(shards) // n_shards
    widths = tuple(shard.width for shard in shards)
    return Agreement(firsts * n_copies, widths, dim, with_floats[0].dtypes, quarantined)


def _check_same(name: str, words: str, shards: Sequence[ShardInfo]) -> None:
    for shard in shards:
        one, other = getattr(shards[0], name), getattr(shard, name)
        if other != one:
            came = f" (ranks {shards[0].rank} and {shard.rank})"
            if name in SAME:
                came = f": rank {shards[0].rank} has {one!r}, rank {shard.rank} has {other!r}"
            raise ValueError(f"The ranks disagree on {words}{came}. Pass the same on every rank.")


def _check_copy(shard: ShardInfo, original: ShardInfo) -> None:
    if (shard.first, shard.width, shard.dim) != (original.first, original.width, original.dim):
        raise ValueError(
            f"rank {shard.rank} must hold a copy of rank {original.rank}'s {original.width} columns from "
            f"{original.first} on; got {shard.width} from {shard.first} on."
        )


def _first_columns(shards: Sequence[ShardInfo]) -> tuple[tuple[int, ...], int]:
    """The first column of each shard and the columns in all: by the offsets given, or one shard after the other."""
    given = [shard.first for shard in shards if shard.first is not None]
    if given and len(given) < len(shards):
        missing = next(shard.rank for shard in shards if shard.first is None)
        raise ValueError(f"rank {missing} passed no offset, but others did. Pass it on every rank, or on none.")
    firsts, dim = [], 0
    if not given:
        for shard in shards:
            firsts.append(dim)
            dim += shard.width
    else:
        firsts = given
        last = None
        for shard in sorted((shard for shard in shards if shard.width), key=lambda shard: shard.first or 0):
            first, rank = shard.first or 0, shard.rank
            if first > dim:
                raise ValueError(f"Columns {dim} to {first} are held by no rank: the next ones are rank {rank}'s.")
            if first < dim:
                raise ValueError(
                    f"Columns {first} to {min(dim, first + shard.width)} are held twice, by ranks {last} and {rank}. "
                    f"Each must be held once."
                )
            dim, last = first + shard.width, rank
    whole = {shard.dim for shard in shards if shard.dim is not None}
    if any(wanted != dim for wanted in whole):
        raise ValueError(f"The updates have {max(whole)} columns, but the ranks of this group hold {dim} of them.")
    if not dim:
        raise ValueError("No rank holds any column: there is nothing to aggregate.")
    return tuple(firsts), dim


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
    if isinstance(value, (list, tuple)):
        return f"{type(value).__name__}({', '.join(map(describe, value))})"
    if isinstance(value, (set, frozenset)):
        return f"{type(value).__name__}({', '.join(sorted(map(describe, value)))})"
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
    return f"{kind.__module__}.{kind.__qualname__}({describe(settings)})"
