"""A dict of clients by id, told from a state dict, which is one client's update."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from bartizan.errors import TooFewClientsError
from bartizan.updates.files import open_paths
from bartizan.updates.layout import Unreadable
from bartizan.updates.parse import InspectedUpdates, as_list

ADVICE = "A state dict is one client's update: pass a list of several, or a dict by client id: {'amy': state_dict}."


def clients_by_id(updates: Mapping[Any, Any]) -> list[Any]:
    """Return the updates in the order of the dict; raise if they are more likely the entries of a state dict.

    All are parsed but paths, which clients may still rewrite: `aggregate` opens those itself.

    A minority of the clients must not be able to end a round, so a state dict is known by torch's metadata, or by that
    no form is shared by more than half of its values. One of equal shapes passes: its entries are averaged as if each
    was one client's whole update. That shows at once: the result is one array, and its `clients` are the entries.
    """
    if hasattr(updates, "_metadata"):  # torch gives it to every state dict
        raise TypeError(f"Wanted several clients' updates, got one state dict of torch. {ADVICE}")
    sent = as_list(list(updates.values()))
    inspected = InspectedUpdates.of(open_paths(sent))
    out = inspected.unreadable
    if inspected.parsed:
        out = inspected.quarantined(inspected.common_layout(None))
    if 2 * len(out) >= len(sent):
        raise TooFewClientsError(
            f"A dict is read as clients by id, of whom more than half must send one form; of {len(sent)} values "
            f"{len(sent) - len(out)} have the commonest. {ADVICE}",
            out,
        )
    return [
        one if issubclass(type(one), Path) else inspected.parsed.get(client, Unreadable(out.get(client, "")))
        for client, one in enumerate(sent)
    ]
