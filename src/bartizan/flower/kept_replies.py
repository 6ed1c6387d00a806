"""The replies of a round in the run's folder, from which a server that was killed goes on with the round."""

from __future__ import annotations

import logging
import re
import shutil
from collections.abc import Iterable
from pathlib import Path

from flwr.app import Message

from bartizan._util.text import short
from bartizan.flower.replies import Model
from bartizan.sources.buffered import fingerprint
from bartizan.sources.update_folder import UpdateFolder

log = logging.getLogger("flwr")


class KeptReplies:
    """Folders of rounds, which are named by the round and its model, so that no other finds their replies."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder / "replies"
        self.sizes: dict[int, float] = {}
        """Data sizes of the nodes whose replies to this round were found."""

    def of(self, server_round: int, model: Model) -> Path:
        """Return the folder for the replies of a round."""
        return self.folder / f"{server_round}-{fingerprint({(name,): one for name, one in model.arrays.items()})}"

    def unanswered(self, server_round: int, model: Model, messages: Iterable[Message]) -> list[Message]:
        """Leave out the nodes whose replies are there, and so many others that no more nodes take part."""
        own, messages, self.sizes = self.of(server_round, model), list(messages), {}
        for other in self.folder.glob("*"):
            if other != own and re.fullmatch(r"\d+-[0-9a-f]{32}", other.name):
                shutil.rmtree(other, ignore_errors=True)
        if own.exists():
            try:
                found = UpdateFolder(own)
                found.close()
                self.sizes = {row["client"]: float(row["size"]) for row in found.rows}
                log.info("%d replies to round %d were found in %s.", len(self.sizes), server_round, own)
            except (OSError, ValueError, KeyError, TypeError) as wrong:
                log.warning("Replies to round %d are lost: %s", server_round, short(wrong))
                shutil.rmtree(own, ignore_errors=True)
        rest = [message for message in messages if message.metadata.dst_node_id not in self.sizes]
        return rest[: max(0, len(messages) - len(self.sizes))]
