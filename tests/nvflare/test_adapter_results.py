"""LoRA adapters in an NVFlare server, without processes."""

from __future__ import annotations

import numpy as np
import pytest
from nvflare.app_common.abstract.fl_model import FLModel, ParamsType

from bartizan.nvflare import RobustAggregator
from made_adapters import START, dense, flipped, trained
from nvflare_server import Server, fedavg


def test_an_nvflare_job_averages_products_of_any_rank(tmp_path):
    updates = {f"site-{n}": trained(n) for n in range(2, 7)}
    updates |= {"site-1": flipped(1), "site-7": {}, "site-8": {"x.lora_A.weight": np.ones((2, 2))}}

    def answer(update, kind=ParamsType.FULL):
        return lambda sent: FLModel(kind, update, current_round=sent.current_round)

    answers = {site: answer(update) for site, update in updates.items()}
    answers["site-9"] = answer(trained(9), ParamsType.DIFF)
    aggregator = RobustAggregator("multi-krum", n_byzantine=1, adapters={"alpha": 8})
    controller = fedavg(aggregator, START, len(answers))
    Server(tmp_path, aggregator, controller, answers).run()
    (line,) = aggregator._rounds
    assert "differences of factors" in line["quarantined"]["site-9"]
    assert {"site-8", "site-9"} <= set(line["quarantined"])
    assert line["weights"]["site-1"] == 0
    final = controller.final.params
    assert {name: array.shape for name, array in final.items()} == {n: a.shape for n, a in START.items()}
    mean = sum(line["weights"][site] * dense(updates[site], 8) for site in list(updates)[:6])
    assert np.linalg.norm(dense(final, 8) - mean) < 0.3 * np.linalg.norm(mean)


def test_adapters_that_are_no_settings_are_refused():
    with pytest.raises(TypeError, match="must be a dict of the settings of LoRA"):
        RobustAggregator("multi-krum", n_byzantine=1, adapters=8)
