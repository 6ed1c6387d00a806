"""A committed round over the nodes of a Flower app: several exchanges in one of Flower's rounds."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from flwr.app import ConfigRecord, Message, RecordDict

from bartizan._util.text import short
from bartizan.aggregate import Aggregator
from bartizan.errors import TooFewClientsError
from bartizan.flower.committed_mod import KEY
from bartizan.flower.replies import Model
from bartizan.source import Aggregation
from bartizan.sources.committed.committed_round import CommittedRound
from bartizan.sources.committed.committed_updates import refusal
from bartizan.sources.committed.round_messages import Opening


class CommittedNodes:
    """Stands where a `Round` does: the nodes that a strategy's messages ask are its clients.

    Args:
        aggregator: The rule, and a projection or "auto".
        model: The global model that is sent, from which updates are measured.
        questions: The strategy's messages, one per node, which are sent with the opening.
        grid: Sends messages and yields the replies.
        on_opened: Called with each node's reply to the opening, for its metrics.
        timeout: Seconds for each exchange.
        options: Of `CommittedRound`: record, spill, history.
    """

    def __init__(
        self,
        aggregator: Aggregator,
        model: Model,
        questions: Sequence[Message],
        grid: Any,
        on_opened: Callable[[int, Message], None],
        timeout: float,
        **options: Any,
    ) -> None:
        self._questions = {str(one.metadata.dst_node_id): one for one in questions}
        self._grid, self._on_opened = grid, on_opened
        self._opened = CommittedRound(
            aggregator,
            model.arrays,
            expected=self._questions,
            deadline=timeout,
            reference=model.arrays,
            **options,
        )

    @property
    def clients(self) -> list[int]:
        """The nodes that sent sketches."""
        return [int(node) for node in self._opened.transcript.sketched]

    @property
    def quarantined(self) -> dict[int, str]:
        return _by_number(self._opened.transcript.lost())

    @property
    def failed(self) -> dict[int, str]:
        return _by_number(self._opened.transcript.failed())

    def close(self) -> Aggregation[Any]:
        """Run the round; the result and errors name nodes by their numbers."""
        try:
            out = self._opened.run(self._exchange)
        except TooFewClientsError as few:
            out_of = _by_number(few.quarantined), _by_number(few.failed)
            raise TooFewClientsError(few.problem, *out_of) from None
        out_of = _by_number(out.quarantined), _by_number(out.failed)
        nodes = tuple(int(node) for node in out.clients)
        return replace(out, clients=nodes, quarantined=out_of[0], failed=out_of[1])

    def _exchange(self, requests: Mapping[str, bytes], seconds: float, most: int) -> dict[str, bytes]:
        messages, found = [], {}
        for node, request in requests.items():
            question = self._questions[node]
            opens = request[4] == Opening.KIND
            content = RecordDict(dict(question.content)) if opens else RecordDict()
            content[KEY] = ConfigRecord({"request": request})
            kind = question.metadata.message_type
            messages.append(Message(content, dst_node_id=int(node), message_type=kind))
        for reply in self._grid.send_and_receive(messages, timeout=seconds):
            node = str(reply.metadata.src_node_id)
            if node not in requests or node in found:
                continue
            record = None if reply.has_error() else reply.content.get(KEY)
            data = record.get("reply") if isinstance(record, ConfigRecord) else None
            if isinstance(data, bytes) and len(data) <= most:
                found[node] = data
            if requests[node][4] == Opening.KIND:
                self._on_opened(int(node), reply)
        return found


def _by_number(reasons: Mapping[str, str]) -> dict[int, str]:
    return {int(node): short(reason) for node, reason in reasons.items()}


def check_committed(record: str | os.PathLike[str] | None, aggregator: Aggregator, **others: Any) -> None:
    """Raise ValueError where a strategy's rule, sketch or other options can't be had in committed rounds."""
    given = [name for name, value in others.items() if value is not None]
    if record is not None and given:
        raise ValueError(f"committed= can't be had with {', '.join(given)}, which other nodes could not check.")
    if record is not None and (problem := refusal(aggregator.rule, aggregator.sketch)):
        raise ValueError(problem)
