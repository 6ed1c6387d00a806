"""What is measured is what is summed: clients that rewrite their files between the two readings are found."""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
import safetensors.torch
import torch

import bartizan as bz
from bartizan.kernels import cpu
from bartizan.kernels.rows import Rows
from bartizan.measure.probes import PROBES, Probes
from bartizan.rules.coordinatewise import CoordinateWise
from bartizan.sources import rewritten
from bartizan.updates.files import open_update

CHANGED = "its file changed between measuring and summing"
RULES = [
    *(bz.Mean(), bz.Krum(2), bz.MultiKrum(2), bz.GeometricMedian(), bz.Bulyan(2), bz.CGE(2), bz.CenteredClipping(1.0)),
    *(bz.Median(), bz.TrimmedMean(2), bz.MeaMed(2), bz.NNM(2) >> bz.GeometricMedian(), bz.NNM(2) >> bz.Median()),
    *(bz.Bucketing(2) >> bz.TrimmedMean(1), bz.Clipping(2) >> bz.Mean(), bz.FLAME(noise=0.0)),
]
SKETCHES = [bz.Exact(), bz.Rotated(k=64), bz.Achlioptas(k=64)]
CASES = [
    (rule, sketch)
    for rule in RULES
    for sketch in SKETCHES
    if isinstance(sketch, bz.Exact) or not isinstance(rule, (bz.Median, bz.TrimmedMean, bz.MeaMed))
]
DTYPES = ["float16", "bfloat16", "float32", "float64"]
M, P = 11, 5000
WIDE_P = 300_000  # numbers of a single client's update that are copied block by block, and not at once


def made(dtype: str = "float32", seed: int = 0, m: int = M, p: int = P) -> list[torch.Tensor]:
    rng = np.random.default_rng(seed)
    common = rng.normal(size=p)
    return [torch.tensor(common + 0.5 * rng.normal(size=p)).to(getattr(torch, dtype)) for _ in range(m)]


def saved(folder: Path, updates: list[torch.Tensor]) -> list[Path]:
    """bfloat16 as .safetensors, which hold two arrays each; the rest as .npy."""
    paths = []
    for m, update in enumerate(updates):
        if update.dtype == torch.bfloat16:
            paths.append(folder / f"{m:02}.safetensors")
            cut = update.numel() // 3
            safetensors.torch.save_file({"a": update[:cut].clone(), "b": update[cut:].clone()}, paths[-1])
        else:
            paths.append(folder / f"{m:02}.npy")
            np.save(paths[-1], update.numpy())
    return paths


def numbers(update) -> np.ndarray:
    if isinstance(update, dict):
        return np.concatenate([numbers(part) for part in update.values()])
    return update.double().numpy() if isinstance(update, torch.Tensor) else np.asarray(update, float)


class Rewriter:
    """A client that writes to its file in place after chosen blocks, told by the progress of the call."""

    def __init__(self, path: Path, *contents: np.ndarray | torch.Tensor | float, at: str = "sketch") -> None:
        self.path, self.at = path, at
        data = path.read_bytes()
        own = open_update(path)
        self.size = sum(array.nbytes for array in (own.values() if isinstance(own, dict) else [own]))
        self.head, self.honest = len(data) - self.size, data[-self.size :]
        self.dtype = next(iter(own.values())).dtype if isinstance(own, dict) else own.dtype
        self.contents = [self._bytes(content) for content in contents]

    def _bytes(self, content) -> bytes:
        if isinstance(self.dtype, torch.dtype):
            tensor = torch.as_tensor(np.broadcast_to(content, self.size // 2).copy()).to(self.dtype)
            return tensor.view(torch.uint16).numpy().tobytes()
        return np.broadcast_to(content, self.size // self.dtype.itemsize).astype(self.dtype).tobytes()

    def write(self, data: bytes) -> None:
        with open(self.path, "r+b") as file:
            file.seek(self.head)
            file.write(data)

    def __call__(self, stage: str, done: int, total: int) -> None:
        if stage == self.at and done == total and self.contents:
            self.write(self.contents.pop(0))


def heaviest(out: bz.Aggregation) -> int:
    """The client of the largest weight; any where a rule gives none."""
    return int(np.argmax(out.weights)) if out.weights is not None else 3


def there_and_back(path: Path, bad: float, honest: torch.Tensor):
    """A progress that writes other numbers before the sum, and the honest ones again after it; and its last step."""
    rewriter, back = Rewriter(path, bad), Rewriter(path, honest.numpy(), at="combine")
    return lambda *progress: (rewriter(*progress), back(*progress)), back


@pytest.mark.parametrize("content", [1e3, np.nan, np.inf, 3e38])
@pytest.mark.parametrize(("rule", "sketch"), CASES, ids=repr)
def test_a_client_that_rewrites_its_file_is_quarantined_and_the_others_decide(rule, sketch, content, tmp_path):
    updates = made()
    paths = saved(tmp_path, updates)
    plain = bz.aggregate(paths, rule, sketch=sketch, seed=5)
    assert not plain.quarantined
    chosen = heaviest(plain)
    out = bz.aggregate(paths, rule, sketch=sketch, seed=5, progress=Rewriter(paths[chosen], content))
    assert out.quarantined == {chosen: CHANGED}
    # The rule ran again as if the client were out: what it had written reached nothing.
    rest = [np.full(P, np.nan, np.float32) if m == chosen else update.numpy() for m, update in enumerate(updates)]
    wanted = bz.aggregate(rest, rule, sketch=sketch, seed=5)
    np.testing.assert_array_equal(out.update, wanted.update)
    assert out.n_byzantine == wanted.n_byzantine


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("rule", [bz.Krum(2), bz.GeometricMedian(), bz.Median(), bz.NNM(2) >> bz.Median()], ids=repr)
def test_files_of_any_dtype_are_checked(rule, dtype, tmp_path):
    paths = saved(tmp_path, made(dtype))
    out = bz.aggregate(paths, rule, seed=5, progress=Rewriter(paths[0], 77.0))
    plain = bz.aggregate(paths[1:], rule, seed=5)
    used = out.weights is None or isinstance(rule, (bz.Median, bz.GeometricMedian)) or 0 in out.quarantined
    assert (out.quarantined == {0: CHANGED}) == used
    assert np.abs(numbers(out.update)).max() < 10
    assert np.abs(numbers(plain.update)).max() < 10


@pytest.mark.parametrize("sketch", [bz.Rotated(k=512), bz.Rotated(k=4096)], ids=repr)
def test_rounding_of_the_result_hides_no_change_that_a_projection_shows(sketch, tmp_path):
    """float16 rounds by up to 2^-11 of a norm; the change moves the result by 0.01 of it."""
    updates = [torch.tensor(update) for update in made_far(np.float16)]
    paths = saved(tmp_path, updates)
    changed = updates[0].double().numpy()
    changed += 0.1 * np.linalg.norm(changed) / np.sqrt(P) * np.random.default_rng(1).choice([-1.0, 1.0], P)
    out = bz.aggregate(paths, bz.GeometricMedian(), sketch=sketch, seed=5, progress=Rewriter(paths[0], changed))
    assert out.quarantined == {0: CHANGED}


def made_far(dtype: type) -> np.ndarray:
    """Updates that differ by a thousandth of their norm: whole weights, say."""
    rng = np.random.default_rng(0)
    return (0.05 * (rng.normal(size=P) + 1e-3 * rng.normal(size=(M, P)))).astype(dtype)


def test_a_change_that_only_the_second_look_about_the_medoid_sees_is_found(tmp_path):
    """The weights come from that look where digits are short; the other two readings show another update."""
    rng = np.random.default_rng(3)
    common = 1e7 * rng.normal(size=P)
    honest = [common + 1e-3 * rng.normal(size=P) for _ in range(M)]
    for sketch in (bz.Exact(), bz.Rotated(k=64)):
        paths = saved(tmp_path, [torch.tensor(update) for update in honest])
        far = common + 1.0 * rng.normal(size=P)
        np.save(paths[0], far)
        rewriter = Rewriter(paths[0], honest[0], far)
        calls = []

        def looks(stage, done, total, rewriter=rewriter, calls=calls):
            calls.append((stage, done, total))
            rewriter(stage, done, total)

        out = bz.aggregate(paths, bz.Krum(2), sketch=sketch, seed=5, progress=looks)
        assert sum(stage == "sketch" and done == total for stage, done, total in calls) >= 2, "no second look"
        assert out.quarantined == {0: CHANGED}
        assert np.abs(out.update - common).max() < 0.01


@pytest.mark.parametrize("rule", [bz.Krum(2), bz.GeometricMedian(), bz.Median(), bz.Mean()], ids=repr)
@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
@pytest.mark.parametrize("p", [70, P])
def test_one_coordinate_that_changes_is_found(rule, dtype, p, tmp_path):
    """The change is 50 times what `Witness.agrees` calls rounding: four probes miss it with a probability of 1e-6."""
    updates = made(dtype, p=p)
    paths = saved(tmp_path, updates)
    plain = bz.aggregate(paths, rule, seed=5)
    chosen = 0 if plain.weights is None else int(np.argmax(plain.weights))
    weight = 1.0 if plain.weights is None else plain.weights[chosen]
    unit = {"float16": 2.0**-10, "float32": 2.0**-23, "float64": 2.0**-52}[dtype]
    sums = 2.0**-53 * (16 + p**0.5) if dtype == "float64" else 2.0**-20
    lengths = 3 * M if plain.weights is None else 2
    content = updates[chosen].double().numpy().copy()
    content[p // 3] += 50 * 16 * (unit + lengths * sums) * np.linalg.norm(content) / weight
    out = bz.aggregate(paths, rule, seed=5, progress=Rewriter(paths[chosen], content))
    assert out.quarantined == {chosen: CHANGED}


@pytest.mark.parametrize("rule", [bz.Krum(2), bz.GeometricMedian(), bz.Median(), bz.NNM(2) >> bz.Median()], ids=repr)
@pytest.mark.parametrize("sketch", [bz.Exact(), bz.Rotated(k=64)], ids=repr)
def test_a_file_that_is_changed_back_or_again_never_reaches_the_result(rule, sketch, tmp_path):
    if isinstance(rule, bz.Median) and not isinstance(sketch, bz.Exact):
        return
    p = WIDE_P if isinstance(rule, bz.Krum) else P
    updates = made(p=p)
    paths = saved(tmp_path, updates)
    plain = bz.aggregate(paths, rule, sketch=sketch, seed=5)
    chosen = heaviest(plain)
    # Bad while it is summed, and honest again when it is read once more: nobody is out, and nothing has leaked.
    progress, back = there_and_back(paths[chosen], -50.0, updates[chosen])
    out = bz.aggregate(paths, rule, sketch=sketch, seed=5, progress=progress)
    assert not back.contents
    assert not out.quarantined
    np.testing.assert_allclose(out.update, plain.update, rtol=1e-6)

    # Other numbers after every block that is read.
    count = [0]

    def restless(stage, done, total):
        count[0] += 1
        Rewriter(paths[chosen]).write(np.full(p, -50.0 - count[0], np.float32).tobytes())

    np.save(paths[chosen], updates[chosen].numpy())
    out = bz.aggregate(paths, rule, sketch=sketch, seed=5, progress=restless)
    assert list(out.quarantined) in ([], [chosen])
    assert np.abs(out.update).max() < 10


@pytest.mark.parametrize("memory", [None, "64 MiB"])
def test_a_reference_a_trusted_update_a_budget_and_a_target_change_nothing_of_it(memory, tmp_path):
    rng = np.random.default_rng(1)
    reference, trusted = rng.normal(size=(2, WIDE_P)).astype(np.float32)
    for rule in (bz.FLTrust(), bz.NNM(2) >> bz.Median(), bz.Krum(2)):
        for sketch in (bz.Exact(), bz.Rotated(k=64), bz.Rotated(k=8192)):
            paths = saved(tmp_path, made(p=WIDE_P))
            given = {"reference": reference, "trusted": trusted, "memory": memory, "out": np.zeros(WIDE_P, np.float32)}
            plain = bz.aggregate(paths, rule, sketch=sketch, seed=5, **given)
            assert not plain.quarantined
            chosen, wanted = int(np.argmax(plain.weights)), plain.update.copy()
            # There and back: the second reading must fit what was measured with all these options.
            progress, back = there_and_back(paths[chosen], 70.0, made(p=WIDE_P)[chosen])
            out = bz.aggregate(paths, rule, sketch=sketch, seed=5, progress=progress, **given)
            assert not out.quarantined
            assert not back.contents
            np.testing.assert_allclose(out.update, wanted, rtol=1e-5, atol=1e-6)
            out = bz.aggregate(paths, rule, sketch=sketch, seed=5, progress=Rewriter(paths[chosen], 70.0), **given)
            assert out.quarantined == {chosen: CHANGED}
            assert np.abs(out.update).max() < 10


@pytest.fixture
def never_again(monkeypatch):
    """Fails the test if clients are read a third time: honest files that stay as they are must pass the first check."""

    def refuse(*_):
        raise AssertionError("the first check failed")

    monkeypatch.setattr(rewritten, "MeasuredCopies", refuse)


@pytest.mark.parametrize("sketch", SKETCHES, ids=repr)
@pytest.mark.parametrize("dtype", DTYPES)
def test_files_that_stay_as_they_are_pass_the_cheap_check(sketch, dtype, never_again, tmp_path):
    """A probe's rounding errors are larger than the slack with a probability below 1e-6 a round; here are some 400."""
    rng = np.random.default_rng(9)
    highest = {"float16": 2, "bfloat16": 17, "float32": 17, "float64": 140}[dtype]
    for trial in range(9):
        m, p = int(rng.integers(4, 20)), int(rng.integers(1, 9000))
        scale = 10.0 ** rng.integers(-2, highest, endpoint=True) if trial else 10.0**-highest
        kind = trial % 4
        common = rng.normal(size=p) * (1000 if kind == 1 and dtype != "float16" else 1)
        rows = [scale * (common * (-1) ** (kind == 2 and i % 2) + 0.1 * rng.normal(size=p)) for i in range(m)]
        if kind == 3:  # one coordinate holds nearly all
            for row in rows:
                row[p // 2] *= 30
        tensors = [torch.tensor(row).to(getattr(torch, dtype)) for row in rows]
        paths = saved(tmp_path, tensors)
        reference = None
        if trial % 3 == 1 and dtype != "bfloat16":
            reference = (scale * common).astype(dtype)
        for rule in (bz.Mean(), bz.GeometricMedian(), bz.Krum(1), bz.NNM(1) >> bz.Median(), bz.CGE(1)):
            with np.errstate(all="ignore"), warnings.catch_warnings():
                warnings.simplefilter("ignore", RuntimeWarning)  # Weiszfeld's on the line that opposite clients span
                out = bz.aggregate(paths, rule, sketch=sketch, reference=reference)
            assert CHANGED not in out.quarantined.values()
        for path in paths:
            path.unlink()


def test_updates_without_squares_are_read_again_and_nobody_is_out(tmp_path):
    """The squares of 1e-300 are 0: there is no slack, and copies are compared to the bit."""
    paths = saved(tmp_path, [1e-300 * update.double() for update in made()])
    for sketch in (bz.Exact(), bz.Rotated(k=64)):
        for rule in (bz.Mean(), bz.GeometricMedian(), bz.Krum(2), bz.NNM(2) >> bz.Median()):
            assert not bz.aggregate(paths, rule, sketch=sketch).quarantined


def test_huge_attackers_with_weight_and_equal_clients_pass_the_cheap_check(never_again, tmp_path):
    updates = made()
    for factor in (1e3, 1e15):
        paths = saved(tmp_path, [updates[0] * factor, *[updates[1]] * 10])
        for rule in (bz.Mean(), bz.GeometricMedian(), bz.CenteredClipping(10.0), bz.Median(), bz.TrimmedMean(2)):
            assert not bz.aggregate(paths, rule).quarantined


@pytest.mark.parametrize("rule", [bz.Mean(), bz.Krum(2), bz.NNM(2) >> bz.Median(), bz.Median()], ids=repr)
def test_files_give_what_arrays_give_to_the_bit(rule, tmp_path):
    updates = made()
    paths = saved(tmp_path, updates)
    for sketch in (bz.Exact(), bz.Rotated(k=64)) if isinstance(rule, bz.Krum) else (bz.Exact(),):
        wanted = bz.aggregate([update.numpy() for update in updates], rule, sketch=sketch, seed=5)
        came = bz.aggregate(paths, rule, sketch=sketch, seed=5)
        np.testing.assert_array_equal(came.update, wanted.update)
        np.testing.assert_array_equal(came.weights, wanted.weights)


@pytest.mark.parametrize("rule", [bz.Krum(2), bz.GeometricMedian(), bz.Median(), bz.CGE(2)], ids=repr)
@pytest.mark.parametrize("sketch", [bz.Exact(), bz.Rotated(k=64)], ids=repr)
@pytest.mark.parametrize("recheck", [True, False])
@pytest.mark.parametrize("before", ["close", "combine"])
def test_a_round_finds_files_that_changed_since_they_were_added(rule, sketch, recheck, before, tmp_path):
    if isinstance(rule, bz.Median) and not isinstance(sketch, bz.Exact):
        return
    updates = made()
    paths = saved(tmp_path, updates)
    aggregator = bz.Aggregator(rule, sketch)
    plain = bz.aggregate(paths, rule, sketch=sketch, seed=5)
    chosen = heaviest(plain)
    at_close = isinstance(sketch, bz.Exact) and rule.needs_distances  # all is read there
    stage = "sketch" if at_close else "recheck"
    rewriter = Rewriter(paths[chosen], -40.0, at=stage)
    with aggregator.round(seed=5, recheck=recheck) as r:
        for m, path in enumerate(paths):
            r.add(path, m) if m != 2 or chosen == 2 else r.add(updates[m].numpy(), m)  # one in memory among them
        rechecked = recheck and isinstance(sketch, bz.Rotated) and rule.needs_distances
        if not at_close and (before == "close" or not rechecked):
            rewriter.write(rewriter.contents.pop())
        out = r.close(progress=rewriter)
    assert not rewriter.contents
    assert list(out.quarantined) == [chosen]
    assert np.abs(out.update).max() < 10


@pytest.mark.parametrize("content", [np.nan, np.inf])
def test_a_second_sketch_that_is_not_finite_is_that_clients_quarantine(content, tmp_path):
    paths = saved(tmp_path, made())
    for rule in (bz.Krum(2), bz.GeometricMedian()):
        chosen = int(np.argmax(bz.aggregate(paths, rule, sketch=bz.Rotated(k=64), seed=5).weights))
        with bz.Aggregator(rule, bz.Rotated(k=64)).round(seed=5) as r:
            for m, path in enumerate(paths):
                r.add(path, m)
            rewriter = Rewriter(paths[chosen], content)
            rewriter.write(rewriter.contents[0])
            out = r.close()
        assert list(out.quarantined) == [chosen]
        assert "not finite, or too large, when it is read again" in out.quarantined[chosen]
        assert np.isfinite(out.update).all()
        rewriter.write(rewriter.honest)


def test_integers_are_read_once(tmp_path):
    """They are never measured, so that there is nothing to be compared with: what is read decides."""
    paths = []
    for m in range(5):
        paths.append(tmp_path / f"{m}.safetensors")
        safetensors.torch.save_file({"w": torch.ones(50) + m / 100, "steps": torch.arange(9) + m}, paths[-1])
    out = bz.aggregate(paths, bz.GeometricMedian())
    assert not out.quarantined
    np.testing.assert_array_equal(out.update["steps"], np.arange(9) + 2)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("wide", [False, True])
@pytest.mark.parametrize(("m", "p"), [(1, 1), (5, 4096), (7, 70_001), (300, 5000)])
def test_probes_are_inner_products_and_change_no_norm_and_no_gram_matrix(m, p, wide, dtype):
    rng = np.random.default_rng(m)
    x, origin = rng.normal(size=(m, p)).astype(dtype), rng.normal(size=p).astype(dtype)
    for about in (None, origin):
        rows, probes = Rows.of(x), Probes(wide=wide)
        found, again, one = np.zeros((3, m, PROBES))
        norms, probed_norms, gram, probed_gram = np.zeros(m), np.zeros(m), np.zeros((m, m)), np.zeros((m, m))
        cpu.squared_norms(rows, about, norms)
        probes.add(rows, about, 0, 0, found, probed_norms)
        cpu.gram(rows, about, gram)
        probes.add_gram(again, rows, about, 0, probed_gram)
        np.testing.assert_array_equal(norms, probed_norms)
        np.testing.assert_array_equal(gram, probed_gram)
        # The vectors are the probes of the identity: a change in any coordinate shows.
        at = rng.integers(0, p, 40)
        units = np.zeros((40, p), dtype)
        units[np.arange(40), at] = 1
        shown = np.zeros((40, PROBES))
        probes.add(Rows.of(units), None, 0, 0, shown, np.zeros(40))
        assert (np.abs(shown).max(axis=1) > 0.01).all()  # misses with a probability of 4e-9 each
        vectors = np.array([np.outer(u, probes._within).ravel()[:p] for u in probes._across(-(-p // 4096)).T])
        np.testing.assert_allclose(shown, vectors[:, at].T, rtol=1e-6)
        centred = x.astype(float) - (0 if about is None else about.astype(float))
        tolerance = 1e-5 if dtype == np.float32 else 1e-12  # of sums of p numbers around 1, in this precision
        np.testing.assert_allclose(found, centred @ vectors.T, atol=tolerance * np.sqrt(p) * 4)
        np.testing.assert_allclose(again, centred @ vectors.T, atol=1e-12 * np.sqrt(p) * 4)
        if wide or dtype == np.float64:
            np.testing.assert_array_equal(found, again)
        # A row's probes depend neither on other rows nor on where blocks end.
        for low in range(0, p, 4096):
            part = None if about is None else about[low : low + 4096]
            probes.add(Rows.of(x[-1:, low : low + 4096]), part, low, 0, one[-1:], np.zeros(1))
        np.testing.assert_array_equal(one[-1], found[-1])


@pytest.mark.parametrize("rule", [bz.Krum(2), bz.GeometricMedian()], ids=repr)
def test_who_knows_the_seed_gains_no_more_by_rewriting_than_by_sending(rule, tmp_path):
    """A change in the null space of the sketch shows in the norm of the result, and then in the client's own."""
    updates = made(p=600)
    paths = saved(tmp_path, updates)
    sketch = bz.Gaussian(k=400)
    chosen = int(np.argmax(bz.aggregate(paths, rule, sketch=sketch, seed=5).weights))
    matrix = sketch(np.eye(600), seed=5).T
    hidden = np.linalg.svd(matrix)[2][-1]
    assert np.abs(matrix @ hidden).max() < 1e-6
    content = updates[chosen].double().numpy() + 3000 * hidden
    out = bz.aggregate(paths, rule, sketch=sketch, seed=5, progress=Rewriter(paths[chosen], content))
    assert out.quarantined == {chosen: CHANGED}
    # A round sketches the result with the seed of its recheck too, which nobody knows: any change shows.
    paths = saved(tmp_path, updates)
    rewriter = Rewriter(paths[chosen], updates[chosen].double().numpy() + 10 * hidden, at="recheck")
    with bz.Aggregator(rule, sketch).round(seed=5) as r:
        for m, path in enumerate(paths):
            r.add(path, m)
        out = r.close(progress=rewriter)
    assert not rewriter.contents
    assert out.quarantined == {chosen: CHANGED}


@dataclass(frozen=True)
class Middle(CoordinateWise):
    """A coordinate-wise rule without a kernel, or with one of its own that shows nothing."""

    own_kernel: bool = False

    def reduce(self, columns, sizes):
        return np.median(columns, axis=0)

    def kernel(self, kernels):
        return (
            (lambda rows, *, out, sizes=None: kernels.median(rows, np.ones(len(rows)), out))
            if self.own_kernel
            else None
        )


@pytest.mark.parametrize(
    "rule", [bz.Median(), bz.TrimmedMean(2), bz.MeaMed(2), Middle(), Middle(own_kernel=True)], ids=repr
)
def test_sizes_and_rules_of_others_are_checked_as_well(rule, never_again, monkeypatch, tmp_path):
    updates, sizes = made(), np.arange(1.0, M + 1)[::-1]
    paths = saved(tmp_path, updates)
    plain = bz.aggregate(paths, rule, sizes=sizes, memory="64 MiB")  # in blocks, none of which is read a third time
    wanted = bz.aggregate([update.numpy() for update in updates], rule, sizes=sizes)
    np.testing.assert_array_equal(plain.update, wanted.update)
    monkeypatch.undo()
    out = bz.aggregate(paths, rule, sizes=sizes, progress=Rewriter(paths[4], 60.0))
    assert out.quarantined == {4: CHANGED}
