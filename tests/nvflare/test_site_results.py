"""Tensors that NVFlare keeps on disk are mapped, not loaded, and a broken file is its site's fault."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from nvflare.app_common.abstract.fl_model import FLModel, ParamsType
from nvflare.app_opt.pt import lazy_tensor_dict
from nvflare.app_opt.pt.tensor_downloader import DiskTensorConsumer
from safetensors.torch import save

from bartizan.nvflare import RobustAggregator
from bartizan.nvflare.site_results import mapped
from nvflare_server import Server, fedavg

SITES = [f"site-{i}" for i in range(1, 8)]


@pytest.fixture(autouse=True)
def _nothing_is_loaded(monkeypatch):
    def load(self):
        raise AssertionError(f"{self} was loaded")

    monkeypatch.setattr(lazy_tensor_dict._LazyRef, "materialize", load)


def on_disk(folder, params, damage=lambda item: item):
    """The parameters as NVFlare's own receiver leaves them: each tensor a file, in a folder that goes with them."""
    folder.mkdir()
    consumer = DiskTensorConsumer(str(folder))
    files = consumer.consume_items([damage(save({name: tensor})) for name, tensor in params.items()], None)
    consumer.release()
    kept = lazy_tensor_dict.LazyTensorDict(files, str(folder))
    return {name: kept.make_lazy_ref(name) for name in params}


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.float64])
def test_tensors_on_disk_are_mapped(tmp_path, dtype):
    params = {"a": torch.arange(12.0).reshape(3, 4).to(dtype), "n": torch.tensor(7)}
    found = mapped(on_disk(tmp_path / "site", params))
    assert all(np.array_equal(np.asarray(found[name]), params[name].numpy()) for name in params)
    assert not found["a"].flags.owndata


@pytest.mark.parametrize("kind", [ParamsType.FULL, ParamsType.DIFF])
def test_a_round_of_tensors_on_disk_is_that_of_tensors_in_memory(tmp_path, kind):
    start = {"weight": torch.randn(64, 64), "steps": torch.tensor([3])}
    noise = {site: torch.randn(64, 64) / 10 + 1 for site in SITES}
    noise["site-1"] = torch.full((64, 64), torch.nan)
    noise["site-2"] = torch.full((64, 64), -1e6)

    def answers(keep):
        def answer(site):
            def trained(sent):
                old = sent.params if kind == ParamsType.FULL else {"weight": 0.0, "steps": 0}
                params = {"weight": old["weight"] + noise[site], "steps": torch.tensor([13])}
                return FLModel(kind, keep(site, params), current_round=sent.current_round)

            return trained

        return {site: answer(site) for site in SITES}

    def run(keep, **settings):
        aggregator = RobustAggregator("multi-krum", 2)
        controller = fedavg(aggregator, {name: one.clone() for name, one in start.items()}, 7, **settings)
        model = Server(tmp_path, aggregator, controller, answers(keep)).run()
        return model.params, aggregator

    memory, _ = run(lambda site, params: params)
    disk, aggregator = run(lambda site, params: on_disk(tmp_path / site, params), enable_tensor_disk_offload=True)
    assert all(isinstance(tensor, torch.Tensor) for tensor in disk.values())
    torch.testing.assert_close(disk, memory)
    assert aggregator.reputation.nodes["site-1"].quarantined == 1
    # NVFlare itself holds the last result until the next one comes.
    assert not [path for site in SITES[:-1] for path in (tmp_path / site).glob("*")]


@pytest.mark.parametrize(
    "damage",
    [
        lambda item: item[:-1],
        lambda item: item + b"\0",
        lambda item: item.replace(b'"F32"', b'"F8_"'),
        lambda item: item.replace(b"[4]", b"[5]"),
        lambda item: item.replace(b'"w"', b'"v"'),
    ],
    ids=["cut", "longer", "dtype", "shape", "name"],
)
def test_a_broken_file_is_quarantined(tmp_path, damage):
    aggregator = RobustAggregator("mean")
    for site in "abc":
        params = {"w": torch.ones(4)}
        lazy = on_disk(tmp_path / site, params)
        if site == "c":
            (file,) = (tmp_path / site).iterdir()
            file.write_bytes(damage(file.read_bytes()))
        accepted = aggregator.accept_model(FLModel(ParamsType.FULL, lazy, meta={"client_name": site}))
        assert accepted == (site != "c")
    assert aggregator.aggregate_model().params["w"].tolist() == [1.0] * 4
    assert [suspect.node for suspect in aggregator.suspects()] == ["c"]
