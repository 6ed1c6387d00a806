"""What all ranks must have in common, checked on each of them from the same list: all raise, or none."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from bartizan.distributed.failure import Failure
from bartizan.distributed.named import Named
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

    rank: int  # of the process, which is not always the rank in the group
    rule: Named
    sketch: Named
    n_clients: int
    dtypes: tuple[str, ...]  # none where there is no floating-point entry
    reference: bool
    trusted: bool
    history: Named
    strict: bool
    sizes: bytes | None  # NaN equals NaN so
    seed: int | None
    first: int | None
    width: int
    dim: int | None
    device: str
    quarantined: dict[int, str]


@dataclass(frozen=True)
class Agreement:
    """Where each rank's columns begin, how many there are in all, of what dtypes, and who is out already."""

    firsts: tuple[int, ...]
    widths: tuple[int, ...]
    dim: int
    dtypes: tuple[str, ...]
    quarantined: dict[int, str]


def agreed(said: Sequence[Claim | Failure], n_shards: int) -> Agreement:
    """Of `n_shards` ranks that hold all columns, and after them those that hold copies, in the same order."""
    claims = []
    for claim in said:
        if isinstance(claim, Failure):
            raise claim.error()
        claims.append(claim)
    with_floats = [claim for claim in claims if claim.dtypes]
    for name, words in (SAME | SAME_UNSHOWN).items():
        _check_same(name, words, with_floats if name == "dtypes" else claims)
    firsts, dim = _placed(claims[:n_shards])
    for rank, claim in enumerate(claims):
        _check_copy(claim, claims[rank % n_shards])
    quarantined: dict[int, str] = {}
    for claim in claims:
        for client, reason in claim.quarantined.items():
            quarantined.setdefault(client, f"rank {claim.rank}: {reason}")
    quarantined = dict(sorted(quarantined.items()))
    if quarantined and claims[0].strict:
        raise BadClientError(*next(iter(quarantined.items())))
    n_copies = len(claims) // n_shards
    widths = tuple(claim.width for claim in claims)
    return Agreement(firsts * n_copies, widths, dim, with_floats[0].dtypes, quarantined)


def _check_same(name: str, words: str, claims: Sequence[Claim]) -> None:
    for claim in claims:
        one, other = getattr(claims[0], name), getattr(claim, name)
        if other != one:
            came = f" (ranks {claims[0].rank} and {claim.rank})"
            if name in SAME:
                came = f": rank {claims[0].rank} has {one!r}, rank {claim.rank} has {other!r}"
            raise ValueError(f"The ranks disagree on {words}{came}. Pass the same on every rank.")


def _check_copy(claim: Claim, original: Claim) -> None:
    if (claim.first, claim.width, claim.dim) != (original.first, original.width, original.dim):
        raise ValueError(
            f"rank {claim.rank} must hold a copy of rank {original.rank}'s {original.width} columns from "
            f"{original.first} on; got {claim.width} from {claim.first} on."
        )


def _placed(claims: Sequence[Claim]) -> tuple[tuple[int, ...], int]:
    """Where the shards begin: as they say, each coordinate once, or one after the other in the order of ranks."""
    given = [claim.first for claim in claims if claim.first is not None]
    if given and len(given) < len(claims):
        missing = next(claim.rank for claim in claims if claim.first is None)
        raise ValueError(f"rank {missing} passed no offset, but others did. Pass it on every rank, or on none.")
    firsts, dim = [], 0
    if not given:
        for claim in claims:
            firsts.append(dim)
            dim += claim.width
    else:
        firsts = given
        last = None
        for claim in sorted((claim for claim in claims if claim.width), key=lambda claim: claim.first or 0):
            first, rank = claim.first or 0, claim.rank
            if first > dim:
                raise ValueError(f"Columns {dim} to {first} are held by no rank: the next ones are rank {rank}'s.")
            if first < dim:
                raise ValueError(
                    f"Columns {first} to {min(dim, first + claim.width)} are held twice, by ranks {last} and {rank}. "
                    f"Each must be held once."
                )
            dim, last = first + claim.width, rank
    whole = {claim.dim for claim in claims if claim.dim is not None}
    if any(wanted != dim for wanted in whole):
        raise ValueError(f"The updates have {max(whole)} columns, but the ranks of this group hold {dim} of them.")
    if not dim:
        raise ValueError("No rank holds any column: there is nothing to aggregate.")
    return tuple(firsts), dim
