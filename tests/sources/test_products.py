"""Adapters are compared and combined as their dense products are."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import bartizan as bz
from bartizan import lora
from bartizan.lora import LoRA, TwoSided
from bartizan.registry import default_rule
from bartizan.sources.adapters import factor_stacks
from bartizan.sources.adapters.adapter_updates import AdapterUpdates
from bartizan.sources.adapters.adapters import parse_adapter, parse_adapters
from bartizan.sources.adapters.two_sided import norms
from bartizan.updates.layout import is_tensor
from made_adapters import MODULES, adapter, dense, rotated

FEW_EXAMPLES = settings(max_examples=12, derandomize=True, deadline=None, database=None)


def distances(rows):
    return ((rows[:, None] - rows[None]) ** 2).sum(axis=2)


def in_torch(update):
    torch = pytest.importorskip("torch")
    return {name: torch.from_numpy(array) for name, array in update.items()}


@pytest.fixture(params=["numpy", "torch", "torch as on a GPU"])
def library(request, monkeypatch):
    """Turns adapters into NumPy or torch; the third runs the code for CUDA tensors on those of the CPU."""
    if request.param == "torch as on a GPU":
        monkeypatch.setattr(factor_stacks, "on_gpu", is_tensor)
    return (lambda update: update) if request.param == "numpy" else in_torch


@pytest.mark.parametrize("rank", [1, 3, 16, 64])
def test_exact_distances_are_those_of_dense_products(rank, library):
    rng = np.random.default_rng(rank)
    modules = {"a": (200, 5000), "b": (70, 90)}
    sent = [adapter(rng, r, modules=modules) for r in (rank, rank, 1, 64)]
    gram = factor_stacks.exact([parse_adapter(library(one), LoRA(alpha=8)) for one in sent]).gram
    X = np.array([dense(one, 8) for one in sent])
    found = np.diag(gram)[:, None] + np.diag(gram) - 2 * gram
    np.testing.assert_allclose(found, distances(X), rtol=1e-5, atol=1e-9 * gram.max())  # float32 factors, float64 sums


def test_factors_of_16_bits_need_float32_sums_only(monkeypatch):
    """As on a GPU: bfloat16 numbers multiply without loss, and sums in float32 keep 1e-5 of a squared norm."""
    torch = pytest.importorskip("torch")
    monkeypatch.setattr(factor_stacks, "on_gpu", is_tensor)
    rng = np.random.default_rng(1)
    modules = {"a": (200, 5000), "b": (70, 90)}
    sent = [adapter(rng, r, modules=modules) for r in (4, 4, 16, 1)]
    sent = [{name: torch.from_numpy(array).bfloat16() for name, array in one.items()} for one in sent]
    parsed = [parse_adapter(one, LoRA(alpha=8)) for one in sent]
    X = np.array([dense({name: array.double() for name, array in one.items()}, 8) for one in sent])
    for found in (factor_stacks._exact(parsed, (), None, narrow=True), factor_stacks.exact(parsed)):
        np.testing.assert_allclose(found.gram, X @ X.T, atol=1e-5 * (X @ X.T).max())


@pytest.mark.parametrize("sketch", [bz.Exact(), TwoSided(k=1024, rows=128)], ids=repr)
@pytest.mark.parametrize("rule", [bz.MultiKrum(2), bz.GeometricMedian(), bz.CGE(2), default_rule(2)], ids=repr)
def test_weights_and_products_are_those_of_dense_updates(rule, sketch, library):
    rng = np.random.default_rng(0)
    sent = [adapter(rng, rank) for rank in (2, 4, 4, 1, 3, 4, 4)]
    sent += [{name: 9 * array for name, array in adapter(rng, 4).items()} for _ in range(2)]
    X = np.array([dense(one, 8) for one in sent])
    out = lora.aggregate([library(one) for one in sent], rule, LoRA(alpha=8, rank=30), sketch=sketch, seed=1)
    wanted = bz.aggregate(X, rule).weights
    if isinstance(sketch, bz.Exact) or not rule.needs_distances:
        np.testing.assert_allclose(out.weights, wanted, atol=1e-6)
    assert out.weights[7:].max() <= wanted[7:].max() + 0.02  # the far ones stay out by the sketch, too
    # Rank 30 holds every product of 30 columns; factors are float32.
    got = dense({name: np.asarray(array) for name, array in out.update.items()}, 8)
    np.testing.assert_allclose(got, out.weights @ X, atol=1e-5 * np.abs(X).max())
    assert out.truncation < 1e-6
    if rule == default_rule(2):
        given = {"settings": LoRA(alpha=8, rank=30), "sketch": sketch, "seed": 1}
        np.testing.assert_array_equal(lora.aggregate(map(library, sent), n_byzantine=2, **given).weights, out.weights)
    assert type(out.update["h.0.q_proj.lora_A.weight"]) is type(library(sent[0])["h.0.q_proj.lora_A.weight"])


@pytest.mark.parametrize("sketch", [bz.Exact(), TwoSided()], ids=repr)
def test_a_reference_and_a_trusted_adapter_are_the_origin_and_a_point(sketch):
    rng = np.random.default_rng(3)
    origin = adapter(rng, 4)
    sent = [adapter(rng, 4, around=origin, spread=0.05) for _ in range(6)]
    sent += [adapter(rng, 4, around=origin, spread=3.0)]
    trusted = adapter(rng, 2)
    points = {"reference": origin, "trusted": trusted}
    X = np.array([dense(one, 4) for one in sent])
    dense_points = {name: dense(one, 4) for name, one in points.items()}
    for rule in (bz.FLTrust(), bz.CenteredClipping(radius=1.0), bz.NNM(1) >> bz.CGE(1)):
        out = lora.aggregate(sent, rule, LoRA(alpha=4, rank=30), sketch=sketch, seed=2, **points)
        wanted = bz.aggregate(X, rule, **dense_points)
        np.testing.assert_allclose(out.weights, wanted.weights, atol=1e-6 if isinstance(sketch, bz.Exact) else 0.1)
        rest = (1 - out.weights.sum()) * dense_points["reference"]
        np.testing.assert_allclose(dense(out.update, 4), out.weights @ X + rest, atol=1e-5 * np.abs(X).max())


@pytest.mark.parametrize("sketch", [bz.Exact(), TwoSided()], ids=repr)
def test_clients_that_hardly_differ_keep_their_digits(sketch, library):
    """Differences of 1e-7 of the factors: their squares are beyond the digits of the first Gram matrix."""
    rng = np.random.default_rng(4)
    origin = adapter(rng, 4, np.float64)
    step = [1e-7 * (1 + 4 * (m == 5)) for m in range(6)]
    sent = [adapter(rng, 4, np.float64, around=origin, spread=s) for s in step]
    wanted = bz.aggregate(np.array([dense(one, 4) for one in sent]), bz.MultiKrum(1)).weights
    for reference in (None, library(origin)):
        out = lora.aggregate(
            [library(one) for one in sent], bz.MultiKrum(1), LoRA(alpha=4), sketch=sketch, reference=reference
        )
        np.testing.assert_array_equal(out.weights > 0, wanted > 0)


@pytest.mark.parametrize("sketch", [bz.Exact(), TwoSided(k=256, rows=64)], ids=repr)
def test_inner_products_about_a_reference_are_symmetric_to_the_last_bit(sketch):
    """Searches of rules such as MDA run along the edges of a graph, and out of it where an edge goes one way only."""
    for seed in range(40):  # one in seven was not
        rng = np.random.default_rng(seed)
        origin, *sent = (adapter(rng, rank) for rank in (2, 1, 2, 3, 2, 2, 1))
        clients = parse_adapters(sent, LoRA(alpha=4), reference=origin)
        gram = AdapterUpdates(clients, LoRA(alpha=4)).measure(sketch, 3).gram
        np.testing.assert_array_equal(gram, gram.T)


@pytest.mark.parametrize("point", [0, 2], ids=["of the usual rank", "of another rank"])
def test_inner_products_about_an_adapter_are_those_of_differences(point, library):
    rng = np.random.default_rng(10)
    sent = [adapter(rng, rank, np.float64) for rank in (4, 4, 2, 3)]
    sent[3] |= adapter(rng, 5, np.float64, {"h.1.q_proj": (40, 30)})  # a rank of its own in one module
    parsed = [parse_adapter(library(one), LoRA(alpha=8)) for one in sent]
    X = np.array([dense(one, 8) for one in sent])
    found = factor_stacks.exact(parsed, (1,), parsed[point])
    D = X - X[point]
    np.testing.assert_allclose(found.gram, D @ D.T, atol=1e-9 * (D @ D.T).max())
    sketch = TwoSided(k=256, rows=64)
    Y = sketch(map(library, sent), seed=3, settings=LoRA(alpha=8))
    measured, S = sketch.measure(parsed, (1,), parsed[point], 3), Y - Y[point]
    np.testing.assert_allclose(measured.gram, S @ S.T, atol=1e-9 * (S @ S.T).max())
    np.testing.assert_allclose(measured.squared_norms, (D**2).sum(axis=1), atol=1e-9 * (D @ D.T).max())
    for exact in (found.dots, measured.dots):
        np.testing.assert_allclose(exact[:, 0], D @ D[1], atol=1e-9 * (D @ D.T).max())


@FEW_EXAMPLES
@given(st.integers(0, 2**32), st.lists(st.integers(1, 12), min_size=3, max_size=6))
def test_rotating_the_factors_changes_nothing(seed, ranks):
    rng = np.random.default_rng(seed)
    sent = [adapter(rng, rank, np.float64) for rank in ranks]
    turned = [rotated(one, rng) for one in sent]
    own, other = (factor_stacks.exact([parse_adapter(one, LoRA(alpha=2)) for one in some]) for some in (sent, turned))
    np.testing.assert_allclose(own.gram, other.gram, rtol=1e-9, atol=1e-9 * own.gram.max())
    own, other = (TwoSided(k=256, rows=64)(some, seed=seed, settings=LoRA(alpha=2)) for some in (sent, turned))
    np.testing.assert_allclose(own, other, atol=1e-9 * np.abs(own).max())


@FEW_EXAMPLES
@given(st.integers(0, 2**32), st.integers(1, 5), st.integers(1, 5))
def test_a_sketch_is_linear_in_the_products(seed, one, two):
    """X + Y of ranks r and r' is an adapter of rank r + r': its sketch is the sum, and so is its inner product."""
    rng = np.random.default_rng(seed)
    x, y = adapter(rng, one, np.float64), adapter(rng, two, np.float64)
    both = {name: np.concatenate([x[name], y[name]], axis=0 if "lora_A" in name else 1) for name in x}
    # alpha / r is 1 for each
    sketches = [
        TwoSided(k=256, rows=32)([part], seed=seed, settings=LoRA(alpha=rank))[0]
        for part, rank in ((x, one), (y, two), (both, one + two))
    ]
    np.testing.assert_allclose(sketches[0] + sketches[1], sketches[2], atol=1e-9 * np.abs(sketches[2]).max())


def test_results_do_not_depend_on_how_much_is_read_at_a_time(monkeypatch, library):
    rng = np.random.default_rng(11)
    modules = {"a": (1500, 9000), **{f"b.{i}": (70, 600) for i in range(5)}}
    parsed = [parse_adapter(library(adapter(rng, r, np.float64, modules)), LoRA(alpha=2)) for r in (2, 2, 3)]
    sketch = TwoSided(k=1024, rows=512)

    def measured():
        return [f(parsed, (1,), about) for about in (None, parsed[0]) for f in (factor_stacks.exact, sketched, norms)]

    def sketched(adapters, fixed, about):
        return sketch.measure(adapters, fixed, about, 1)

    whole = measured()
    for name in ("MAX_PIECE", "STACK_SIZE", "STACK_SIZE_ON_GPU"):
        monkeypatch.setattr(factor_stacks, name, 1)
    for one, other in zip(whole, measured(), strict=True):
        for field in ("gram", "squared_norms", "dots", "kept"):
            x, y = getattr(one, field), getattr(other, field)
            np.testing.assert_allclose(x, y, atol=1e-9 * np.abs(x).max())


def test_modules_of_equal_shapes_take_no_operations_of_their_own(monkeypatch):
    """As on a GPU, where a large model has thousands of small factors and each operation takes microseconds."""
    torch = pytest.importorskip("torch")
    from torch.utils._python_dispatch import TorchDispatchMode

    class Counted(TorchDispatchMode):
        count = 0

        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            self.count += 1
            return func(*args, **(kwargs or {}))

    monkeypatch.setattr(factor_stacks, "on_gpu", is_tensor)
    rng, counts = np.random.default_rng(12), []
    for n in (2, 40):
        modules = {f"h.{i}.{name}": shape for i in range(n) for name, shape in (("q", (40, 30)), ("v", (17, 30)))}
        parsed = [parse_adapter(in_torch(adapter(rng, 2, modules=modules)), LoRA(alpha=2)) for _ in range(n)]
        with Counted() as counted, torch.no_grad():
            for about in (None, parsed[1]):
                factor_stacks.exact(parsed, (), about)
                TwoSided(k=256, rows=64).measure(parsed, (), about, 1)
        counts.append(counted.count)
    assert counts[0] == counts[1]


@pytest.mark.parametrize("modules", [{"a": (300, 200)}, MODULES], ids=["one module", "three"])
def test_sketched_squared_norms_are_unbiased_with_the_variance_that_is_stated(modules):
    rng = np.random.default_rng(5)
    sketch, x = TwoSided(k=256, rows=64), adapter(rng, 1, modules=modules)
    exact = (dense(x, 1) ** 2).sum()
    ratios = [(sketch([x], seed=seed, settings=LoRA(alpha=1)) ** 2).sum() / exact for seed in range(200)]
    n = len(modules)
    stated = (4 / (n * 64) + (2 + 2 / n) / 256) ** 0.5
    # 200 seeds: the mean is within 5 standard errors but for a probability of 1e-6.
    assert abs(np.mean(ratios) - 1) < 5 * stated / 14
    assert 0.5 * stated < np.std(ratios) < 1.5 * stated


WORST = {
    "equal coordinates": lambda rng, d: np.resize([1.0, 0.0, 0.0, 0.0, 1.0], d),
    "two coordinates": lambda rng, d: np.eye(d)[0] + np.eye(d)[16],
    "one coordinate": lambda rng, d: np.eye(d)[3],
    "normal": lambda rng, d: rng.normal(size=d),
}


@pytest.mark.parametrize("sketch", [TwoSided(256, 32), TwoSided(64, 64), TwoSided(1024, 32)], ids=repr)
@pytest.mark.parametrize("name", WORST)
def test_no_product_varies_more_or_leaves_its_range_more_often_than_stated(name, sketch):
    rng, seeds, odds = np.random.default_rng(9), 1000, 0.01
    u, v = WORST[name](rng, 70), WORST[name](rng, 50)
    x = {"m.lora_A.weight": v[None], "m.lora_B.weight": u[:, None]}
    exact = (u @ u) * (v @ v)
    ratios = np.array([(sketch([x], seed=s, settings=LoRA(alpha=1)) ** 2).sum() / exact for s in range(seeds)])
    stated = 4 / sketch.rows + 4 / sketch.k
    # The mean is known to a thirtieth of a deviation, the variance to 20% where kurtosis is below 40: 6 of those.
    assert abs(ratios.mean() - 1) < 6 * (stated / seeds) ** 0.5
    assert ratios.var() < 2.2 * stated
    least, most = sketch.norm_ratio_range(odds)
    # 10 of 1,000 are promised; 26 would be five standard deviations more.
    assert max((ratios < least).sum(), (ratios > most).sum()) < 26


def test_a_lower_rank_tells_what_it_leaves_out():
    rng = np.random.default_rng(6)
    sent = [adapter(rng, 3) for _ in range(4)]
    out = lora.aggregate(sent, bz.Mean(), LoRA(alpha=6, rank=2))
    mean = np.mean([dense(one, 6) for one in sent], axis=0)
    left_out = np.linalg.norm(dense(out.update, 6) - mean) / np.linalg.norm(mean)
    assert out.update["h.0.q_proj.lora_A.weight"].shape == (2, 30)
    assert 0.1 < left_out == pytest.approx(out.truncation, rel=1e-4)


@pytest.mark.parametrize("shape", [(200, 30), (30, 200), (30, 30)], ids=str)
def test_many_clients_are_factored_again_at_the_size_of_their_product(shape, library, monkeypatch):
    """40 clients of rank 2 have 80 columns of B, and a product of 30."""
    rng, seen = np.random.default_rng(13), []
    sent = [adapter(rng, 2, np.float64, {"m": shape}) for _ in range(40)]
    module = np if isinstance(library(sent[0])["m.lora_A.weight"], np.ndarray) else pytest.importorskip("torch")
    qr = module.linalg.qr
    monkeypatch.setattr(module.linalg, "qr", lambda x: seen.append(x.shape[1]) or qr(x))
    out = lora.aggregate([library(one) for one in sent], bz.Mean(), LoRA(alpha=2, rank=30))
    assert seen == [30, 30]
    X = np.mean([dense(one, 2) for one in sent], axis=0)
    got = dense({name: np.asarray(array) for name, array in out.update.items()}, 2)
    np.testing.assert_allclose(got, X, atol=1e-12 * np.abs(X).max())


def test_components_without_a_product_can_still_be_trained():
    """Krum selects one client of rank 1 for a result of rank 3: two components have B = 0 and A not."""
    rng = np.random.default_rng(7)
    x = adapter(rng, 1)
    out = lora.aggregate([x] * 5, bz.Krum(1), LoRA(alpha=2, rank=3)).update
    np.testing.assert_allclose(dense(out, 2), dense(x, 2), rtol=1e-4, atol=1e-5)
    for name in (name for name in out if "lora_A" in name):
        B = out[name.replace("lora_A", "lora_B")]
        assert not B[:, 1:].any()
        assert (np.abs(out[name]).max(axis=1) > 0.01).all()


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float64"])
def test_factors_keep_their_dtype(dtype, library):
    torch = pytest.importorskip("torch")
    rng = np.random.default_rng(9)
    sent = [{n: torch.from_numpy(a).to(getattr(torch, dtype)) for n, a in adapter(rng, 2).items()} for _ in range(5)]
    for sketch in (bz.Exact(), TwoSided()):
        out = lora.aggregate(sent, bz.MultiKrum(1), LoRA(alpha=4), sketch=sketch)
        assert {array.dtype for array in out.update.values()} == {getattr(torch, dtype)}
        X = np.array([dense({n: a.double() for n, a in one.items()}, 4) for one in sent])
        assert out.weights.tolist() == bz.aggregate(X, bz.MultiKrum(1)).weights.tolist() or sketch != bz.Exact()
