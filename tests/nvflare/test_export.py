"""A job keeps every argument of the aggregator when NVFlare exports it as JSON."""

from __future__ import annotations

import inspect
import json

import pytest
from nvflare.app_opt.pt.recipes import FedAvgRecipe

from bartizan.nvflare import RobustAggregator

ARGUMENTS = {
    "rule": "nnm >> multi-krum",
    "n_byzantine": 3,
    "sketch": "rotated",
    "rule_settings": {"n_selected": 4},
    "sketch_settings": {"k": 1024},
    "sizes": {"site-1": 10.5, "site-2": 1},
    "size_cap": 100.0,
    "timeout": 60.5,
    "spill": "/scratch",
    "memory": "2 GB",
    "watch": {"name": "tensorboard", "folder": "/logs"},
}
# Adapters are not spilled, and have a sketch of their own.
OF_ADAPTERS = {"rule": "krum", "n_byzantine": 1, "adapters": {"alpha": 16, "max_rank": 64}}


@pytest.mark.parametrize(
    "arguments", [ARGUMENTS, OF_ADAPTERS, {"n_byzantine": 3}], ids=["models", "adapters", "the default rule"]
)
def test_an_exported_job_has_every_argument_of_the_aggregator(arguments, tmp_path):
    assert inspect.signature(RobustAggregator).parameters.keys() == {*ARGUMENTS, "adapters"}
    script = tmp_path / "client.py"
    script.write_text("")
    recipe = FedAvgRecipe(
        name="job",
        model={"class_path": "torch.nn.Linear", "args": {"in_features": 2, "out_features": 2}},
        min_clients=9,
        train_script=str(script),
        aggregator=RobustAggregator(**arguments),
    )
    recipe.export(str(tmp_path / "jobs"))
    (config,) = tmp_path.glob("jobs/**/config_fed_server.json")
    (controller,) = json.loads(config.read_text())["workflows"]
    exported = controller["args"]["aggregator"]
    assert exported == {"path": "bartizan.nvflare.aggregator.RobustAggregator", "args": arguments}
    again = RobustAggregator(**exported["args"])
    assert {name: getattr(again, name) for name in arguments} == arguments
    # NVFlare copies sources beside the job. Without __init__.py they do not replace the installed package.
    assert not list(tmp_path.glob("jobs/**/bartizan/__init__.py"))
