"""The ClientApp: an honest node trains on its own images; a hostile one reverses its step."""

from __future__ import annotations

import torch
from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp

from garments.task import examples, network, train

app = ClientApp()
torch.set_num_threads(1)


@app.train()
def training(message: Message, context: Context) -> Message:
    part, n_parts = int(context.node_config["partition-id"]), int(context.node_config["num-partitions"])
    given = message.content["arrays"].to_torch_state_dict()
    model = network()
    model.load_state_dict(given)
    images, labels = examples(part, n_parts)
    loss = train(model, (images, labels))
    state = with_momentum(given, model.state_dict(), context, float(context.run_config["momentum"]))
    if part < int(context.run_config["hostile"]):  # the step reversed, four times as long
        state = {name: given[name] - 4 * (state[name] - given[name]) for name in state}
    metrics = MetricRecord({"num-examples": len(labels), "loss": loss})
    return Message(RecordDict({"arrays": ArrayRecord(state), "metrics": metrics}), reply_to=message)


def with_momentum(given: dict, state: dict, context: Context, beta: float) -> dict:
    """Return weights whose change is a mean over rounds, beta times the last one, which Flower keeps for this node."""
    change = {name: state[name] - given[name] for name in state}
    if "sent" in context.state:
        last = context.state["sent"].to_torch_state_dict()
        change = {name: beta * last[name] + (1 - beta) * change[name] for name in change}
    if beta:
        context.state["sent"] = ArrayRecord(change)
    return {name: given[name] + change[name] for name in change}
