"""What all ranks must have in common, checked on each of them from the same list: all raise, or none."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

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
SAME_UNSHOWN = {"sizes": "the clients' sizes", "seed": "the seed"}


@dataclass(frozen=True)
class Claim:
    """What a rank says of its shard and its arguments, before any number is read."""

    rule: str
    sketch: str
    n_clients: int
    dtypes: tuple[str, ...]
    reference: bool
    trusted: bool
    history: tuple[float, ...]
    strict: bool
    sizes: tuple[float, ...] | None
    seed: int | None
    first: int | None
    width: int
    dim: int | None
    device: str
    quarantined: dict[int, str]


@dataclass(frozen=True)
class Agreement:
    """Where each rank's columns begin, how many there are in all, and who is out already."""

    firsts: tuple[int, ...]
    widths: tuple[int, ...]
    dim: int
    quarantined: dict[int, str]


def agreed(said: Sequence[Claim | Failure], n_shards: int) -> Agreement:
    """Of `n_shards` ranks that hold all columns, and after them those that hold copies, in the same order."""
    claims = []
    for rank, claim in enumerate(said):
        if isinstance(claim, Failure):
            raise claim.error(rank)
        claims.append(claim)
    for name, words in (SAME | SAME_UNSHOWN).items():
        _check_same(name, words, claims)
    firsts, dim = _placed(claims[:n_shards])
    for rank, claim in enumerate(claims):
        _check_copy(rank, claim, rank % n_shards, claims[rank % n_shards])
    quarantined: dict[int, str] = {}
    for rank, claim in enumerate(claims):
        for client, reason in claim.quarantined.items():
            quarantined.setdefault(client, f"rank {rank}: {reason}")
    quarantined = dict(sorted(quarantined.items()))
    if quarantined and claims[0].strict:
        raise BadClientError(*next(iter(quarantined.items())))
    n_copies = len(claims) // n_shards
    return Agreement(firsts * n_copies, tuple(claim.width for claim in claims), dim, quarantined)


def _check_same(name: str, words: str, claims: Sequence[Claim]) -> None:
    values = [getattr(claim, name) for claim in claims]
    for rank, value in enumerate(values):
        if value != values[0]:
            came = f" (ranks 0 and {rank})"
            if name in SAME:
                came = f": rank 0 has {values[0]!r}, rank {rank} has {value!r}"
            raise ValueError(f"The ranks disagree on {words}{came}. Pass the same on every rank.")


def _check_copy(rank: int, claim: Claim, first: int, original: Claim) -> None:
    if (claim.first, claim.width, claim.dim) != (original.first, original.width, original.dim):
        raise ValueError(
            f"rank {rank} must hold a copy of rank {first}'s {original.width} columns from {original.first} on; got "
            f"{claim.width} from {claim.first} on."
        )


def _placed(claims: Sequence[Claim]) -> tuple[tuple[int, ...], int]:
    """Where the shards begin: as they say, each coordinate once, or one after the other in the order of ranks."""
    given = [claim.first for claim in claims if claim.first is not None]
    if given and len(given) < len(claims):
        missing = next(rank for rank, claim in enumerate(claims) if claim.first is None)
        raise ValueError(f"rank {missing} passed no offset, but others did. Pass it on every rank, or on none.")
    firsts, dim = [], 0
    if not given:
        for claim in claims:
            firsts.append(dim)
            dim += claim.width
    else:
        firsts = given
        held = sorted((claim.first or 0, rank) for rank, claim in enumerate(claims) if claim.width)
        last = None
        for first, rank in held:
            if first > dim:
                raise ValueError(f"Columns {dim} to {first} are held by no rank: the next ones are rank {rank}'s.")
            if first < dim:
                raise ValueError(
                    f"Columns {first} to {min(dim, first + claims[rank].width)} are held twice, by ranks {last} and "
                    f"{rank}. Each must be held once."
                )
            dim, last = first + claims[rank].width, rank
    whole = {claim.dim for claim in claims if claim.dim is not None}
    if any(wanted != dim for wanted in whole):
        raise ValueError(f"The updates have {max(whole)} columns, but the ranks of this group hold {dim} of them.")
    if not dim:
        raise ValueError("No rank holds any column: there is nothing to aggregate.")
    return tuple(firsts), dim
