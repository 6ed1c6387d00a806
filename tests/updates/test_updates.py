"""Whatever container, memory or dtype the numbers come in, the answer is the same, and comes back in kind."""

import importlib.util
import tracemalloc
from collections import OrderedDict, namedtuple
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import bartizan as bz
from containers import flat, leaves, skeleton, to_numpy

HAS_TORCH = importlib.util.find_spec("torch") is not None
Layers = namedtuple("Layers", "kernel bias")
M, P, SEED = 9, 24, 2**100 + 7
RULES = [bz.Krum(2), bz.MultiKrum(2), bz.GeometricMedian(), bz.CenteredClipping(radius=1.0), bz.coordinatewise.Median()]
SKETCHES = [bz.Exact(), bz.Rotated(k=64, mixing=8)]
PROJECTED = [(rule, sketch) for sketch in SKETCHES for rule in RULES[: 5 if sketch == bz.Exact() else 4]]


def tensor(x):
    torch = pytest.importorskip("torch")
    if not x.dtype.isnative:
        x = x.astype(x.dtype.newbyteorder("="))
    return torch.from_numpy(np.array(x))


def bfloat16(x):
    return tensor(np.asarray(x, np.float32)).bfloat16()


def updates_of(dtype=np.float32, rng=0, n_clients=M, p=P):
    """Clients around a common point, the last one far off."""
    rng = np.random.default_rng(rng)
    x = rng.normal(size=p) + rng.normal(size=(n_clients, p)) * rng.uniform(0.5, 1.5, size=(n_clients, 1))
    x[-1] += 30
    return x.astype(dtype)


def bytes_of(update):
    return [leaf.detach().clone() if hasattr(leaf, "detach") else np.asarray(leaf).tobytes() for leaf in leaves(update)]


def untouched(before, update):
    return all(
        bool((b == a.detach()).all()) if hasattr(a, "detach") else b == np.asarray(a).tobytes()
        for b, a in zip(before, leaves(update), strict=True)
    )


PACKS = {
    "one array": lambda x: x,
    "one array of two dimensions": lambda x: x.reshape(4, 6),
    "layers": lambda x: [x[:8].reshape(2, 4), x[8:9].reshape(()), x[9:]],
    "a tuple of layers": lambda x: (x[:8], x[8:]),
    "dict": lambda x: {"w": x[:8].reshape(2, 2, 2), "b": x[8:]},
    "OrderedDict": lambda x: OrderedDict(w=x[:20].reshape(4, 5), b=x[20:]),
    "nested": lambda x: {"a": [x[:3], (x[3:5], {"deep": x[5:9]})], 7: {"w": x[9:15].reshape(2, 3), "b": x[15:]}},
    "namedtuple": lambda x: Layers(x[:16].reshape(4, 4), x[16:]),
    "with empty entries": lambda x: {"none": x[:0].reshape(0, 3), "all": x, "nothing": x[:0]},
    "tensor": tensor,
    "state dict": lambda x: OrderedDict(w=tensor(x[:8]).reshape(2, 4), s=tensor(x[8:9])[0], b=tensor(x[9:])),
    "parameters": lambda x: [tensor(x[:8]).requires_grad_(), tensor(x[8:]).requires_grad_()],
    "arrays and tensors": lambda x: {"w": x[:8], "b": tensor(x[8:])},
}


JUNK = {"f2": 6e4, "f4": 1e30, "f8": 1e200}  # what lies between the numbers, to be found out when read


def spread_out(x, by=3):
    wide = np.full((x.size, by), JUNK.get(x.dtype.kind + str(x.itemsize), 1), x.dtype)
    wide[:, 0] = x.reshape(-1)
    return np.lib.stride_tricks.as_strided(wide, x.shape, [s * by for s in np.zeros(x.shape, x.dtype).strides])


def unaligned(x):
    memory = np.zeros(x.nbytes + 1, np.uint8)
    memory[1:] = np.frombuffer(x.tobytes(), np.uint8)
    return memory[1:].view(x.dtype).reshape(x.shape)


def read_only(x):
    x = x.copy()
    x.flags.writeable = False
    return x


def on_disk(x, folder, mode):
    path = folder / f"{len(list(folder.iterdir()))}.bin"
    path.write_bytes(np.ascontiguousarray(x).tobytes())
    return np.memmap(path, x.dtype, mode, shape=x.shape)


def inside(x):
    larger = np.full([n + 2 for n in x.shape], JUNK.get(x.dtype.kind + str(x.itemsize), 1), x.dtype)
    middle = larger[(*(slice(1, -1),) * x.ndim, ...)]
    middle[...] = x
    return middle


MEMORIES = {
    "contiguous": lambda x, _: x.copy(),
    "strided": lambda x, _: spread_out(x),
    "backwards": lambda x, _: np.flip(np.flip(x).copy()),
    "Fortran order": lambda x, _: np.array(x, order="F"),
    "big-endian": lambda x, _: x.astype(x.dtype.newbyteorder(">")),
    "strided big-endian": lambda x, _: spread_out(x.astype(x.dtype.newbyteorder(">"))),
    "unaligned": lambda x, _: unaligned(x),
    "read-only": lambda x, _: read_only(x),
    "memmap": lambda x, folder: on_disk(x, folder, "r+"),
    "read-only memmap": lambda x, folder: on_disk(x, folder, "r"),
    "a slice of something larger": lambda x, _: inside(x),
}


def agree(out, expected, sort=np.float64, tolerance=None):
    """The same weights, and the same update to the rounding of the type it comes in."""
    tolerance = tolerance or {np.float64: 1e-12, np.float32: 1e-6, np.float16: 1e-3}.get(sort, 8e-3)
    assert out.quarantined == {}
    if expected.weights is not None:
        np.testing.assert_allclose(out.weights, expected.weights, rtol=0, atol=1e-9 if sort == np.float64 else 1e-6)
    np.testing.assert_allclose(flat(out.update), flat(expected.update), rtol=tolerance, atol=tolerance)


def check_alike(clients, x, dtype):
    """Every rule and sketch: the answer of the plain float64 array, in the clients' own kind, their data as it was."""
    before = [bytes_of(client) for client in clients]
    for rule, sketch in PROJECTED:
        out = bz.aggregate(clients, rule, sketch=sketch, seed=SEED)
        agree(out, bz.aggregate(x.astype(np.float64), rule, sketch=sketch, seed=SEED), dtype)
        assert skeleton(out.update) == skeleton(clients[0])
    assert all(untouched(b, client) for b, client in zip(before, clients, strict=True))


@pytest.mark.parametrize("dtype", [np.float64, np.float32, np.float16])
@pytest.mark.parametrize("pack", PACKS)
def test_the_container_changes_no_weight_and_no_update(pack, dtype):
    x = updates_of(dtype)
    check_alike([PACKS[pack](row) for row in x], x, dtype)


@pytest.mark.parametrize("memory", MEMORIES)
@pytest.mark.parametrize("pack", ["one array", "layers", "nested"])
def test_where_and_how_the_numbers_lie_in_memory_changes_nothing(pack, memory, tmp_path):
    x = updates_of(np.float32)

    def lay(update):
        if isinstance(update, dict):
            return {key: lay(child) for key, child in update.items()}
        if isinstance(update, (list, tuple)):
            return type(update)(lay(child) for child in update)
        return MEMORIES[memory](update, tmp_path)

    check_alike([lay(PACKS[pack](row)) for row in x], x, np.float32)


@pytest.mark.parametrize("memory", MEMORIES)
@pytest.mark.parametrize("dtype", [np.float32, np.float64, np.float16])
def test_a_2d_array_is_read_as_it_lies(memory, dtype, tmp_path):
    x = updates_of(dtype, p=5000)
    check_alike(MEMORIES[memory](x, tmp_path), x, dtype)


def test_plain_numbers_are_float64_updates():
    x = updates_of(np.float64)
    expected = bz.aggregate(x, bz.MultiKrum(2))
    for client in (lambda r: r.tolist(), lambda r: tuple(r.tolist())):
        out = bz.aggregate([client(row) for row in x], bz.MultiKrum(2))
        agree(out, expected)
        assert out.update.dtype == np.float64
    layers = bz.aggregate([{"w": row[:8].tolist(), "b": [[*row[8:].tolist()]]} for row in x], bz.MultiKrum(2))
    agree(layers, expected)
    whole = bz.aggregate([[1, 2], [1, 3], [True, 4.5]], bz.Mean())
    np.testing.assert_allclose(whole.update, [1, 9.5 / 3])


@pytest.mark.parametrize(
    "iterable", [tuple, iter, lambda u: dict(enumerate(u)).values(), lambda u: (each for each in u)]
)
def test_clients_come_in_any_iterable(iterable):
    x = updates_of()
    agree(bz.aggregate(iterable(list(x)), bz.Krum(2)), bz.aggregate(x, bz.Krum(2)))


@pytest.mark.parametrize(("rule", "sketch"), PROJECTED, ids=repr)
def test_bfloat16_comes_back_as_bfloat16_of_the_wide_answer(rule, sketch):
    x = updates_of()
    clients = [{"w": bfloat16(row[:8]).reshape(2, 4), "b": bfloat16(row[8:])} for row in x]
    wide = np.array([flat(client) for client in clients])
    out = bz.aggregate(clients, rule, sketch=sketch, seed=SEED)
    expected = bz.aggregate(wide, rule, sketch=sketch, seed=SEED)
    agree(out, expected, tolerance=8e-3)
    assert skeleton(out.update) == skeleton(clients[0])
    rounded = flat(bfloat16(expected.update.astype(np.float32)))
    assert np.mean(flat(out.update) == rounded) > 0.95  # round to nearest, but for a double rounding


@pytest.mark.parametrize(
    "view",
    [
        lambda t: t.reshape(4, 6).T.contiguous().T.reshape(-1),
        lambda t: t.repeat_interleave(2)[::2],
        lambda t: t.reshape(4, 6).T.contiguous().T,
        lambda t: t.reshape(4, 6, 1).expand(4, 6, 2),
        lambda t: t.clone().requires_grad_(),
        lambda t: t.clone().requires_grad_() * 1.0,
        lambda t: (-1j * t).conj().imag,
        lambda t: t.view(-1)[:0].new_tensor(t.tolist()),
    ],
    ids=["copied", "strided", "transposed", "expanded", "leaf", "with history", "lazily negated", "new"],
)
def test_tensors_may_be_views_of_any_kind(view):
    tensors = [view(tensor(row)) for row in updates_of()]
    check_alike(tensors, np.array([t.detach().resolve_neg().numpy().reshape(-1) for t in tensors]), np.float32)
    assert not bz.aggregate(tensors, bz.Mean()).update.requires_grad


def test_a_models_state_dict_goes_in_and_comes_out_to_be_loaded():
    torch = pytest.importorskip("torch")
    models = []
    for seed in range(7):
        torch.manual_seed(seed)
        model = torch.nn.Sequential(torch.nn.Linear(5, 3), torch.nn.BatchNorm1d(3), torch.nn.Linear(3, 2)).train()
        for _ in range(10 * seed + 1):
            model(torch.randn(4, 5))
        models.append(model)
    states = [model.state_dict() for model in models]
    before = [bytes_of(state) for state in states]
    for sketch in SKETCHES:
        out = bz.aggregate(states, bz.MultiKrum(1), sketch=sketch)
        assert list(out.update) == list(states[0])
        assert skeleton(out.update)[1] == skeleton(states[0])[1]
        models[0].load_state_dict(out.update)
        assert int(out.update["1.num_batches_tracked"]) in {10 * seed + 1 for seed in range(7) if out.weights[seed] > 0}
        models[0].load_state_dict({key: before[0][i] for i, key in enumerate(states[0])})
    assert all(untouched(b, state) for b, state in zip(before, states, strict=True))


FLOATS = ["float16", "float32", "float64"]
INTEGERS = ["int8", "int64", "uint64", "bool"]


def trees(leaf):
    return st.recursive(
        leaf,
        lambda child: st.one_of(
            st.lists(child, min_size=1, max_size=3),
            st.lists(child, min_size=1, max_size=3).map(tuple),
            st.dictionaries(st.text(max_size=3) | st.integers(0, 9), child, min_size=1, max_size=3),
            st.builds(Layers, child, child),
        ),
        max_leaves=5,
    )


shapes = st.lists(st.integers(0, 4), max_size=3).map(tuple)
specs = st.tuples(
    trees(st.tuples(st.just("leaf"), shapes, st.sampled_from(FLOATS + INTEGERS))),
    st.tuples(st.just("leaf"), st.lists(st.integers(1, 4), max_size=2).map(tuple), st.sampled_from(FLOATS)),
)


def build(spec, rng, shuffle, make):
    if isinstance(spec, dict):
        keys = [list(spec)[i] for i in rng.permutation(len(spec))] if shuffle else list(spec)
        built = {key: build(spec[key], rng, shuffle, make) for key in keys}
        return built
    if isinstance(spec, Layers):
        return Layers(*(build(child, rng, shuffle, make) for child in spec))
    if isinstance(spec, tuple) and spec and spec[0] == "leaf":
        return make(rng, *spec[1:])
    return type(spec)(build(child, rng, shuffle, make) for child in spec)


def by_path(update, path=()):
    if isinstance(update, dict):
        return {p: leaf for key, child in update.items() for p, leaf in by_path(child, (*path, key)).items()}
    if isinstance(update, (list, tuple)):
        return {p: leaf for i, child in enumerate(update) for p, leaf in by_path(child, (*path, i)).items()}
    return {path: update}


def weighted_median(values, weights):
    """By definition: the least value that at least half of the weight does not exceed."""
    for value, _ in sorted(zip(values, weights, strict=True), key=lambda pair: pair[0]):
        if sum(w for v, w in zip(values, weights, strict=True) if v <= value) >= sum(weights) / 2 - 1e-9:
            return value
    raise AssertionError


@settings(max_examples=60, deadline=None)
@given(
    spec=specs,
    n_clients=st.integers(5, 8),
    rng=st.integers(0, 2**32).map(np.random.default_rng),
    rule=st.sampled_from([bz.Krum(1), bz.MultiKrum(1, n_selected=3), bz.Mean(), bz.GeometricMedian(), bz.Median()]),
    as_tensors=st.booleans() if HAS_TORCH else st.just(False),
)
def test_any_tree_of_arrays_comes_back_in_kind(spec, n_clients, rng, rule, as_tensors):
    def make(rng, shape, dtype):
        values = rng.normal(size=shape) * 20
        if dtype == "uint64":
            values = rng.integers(2**63, 2**64 - 1, size=shape, dtype=np.uint64, endpoint=True)
        array = np.asarray(values > 0 if dtype == "bool" else values).astype(dtype)
        memory = rng.choice(["contiguous", "Fortran order", "strided", "backwards", "read-only", "big-endian"])
        return tensor(array) if as_tensors else MEMORIES[memory](array, None)

    spec = {"tree": spec[0], "at least": spec[1]}
    clients = [build(spec, rng, m > 0, make) for m in range(n_clients)]
    entries = [by_path(client) for client in clients]
    floats = [path for path, leaf in entries[0].items() if to_numpy(leaf).dtype.kind == "f"]
    rows = np.array([np.concatenate([flat(each[path]) for path in floats]) for each in entries])
    out = bz.aggregate(clients, rule)
    weights, wanted = np.full(n_clients, 1 / n_clients), np.median(rows, axis=0)
    if out.weights is not None:
        np.testing.assert_allclose(out.weights, bz.aggregate(rows, rule).weights, atol=1e-7)
        weights, wanted = out.weights, out.weights @ rows
    came, at = by_path(out.update), 0
    assert set(came) == set(entries[0])  # in the key order of most clients
    for path, leaf in came.items():
        assert (leaf.dtype, leaf.shape) in {(each[path].dtype, each[path].shape) for each in entries}
        if path not in floats:
            columns = np.stack([to_numpy(each[path]).reshape(-1) for each in entries]).T
            medians = [weighted_median(column.tolist(), weights.tolist()) for column in columns]
            assert to_numpy(leaf).reshape(-1).tolist() == medians
    for path in floats:  # to the digits of each entry's own dtype
        got, digits = flat(came[path]), {2: 1e-3, 4: 1e-6, 8: 1e-14}[came[path].dtype.itemsize]
        np.testing.assert_allclose(got, wanted[at : at + got.size], rtol=digits, atol=50 * digits)
        at += got.size


COUNTER_RULES = [bz.Krum(2), bz.MultiKrum(2), bz.Bulyan(1), bz.Bulyan(1, trim=True), bz.CGE(2), bz.MDA(2)]
COUNTERS = {
    "int64": (np.int64, -(2**63), 2**63 - 1),
    "uint64": (np.uint64, 0, 2**64 - 1),
    "int8": (np.int8, -128, 127),
    "bool": (np.bool_, False, True),
}


@pytest.mark.parametrize("name", COUNTERS)
@pytest.mark.parametrize("rule", COUNTER_RULES, ids=repr)
def test_a_client_of_weight_0_cant_move_a_counter(rule, name):
    dtype, *extremes = COUNTERS[name]
    x, counts = updates_of(), np.array([3, 5, 4, 6, 5, 7, 9, 2, 1])

    def result(last):
        clients = [{"w": row, "n": np.asarray([n, 3 * n, 1], dtype)} for row, n in zip(x, counts, strict=True)]
        clients[-1]["n"] = np.full(3, last, dtype)
        return bz.aggregate(clients, rule)

    low, high = map(result, extremes)
    assert low.weights[-1] == 0
    assert low.update["n"].dtype == dtype
    assert low.update["n"].tolist() == high.update["n"].tolist()
    columns = np.array([[n, 3 * n, 1] for n in counts]).astype(dtype).T
    kept = low.weights > 0
    assert low.update["n"].tolist() == [weighted_median(c[kept].tolist(), low.weights[kept].tolist()) for c in columns]


@pytest.mark.parametrize("reference_dtype", [None, np.uint64, np.int64, np.int32])
@pytest.mark.parametrize("rule", [bz.Mean(), bz.Krum(1), bz.coordinatewise.Median()], ids=repr)
def test_counters_too_large_for_a_float_survive_to_the_last_bit(rule, reference_dtype):
    counts = [2**64 - 1, 2**64 - 3, 2**63 + 1, 2**63 + 5, 2**53 + 1]
    x = updates_of(n_clients=5)
    clients = [{"n": np.array([[n, 1]], np.uint64), "w": row} for n, row in zip(counts, x, strict=True)]
    reference = None if reference_dtype is None else {"n": np.zeros((1, 2), reference_dtype), "w": 0 * x[0]}
    out = bz.aggregate(clients, rule, reference=reference)
    n = int(out.update["n"][0, 0])
    assert out.update["n"].dtype == np.uint64
    assert n == (2**63 + 5 if out.weights is None or out.weights.max() < 1 else counts[int(out.weights.argmax())])


def test_sizes_weigh_counters_and_the_majority_of_bools_wins():
    clients = [{"w": np.zeros(2), "n": np.array(n), "flag": np.array(n > 5)} for n in (1, 5, 9)]
    by_sizes = bz.aggregate(clients, bz.Mean(), sizes=[1, 1, 3]).update
    assert (int(by_sizes["n"]), bool(by_sizes["flag"])) == (9, True)
    assert (by_sizes["n"].shape, by_sizes["flag"].dtype) == ((), np.dtype(bool))
    alike = bz.aggregate(clients, bz.coordinatewise.Median()).update
    assert (int(alike["n"]), bool(alike["flag"])) == (5, False)


def test_counters_of_many_blocks_and_any_strides_are_medians_too():
    rng = np.random.default_rng(0)
    counts = rng.integers(-(10**9), 10**9, size=(5, 3, 5000))
    clients = [{"w": np.array([float(m)]), "n": np.asfortranarray(n)} for m, n in enumerate(counts)]
    out = bz.aggregate(clients, bz.Mean())
    assert (out.update["n"] == np.median(counts, axis=0)).all()


def test_what_a_clipping_rule_leaves_at_the_reference_stays_there_in_counters_too():
    clients = [{"w": np.full(3, 100.0 + m), "n": np.array([7 + m])} for m in range(5)]
    reference = {"w": np.zeros(3), "n": np.array([1000])}
    out = bz.aggregate(clients, bz.CenteredClipping(radius=1.0), reference=reference)
    assert out.weights.sum() < 0.1
    assert out.update["n"].tolist() == [1000]


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32", "float64"])
@pytest.mark.parametrize("with_reference", [False, True])
def test_a_weight_of_1_gives_the_chosen_clients_bits(with_reference, dtype):
    x = updates_of(np.float32 if dtype == "bfloat16" else dtype)
    x[:, :4] = [-0.0, 0.0, np.finfo(x.dtype).smallest_subnormal, -np.finfo(x.dtype).smallest_normal / 2]
    packs = (
        [lambda row: [bfloat16(row)]] if dtype == "bfloat16" else [PACKS[p] for p in ("one array", "dict", "tensor")]
    )
    for pack in packs:
        clients = [pack(row) for row in x]
        for sketch in SKETCHES:
            out = bz.aggregate(clients, bz.Krum(2), sketch=sketch, reference=clients[3] if with_reference else None)
            chosen = int(out.weights.argmax())
            assert out.weights.tolist() == np.eye(M)[chosen].tolist()
            for got, sent in zip(leaves(out.update), leaves(clients[chosen]), strict=True):
                got, sent = to_numpy(got), to_numpy(sent)
                assert got.tolist() == sent.tolist()
                assert np.signbit(got).tolist() == np.signbit(sent).tolist()


def peak_of(call):
    """Bytes that a call needs at its height above what was there before: of the process where Linux tells."""
    status, clear = Path("/proc/self/status"), Path("/proc/self/clear_refs")

    def read(name):
        return next(int(line.split()[1]) * 1024 for line in status.read_text().splitlines() if line.startswith(name))

    try:
        clear.write_text("5")
        before = read("VmRSS")
    except OSError:
        tracemalloc.start()
        out = call()
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        return out, peak
    out = call()
    return out, read("VmHWM") - before


LARGE = {
    "2-D": lambda x: x,
    "Fortran order": lambda x: np.ndarray(x.shape, x.dtype, x, 0, (x.itemsize, x.itemsize * len(x))),
    "dicts of layers": lambda x: [{"a": r[:1000], "b": r[1000:-74].reshape(-1, 7), "c": r[-74:]} for r in x],
    "float16 in layers": lambda x: [[h[:1000], h[1000:].reshape(-1, 8)] for h in x.view(np.float16)],
    "float64": lambda x: x.view(np.float64),
}


@pytest.fixture(scope="module")
def large():
    """200 MB of float32, of which any two bytes make a harmless float16, and any eight a harmless float64."""
    half = np.random.default_rng(0).normal(size=(40, 2_500)).astype(np.float16)
    return np.tile(half, (1, 1000)).view(np.float32)


@pytest.mark.parametrize("sketch", [bz.Exact(), bz.Rotated(k=4096)], ids=repr)
@pytest.mark.parametrize("case", LARGE)
def test_the_updates_are_never_copied_whole(case, sketch, large):
    clients = LARGE[case](large)
    small = [[leaf[:7] for leaf in leaves(c)] for c in clients[:9]]
    bz.aggregate(small, bz.GeometricMedian(), sketch=sketch)  # compiled, and warm
    out, peak = peak_of(lambda: bz.aggregate(clients, bz.GeometricMedian(), sketch=sketch, seed=1))
    assert large.nbytes == 200 * 10**6
    assert peak < 40e6, f"{peak / 1e6:.0f} MB for an input of 200 MB"
    assert not out.quarantined


def near_each_other(large):
    """Clients who nearly agree far from the origin: the digits are short, and the columns are read once more."""
    near = np.full(large.shape, 1000, np.float32)
    near[:, ::1000] += np.arange(40, dtype=np.float32)[:, None] / 1000
    return near


@pytest.mark.parametrize(
    ("rule", "made"),
    [
        (bz.coordinatewise.MeaMed(2), lambda large: large[:, :400_000]),
        (bz.NNM(2) >> bz.coordinatewise.Median(), lambda large: large[:, :400_000]),
        (bz.GeometricMedian(), near_each_other),
    ],
    ids=["column by column", "mixtures", "a second look"],
)
def test_nor_for_other_passes(rule, made, large):
    x = made(large)
    bz.aggregate(x[:, :2000], rule)
    out, peak = peak_of(lambda: bz.aggregate(x, rule, seed=1))
    assert peak < 60e6, f"{peak / 1e6:.0f} MB for an input of {x.nbytes / 1e6:.0f} MB"
    assert np.isfinite(out.update).all()


ORIGIN_RULES = [
    *(bz.Krum(2), bz.MultiKrum(2), bz.GeometricMedian(), bz.MCA(), bz.CGE(2), bz.Mean()),
    *(bz.CenteredClipping(radius=0.5), bz.CenteredClipping(steps=3), bz.ClippedClustering(), bz.Bulyan(1, trim=True)),
    *(bz.Clipping(radius=1.0) >> bz.Mean(), bz.ARC(2) >> bz.GeometricMedian(), bz.NNM(2) >> bz.CGE(2)),
    *(bz.coordinatewise.Median(), bz.coordinatewise.TrimmedMean(2), bz.Clipping(1.0) >> bz.coordinatewise.Median()),
]


@pytest.mark.parametrize("sketch", SKETCHES, ids=repr)
@pytest.mark.parametrize("rule", ORIGIN_RULES, ids=repr)
def test_whole_weights_with_a_reference_are_differences_without(rule, sketch):
    if isinstance(rule, bz.coordinatewise.CoordinateWise):
        sketch = bz.Exact()
    differences = updates_of(np.float64)
    origin = np.random.default_rng(1).normal(size=P) * 10
    pack = PACKS["dict"]
    expected = bz.aggregate([pack(d) for d in differences], rule, sketch=sketch, seed=SEED)
    reference = dict(reversed(pack(origin).items()))
    out = bz.aggregate([pack(origin + d) for d in differences], rule, sketch=sketch, seed=SEED, reference=reference)
    if expected.weights is not None:
        np.testing.assert_allclose(out.weights, expected.weights, atol=1e-7)
    np.testing.assert_allclose(flat(out.update), origin + flat(expected.update), rtol=1e-7, atol=1e-7)


@pytest.mark.parametrize("sketch", SKETCHES, ids=repr)
def test_nobody_with_weight_means_the_reference_itself(sketch):
    x = np.array([[2.0, 1.0], [3.0, 1.5]])
    reference = np.array([1.0, 0.5])
    out = bz.aggregate(x, bz.FLTrust(), reference=reference, trusted=np.array([0.0, 0.0]), sketch=sketch)
    assert out.weights.tolist() == [0, 0]
    assert out.update.tolist() == reference.tolist()


@pytest.mark.parametrize("rule", [bz.MultiKrum(2), bz.GeometricMedian(), bz.CenteredClipping(radius=1.0)], ids=repr)
def test_a_float64_reference_serves_float32_clients_at_full_digits(rule):
    origin = np.random.default_rng(1).normal(size=P) * 1e4
    x = (origin + updates_of(np.float64)).astype(np.float32)
    out = bz.aggregate(x, rule, reference=origin)
    expected = bz.aggregate(x.astype(np.float64) - origin, rule)
    np.testing.assert_allclose(out.weights, expected.weights, atol=1e-9)
    assert out.update.dtype == np.float32
    np.testing.assert_allclose(out.update, origin + expected.update, rtol=1e-6)


@pytest.mark.parametrize("kind", ["float16", "bfloat16", "tensor", "numbers"])
def test_the_reference_may_come_in_another_library_or_dtype(kind):
    origin = np.arange(P, dtype=np.float64)
    as_kind = {
        "float16": lambda: origin.astype(np.float16),
        "bfloat16": lambda: bfloat16(origin),
        "tensor": lambda: tensor(origin),
        "numbers": origin.tolist,
    }
    x = updates_of() + origin.astype(np.float32)
    agree(
        bz.aggregate(x, bz.CenteredClipping(radius=1.0), reference=as_kind[kind]()),
        bz.aggregate(x, bz.CenteredClipping(radius=1.0), reference=origin),
    )


WRONG = {
    "too short": (lambda u: {**u, "b": u["b"][:-1]}, r"b.*16"),
    "a key missing": (lambda u: {"w": u["w"]}, "b"),
    "a key too many": (lambda u: {**u, "c": u["b"]}, "c"),
    "another container": (lambda u: [u["w"], u["b"]], "w"),
    "NaN": (lambda u: {**u, "b": u["b"] * np.nan}, r"finite.*b"),
    "Inf": (lambda u: {**u, "b": u["b"] + np.inf}, r"finite.*b"),
    "integers": (lambda u: {**u, "b": np.zeros(16, int)}, "b.*int64"),
    "empty": (lambda u: {}, "w"),
    "text": (lambda u: "text", "reference|trusted"),
    "a class": (lambda u: object, "reference|trusted"),
    "None inside": (lambda u: [None], "reference|trusted"),
    "an array of text": (lambda u: np.array(["a"]), "reference|trusted"),
    "complex": (lambda u: np.array([1j]), "reference|trusted"),
}


@pytest.mark.parametrize("wrong", WRONG)
@pytest.mark.parametrize("argument", ["reference", "trusted"])
def test_a_wrong_reference_or_trusted_update_is_the_callers_mistake(argument, wrong):
    clients = [PACKS["dict"](row) for row in updates_of()]
    make, said = WRONG[wrong]
    with pytest.raises((TypeError, ValueError), match=said) as error:
        bz.aggregate(clients, bz.FLTrust(), **{"trusted": clients[0], argument: make(clients[0])})
    assert error.type in (TypeError, ValueError)
    assert argument in str(error.value)


@pytest.mark.parametrize("sketch", SKETCHES, ids=repr)
@pytest.mark.parametrize("rule", [bz.FLTrust(), bz.MoNNA(2)], ids=repr)
def test_the_trusted_update_guides_in_any_container_and_is_no_client(rule, sketch):
    x = updates_of()
    trusted = x[:-1].mean(axis=0)
    expected = bz.aggregate(x, rule, sketch=sketch, trusted=trusted, seed=SEED)
    assert expected.weights.shape == (M,)
    before = trusted.tobytes()
    for pack in ("dict", "state dict", "nested"):
        one = PACKS[pack](trusted)
        one = dict(reversed(one.items())) if type(one) is dict else one
        out = bz.aggregate([PACKS[pack](r) for r in x], rule, sketch=sketch, trusted=one, seed=SEED)
        agree(out, expected, np.float32)
    double = bz.aggregate(x, rule, sketch=sketch, trusted=trusted.astype(np.float64), seed=SEED)
    agree(double, expected)
    assert trusted.tobytes() == before


ROUND = bz.Aggregator(bz.GeometricMedian(), sketch=bz.Rotated(k=64))


def test_a_recorded_seed_replays_the_round_and_no_seed_is_a_fresh_one():
    x = updates_of(p=1000)
    first, second = ROUND(x), ROUND(x)
    assert first.seed != second.seed
    assert first.weights.tolist() != second.weights.tolist()
    replayed = ROUND(x, seed=first.seed)
    assert replayed.seed == first.seed
    assert replayed.weights.tolist() == first.weights.tolist()
    assert replayed.update.tobytes() == first.update.tobytes()
    assert bz.aggregate(x, ROUND.rule, sketch=ROUND.sketch, seed=first.seed).weights.tolist() == first.weights.tolist()
    assert ROUND(x, seed=np.int64(5)).weights.tolist() == ROUND(x, seed=5).weights.tolist()


@pytest.mark.parametrize("seed", [-1, 2**256, 1.5, "7", True])
def test_a_seed_that_is_none_is_refused(seed):
    with pytest.raises(ValueError, match="seed must be an integer"):
        ROUND(updates_of(), seed=seed)


def test_the_result_shares_no_memory_with_a_client():
    x = updates_of(np.float64)
    for pack in ("one array", "dict", "tensor"):
        clients = [PACKS[pack](row) for row in x]
        before = [bytes_of(client) for client in clients]
        for leaf in leaves(bz.aggregate(clients, bz.Krum(2)).update):
            leaf[...] = 7
        assert all(untouched(b, client) for b, client in zip(before, clients, strict=True))
