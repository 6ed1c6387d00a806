"""Wait for nodes to connect, for a limited time."""

from __future__ import annotations

import logging
import time
from typing import Any

from flwr.serverapp import Grid

SHORTEST_WAIT, LONGEST_WAIT = 0.05, 1.0  # seconds between two requests
log = logging.getLogger("flwr")


class ConnectedNodes:
    """A grid with the nodes that were connected at one moment.

    Flower's sampling waits without end until enough nodes are connected. It does not wait on this grid, which has
    enough, also if some leave meanwhile.
    """

    def __init__(self, grid: Grid, nodes: list[int]) -> None:
        self._grid, self._nodes = grid, nodes

    def __getattr__(self, name: str) -> Any:
        return getattr(self._grid, name)

    def get_node_ids(self) -> list[int]:
        return self._nodes


Grid.register(ConnectedNodes)


class MissingNodesError(Exception):
    """Fewer nodes are connected than are wanted, and the time to wait for them is over."""


def wait_for_nodes(grid: Grid, fraction: float, least: int, patience: float) -> ConnectedNodes:
    """Wait until `least` nodes are connected, and as many as `fraction` asks for, for `patience` seconds at most."""
    until, wait, before = time.monotonic() + patience, SHORTEST_WAIT, -1
    while True:
        nodes = list(grid.get_node_ids())
        wanted = max(least, int(len(nodes) * fraction))
        if len(nodes) >= wanted:
            return ConnectedNodes(grid, nodes)
        now = time.monotonic()
        if now >= until:
            raise MissingNodesError(f"{len(nodes)} nodes were connected after {patience:g} s, and {wanted} are wanted.")
        if len(nodes) != before:
            log.info("Waiting for nodes to connect: %d of %d, %.0f s more at most.", len(nodes), wanted, until - now)
            before = len(nodes)
        wait = min(2 * wait, LONGEST_WAIT)
        time.sleep(min(wait, until - now))
