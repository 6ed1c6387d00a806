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
    state = model.state_dict()
    if part < int(context.run_config["hostile"]):  # the step reversed, four times as long
        state = {name: given[name] - 4 * (state[name] - given[name]) for name in state}
    metrics = MetricRecord({"num-examples": len(labels), "loss": loss})
    return Message(RecordDict({"arrays": ArrayRecord(state), "metrics": metrics}), reply_to=message)
