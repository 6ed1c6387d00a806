"""State dicts of DTensors: the numbers of each that this rank counts, and results that are placed alike."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from bartizan.sources.sharded.dtensors import at_least_half, is_dtensor
from bartizan.updates.layout import (
    FLOATS,
    Path,
    Unreadable,
    dtype_name,
    is_tensor,
    plain_and_leaves,
    rebuild,
    shown_path,
)
from bartizan.updates.parse import reason_of


@dataclass(frozen=True)
class Placements:
    """The mesh of the DTensors in a state dict, its axis that shards them, and the placements and shape of each.

    Each is sharded over that axis or replicated over it, and replicated over all other axes. A replicated DTensor is
    counted once, by the first rank of the axis: its numbers must not have more weight in distances than the others'.
    """

    mesh: Any
    axis: int
    entries: frozenset[tuple[Path, tuple[Any, ...], tuple[int, ...]]]
    replicated: frozenset[Path] = field(compare=False)

    @classmethod
    def of(cls, leaves: Mapping[Path, Any]) -> Placements:
        from torch.distributed.tensor import Shard

        placed = {path: leaf for path, leaf in leaves.items() if is_dtensor(leaf)}
        if not placed:
            raise TypeError("wanted a state dict of DTensors, as others sent")
        meshes, axes, replicated = {leaf.device_mesh for leaf in placed.values()}, set(), set()
        if len(meshes) > 1:
            raise ValueError("its DTensors are on several meshes; redistribute them to one")
        for path, leaf in leaves.items():
            if path not in placed:
                if dtype_name(leaf, path) in FLOATS:
                    raise TypeError(
                        f"entry {shown_path(path)!r} is no DTensor, as others of the state dict are: make it one, "
                        "DTensor.from_local(entry, mesh, [Replicate()]) where every rank has all of it"
                    )
                continue
            own = {axis for axis, how in enumerate(leaf.placements) if type(how) is Shard}
            if len(own) > 1 or sum(how.is_replicate() for how in leaf.placements) + len(own) < len(leaf.placements):
                raise ValueError(
                    f"entry {shown_path(path)!r} has placements {list(leaf.placements)}: wanted at most one Shard, and "
                    "Replicate() over the other axes; call .redistribute(placements=[...])"
                )
            axes |= own
            if not own:
                replicated.add(path)
        if len(axes) > 1:
            raise ValueError("its DTensors are sharded over several axes of the mesh; redistribute them to one axis")
        entries = frozenset((path, tuple(leaf.placements), tuple(leaf.shape)) for path, leaf in placed.items())
        (mesh,) = meshes
        return cls(mesh, min(axes, default=0), entries, frozenset(replicated))

    def local(self, state: Any, counts_replicated: bool) -> Any:
        """This rank's part of a state dict in plain containers; replicated floats are empty unless it counts them."""

        def part(path: Path, leaf: Any) -> Any:
            own = leaf.to_local() if is_dtensor(leaf) else leaf
            return (
                own if counts_replicated or path not in self.replicated or not _is_float(own) else own.reshape(-1)[:0]
            )

        return rebuild(state, part)

    def counted(self, update: Any) -> dict[Path, Any]:
        """The replicated floats of a result, in host memory, from the rank that counts them."""
        leaves = plain_and_leaves(update)[1]
        return {path: leaves[path].cpu() for path in self.replicated if _is_float(leaves[path])}

    def completed(self, update: Any, counted: Mapping[Path, Any]) -> Any:
        """The result as a state dict of DTensors, with the replicated floats that another rank counted."""
        import torch
        from torch.distributed.tensor import DTensor

        about = {path: (placements, shape) for path, placements, shape in self.entries}

        def placed(path: Path, leaf: Any) -> Any:
            if path not in about:
                return leaf
            placements, shape = about[path]
            own = counted[path].to(leaf.device) if path in counted else leaf
            whole = torch.empty(shape, device="meta")
            return DTensor.from_local(
                own, self.mesh, placements, run_check=False, shape=whole.shape, stride=whole.stride()
            )

        return rebuild(update, placed)


def placements_of(update: Any) -> tuple[Any, Placements | str]:
    """An update in plain containers, and how its DTensors are placed, or why it can't take part."""
    try:
        plain, leaves = plain_and_leaves(update)
        return plain, Placements.of(leaves)
    except Exception as error:  # a client's container may raise anything
        return None, reason_of(error)


def local_states(updates: Sequence[Any], counts_replicated: bool) -> tuple[list[Any], Placements]:
    """This rank's parts of the clients' state dicts, and how those of most are placed.

    A client whose DTensors are placed otherwise becomes `Unreadable`.
    """
    parsed = [placements_of(update) for update in updates]
    counts = Counter(own for _, own in parsed if isinstance(own, Placements))
    if not counts:
        reasons = (own for update, (_, own) in zip(updates, parsed, strict=True) if _holds_dtensors(update))
        raise ValueError(f"No client's state dict of DTensors can be read: {next(reasons)}.")
    usual = counts.most_common(1)[0][0]
    otherwise = "its DTensors are placed otherwise than those of most clients, or have other names or shapes"
    parts = []
    for plain, own in parsed:
        if own == usual:
            parts.append(usual.local(plain, counts_replicated))
        else:
            parts.append(Unreadable(own if isinstance(own, str) else otherwise))
    return parts, usual


def local_state(name: str, point: Any, placements: Placements, counts_replicated: bool) -> Any:
    """This rank's part of a reference or a trusted update."""
    if point is None:
        return None
    plain, own = placements_of(point)
    if own != placements:
        more = f": {own}" if isinstance(own, str) else ""
        raise ValueError(f"{name} must be a state dict of DTensors, placed as the clients' are{more}.")
    return placements.local(plain, counts_replicated)


def states_of(shard: Any) -> list[Any]:
    """The updates that are state dicts of DTensors, if at least half of all are."""
    updates = shard if isinstance(shard, (list, tuple)) and "torch.distributed.tensor" in sys.modules else []
    return at_least_half([update for update in updates if _holds_dtensors(update)], updates)


def _holds_dtensors(update: Any) -> bool:
    if is_tensor(update):
        return False
    try:
        return any(map(is_dtensor, plain_and_leaves(update)[1].values()))
    except Exception:  # for which `parse_updates` gives the reason
        return False


def _is_float(leaf: Any) -> bool:
    return dtype_name(leaf) in FLOATS
