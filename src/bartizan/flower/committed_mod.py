"""A client mod: one node's part in committed rounds, for a ClientApp that knows nothing of them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from flwr.app import ConfigRecord, Context, Message, RecordDict

from bartizan.client import Commitment
from bartizan.flower.replies import Model, arrays_of, as_record
from bartizan.sources.committed.round_messages import Closing, Opening, decoded

KEY, UPDATE, MODEL = "bartizan-committed", "bartizan-committed-update", "bartizan-committed-model"


def committed_mod(message: Message, context: Context, call_next: Callable[[Message, Context], Message]) -> Message:
    """Answer the messages of a committed round: `ClientApp(mods=[committed_mod])`.

    The app trains when a round opens; its arrays stay in the node's state, and go out if they have weight. A server
    that does not keep to the protocol gets an error instead of an answer.
    """
    if KEY not in message.content:
        return call_next(message, context)
    asked: Any = message.content[KEY]
    request, state = decoded(asked["request"]), context.state
    kept: Any = state.get(KEY)
    del message.content[KEY]
    told = RecordDict()
    if isinstance(request, Opening) and (kept is None or kept["stages"][0] != asked["request"]):
        model = Model.of(arrays_of(message.content))
        trained = call_next(message, context)
        if trained.has_error():
            return trained
        told, arrays = trained.content, arrays_of(trained.content)
        update = model.decode(arrays)
        for name in [name for name, record in told.items() if record is arrays]:
            del told[name]
        own = Commitment.of(update, request, str(context.node_id), reference=model.arrays)
        state[UPDATE], state[MODEL] = as_record(update), as_record(model.arrays)
        reply = own.message.encoded
    else:
        own = _restored(context)
        reply = own.answer(request)
    stages = [stage.encoded for stage in own.stages.values()]
    state[KEY] = ConfigRecord({"secret": own.secret, "stages": stages, "results": own.n_results})
    for key in (KEY, UPDATE, MODEL) if isinstance(request, Closing) else ():
        del state[key]
    told[KEY] = ConfigRecord({"reply": reply})
    return Message(told, reply_to=message)


def _restored(context: Context) -> Commitment:
    """Return the commitment that this node's state holds; its process may be another one than before."""
    state: Any = context.state
    if KEY not in state:
        raise ValueError("the server sent a request before it opened a round")
    opening, *stages = [decoded(stage) for stage in state[KEY]["stages"]]
    update, model = (Model.of(state[key]).arrays for key in (UPDATE, MODEL))
    assert isinstance(opening, Opening)
    secret = state[KEY]["secret"]
    own = Commitment.of(update, opening, str(context.node_id), reference=model, secret=secret)
    for stage in stages:
        own.follow(stage)
    own.n_results = state[KEY]["results"]
    return own
