"""The fast kernels against their definitions."""

from __future__ import annotations

from inspect import signature

import numpy as np
import pytest
from numba import njit

from bartizan._util.seeds import key_of
from bartizan.kernels import cpu, reference
from bartizan.kernels.protocol import Kernels
from bartizan.kernels.rows import Rows
from bartizan.updates.columns import Row, stack
from bartizan.updates.layout import Layout, widen_bfloat16

KEY = key_of(2**200 + 12345)
SHAPES = [(1, 1), (2, 63), (5, 4096), (7, 9001), (13, 300)]
# name, shape of the result for (M, w), arguments between origin and out
KERNELS = [
    ("gram", lambda M, w: (M, M), ()),
    ("squared_norms", lambda M, w: (M,), ()),
    ("dots", lambda M, w: (M,), ()),
    ("rotated", lambda M, w: (M, 4096), (8192, KEY, 32)),
    ("rotated", lambda M, w: (M, 64), (64 * 1001, KEY, 32)),
    ("rotated", lambda M, w: (M, 64), (0, KEY, 1)),
    ("rotated", lambda M, w: (M, 256), (256, KEY, 64)),
    ("rotated", lambda M, w: (M, 128), (128, KEY, 128)),
    ("achlioptas", lambda M, w: (M, 37), (11, KEY, 8)),
    ("achlioptas", lambda M, w: (M, 16), (0, KEY, 1)),
    ("achlioptas", lambda M, w: (M, 300), (5, KEY, 4)),
    ("gaussian", lambda M, w: (M, 37), (11, KEY)),
]


@pytest.mark.parametrize(("name", "shape", "arguments"), KERNELS, ids=[f"{k[0]}-{i}" for i, k in enumerate(KERNELS)])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("with_origin", [False, True])
@pytest.mark.parametrize("small", [0, 2**60], ids=["all threads", "one thread"])
def test_a_kernel_adds_what_its_definition_adds(name, shape, arguments, dtype, with_origin, small, monkeypatch):
    monkeypatch.setattr(cpu, "THREADS_FROM_ADDITIONS", small)
    rng = np.random.default_rng(0)
    for M, w in SHAPES:
        x = rng.normal(size=(M, w)).astype(dtype)
        origin = rng.normal(size=w).astype(dtype) if with_origin else None
        norms = (np.full(M, 0.5),) if arguments else ()
        fast, slow = ([np.full(shape(M, w), 0.25), *(n.copy() for n in norms)] for _ in range(2))
        getattr(cpu, name)(Rows.of(x), origin, *arguments, *fast)
        getattr(reference, name)(x, origin, *arguments, *slow)
        # Rounded after each addition, at most, and once more in the difference with the origin.
        error = 1e-11 * w if dtype == np.float64 else 1e-6 * max(1, w**0.5)
        for ours, truth in zip(fast, slow, strict=True):
            np.testing.assert_allclose(ours, truth, rtol=1e-6 if dtype == np.float32 else 1e-13, atol=error)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("M", [cpu.STRIPE_FROM_ROWS + 1, 3 * cpu.STRIPE_ROWS, 515])
def test_the_products_of_many_rows_are_those_of_their_definition_and_symmetric(M, dtype, monkeypatch):
    monkeypatch.setattr(cpu, "BAND_STRIPS", 2)  # so that there is more than one band
    x, origin = np.random.default_rng(0).normal(size=(2, M, 700)).astype(dtype)
    fast, slow = np.full((M, M), 0.25), np.full((M, M), 0.25)
    cpu.gram(Rows.of(x), origin[0], fast)
    reference.gram(x, origin[0], slow)
    np.testing.assert_allclose(fast, slow, atol=1e-10 if dtype == np.float64 else 1e-4)
    np.testing.assert_array_equal(fast, fast.T)


@pytest.mark.parametrize(("M", "k"), [(7, 4096), (40, 4096), (300, 4096), (8, 2**17), (3, 2**20)])
def test_the_products_of_sketches_are_the_same_to_the_bit_for_any_number_of_threads(M, k, monkeypatch):
    x, made = np.random.default_rng(0).normal(size=(M, k)), []
    for threads in (1, 2, 3, 16):
        monkeypatch.setattr(cpu, "n_threads", lambda threads=threads: threads)
        made.append(np.zeros((M, M)))
        cpu.gram(Rows.of(x), None, made[-1])
    for other in made[1:]:
        np.testing.assert_array_equal(made[0], other)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("with_origin", [False, True])
@pytest.mark.parametrize("small", [0, 2**60], ids=["all threads", "one thread"])
def test_the_weighted_sum_writes_what_its_definition_writes(dtype, with_origin, small, monkeypatch):
    monkeypatch.setattr(cpu, "THREADS_FROM_ADDITIONS", small)
    rng = np.random.default_rng(1)
    for M, w in [*SHAPES, (3, 20_000)]:
        x, weights = rng.normal(size=(M, w)).astype(dtype), rng.normal(size=M)
        origin = rng.normal(size=w).astype(dtype) if with_origin else None
        fast, slow = np.full((1, w), np.nan, dtype), np.full((1, w), np.nan, dtype)
        cpu.weighted_sum(Rows.of(x), weights, 0.25, origin, Rows.of(fast))
        reference.weighted_sum(x, weights, 0.25, origin, slow)
        np.testing.assert_allclose(fast, slow, rtol=np.finfo(dtype).eps, atol=1e-6 if dtype == np.float32 else 1e-13)
        again, norms = np.full((1, w), np.nan, dtype), np.zeros((2, M))
        cpu.weighted_sum(Rows.of(x), weights, 0.25, origin, Rows.of(again), norms[0])
        reference.squared_norms(x, origin, norms[1])
        np.testing.assert_array_equal(again, fast)
        np.testing.assert_allclose(*norms, rtol=1e-6 if dtype == np.float32 and with_origin else 1e-13)


def test_faint_updates_keep_their_norms():
    """Squares of 1e-30 are zero in float32."""
    x = np.random.default_rng(2).normal(size=(3, 70_000)).astype(np.float32) * np.float32(1e-30)
    norms = np.zeros(3)
    cpu.rotated(Rows.of(x), None, 0, KEY, 32, np.zeros((3, 4096)), norms)
    np.testing.assert_allclose(norms, (x.astype(np.float64) ** 2).sum(axis=1), rtol=1e-6)


def test_equal_rows_are_at_distance_zero_to_the_last_bit():
    x = np.random.default_rng(3).normal(size=(7, 5000)).astype(np.float32)
    x[6] = x[1]
    G = np.zeros((7, 7))
    cpu.gram(Rows.of(x), None, G)
    assert G[1, 1] + G[6, 6] - 2 * G[1, 6] == 0


def test_rows_point_into_memory_without_copying_it():
    x = np.arange(12, dtype=np.float32).reshape(3, 4)
    rows = Rows.of(x)
    x[1, 2] = 99
    np.testing.assert_array_equal(np.asarray(rows), x)
    np.testing.assert_array_equal(np.asarray(rows, dtype=np.float64), x)


def patchwork(rng, M):
    """M rows of entries of every format, size and stride, as the kernels meet them, and their numbers."""
    sizes = [1, 5000, 3, 4096, 700, 9000, 12, 6]
    kinds = ["float32", "float16", "bfloat16", "float32", "float64", "float32", "float32", "float16"]
    rows, truth = [], []
    for m in range(M):
        floats, parts = [], []
        for e, (size, kind) in enumerate(zip(sizes, kinds, strict=True)):
            numbers = rng.normal(size=3 * size)
            stored = (numbers.astype(np.float32).view(np.uint32) >> 16).astype(np.uint16)
            array = stored if kind == "bfloat16" else numbers.astype(kind)
            array = [array[:size], array[: 2 * size : 2], array[size - 1 :: -1][:size], array[1 : size + 1]][
                (m + e) % 4
            ]
            if size == 12 and m % 2:
                array = array.reshape(3, 4).T  # no kernel can walk this one
            if size == 700 and m % 2:
                array = array.astype(array.dtype.newbyteorder(">"))
            floats.append(array)
            flat = np.asarray(array.reshape(-1))
            parts.append((widen_bfloat16(flat) if kind == "bfloat16" else flat).astype(np.float64))
        rows.append(Row(tuple(floats), ()))
        truth.append(np.concatenate(parts))
    return sizes, kinds, rows, np.array(truth)


def test_rows_are_read_where_they_lie_in_any_format_and_stride():
    sizes, kinds, rows, truth = patchwork(np.random.default_rng(4), 6)
    layout = Layout.of({(e,): np.empty(n, "float32") for e, n in enumerate(sizes)})
    layout = Layout(
        tuple(type(entry)(entry.path, entry.shape, k) for entry, k in zip(layout.entries, kinds, strict=True))
    )
    for most in (None, 4096, 8192):
        fast, slow = (np.zeros((6, 4096)), np.zeros(6)), (np.zeros((6, 4096)), np.zeros(6))
        reference.rotated(truth, None, 0, KEY, 32, *slow)
        for start, block in stack(rows, layout).blocks(4096, most):
            np.testing.assert_array_equal(np.asarray(block), truth[:, start : start + block.width])
            np.testing.assert_array_equal(block[2], truth[2, start : start + block.width])
            cpu.rotated(block, None, start, KEY, 32, *fast)
        for ours, theirs in zip(fast, slow, strict=True):
            np.testing.assert_allclose(ours, theirs, rtol=1e-12, atol=1e-12)


def test_a_sum_is_rounded_once_to_the_format_of_its_place():
    """Against torch, which rounds float64 to a half and to a bfloat16 correctly where float32 does not tie first."""
    torch = pytest.importorskip("torch")
    rng = np.random.default_rng(5)
    x = rng.normal(size=(2, 5000)) * 10.0 ** rng.integers(-9, 6, size=5000)
    x[0, :2] = 1 + 2**-8 + 2**-30, 1 + 2**-11 + 2**-40  # just above a tie of bfloat16, of a half
    x[1, :2] = 0
    weights = np.array([1.0, 1.0])
    for kind, dtype in (("float16", np.float16), ("bfloat16", np.uint16)):
        out = np.empty((1, 5000), dtype)
        cpu.weighted_sum(Rows.of(x), weights, 0.0, None, Rows.of(out))
        exact = x.sum(axis=0)
        got = out[0].astype(np.float64) if kind == "float16" else widen_bfloat16(out[0]).astype(np.float64)
        torch_type = getattr(torch, kind)
        near = torch.from_numpy(exact).to(torch_type)
        below, above = (torch.nextafter(near, torch.tensor(s * torch.inf, dtype=torch_type)).double() for s in (-1, 1))
        candidates = np.stack([below.numpy(), near.double().numpy(), above.numpy()])
        with np.errstate(invalid="ignore"):
            best = np.nanmin(np.where(np.isfinite(candidates), abs(candidates - exact), np.inf), axis=0)
            ours = np.where(np.isfinite(got), abs(got - exact), np.inf)
        fits = abs(exact) < 65_000
        np.testing.assert_array_equal(ours[fits], best[fits])


def as_read(bits):
    """Half-precision numbers as the kernels read them: by the CPU's instruction, where it has one."""
    out = np.empty((1, bits.size), np.float32)
    cpu.copied(Rows.of(bits.view(np.float16)[None]), out)
    return out[0]


def as_written(numbers):
    out = np.empty((1, numbers.size), np.float16)
    cpu.weighted_sum(Rows.of(numbers[None]), np.ones(1), 0.0, None, Rows.of(out))
    return out[0].view(np.uint16)


def one_by_one(convert, dtype):
    """The operations on bits, which the kernels take only where the CPU lacks the instruction."""
    compiled = njit(convert)
    return lambda x: np.array([compiled(number) for number in x], dtype)


@pytest.mark.parametrize("convert", [as_read, one_by_one(cpu.half_to_float, np.float32)], ids=["kernel", "bits"])
def test_all_halves_are_read_as_numpy_reads_them(convert):
    bits = np.arange(2**16, dtype=np.uint16)
    np.testing.assert_array_equal(convert(bits), bits.view(np.float16).astype(np.float32))
    np.testing.assert_array_equal(np.signbit(convert(bits)), bits >= 2**15)


@pytest.mark.parametrize("convert", [as_written, one_by_one(cpu.float_to_half, np.uint16)], ids=["kernel", "bits"])
def test_numbers_are_rounded_to_halves_as_numpy_rounds_them(convert):
    halves = np.arange(0x7C00, dtype=np.uint16).view(np.float16).astype(np.float32)
    ties = (halves[1:] + halves[:-1]) / 2
    large = np.float32([65519.99, 65520, 65536, 1e38, np.inf])
    tiny = np.float32([1e-45, 2**-26, 2**-25, 1.5 * 2**-25])
    any_bits = np.random.default_rng(0).integers(0, 2**32, 2**16, dtype=np.uint32).view(np.float32)
    near = [np.nextafter(ties, np.float32(towards)) for towards in (0, np.inf)]
    x = np.concatenate([halves, ties, *near, large, tiny, any_bits])
    x = np.concatenate([x, -x])
    with np.errstate(over="ignore"):
        truth = x.astype(np.float16)
    got = convert(x)
    np.testing.assert_array_equal(got[~np.isnan(x)], truth.view(np.uint16)[~np.isnan(x)])
    assert np.isnan(got[np.isnan(x)].view(np.float16)).all()


def test_every_module_of_kernels_has_the_protocols_names_and_arguments():
    pytest.importorskip("triton")
    from bartizan.kernels import gpu

    names = [name for name in vars(Kernels) if not name.startswith("_")]
    order_statistics = {"median", "trimmed_mean", "meamed", "mixed"}
    sketches = {"rotated", "achlioptas", "gaussian"}
    assert {"gram", "squared_norms", "dots", "weighted_sum"} | order_statistics | sketches == set(names)
    for module in (cpu, gpu, reference):
        for name in names:
            wanted = list(signature(getattr(Kernels, name)).parameters)[1:]
            assert list(signature(getattr(module, name)).parameters)[: len(wanted)] == wanted
