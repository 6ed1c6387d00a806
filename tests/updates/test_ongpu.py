"""Updates on a GPU, whole rounds of them, against the same in host memory; interpreted where there is no GPU."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pytest

import bartizan as bz
from bartizan.judge.judge import geometry_by
from bartizan.sources.local import LocalUpdates

torch = pytest.importorskip("torch")
pytest.importorskip("triton")

from bartizan.rules.coordinatewise import CoordinateWise, MeaMed, Median, TrimmedMean  # noqa: E402
from bartizan.updates import layout, parse  # noqa: E402

GPU = torch.cuda.is_available()
M, P = 7, 5000
SEED = 2**100 + 7


@pytest.fixture(autouse=True)
def tensors_count_as_on_a_gpu(monkeypatch):
    """Without one, Triton's interpreter reads the CPU's tensors as if they were there."""
    if not GPU:
        for module in (layout, parse):
            monkeypatch.setattr(module, "on_gpu", layout.is_tensor)


def numbers(dtype=torch.float32):
    x = torch.from_numpy(np.random.default_rng(0).normal(size=(M, P)) + 1)
    x[0] = -40
    return x.to(dtype)


def there(x):
    return x.cuda() if GPU else x


def layers(row):
    """One client's update as a state dict: layers of many sizes, one not contiguous, one a counter."""
    a, b, c, d = torch.split(row, [3000, 1, 1996, 3])
    return {"a": a.reshape(30, 100), "b": b, "c": c, "d": d, "steps": torch.tensor(7, device=row.device)}


def host(update):
    return (
        {k: v.cpu().double().numpy() for k, v in update.items()}
        if isinstance(update, dict)
        else update.cpu().double().numpy()
    )


INTERPRETED = () if GPU else pytest.mark.slow
RULES = [
    bz.Krum(2),
    *(pytest.param(rule, marks=INTERPRETED) for rule in (bz.NNM(2) >> bz.GeometricMedian(), bz.CenteredClipping(1.0))),
    Median(),
]


@pytest.mark.parametrize("rule", RULES, ids=repr)
@pytest.mark.parametrize("sketch", [bz.Exact(), bz.Rotated()], ids=repr)
def test_a_round_on_a_gpu_is_the_round_in_host_memory(rule, sketch):
    if isinstance(rule, Median) and not isinstance(sketch, bz.Exact):
        pytest.skip("coordinate-wise rules are not projected")
    x = numbers()
    want = bz.aggregate(x.numpy(), rule, sketch=sketch, seed=SEED)
    got = bz.aggregate(there(x), rule, sketch=sketch, seed=SEED)
    if want.weights is not None:
        np.testing.assert_allclose(got.weights, want.weights, atol=1e-5)
    assert got.update.device.type == ("cuda" if GPU else "cpu")
    assert got.update.dtype == torch.float32
    np.testing.assert_allclose(host(got.update), want.update, atol=2e-5)


@pytest.mark.parametrize("reference", [False, True], ids=["no reference", "reference"])
@pytest.mark.parametrize("sketch", [bz.Exact(), bz.Rotated(k=64)], ids=repr)
def test_neither_an_offset_nor_a_far_reference_takes_digits_of_distances(sketch, reference):
    """Products summed in float32 have too few digits of clients that are 1000 times as far away as apart."""
    rng = np.random.default_rng(1)
    far = (1e3 * rng.normal(size=600)).astype(np.float32)
    x = (rng.normal(size=(M, 600)) + (0 if reference else far)).astype(np.float32)
    if not reference and not isinstance(sketch, bz.Exact):
        pytest.skip("Rotated mixes float32: 1e-7 of the offset is lost, far less than a projection loses anyway")
    clients = parse.parse_updates(
        there(torch.from_numpy(x)), reference=there(torch.from_numpy(far)) if reference else None
    )
    D = geometry_by(sketch, LocalUpdates(clients), SEED).squared_distances
    i, j = np.triu_indices(M, 1)
    truth = np.sum(np.square(sketch(x[i].astype(np.float64) - x[j], seed=SEED)), axis=1)
    np.testing.assert_allclose(D[i, j], truth, rtol=1e-5)


@pytest.mark.parametrize("sketch", [bz.Exact(), bz.Rotated(k=64)], ids=repr)
@pytest.mark.parametrize(("dtype", "exponent"), [(torch.float32, -100), (torch.bfloat16, -100), (torch.float64, -600)])
def test_updates_whose_squares_underflow_are_weighed_like_others(sketch, dtype, exponent):
    x = torch.from_numpy(np.random.default_rng(2).normal(size=(M, 200))).to(dtype)
    x[0] *= 100
    for rule in (bz.Krum(2), bz.CGE(2)):
        want = bz.aggregate(there(x), rule, sketch=sketch, seed=SEED)
        got = bz.aggregate(there(x * 2.0**exponent), rule, sketch=sketch, seed=SEED)
        np.testing.assert_allclose(got.weights, want.weights, atol=1e-6)


@pytest.mark.parametrize("rule", [bz.MultiKrum(2), Median()], ids=repr)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16, torch.float64], ids=str)
def test_state_dicts_come_back_as_state_dicts(dtype, rule):
    x = numbers(dtype)
    want = bz.aggregate(x.float().numpy(), rule, seed=SEED)
    got = bz.aggregate([layers(row) for row in there(x)], rule, seed=SEED)
    if want.weights is not None:
        np.testing.assert_allclose(got.weights, want.weights, atol=1e-6)
    mean = layers(torch.from_numpy(want.update))
    for name, value in got.update.items():
        assert value.shape == mean[name].shape
        assert value.dtype == (torch.int64 if name == "steps" else dtype)
        np.testing.assert_allclose(host({name: value})[name], mean[name].double().numpy(), rtol=8e-3, atol=1e-2)
    assert int(got.update["steps"]) == 7


def test_a_reference_and_a_trusted_update_may_lie_anywhere():
    x = numbers()
    origin, trusted = numbers()[3] + 1, numbers()[1:].mean(dim=0)
    rule = bz.FLTrust()
    want = bz.aggregate(x.numpy(), rule, reference=origin.numpy(), trusted=trusted.numpy())
    for place in (there, lambda t: t.numpy()) if GPU else (there,):
        got = bz.aggregate(there(x), rule, reference=place(origin), trusted=place(trusted))
        np.testing.assert_allclose(got.weights, want.weights, atol=1e-6)
        np.testing.assert_allclose(host(got.update), want.update, atol=2e-5)


def test_bad_clients_are_quarantined_with_their_reason():
    x = numbers()
    x[4, 17], x[5, 3] = torch.nan, torch.inf
    out = bz.aggregate(there(x), bz.Krum(2), sketch=bz.Rotated())
    assert sorted(out.quarantined) == [4, 5]
    assert "NaN, first at 17" in out.quarantined[4]
    assert "Inf, first at 3" in out.quarantined[5]
    assert out.update.isfinite().all()


def test_a_round_takes_updates_as_they_arrive():
    x = numbers()
    aggregator = bz.Aggregator(bz.GeometricMedian(), sketch=bz.Rotated())
    with aggregator.round(seed=SEED) as r:
        for m in reversed(range(M)):
            r.add(there(x[m]), m)
        got = r.close()
    want = bz.aggregate(there(x), aggregator.rule, sketch=got.sketch, seed=got.seed)
    np.testing.assert_allclose(got.weights, want.weights, atol=1e-6)


@pytest.mark.skipif(not GPU, reason="needs a GPU")
@pytest.mark.gpu
def test_a_client_on_another_device_is_quarantined():
    x = numbers()
    out = bz.aggregate([x[0], *there(x[1:])], bz.Krum(2))
    assert "cpu" in out.quarantined[0]


@pytest.mark.parametrize("argument", [{"memory": "1 GiB"}, {"out": torch.empty(P)}], ids=["memory", "out"])
def test_budgets_and_places_are_for_host_memory(argument):
    with pytest.raises(ValueError, match="host memory"):
        bz.aggregate(there(numbers()), bz.Krum(2), **argument)


@dataclass(frozen=True)
class Largest(CoordinateWise):
    """A rule of somebody else's, in NumPy."""

    def reduce(self, columns, sizes):
        assert isinstance(columns, np.ndarray)
        return columns.max(axis=0)


@pytest.mark.parametrize("reference", [False, True], ids=["no reference", "reference"])
@pytest.mark.parametrize(
    "rule",
    [
        *(Median(), TrimmedMean(2), MeaMed(2), bz.Bulyan(1, trim=True), bz.NNM(2) >> TrimmedMean(2)),
        *(bz.Clipping(50.0) >> Median(), Largest(), bz.NNM(2) >> Largest()),
    ],
    ids=repr,
)
def test_a_coordinate_wise_round_is_the_round_in_host_memory(rule, reference):
    x, origin = numbers()[:, :600], numbers()[1, :600] / 2 if reference else None
    # Mixtures of the same clients are equal up to rounding, and which of them is trimmed would decide by its size.
    for sizes in (None,) if "NNM" in repr(rule) else (None, np.arange(1, M + 1)):
        want = bz.aggregate(x.numpy(), rule, sizes=sizes, reference=None if origin is None else origin.numpy())
        got = bz.aggregate(there(x), rule, sizes=sizes, reference=None if origin is None else there(origin))
        np.testing.assert_allclose(host(got.update), want.update, atol=1e-5)


@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two GPUs")
@pytest.mark.parametrize("sketch", [bz.Exact(), bz.Rotated(k=1024), bz.Achlioptas(k=256), bz.Gaussian(k=64)], ids=repr)
def test_updates_may_be_on_another_gpu_than_the_current_one(sketch):
    rule, x = bz.NNM(2) >> bz.GeometricMedian(), numbers()
    first, second = (bz.aggregate(x.to(f"cuda:{n}"), rule, sketch=sketch, seed=SEED) for n in (0, 1))
    assert second.update.get_device() == 1
    assert np.array_equal(first.weights, second.weights)
    assert torch.equal(first.update.cpu(), second.update.cpu())
