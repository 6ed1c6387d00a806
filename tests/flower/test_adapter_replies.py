"""LoRA adapters in a Flower server, without processes."""

from __future__ import annotations

import numpy as np
import pytest

pytest.importorskip("flwr", reason="Flower is not installed: pip install '.[flower]'")

import bartizan as bz
from bartizan.flower import RobustStrategy
from bartizan.flower.replies import Model
from bartizan.lora import LoRA, TwoSided
from flower_nodes import LocalGrid, as_record, sends
from made_adapters import START, dense, flipped, trained


def test_a_flower_strategy_averages_products_of_any_rank():
    sent = {1: flipped(1), 2: trained(2), 3: trained(3), 4: trained(4), 5: trained(5), 6: trained(6)}
    odd = {7: {**trained(7), "h.0.q_proj.lora_A.weight": np.full((4, 30), np.nan, np.float32)}, 8: trained(8, rank=2)}
    odd[9] = {**trained(9), "h.0.q_proj.lora_A.weight": np.zeros((4, 31), np.float32)}
    nodes = {number: sends(update) for number, update in {**sent, **odd}.items()}
    strategy = RobustStrategy(bz.MultiKrum(2), adapters=LoRA(alpha=8), fraction_evaluate=0.0, min_train_nodes=9)
    result = strategy.start(LocalGrid(nodes), as_record(START), num_rounds=1, timeout=0.2)
    assert set(strategy.quarantined) == {7, 9}
    metrics = result.train_metrics_clientapp[1]
    weights = dict(zip(metrics["bartizan-nodes"], metrics["bartizan-weights"], strict=True))
    assert {node for node, weight in weights.items() if weight > 0} >= {2, 3, 4, 5, 6} - {1}
    assert weights[1] == 0
    update = Model.of(result.arrays).arrays
    assert {name: array.shape for name, array in update.items()} == {n: a.shape for n, a in START.items()}
    mean = sum(weights[node] * dense(one, 8) for node, one in {**sent, 8: odd[8]}.items())
    # What rank 4 leaves out of a mean of more ranks is not small; that it is the best of rank 4, another test asserts.
    assert np.linalg.norm(dense(update, 8) - mean) < 0.6 * np.linalg.norm(mean)
    with pytest.raises(ValueError, match="The global model must be like"):
        strategy.start(LocalGrid(nodes), as_record({"w": np.ones(3)}), num_rounds=1)
    for wrong in ({"spill": "."}, {"adapters": LoRA(alpha=1, rank=3)}, {"sketch": bz.Rotated()}):
        with pytest.raises(ValueError, match=r"leave|Adapters"):
            RobustStrategy(bz.Mean(), **{"adapters": LoRA(alpha=8), **wrong})
    RobustStrategy(bz.Mean(), TwoSided(), adapters=LoRA(alpha=8)).summary()
