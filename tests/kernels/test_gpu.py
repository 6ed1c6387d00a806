"""The GPU kernels against their definitions: interpreted where there is no GPU, for real with `make test-gpu`."""

from __future__ import annotations

import subprocess
import sys

import numpy as np
import pytest

from bartizan._util.seeds import key_of
from bartizan.kernels import reference

torch = pytest.importorskip("torch")
pytest.importorskip("triton")
from bartizan.kernels import gpu  # noqa: E402
from bartizan.kernels.gpu import columnwise, placed  # noqa: E402
from bartizan.kernels.gpu.chacha import words  # noqa: E402

pytestmark = pytest.mark.gpu
REAL = torch.cuda.is_available()
DEVICE = torch.device("cuda" if REAL else "cpu")
only_real = pytest.mark.skipif(not REAL, reason="too large to interpret: needs a CUDA device")
KEY = key_of(2**200 + 12345)
DTYPES = [torch.float32, torch.float64, torch.float16, torch.bfloat16]

# name, shape of the result for M, arguments between origin and out, shapes (M, w)
KERNELS = [
    ("gram", lambda M: (M, M), (), [(1, 1), (5, 600), (67, 130)]),
    ("squared_norms", lambda M: (M,), (), [(1, 1), (3, 9001), (17, 63)]),
    ("dots", lambda M: (M,), (), [(1, 1), (3, 9001), (17, 63)]),
    ("rotated", lambda M: (M, 4096), (8192, KEY, 32), [(1, 5008)]),
    ("rotated", lambda M: (M, 64), (64 * 1001, KEY, 32), [(1, 1), (7, 1001)]),
    ("rotated", lambda M: (M, 64), (0, KEY, 1), [(2, 100)]),
    ("rotated", lambda M: (M, 256), (256, KEY, 64), [(3, 1001)]),
    ("rotated", lambda M: (M, 128), (128, KEY, 128), [(3, 1001)]),
    ("rotated", lambda M: (M, 256), (512, KEY, 4), [(2, 300)]),
    ("achlioptas", lambda M: (M, 37), (11, KEY, 8), [(5, 70)]),
    ("achlioptas", lambda M: (M, 16), (0, KEY, 1), [(3, 33), (1, 1)]),
    ("gaussian", lambda M: (M, 37), (2**33 + 11, KEY), [(1, 1), (5, 70)]),
    ("rotated", lambda M: (M, 1024), (1024, KEY, 32), [(2, 1100), (5, 2100), (3, 1500)]),
]
# The plain sketches read all dtypes in the same way: one of them stands for all.
CASES = [(i, dtype) for i in range(len(KERNELS)) for dtype in (DTYPES if i < 4 or i == 9 else DTYPES[:2])]
# k, mixing, bytes that rows are aligned to: how a block lies in warps and threads. Compiling takes longest for rows of
# narrow alignment and a k of 4096 or more, half a minute each: most rows in this file are aligned to 16 bytes.
LAYOUTS = [(1024, 32, 16), (2048, 32, 4), (4096, 32, 8), (4096, 16, 16), (2048, 64, 16)]
LARGE = [(8192, 32, 16), (16384, 32, 16), (8192, 16, 16)]


def numbers(shape, dtype=torch.float32, seed=0):
    return torch.from_numpy(np.random.default_rng(seed).normal(size=shape)).to(dtype).to(DEVICE)


def exact(tensor):
    return None if tensor is None else tensor.double().cpu().numpy()


def unaligned(x, alignment):
    """The same rows where every address is a multiple of `alignment` and of no more."""
    skip, M = alignment // x.element_size(), x.shape[0]
    unit = 16 // x.element_size()
    width = -(-x.shape[1] // unit) * unit + (unit if alignment == 16 else skip)
    flat = torch.full((M * width + skip + unit,), torch.nan, dtype=x.dtype, device=x.device)
    start = (-flat.data_ptr() // x.element_size()) % unit + (0 if alignment == 16 else skip)
    out = flat.as_strided((M, x.shape[1]), (width, 1), start)
    out.copy_(x)
    return out


# A Gram matrix of float32 rows, as a part of its largest entry. A product of two numbers, each in two parts of 11 bits,
# is short of at most 3 * 2^-20; the 48 additions of a tensor core cut off at most 2^-23 each; and some 1e-6 for sums in
# float32, which are rounded to nearest.
GRAM = 3 * 2**-20 + 48 * 2**-23 + 1e-6


def close(ours, truth, dtype, precision=None):
    precision = precision or (1e-12 if dtype == torch.float64 else 3e-6)
    np.testing.assert_allclose(exact(ours), truth, atol=precision * max(1.0, np.abs(truth).max()))


def agree(name, rows, x, origin, arguments, shape, start=0):
    """What the kernel adds, on walked or given rows, is what the definition adds to the same."""
    norms = (np.full(len(x), 0.5),) if arguments else ()
    slow = [np.full(shape, 0.25), *norms]
    fast = [torch.from_numpy(array.copy()).to(DEVICE) for array in slow]
    for first, some in rows:
        rest = ((arguments[0] + first, *arguments[1:]),) if arguments else ((),)
        about = None if origin is None else origin[first : first + some.width]
        getattr(gpu, name)(some, about, *rest[0], *fast)
    getattr(reference, name)(exact(x), exact(origin), *arguments, *slow)
    for ours, truth in zip(fast, slow, strict=True):
        close(ours, truth, x.dtype)


@pytest.mark.parametrize(("case", "dtype"), CASES, ids=[f"{KERNELS[i][0]}-{i}-{d}" for i, d in CASES])
def test_a_kernel_adds_what_its_definition_adds(case, dtype):
    name, shape, arguments, sizes = KERNELS[case]
    for i, (M, w) in enumerate(sizes if dtype in DTYPES[:2] else sizes[-2:]):  # each origin is one more to compile
        x = numbers((M, w), dtype)
        origin = [None, numbers(w, torch.float32, 1), numbers(w, torch.float64, 2)][(i + DTYPES.index(dtype)) % 3]
        agree(name, gpu.Placed.of(x), x, origin, arguments, shape(M))


@pytest.mark.parametrize(("k", "mixing", "alignment"), LAYOUTS + [pytest.param(*c, marks=only_real) for c in LARGE])
def test_the_sketch_is_the_same_however_a_block_lies_in_the_threads(k, mixing, alignment):
    x = unaligned(numbers((1, k + 5)), alignment)
    rows = gpu.DeviceRows.of(x, tile=max(4096, k))
    assert rows.align == alignment
    agree("rotated", [(0, rows)], x, None, (k, KEY, mixing), (1, k))


def test_the_words_are_those_of_the_definition():
    first, count = 16 * (2**32 - 3), 16 * 300
    ours = words(KEY, 5, first, count, DEVICE).cpu().numpy().view(np.uint32)
    np.testing.assert_array_equal(ours, reference.words(KEY, 5, first, count))


def layers(sizes, M, dtypes):
    """M clients with layers of these sizes, each a tensor of its own between NaNs; and the same as one matrix."""
    rows = []
    for m in range(M):
        entries = [numbers(size, dtype, 100 * m + i) for i, (size, dtype) in enumerate(zip(sizes, dtypes, strict=True))]
        rows.append([unaligned(entry[None], 16)[0] for entry in entries])
    return rows, torch.stack([torch.cat([entry.double() for entry in row]) for row in rows])


@pytest.mark.parametrize("name", ["squared_norms", "rotated"])
@pytest.mark.parametrize(
    "dtypes",
    [
        [torch.float32] * 5,
        [torch.float16] * 5,
        [torch.bfloat16] * 5,
        [torch.float32, torch.bfloat16, torch.float32, torch.float16, torch.float32],
        [torch.float32, torch.float64, torch.float16, torch.bfloat16, torch.float64],
    ],
    ids=["float32", "float16", "bfloat16", "mixed", "with float64"],
)
@pytest.mark.parametrize("scratch", [1, 2**30], ids=["one tile at a time", "all at once"])
def test_layers_that_lie_anywhere_are_one_row(name, dtypes, scratch, monkeypatch):
    monkeypatch.setattr(placed, "SCRATCH_BYTES", scratch)
    rows, x = layers([5000, 3, 300, 9000, 701], 2, dtypes)
    dtype = torch.float64 if torch.float64 in dtypes else torch.float32
    arguments, shape = ((512, KEY, 64), (2, 256)) if name == "rotated" else ((), (2,))
    origin = numbers(x.shape[1], seed=9)
    agree(name, gpu.Placed.of(rows), x.to(dtype), origin, arguments, shape)


def test_layers_are_used_in_place_in_the_fast_kernel_too():
    rows, x = layers([4097, 4095, 100], 1, [torch.float32] * 3)
    agree("rotated", gpu.Placed.of(rows), x.float(), None, (0, KEY, 32), (1, 4096))


def test_tensors_that_are_not_contiguous_are_read_in_their_own_order():
    rows = [[numbers((40, 30), seed=m).T, numbers(77, seed=m + 9)[::2]] for m in range(3)]
    x = torch.stack([torch.cat([entry.reshape(-1) for entry in row]) for row in rows])
    agree("squared_norms", gpu.Placed.of(rows), x, None, (), (3,))
    x = numbers((50, 3)).T
    agree("squared_norms", gpu.Placed.of(x), x, None, (), (3,))


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_the_weighted_sum_is_that_of_its_definition_in_fresh_memory(dtype):
    for M, w in [(1, 1), (3, 1500), (20, 1024)]:
        x, weights = numbers((M, w), dtype), numbers(M, torch.float64, 1)
        weights[M // 2 :] = 0
        x[M // 2 :] = torch.nan
        for origin, rest, to in [(None, 0.0, dtype), (numbers(w, seed=5), -0.7, torch.float32)]:
            out, truth = torch.full((w,), torch.nan, dtype=to, device=DEVICE), np.zeros(w)
            gpu.weighted_sum(gpu.DeviceRows.of(x), exact(weights), rest, origin, out)
            some = x[: M // 2]
            reference.weighted_sum(exact(some), exact(weights[: M // 2]), rest, exact(origin), truth[None])
            precision = {torch.bfloat16: 2**-7, torch.float16: 2**-10}.get(to, 1e-6)  # interpreted, bfloat16 is cut off
            np.testing.assert_allclose(exact(out), truth, rtol=precision, atol=precision)


def test_placed_rows_can_be_walked_over_again(monkeypatch):
    rows, x = layers([5000, 3, 300, 9000, 701], 2, [torch.float32] * 5)
    for scratch in (1, 2**30):
        monkeypatch.setattr(placed, "SCRATCH_BYTES", scratch)
        again = gpu.Placed.of(rows)
        for _ in range(2):
            agree("squared_norms", again, x.float(), None, (), (2,))


def test_rows_of_other_sizes_or_dtypes_are_refused():
    for other in (numbers(8), numbers(7, torch.float64)):
        with pytest.raises(ValueError, match="of the same sizes and dtypes"):
            gpu.Placed.of([[numbers(7)], [other]])


@pytest.mark.filterwarnings("ignore:invalid value:RuntimeWarning")  # NumPy's, where it plays the device
@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("name", ["gram", "squared_norms", "rotated", "plainly rotated"])
def test_what_is_not_finite_shows_in_its_own_row_and_nowhere_else(bad, name):
    for place in (0, 999) if name != "rotated" else (999,):
        x = torch.ones((3, 1000), device=DEVICE)
        x[1, place] = bad
        out = torch.zeros((3, 3) if name == "gram" else 3, dtype=torch.float64, device=DEVICE)
        if "rotated" in name:
            k = 1024 if name == "rotated" else 64
            sketches = torch.zeros((3, k), dtype=torch.float64, device=DEVICE)
            gpu.rotated(gpu.DeviceRows.of(x), None, 0, KEY, 32, sketches, out)
        else:
            getattr(gpu, name)(gpu.DeviceRows.of(x), None, out)
        out = exact(out)
        assert not np.isfinite(out[1]).any()
        assert np.isfinite(out[[[0], [2]], [0, 2]] if name == "gram" else out[[0, 2]]).all()


def test_a_missing_triton_names_the_extra():
    code = "import sys; sys.modules['triton'] = None; import bartizan.kernels.gpu"
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert "pip install '.[gpu]'" in run.stderr


@pytest.mark.parametrize("sized", [False, True])
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_order_statistics_are_those_of_their_definitions_in_fresh_memory(dtype, sized):
    # The larger number of rows is more than fits the registers.
    for M, w in [(1, 1), (6, 300), (columnwise.MAX_SORTED_ROWS + 2, 130)]:
        x = torch.round(2 * numbers((M, w), dtype)) / 2 if M == 6 else numbers((M, w), dtype)  # with ties
        sizes = np.random.default_rng(1).integers(1, 5, size=M) / 3 if sized else np.full(M, 0.3)
        for name, f in [("median", None), ("trimmed_mean", M // 5), ("meamed", M // 5), ("meamed", 3 * M // 4)]:
            settings = {} if f is None else {"f": f}
            out, truth = torch.full((w,), torch.nan, dtype=torch.float64, device=DEVICE), np.full((1, w), np.nan)
            getattr(gpu, name)(gpu.DeviceRows.of(x), sizes=sizes, out=out, **settings)
            getattr(reference, name)(exact(x), sizes=sizes, out=truth, **settings)
            np.testing.assert_allclose(exact(out), truth[0], rtol=1e-12, atol=1e-12)


def test_the_median_of_two_huge_numbers_is_finite():
    x, out = torch.full((4, 20), 3e38, device=DEVICE), torch.empty(20, device=DEVICE)
    for sizes in (np.ones(4), np.arange(1.0, 5)):
        gpu.median(gpu.DeviceRows.of(x), sizes, out)
        assert bool((out == x[0]).all())


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_mixtures_are_those_of_their_definition(dtype):
    x, origin, mixing = numbers((7, 500), dtype), numbers(500, torch.float64, 1), numbers((3, 7), torch.float64, 2)
    rest = 1 - mixing.sum(1)
    for about, start, w in ((None, 0, 500), (origin, 130, 70)):
        out, truth = torch.full((3, w), torch.nan, dtype=torch.float64, device=DEVICE), np.empty((3, w))
        gpu.mixed(gpu.DeviceRows.of(x), mixing, rest, about, start, out)
        reference.mixed(exact(x), exact(mixing), exact(rest), exact(about), start, truth)
        np.testing.assert_allclose(exact(out), truth, rtol=1e-12, atol=1e-12)


@only_real
@pytest.mark.parametrize(("name", "f"), [("median", None), ("trimmed_mean", 10), ("meamed", 10)])
@pytest.mark.parametrize(("M", "w"), [(50, 1_000_003), (columnwise.MAX_SORTED_ROWS, 70_001), (200, 100_001)])
def test_order_statistics_of_many_columns(name, f, M, w):
    x, settings = numbers((M, w)), {} if f is None else {"f": f}
    out, truth = torch.full((w,), torch.nan, device=DEVICE), np.empty((1, w))
    getattr(gpu, name)(gpu.DeviceRows.of(x), sizes=np.ones(M), out=out, **settings)
    getattr(reference, name)(exact(x), sizes=np.ones(M), out=truth, **settings)
    np.testing.assert_allclose(exact(out), truth[0], rtol=1e-6, atol=1e-6)


@only_real
def test_columns_beyond_2_to_the_31_are_read():
    p = 2**31 + 2**20 + 24
    x = torch.zeros((2, p), dtype=torch.bfloat16, device=DEVICE)
    x[:, -3:] = torch.tensor([[1.0, 2.0, 3.0], [0.5, -1.0, 0.25]], device=DEVICE)
    x[:, 5] = 1.0
    truth, norms, out = np.zeros((2, 4096)), np.zeros(2), torch.zeros((2, 4096), dtype=torch.float64, device=DEVICE)
    ours, last = torch.zeros(2, dtype=torch.float64, device=DEVICE), p // 4096 * 4096
    gpu.rotated(gpu.DeviceRows.of(x), None, 0, KEY, 32, out, ours)
    for low, high in [(0, 4096), (last, p)]:
        reference.rotated(exact(x[:, low:high].float()), None, low, KEY, 32, truth, norms)
    close(out, truth, torch.float32)
    close(ours, norms, torch.float32)
    combined = torch.full((p,), torch.nan, dtype=torch.bfloat16, device=DEVICE)
    both = np.array([1.0, 2.0])
    gpu.weighted_sum(gpu.DeviceRows.of(x), both, 0.0, None, combined)
    assert combined[-3:].tolist() == [2.0, 0.0, 3.5]
    assert not combined.isnan().any()


@only_real
@pytest.mark.parametrize(("M", "p"), [(50, 1_234_567), (2000, 70_004), (1000, 300_000)])
def test_many_rows_agree_with_torch_in_float64(M, p):
    x = torch.randn((M, p), device=DEVICE)
    y, norms = (torch.zeros(s, dtype=torch.float64, device=DEVICE) for s in ((M, 4096), (M,)))
    gpu.rotated(gpu.DeviceRows.of(x), None, 0, KEY, 32, y, norms)
    chosen = [0, M // 2, M - 1]
    truth, squares = np.zeros((3, 4096)), np.zeros(3)
    reference.rotated(exact(x[chosen]), None, 0, KEY, 32, truth, squares)
    close(y[chosen], truth, torch.float32)
    close(norms[chosen], squares, torch.float32)
    G = torch.zeros((M, M), dtype=torch.float64, device=DEVICE)
    gpu.gram(gpu.DeviceRows.of(x), None, G)
    close(G[chosen], exact(x[chosen].double() @ x.double().T), torch.float32, GRAM)
    w, out = torch.rand(M, dtype=torch.float64, device=DEVICE) / M, torch.empty(p, device=DEVICE)
    gpu.weighted_sum(gpu.DeviceRows.of(x), exact(w), 0.0, None, out)
    close(out, exact(w @ x.double()), torch.float32)
