"""Laws of every sketch, from one table. Seeds are fixed; stated odds are for a correct sketch and a new choice."""

from statistics import NormalDist

import numpy as np
import pytest
import torch

from bartizan import Achlioptas, Exact, Gaussian, Rotated
from bartizan._util.seeds import key_of
from bartizan.kernels import cpu, reference
from bartizan.kernels.random_matrices import fill_words
from bartizan.kernels.rows import Rows
from bartizan.updates import columns, parse_updates

PROJECTIONS = [
    Gaussian(k=96),
    Gaussian(k=33),
    Achlioptas(k=96),
    Achlioptas(k=50, s=1),
    Rotated(k=64),
    Rotated(k=128, mixing=1),
    Rotated(k=128, mixing=8),
    Rotated(k=256, mixing=64),
    Rotated(k=64, mixing=64),
]
SKETCHES = [Exact(), *PROJECTIONS]

every_sketch = pytest.mark.parametrize("sketch", SKETCHES, ids=repr)
every_projection = pytest.mark.parametrize("sketch", PROJECTIONS, ids=repr)


def normal(*shape, seed=0):
    return np.random.default_rng(seed).normal(size=shape)


def by_definition(sketch, rows, seed, start=0):
    """What `kernels.reference` says the sketch of an (M, p) array is, in float64."""
    out, norms = np.zeros((len(rows), sketch.k)), np.zeros(len(rows))
    if isinstance(sketch, Rotated):
        reference.rotated(rows, None, start, key_of(seed), sketch.mixing, out, norms)
    elif isinstance(sketch, Achlioptas):
        reference.achlioptas(rows, None, start, key_of(seed), sketch.s, out, norms)
    else:
        reference.gaussian(rows, None, start, key_of(seed), out, norms)
    return out


def added(sketch, rows, seed, start=0, origin=None):
    """What the columns from `start` on contribute to the sketch."""
    out, norms = np.zeros((len(rows), sketch.k)), np.zeros(len(rows))
    sketch.add(Rows.of(rows), origin, start, seed, out, norms)
    return out


@pytest.fixture
def threads(monkeypatch):
    """Set the number of threads, for one test."""
    return lambda n: monkeypatch.setattr(cpu, "n_threads", lambda: n)


@every_sketch
def test_a_sketch_is_linear(sketch):
    x, y = normal(3, 700), normal(3, 700, seed=1)
    np.testing.assert_allclose(
        sketch(2.5 * x - y, seed=3), 2.5 * sketch(x, seed=3) - sketch(y, seed=3), rtol=1e-12, atol=1e-12
    )


@every_projection
@pytest.mark.parametrize("other", [8, 7 + 2**32, 7 + 2**128, 7 + 2**255])
def test_different_seeds_draw_different_sketches(sketch, other):
    """Also where they differ in one high bit. Odds of failing by chance: below 2^-60."""
    x = normal(1, 700)
    assert not np.allclose(sketch(x, seed=7), sketch(x, seed=other), atol=0.01)


@every_projection
def test_without_a_seed_each_call_draws_a_secret_one(sketch):
    x = normal(1, 700)
    assert not np.allclose(sketch(x), sketch(x), atol=0.01)


@every_projection
def test_half_precision_is_read_as_the_numbers_it_holds(sketch):
    x = torch.from_numpy(normal(2, 300)).bfloat16()
    want = sketch(x.double().numpy(), seed=1)
    np.testing.assert_allclose(sketch(x, seed=1), want, rtol=1e-12, atol=1e-12)
    np.testing.assert_allclose(sketch(x.double().numpy().astype(np.float16), seed=1), want, rtol=1e-12, atol=1e-12)


@every_sketch
def test_the_number_of_threads_does_not_matter(sketch, threads, monkeypatch):
    monkeypatch.setattr(cpu, "THREADS_FROM_ADDITIONS", 0)
    x = normal(5, 9001).astype(np.float32)
    threads(1)
    want = sketch(x, seed=5)
    for n in (2, 3, 8):
        threads(n)
        np.testing.assert_allclose(sketch(x, seed=5), want, rtol=1e-12, atol=1e-4)  # float32 sums, cut elsewhere


@pytest.mark.parametrize("sketch", [Rotated(), Rotated(64)], ids=repr)
def test_the_width_of_blocks_does_not_matter(sketch, monkeypatch):
    """Of many clients fewer columns are read at a time than of one: a sketch is the same to the bit."""
    clients = parse_updates(normal(1, 2**20 + 5000).astype(np.float32))
    wide = sketch.measure(clients, 5)
    monkeypatch.setattr(columns, "BLOCK_NUMBERS", 1)
    narrow = sketch.measure(clients, 5)
    np.testing.assert_array_equal(narrow.sketches, wide.sketches)
    np.testing.assert_array_equal(narrow.squared_norms, wide.squared_norms)


@every_projection
@pytest.mark.parametrize("p", [1, 2, 63, 64, 65, 127, 1000, 4097, 5003])
def test_any_width_agrees_with_the_definition(sketch, p):
    x = normal(2, p)
    np.testing.assert_allclose(sketch(x, seed=p), by_definition(sketch, x, p), rtol=1e-10, atol=1e-10)
    x = x.astype(np.float32)
    np.testing.assert_allclose(sketch(x, seed=p), by_definition(sketch, x, p), atol=1e-6 * p**0.5)


@pytest.mark.parametrize("far", [2**31, 2**33 + 64], ids=["2^31", "2^33"])
@every_projection
def test_coordinates_are_counted_in_64_bits(sketch, far):
    """Only the last coordinates of a huge model are sketched, by telling where they start."""
    start = far - far % sketch.multiple_of
    x = normal(2, 200)
    out = added(sketch, x, 4, start)
    np.testing.assert_allclose(out, by_definition(sketch, x, 4, start), rtol=1e-10, atol=1e-10)
    assert not np.allclose(out, by_definition(sketch, x, 4, start % 2**31))


@every_projection
@pytest.mark.parametrize("p", [3, 1000])
def test_squared_norms_are_unbiased(sketch, p, threads):
    """|Px|^2 / |x|^2 has mean 1 and variance at most (2 + s) / k: 400 seeds miss 1 by 6 deviations with odds 1e-8.

    The whole table fails with odds below 1e-6.
    """
    threads(1)
    x = normal(1, p)
    ratios = [np.sum(sketch(x, seed=seed) ** 2) / np.sum(x**2) for seed in range(400)]
    spread = np.sqrt((2 + getattr(sketch, "s", 0)) / sketch.k / 400)
    assert abs(np.mean(ratios) - 1) < 6 * spread


def test_gaussian_entries_are_gaussian():
    """Moments to 6 deviations and the Kolmogorov-Smirnov distance: odds of failing by chance below 1e-5."""
    k, p = 500, 300
    entries = Gaussian(k)(np.eye(p), seed=1).ravel() * np.sqrt(k)
    N = entries.size
    assert abs(entries.mean()) < 6 / np.sqrt(N)
    assert abs(np.mean(entries**2) - 1) < 6 * np.sqrt(2 / N)
    assert abs(np.mean(entries**3)) < 6 * np.sqrt(15 / N)
    assert abs(np.mean(entries**4) - 3) < 6 * np.sqrt(96 / N)
    below = np.array([NormalDist().cdf(value) for value in np.sort(entries)])
    # Kolmogorov: the distance exceeds c / sqrt N with odds about 2 exp(-2 c^2), 7e-6 at c = 2.5.
    assert np.abs(below - (np.arange(N) + 0.5) / N).max() < 2.5 / np.sqrt(N)


@pytest.mark.parametrize("sketch", [Gaussian(k=500), Achlioptas(k=500, s=1), Achlioptas(k=500, s=3)], ids=repr)
def test_dense_entries_are_independent_between_rows_and_columns(sketch):
    """No two of 300 columns or 500 rows correlate by 6.5 deviations. 170,000 pairs: odds of failing about 1e-5."""
    entries = sketch(np.eye(300), seed=2) * np.sqrt(500)
    for rows in (entries, entries.T):
        N = rows.shape[1]
        correlations = rows @ rows.T / N
        np.fill_diagonal(correlations, 0)
        assert np.abs(correlations).max() < 6.5 / np.sqrt(N)


@pytest.mark.parametrize("s", [1, 3, 8, 32])
def test_achlioptas_entries_take_three_values_with_the_right_odds(s):
    """Counts to 6 deviations: odds of failing by chance below 1e-7."""
    k, p = 500, 300
    entries = Achlioptas(k, s)(np.eye(p), seed=3).ravel() * np.sqrt(k / s)
    np.testing.assert_allclose(np.unique(entries.round(12)), [-1, 1] if s == 1 else [-1, 0, 1])
    for sign in (-1, 1):
        odds = 1 / (2 * s)
        assert abs(np.mean(entries.round() == sign) - odds) < 6 * np.sqrt(odds * (1 - odds) / entries.size)


@pytest.mark.parametrize("mixing", [1, 2, 8, 64])
def test_rotated_is_its_formula(mixing):
    """P = [R_0 D'_0 (H kron I) D_0 S_0 / sqrt n, the same for block 1, ...], as matrices."""
    k, n, L = 64, mixing, 64 // mixing
    mix = np.kron(reference.hadamard(n), np.eye(L)) / np.sqrt(n)
    for b in range(3):
        swaps, before, after, offsets = reference.rotation(key_of(6), b, k, n)
        cells = [c * L + (lane + offsets[c]) % L for c in range(n) for lane in range(L)]
        P = np.zeros((k, k))
        swap = np.eye(k)[[r * L + (lane ^ swaps[r]) for r in range(n) for lane in range(L)]]
        P[cells] = np.diag(after.ravel()) @ mix @ np.diag(before.ravel()) @ swap
        x = np.zeros((k, 3 * k))
        x[:, b * k : (b + 1) * k] = np.eye(k)
        np.testing.assert_allclose(Rotated(k, mixing)(x, seed=6), P.T, atol=1e-15)


@pytest.mark.parametrize("mixing", [1, 2, 8, 32, 64, 256])
@pytest.mark.parametrize("block", [0, 3])
def test_a_block_of_rotated_is_an_isometry(mixing, block):
    x = np.zeros((4, 1024))
    x[:, 256 * block : 256 * (block + 1)] = normal(4, 256)
    y = Rotated(k=256, mixing=mixing)(x, seed=6)
    np.testing.assert_allclose(y @ y.T, x @ x.T, rtol=1e-12, atol=1e-12)


def test_rotated_signs_and_offsets_are_fair():
    """Means of 64 blocks' signs and counts of their swaps and offsets to 6 deviations; chance fails below 1e-5.

    Pairs of a swap and an offset of the same row fill an 8 x 8 table evenly: neither tells about the other.
    """
    drawn = (reference.rotation(key_of(8), b, 1024, 32) for b in range(64))
    swaps, before, after, offsets = zip(*drawn, strict=True)
    for signs in (np.array(before), np.array(after)):
        assert set(np.unique(signs)) == {-1.0, 1.0}
        assert abs(signs.mean()) < 6 / np.sqrt(signs.size)
    assert abs(np.mean(np.array(before) * np.array(after))) < 6 / np.sqrt(64 * 1024)
    for drawn in (np.ravel(swaps), np.ravel(offsets)):
        counts = np.bincount(drawn, minlength=32)
        assert len(counts) == 32
        assert np.abs(counts - 64).max() < 6 * 8
    pairs = np.bincount(np.ravel(swaps) // 4 * 8 + np.ravel(offsets) // 4, minlength=64)
    assert np.abs(pairs - 32).max() < 6 * 32**0.5


def test_chacha_agrees_with_rfc_8439():
    """Section 2.3.2: its 32-bit counter and 96-bit nonce are the four words of our 64-bit counter and stream."""
    key = np.frombuffer(bytes(range(32)), dtype="<u4")
    nonce = np.frombuffer(bytes.fromhex("000000090000004a00000000"), dtype="<u4").astype(object)
    block = reference.chacha(key, [1 | nonce[0] << 32], nonce[1] | nonce[2] << 32, rounds=20)
    assert block.astype("<u4").tobytes().hex() == (
        "10f1e7e4d13b5915500fdd1fa32071c4c7d1f4c733c068030422aa9ac3d46c4e"
        "d2826446079faa0914c2d705d98b02a2b5129cd1de164eb9cbd083e8a2503c4e"
    )


def test_eight_rounds_of_chacha_agree_with_the_known_stream():
    block = reference.chacha(np.zeros(8, np.uint32), [0], 0)
    assert block.astype("<u4").tobytes().hex().startswith("3e00ef2f895f40d67f5bb8e81f09a5a1")


@pytest.mark.parametrize("first", [0, 16, 16 * (2**32 - 2), 16 * (2**40 + 3)])
@pytest.mark.parametrize("stream", [1, 3, 2**35 + 1])
def test_the_fast_words_are_the_defined_words(first, stream):
    out = np.empty(16 * 5, np.uint32)
    fill_words(key_of(2**255 + 12345), np.uint64(stream), np.uint64(first), out)
    np.testing.assert_array_equal(out, reference.words(key_of(2**255 + 12345), stream, first, out.size))


def test_words_can_be_cut_out_anywhere():
    whole = reference.words(key_of(1), 2, 0, 200)
    np.testing.assert_array_equal(reference.words(key_of(1), 2, 37, 101), whole[37:138])


def test_the_sketches_share_no_randomness():
    x = np.eye(3)[:, :1]
    assert len({by_definition(sketch, x, 0).tobytes() for sketch in (Gaussian(64), Achlioptas(64), Rotated(64))}) == 3
    assert len({reference.ROTATED, reference.ACHLIOPTAS, reference.GAUSSIAN}) == 3


@pytest.mark.parametrize(
    ("make", "wanted"),
    [
        (lambda: Rotated(k=100), "power of two from 64 up; got 100. The next one is 128"),
        (lambda: Rotated(k=32), "power of two from 64 up; got 32. The next one is 64"),
        (lambda: Rotated(k=4096.0), "positive whole number of dimensions; got 4096.0"),
        (lambda: Rotated(k=64, mixing=3), "mixing, a power of two from 1 to k = 64; got 3"),
        (lambda: Rotated(k=64, mixing=128), "mixing, a power of two from 1 to k = 64; got 128"),
        (lambda: Rotated(k=64, mixing=0), "mixing, a power of two from 1 to k = 64; got 0"),
        (lambda: Rotated(k=64, mixing=8.0), "mixing, a power of two from 1 to k = 64; got 8.0"),
        (lambda: Gaussian(k=0), "positive whole number of dimensions; got 0"),
        (lambda: Gaussian(k=-5), "positive whole number of dimensions; got -5"),
        (lambda: Achlioptas(k="64"), "positive whole number of dimensions; got '64'"),
        (lambda: Achlioptas(k=64, s=0), "s, a whole number from 1 on .*; got 0"),
        (lambda: Achlioptas(k=64, s=2.5), "s, a whole number from 1 on .*; got 2.5"),
        (lambda: Rotated(k=64)([[1.0]], seed=-1), "integer from 0 to .*, got -1"),
        (lambda: Gaussian(k=64)([[1.0]], seed=1.0), "integer from 0 to .*, got 1.0"),
        (lambda: Achlioptas(k=64)([[1.0]], seed=2**256), "integer from 0 to"),
        (lambda: Rotated(k=64)([[1.0]], seed=True), "integer from 0 to .*, got True"),
    ],
)
def test_wrong_parameters_say_what_was_wanted(make, wanted):
    with pytest.raises(ValueError, match=wanted):
        make()
