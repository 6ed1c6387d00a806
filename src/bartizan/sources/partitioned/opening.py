"""Open the clients of one part, as many at a time as memory allows."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from bartizan._util.text import short
from bartizan.errors import EXHAUSTED
from bartizan.sources.partitioned.workers import WorkerError
from bartizan.updates.column_pass import as_bytes
from bartizan.updates.files import open_paths
from bartizan.updates.layout import Unreadable, is_array, leaves_of, on_gpu, plain_and_leaves, rebuild
from bartizan.updates.parse import as_list, reason_of

HELD_BYTES = 2**27  # of updates that a worker opens at a time, if no memory limit is given


def clients_of(part: Any) -> Sequence[Any]:
    """Return one item per client of a part: an update, or what it is opened from."""
    part = part() if callable(part) else part
    if is_array(part):
        return list(part)
    return [] if isinstance(part, (list, tuple)) and not part else as_list(part)


@dataclass
class Held:
    """The updates that are in memory at one time."""

    clients: list[int] = field(default_factory=list)
    updates: list[Any] = field(default_factory=list)
    opened: set[int] = field(default_factory=set)
    """Clients whose updates the worker opened itself."""
    size: int = 0

    def taken(self) -> list[Any]:
        """Hand over the updates: their memory is free when the caller is done with them."""
        taken, self.updates = self.updates, []
        return taken


def opened(
    items: Sequence[Any], wanted: Iterable[int] | None, memory: int | str | None, **limits: Any
) -> Iterator[Held]:
    """Yield the updates of these clients, or of all, as many at a time as may be in memory.

    `limits` on time and bytes hold for what is fetched from stores.
    """
    limit = HELD_BYTES if memory is None else as_bytes(memory) // 2
    held, clients = Held(), list(range(len(items)) if wanted is None else wanted)
    # What is in files is mapped, and takes no memory: all at once.
    mapped = iter(open_paths([items[client] for client in clients if not callable(items[client])], **limits))
    for client in clients:
        item, size = items[client], 0
        update = open_paths([_called(item, client)], **limits)[0] if callable(item) else next(mapped)
        try:
            given, update = update, _in_host_memory(update)
            if callable(item) or update is not given:
                size = sum(leaf.nbytes for leaf in leaves_of(update).values())
        except Exception as error:  # a client's container may raise anything; the other clients can be read
            update = Unreadable(reason_of(error))
        if held.clients and held.size + size > limit:
            yield held
            held = Held()
        held.clients.append(client)
        held.updates.append(update)
        held.size += size
        if update is not item:
            held.opened.add(client)
    if held.clients:
        yield held


def _called(item: Callable[[], Any], client: int) -> Any:
    """Return a function's update, or why it can't be read; raise WorkerError if that is the worker's own fault."""
    try:
        return item()
    except Exception as error:
        if isinstance(error, MemoryError) or (isinstance(error, OSError) and error.errno in EXHAUSTED):
            raise WorkerError(
                f"client {client} of the part can't be opened: {type(error).__name__}: {short(error)}. Give this "
                "worker more memory, file descriptors or disk, or fewer clients at a time by memory=. A path needs "
                "less than a function, and its size is checked before memory is taken."
            ) from error
        return Unreadable(reason_of(error))


def _in_host_memory(update: Any) -> Any:
    """Return the update itself, or a copy in host memory if it is on a GPU."""
    torch = sys.modules.get("torch")
    if torch is None or not torch.cuda.is_initialized() or not any(map(on_gpu, leaves_of(update).values())):
        return update
    return rebuild(plain_and_leaves(update)[0], lambda _, leaf: leaf.cpu() if on_gpu(leaf) else leaf)
