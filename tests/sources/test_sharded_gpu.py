"""Shards on GPUs: nccl with one rank a GPU, gloo with several ranks on one; for real, with `make test-gpu`."""

from __future__ import annotations

import numpy as np
import pytest

import bartizan as bz
from bartizan.rules.coordinatewise import Median

torch = pytest.importorskip("torch")
pytest.importorskip("triton")
if not (torch.cuda.is_available() and torch.distributed.is_available()):
    pytest.skip("ranks with shards on a GPU need a CUDA device", allow_module_level=True)

from ranks import Blind, Ranks  # noqa: E402
from shards import CUTS, SEED, all_raise, calls, numbers, same  # noqa: E402

pytestmark = pytest.mark.gpu
GPUS = torch.cuda.device_count()
needs_nccl = pytest.mark.skipif(not torch.distributed.is_nccl_available(), reason="this torch has no nccl")
RULE, SKETCH = bz.GeometricMedian(), bz.Rotated()


def pool(size, folder, backend):
    made = Ranks(size, folder, backend, "cuda")
    yield made
    made.end()


@pytest.fixture(scope="module")
def gloo(tmp_path_factory):
    """Three ranks on one GPU, or on as many as there are."""
    yield from pool(3, tmp_path_factory.mktemp("gloo"), "gloo")


@pytest.fixture(scope="module", params=["nccl", "cpu:gloo,cuda:nccl"])
def nccl(request, tmp_path_factory):
    """One rank a GPU: nccl refuses more."""
    yield from pool(min(GPUS, 4), tmp_path_factory.mktemp("nccl"), request.param)


def by_one_process(x, rule, sketch, **settings):
    """Asked for first, since it fills the cache that ranks would compile into otherwise."""
    return bz.aggregate(x, rule, sketch=sketch, seed=SEED, **settings)


@pytest.mark.parametrize("n", [1, 2, 3])
@pytest.mark.parametrize("sketch", [SKETCH, bz.Exact()], ids=repr)
def test_with_gloo_the_result_is_that_of_one_process_in_host_memory(gloo, n, sketch):
    x = numbers(np.float32)
    alone = by_one_process(x, RULE, sketch)
    same(gloo(calls(x, CUTS[n], (RULE, sketch), "float32", seed=SEED)), alone, 1e-4)


def test_so_it_is_with_a_reference_and_a_trusted_update(gloo):
    x = numbers(np.float32)
    points = {"reference": 0.1 * x[-1], "trusted": x[5:].mean(axis=0)}
    alone = by_one_process(x, bz.FLTrust(), SKETCH, **points)
    same(gloo(calls(x, CUTS[2], (bz.FLTrust(), SKETCH), "float32", points, seed=SEED)), alone, 1e-4)


def test_so_it_is_with_a_coordinate_wise_rule_and_a_rank_without_columns(gloo):
    x = numbers(np.float32)
    alone = bz.aggregate(x, Median())
    same(gloo(calls(x, [40, 40], (Median(),), "float32")), alone, 1e-5)


@pytest.mark.parametrize("placement", ["columns", "one per client"])
def test_with_gloo_a_dtensor_on_a_mesh_of_gpus_gets_one_back(gloo, placement):
    x = numbers(np.float32, p=1003)
    call = ((RULE, SKETCH), "dtensor", {"shard": x, "seed": SEED, "placement": placement})
    answers = gloo([call] * 3)
    same(answers, by_one_process(x, RULE, SKETCH), 1e-4)
    assert answers[2].form == "DTensor ['S(0)']"


def test_with_gloo_who_is_broken_on_one_rank_is_out_on_all(gloo):
    x = numbers(np.float32)
    x[3, 8000], x[6, 0] = np.nan, np.inf
    for sketch in (SKETCH, bz.Exact()):
        answers = gloo(calls(x, CUTS[3], (bz.MultiKrum(2), sketch), "float32", seed=SEED))
        same(answers, by_one_process(x, bz.MultiKrum(2), sketch), 1e-4)
        assert answers[0].quarantined[3].startswith("rank 2, columns 5003 to 9001: ")


def test_clients_that_hardly_differ_are_looked_at_once_more_on_gpus(gloo):
    x = numbers(np.float64) + 3e6
    answers = gloo(calls(x, CUTS[3], (RULE, SKETCH), "float64", seed=SEED))
    same(answers, by_one_process(x, RULE, SKETCH), 1e-5)
    assert answers[1].traffic["reduce"] > 1.9 * 8 * len(x) * SKETCH.k


def test_a_look_that_fails_is_an_error_on_all_and_the_group_goes_on(gloo):
    x = numbers(np.float32)
    failed = gloo(calls(x, CUTS[3], (bz.Krum(2), Blind()), "float32"))
    all_raise(failed, "RuntimeError", "rank [12] failed: MemoryError: no room")
    same(gloo(calls(x, CUTS[3], (bz.Krum(2),), "float32")), bz.aggregate(x, bz.Krum(2)), 1e-5)


@needs_nccl
@pytest.mark.parametrize("sketch", [SKETCH, bz.Exact()], ids=repr)
def test_with_nccl_the_result_is_that_of_one_process_in_host_memory(nccl, sketch):
    x = numbers(np.float32)
    alone = by_one_process(x, RULE, sketch)
    for n in range(1, len(nccl.orders) + 1):
        same(nccl(calls(x, CUTS[n], (RULE, sketch), "float32", seed=SEED)), alone, 1e-4)


@needs_nccl
def test_with_nccl_a_dtensor_gets_one_back_and_who_is_broken_is_out(nccl):
    x = numbers(np.float32, p=1003)
    x[3, 900] = np.nan
    call = ((RULE, SKETCH), "dtensor", {"shard": x, "seed": SEED})
    answers = nccl([call] * len(nccl.orders))
    same(answers, by_one_process(x, RULE, SKETCH), 1e-4)
    assert answers[0].form == "DTensor ['S(0)']"


@needs_nccl
def test_with_nccl_alone_shards_in_host_memory_and_errors_travel_by_the_gpu(nccl):
    x = numbers()
    n = len(nccl.orders)
    same(nccl(calls(x, CUTS[n], (bz.Krum(2),), seed=SEED)), bz.aggregate(x, bz.Krum(2)))
    all_raise(nccl(calls(x, CUTS[n], (bz.Krum(2),), seed=-5)), "ValueError", "rank 0: seed must be an integer")
