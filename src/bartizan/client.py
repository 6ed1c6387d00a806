"""The client's side of committed rounds, whatever the transport."""

from bartizan.sources.committed.commitment import Client, Commitment
from bartizan.sources.committed.round_messages import Opening
from bartizan.sources.committed.transcript import ProtocolError
from bartizan.sources.committed.wire import WireError

__all__ = ["Client", "Commitment", "Opening", "ProtocolError", "WireError"]
