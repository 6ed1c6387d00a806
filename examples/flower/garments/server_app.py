"""The ServerApp: as for FedAvg, with `RobustStrategy` in its place."""

from __future__ import annotations

from flwr.app import ArrayRecord, Context, MetricRecord
from flwr.serverapp import Grid, ServerApp

import bartizan as bz
from bartizan.flower import RobustStrategy
from garments.task import examples, network, test

app = ServerApp()


@app.main()
def main(grid: Grid, context: Context) -> None:
    config = context.run_config
    model = network()
    held_back = examples()

    def evaluate(server_round: int, arrays: ArrayRecord) -> MetricRecord:
        model.load_state_dict(arrays.to_torch_state_dict())
        accuracy, loss = test(model, held_back)
        return MetricRecord({"accuracy": accuracy, "loss": loss})

    name = str(config["rule"])
    rule = bz.rule(name) if name == "mean" else bz.rule(name, n_byzantine=int(config["n-byzantine"]))
    strategy = RobustStrategy(  # FedAvg(
        rule,
        folder=str(config["folder"]) or None,
        name="garments",
        min_train_nodes=int(config["nodes"]),
        fraction_evaluate=0.0,
    )
    result = strategy.start(
        grid=grid,
        initial_arrays=ArrayRecord(model.state_dict()),
        num_rounds=int(config["rounds"]),
        timeout=float(config["patience"]),
        evaluate_fn=evaluate,
    )
    accuracies = [metrics["accuracy"] for metrics in result.evaluate_metrics_serverapp.values()]
    print("Accuracy by round:", ", ".join(f"{accuracy:.3f}" for accuracy in accuracies))
    for suspect in strategy.suspects():
        print(suspect)
