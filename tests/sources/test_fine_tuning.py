"""Federated fine-tuning with peft in a real Flower run, a fifth of the clients hostile."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

pytest.importorskip("ray", reason="Flower's simulation needs ray: pip install '.[simulation]'")
pytest.importorskip("peft", reason="peft is not installed; `make test-slow` installs it")

from deployment import simulate

TESTS = Path(__file__).parents[1] / "support"


@pytest.mark.slow
def test_hostile_clients_do_not_change_what_a_fine_tuning_learns(tmp_path):
    out = tmp_path / "out"
    out.mkdir()
    code = (
        "from flwr.simulation import run_simulation as run; import fine_tuning as f;"
        "run(f.server, f.client, num_supernodes=f.CLIENTS, backend_config={'client_resources': {'num_cpus': 1}})"
    )
    said = simulate(tmp_path, code, TESTS / "lora_app", timeout=600, FINE_TUNING_OUT=str(out))
    assert (out / "told.json").exists(), said
    told = json.loads((out / "told.json").read_text())
    losses = told["losses"]
    print(losses)
    assert losses["honest"] < 0.95 * losses["start"]
    assert losses["robust"] < 1.03 * losses["honest"]
    assert losses["FedAvg"] > 1.2 * losses["honest"]
    # The hostile ones have no weight in any round, and peft loads the folder that the server wrote.
    assert all(sum(weight < 1e-6 for weight in weights) >= 2 for weights in told["weights"])
    assert losses["loaded"] == pytest.approx(losses["robust"], rel=1e-5)
