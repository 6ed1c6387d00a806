"""Whatever a client sends instead of an update: it is quarantined with a reason, and the others go on without it."""

import collections
import datetime
import errno
import importlib.util
import itertools
import re
import signal
from contextlib import contextmanager

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as npst

import bartizan as bz
import oracle
from bartizan import coordinatewise as cw
from bartizan import records as results
from bartizan.errors import ServerResourceError
from bartizan.judge.judge import rule_for_remaining

M, P, SEED = 11, 24, 5
HAS_TORCH = importlib.util.find_spec("torch") is not None


@contextmanager
def within(seconds):
    """Turns a hang into a failure."""

    def stop(*_):
        raise TimeoutError(f"still at it after {seconds} s")

    before = signal.signal(signal.SIGALRM, stop)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def honest(n_clients=M, dtype=np.float32, rng=0):
    rng = np.random.default_rng(rng)
    return (rng.normal(size=P) + rng.normal(size=(n_clients, P))).astype(dtype)


def tensor(x):
    torch = pytest.importorskip("torch")
    return torch.from_numpy(np.array(x)) if x.dtype.kind in "fiub" and x.dtype.itemsize <= 8 else x


PACKS = {
    "array": lambda x: x,
    "layers": lambda x: [x[:8].reshape(2, 4), x[8:]],
    "dict": lambda x: {"w": x[:8].reshape(2, 4), "b": x[8:]},
    "nested": lambda x: {"body": [x[:8].reshape(2, 4), {"head": (x[8:],)}], "n": np.array([3])},
    "tensor": tensor,
    "state dict": lambda x: collections.OrderedDict(
        w=tensor(x[:8]).reshape(2, 4), b=tensor(x[8:]), n=tensor(np.array(3))
    ),
}


def leaves(update):
    if isinstance(update, dict):
        return [leaf for child in update.values() for leaf in leaves(child)]
    if isinstance(update, (list, tuple)):
        return [leaf for child in update for leaf in leaves(child)]
    return [np.asarray(update)]


def flat(update):
    return np.concatenate([leaf.astype(np.float64).reshape(-1) for leaf in leaves(update)])


def skeleton(update):
    if isinstance(update, dict):
        return type(update), [(key, skeleton(child)) for key, child in update.items()]
    if isinstance(update, (list, tuple)):
        return type(update), [skeleton(child) for child in update]
    return type(update), update.dtype, tuple(update.shape)


def with_leaf(update, leaf):
    """The update with its first array replaced."""
    if isinstance(update, dict):
        key = next(iter(update))
        return type(update)({**update, key: with_leaf(update[key], leaf)})
    if isinstance(update, (list, tuple)):
        return type(update)([with_leaf(update[0], leaf), *update[1:]])
    return leaf


def first_tensor(update):
    return next(iter(update.values())) if isinstance(update, dict) else update


def without_an_entry(update):
    return dict(list(update.items())[1:]) if isinstance(update, dict) else update[1:]


def with_an_entry(update, extra=np.zeros(3, np.float32)):
    return {**update, "extra": extra} if isinstance(update, dict) else [*update, extra]


def endless_list():
    node = []
    node.append(node)
    return node


def endless_dict():
    node = {}
    node["w"] = node
    return node


def filled(value):
    return lambda x: np.where(np.arange(P) == 11, np.float32(value), x)


VALUES = {  # (what becomes of the numbers, what the reason says)
    "NaN": (filled(np.nan), "NaN"),
    "Inf": (filled(np.inf), "Inf"),
    "-Inf": (filled(-np.inf), "Inf"),
    "NaN and Inf": (lambda x: np.resize(np.float32([np.nan, np.inf, -np.inf]), P), "NaN|Inf"),
    "squares overflow": (filled(1e20), "overflow|large"),
    "huge": (lambda x: np.full(P, np.finfo(np.float32).max), "overflow|large"),
    "float64": (lambda x: x.astype(np.float64), "float64"),
    "float16": (lambda x: x.astype(np.float16), "float16"),
    "integers": (lambda x: x.astype(np.int64), "int64"),
    "bools": (lambda x: x > 0, "bool"),
    "long doubles": (lambda x: x.astype(np.longdouble), "float128|longdouble|float96|float64"),
    "complex": (lambda x: x.astype(np.complex64), "complex"),
    "strings": (lambda x: x.astype(str), "str"),
    "bytes": (lambda x: x.astype("S"), "bytes|S"),
    "objects": (lambda x: x.astype(object), "object"),
    "datetimes": (lambda x: x.astype("datetime64[s]"), "datetime"),
    "timedeltas": (lambda x: x.astype("timedelta64[s]"), "timedelta"),
    "records": (lambda x: x.view([("re", np.float32)]), "void|record|dtype"),
    "too long": (lambda x: np.resize(x, P + 1), "shape"),
    "too short": (lambda x: x[:-1], "shape"),
}
LEAVES = {
    "empty array": (np.zeros(0, np.float32), "shape|empty"),
    "0-d array": (np.array(1, np.float32), "shape"),
    "a NumPy scalar": (np.float32(1), "shape"),
    "a claim of terabytes": (np.broadcast_to(np.float32(0), (10**6, 10**7)), "which they repeat"),
    "None": (None, "NoneType"),
    "a plain int": (7, "int"),
    "a plain float": (7.5, "float"),
    "NaN alone": (float("nan"), "float"),
    "text": ("0.5", "str"),
    "bytes alone": (b"\0" * 96, "bytes"),
    "a set": ({1.0}, "set"),
    "a range": (range(24), "range"),
    "a date": (datetime.date(2020, 1, 1), "date"),
    "a class": (np.ndarray, "type"),
    "a function": (len, "function"),
    "a list of text": (["a", "b"], "str"),
    "a number and a text": ([1.0, "b"], "float|str"),
    "ragged numbers": ([[1.0], [1.0, 2.0]], "missing|shape|nested|list"),
    "an integer beyond float64": ([10**400, 1], "large|int"),
    "an endless list": (endless_list(), "nested|end"),
    "an endless dict": (endless_dict(), "nested|end"),
    "an empty list": ([], "empty|missing"),
    "an empty dict": ({}, "empty|missing"),
}
TENSORS = {
    "sparse": (lambda t: t.to_sparse(), "sparse"),
    "on no device": (lambda t: t.to("meta"), "meta"),
    "complex tensor": (lambda t: t * 1j, "complex"),
    "float8": (lambda t: t.to(__import__("torch").float8_e4m3fn), "float8"),
    "NaN in a lazily negated view": (lambda t: (t * 1j * float("nan")).conj().imag, "NaN"),
}


def masked(x):
    return np.ma.masked_array(x, mask=np.arange(P) % 2 == 0)


CASES = {
    **{name: ((lambda pack, x, make=make: pack(make(x))), said, PACKS) for name, (make, said) in VALUES.items()},
    **{
        name: ((lambda pack, x, leaf=leaf: with_leaf(pack(x), leaf)), said, PACKS)
        for name, (leaf, said) in LEAVES.items()
    },
    **{
        name: (
            (lambda pack, x, make=make: with_leaf(pack(x), make(first_tensor(pack(x))))),
            said,
            ["tensor", "state dict"],
        )
        for name, (make, said) in TENSORS.items()
    },
    "masked": (lambda pack, x: pack(masked(x)), "mask", ["array", "layers", "dict", "nested"]),
    "a key missing": (
        lambda pack, x: without_an_entry(pack(x)),
        "missing|w|0",
        ["layers", "dict", "nested", "state dict"],
    ),
    "a key too many": (lambda pack, x: with_an_entry(pack(x)), "extra|2", ["layers", "dict", "nested", "state dict"]),
    "a key renamed": (
        lambda pack, x: {**without_an_entry(pack(x)), "w ": leaves(pack(x))[0]},
        "w|body",
        ["dict", "nested", "state dict"],
    ),
    "all of it wrapped": (lambda pack, x: [pack(x)], "missing", PACKS),
    "all of it in a dict": (lambda pack, x: {"state": pack(x)}, "missing", PACKS),
    "nothing": (lambda pack, x: None, "NoneType", PACKS),
    "an empty dict alone": (lambda pack, x: {}, "empty", PACKS),
    "an empty list alone": (lambda pack, x: [], "empty", PACKS),
    "a number alone": (lambda pack, x: 3, "int", PACKS),
    "text alone": (lambda pack, x: "update", "str", PACKS),
    "an endless list alone": (lambda pack, x: endless_list(), "nested|end", PACKS),
    "an endless dict alone": (lambda pack, x: endless_dict(), "nested|end", PACKS),
}


def rules(f):
    """Every rule, for up to f faulty clients where it wants to know."""
    return [
        *(
            bz.Mean(),
            bz.Krum(f),
            bz.MultiKrum(f),
            bz.Bulyan(f),
            bz.Bulyan(f, trim=True),
            bz.GeometricMedian(),
            bz.MCA(),
        ),
        *(bz.CenteredClipping(radius=3.0), bz.CenteredClipping(steps=3), bz.MDA(f), bz.SMEA(f), bz.CAF(f), bz.CGE(f)),
        *(bz.SpectralDnC(f), bz.MoNNA(f), bz.FLTrust(), bz.ClippedClustering(), bz.FLAME()),
        *(bz.NNM(f) >> bz.Krum(f), bz.ARC(f) >> bz.Mean(), bz.Clipping(2.0) >> bz.MultiKrum(f)),
        *(bz.NormFilter() >> bz.FLAME(), bz.Bucketing(2) >> bz.GeometricMedian(), bz.NNM(f) >> cw.Median()),
        *(cw.Median(), cw.TrimmedMean(f), cw.MeaMed(f)),
    ]


NAMES = [type(rule).__name__ if ">>" not in repr(rule) else repr(rule) for rule in rules(2)]
SKETCHES = [bz.Exact(), bz.Rotated(k=64), bz.Gaussian(k=64), bz.Achlioptas(k=64)]
FEW = [bz.MultiKrum(2), bz.GeometricMedian(), cw.TrimmedMean(2)]


def left(rule, n_clients, n_out):
    """The number of a rule in `rules`, for the clients that are left of 11 for two faulty ones."""
    f = oracle.n_byzantine_left(2, n_out, lambda g: rules(g)[rule].admits(n_clients - n_out))
    assert f is not None
    return f


def same(out, alone, kept):
    """`out`, of all clients, is what the kept ones come to alone."""
    if alone.weights is not None:
        np.testing.assert_allclose(out.weights[kept], alone.weights, atol=1e-7)
        assert out.weights.sum() == pytest.approx(alone.weights.sum())
        assert not out.weights[np.setdiff1d(np.arange(len(out.weights)), kept)].any()
    np.testing.assert_allclose(flat(out.update), flat(alone.update), rtol=1e-5, atol=1e-6)
    assert np.isfinite(flat(out.update)).all()
    assert skeleton(out.update) == skeleton(alone.update)


@pytest.mark.parametrize(("case", "pack"), [(c, p) for c, (_, _, packs) in CASES.items() for p in packs])
def test_one_bad_client_is_quarantined_with_a_reason_and_the_rest_proceed(case, pack):
    make, said, _ = CASES[case]
    x = honest()
    for place, rule, sketch in zip((0, 5, M - 1), FEW, (*SKETCHES[:2], SKETCHES[0]), strict=True):
        clients = [PACKS[pack](row) for row in x]
        good = clients[:place] + clients[place + 1 :]
        clients[place] = make(PACKS[pack], x[place])
        with within(200):
            out = bz.aggregate(clients, rule, sketch=sketch, seed=SEED)
        assert list(out.quarantined) == [place]
        assert re.search(said, out.quarantined[place]), out.quarantined
        assert len(out.quarantined[place]) < 500
        same(out, bz.aggregate(good, rule, sketch=sketch, seed=SEED), np.delete(np.arange(M), place))


# Coordinate-wise rules can't be projected.
RULE_AND_SKETCH = [
    pytest.param(i, sketch, id=f"{name}-{sketch!r}")
    for i, (name, rule) in enumerate(zip(NAMES, rules(2), strict=True))
    for sketch in (SKETCHES[:1] if isinstance(rule, cw.CoordinateWise) else SKETCHES)
]


@pytest.mark.parametrize(("rule", "sketch"), RULE_AND_SKETCH)
@pytest.mark.parametrize("offset", [0, 1e5])
def test_every_rule_goes_on_with_the_most_byzantine_clients_that_the_rest_admits(rule, sketch, offset):
    x = honest(dtype=np.float64) + offset
    sizes = np.arange(1.0, M + 1)
    for bad in ({4: np.full(P, np.nan)}, {0: x[0, 1:], 7: np.full(P, 1e200)}, {1: None, 10: np.full(P, -np.inf)}):
        clients = [{"w": bad.get(m, row)} for m, row in enumerate(x)]
        kept = np.array([m for m in range(M) if m not in bad])
        trusted = {"w": x.mean(axis=0)}
        out = bz.aggregate(clients, rules(2)[rule], sketch=sketch, sizes=sizes, trusted=trusted, seed=SEED)
        alone = bz.aggregate(
            [clients[m] for m in kept],
            rules(left(rule, M, len(bad)))[rule],
            sketch=sketch,
            sizes=sizes[kept],
            trusted=trusted,
            seed=SEED,
        )
        assert set(out.quarantined) == set(bad)
        assert out.n_byzantine == alone.n_byzantine
        same(out, alone, kept)


@pytest.mark.parametrize("rule", range(len(NAMES)), ids=NAMES)
@pytest.mark.parametrize("junk", [np.nan, np.inf, -np.inf, 1e200])
def test_a_clients_nan_never_reaches_the_result_with_a_reference(rule, junk):
    x = honest(dtype=np.float64)
    reference = x.mean(axis=0)
    x[3, ::5] = junk
    out = bz.aggregate(x, rules(2)[rule], reference=reference, trusted=x[0], seed=SEED)
    assert list(out.quarantined) == [3]
    same(
        out,
        bz.aggregate(
            np.delete(x, 3, axis=0), rules(left(rule, M, 1))[rule], reference=reference, trusted=x[0], seed=SEED
        ),
        np.delete(np.arange(M), 3),
    )


@pytest.mark.parametrize("sketch", SKETCHES, ids=repr)
def test_one_bad_number_among_a_million_is_found_and_told_where(sketch):
    if not isinstance(sketch, (bz.Exact, bz.Rotated)):
        sketch = type(sketch)(k=1)
    x = np.random.default_rng(0).normal(size=(7, 2, 50_001)).astype(np.float32)
    clients = [{"w": a, "b": b} for a, b in x]
    clients[2]["b"][49_999] = np.nan
    clients[4]["w"][3:5] = np.inf
    out = bz.aggregate(clients, bz.Krum(2), sketch=sketch)
    assert set(out.quarantined) == {2, 4}
    assert "'b'" in out.quarantined[2]
    assert "49999" in out.quarantined[2]
    assert "'w'" in out.quarantined[4]
    assert "Inf" in out.quarantined[4]


@pytest.mark.parametrize("rule", rules(2), ids=repr)
def test_large_finite_numbers_are_no_fault_and_do_no_harm(rule):
    x = honest(dtype=np.float64)
    x[2], x[6, 3] = 1e15, -1e15
    out = bz.aggregate(x, rule, trusted=x[[0, 1, 3]].mean(axis=0), seed=SEED)
    assert out.quarantined == {}
    assert np.isfinite(out.update).all()
    if rule.max_byzantine() is not None and ">>" not in repr(rule):
        assert np.abs(out.update).max() < 10


def test_honest_clients_that_send_nan_let_no_attacker_in():
    x = honest(dtype=np.float64)
    x[:2], x[2:4] = 1e6, np.nan
    out = bz.aggregate(x, bz.MultiKrum(2))
    assert out.n_byzantine == 2
    assert np.abs(out.update).max() < 10


@pytest.mark.parametrize("rule", range(len(NAMES)), ids=NAMES)
def test_the_round_goes_on_exactly_when_the_law_says_so(rule):
    """Over every number of clients, of Byzantine and of missing ones, as far as they matter."""
    for f, n_out, n_left in itertools.product(range(4), range(6), range(1, 16)):
        made = rules(f)[rule]
        n_failed = n_out // 2
        out = dict.fromkeys(range(n_out - n_failed), "NaN"), n_failed
        if made.max_byzantine() is None:
            wanted = made if 2 * n_out < n_left + n_out and made.admits(n_left) else None
        else:
            g = oracle.n_byzantine_left(f, n_out, lambda g, n=n_left: rules(g)[rule].admits(n))
            wanted = None if g is None else rules(g)[rule]
        if n_out and wanted is None:
            with pytest.raises(bz.TooFewClientsError, match=f"{n_out} of {n_left + n_out} clients are out"):
                rule_for_remaining(made, n_left, *out)
        elif n_out:
            assert rule_for_remaining(made, n_left, *out) == wanted


@pytest.mark.parametrize("rule", [bz.Krum(2), bz.Bulyan(1), bz.NNM(2) >> cw.Median(), cw.TrimmedMean(2)], ids=repr)
def test_too_many_bad_clients_are_an_error_with_counts_and_reasons(rule):
    x = honest(7)
    clients = [*x]
    clients[1], clients[4], clients[6] = None, x[4] * np.nan, x[6][:-1]
    with pytest.raises(bz.TooFewClientsError, match=r"3 of 7 clients are out \(3 quarantined, 0 failed\)") as error:
        bz.aggregate(clients, rule, trusted=x[0])
    assert set(error.value.quarantined) == {1, 4, 6}
    for client, reason in {1: "NoneType", 4: "NaN", 6: "shape"}.items():
        assert f"client {client}: " in str(error.value)
        assert reason in error.value.quarantined[client]


@pytest.mark.parametrize("rule", [r for r in rules(2) if r.max_byzantine() is None and ">>" not in repr(r)], ids=repr)
def test_rules_that_fix_no_number_go_on_while_most_are_left(rule):
    x = honest(7)
    clients = [x[0] * np.inf, x[1], None, x[3][:5], *x[4:]]
    out = bz.aggregate(clients, rule, trusted=x[1])
    assert set(out.quarantined) == {0, 2, 3}
    kept = np.array([1, 4, 5, 6])
    same(out, bz.aggregate(x[kept], rule, trusted=x[1]), kept)
    with pytest.raises(bz.TooFewClientsError, match=r"4 of 7 clients are out .*: no honest majority"):
        bz.aggregate([*clients[:6], "gone"], rule, trusted=x[1])


@pytest.mark.parametrize(
    ("rule", "n_clients"),
    [(bz.Krum(3), 7), (bz.MultiKrum(2, n_selected=8), 8), (bz.Bulyan(2), 7), (cw.TrimmedMean(4), 7)],
    ids=repr,
)
def test_too_few_left_for_the_rules_condition_is_an_error_with_counts_and_reasons(rule, n_clients):
    x = honest(n_clients)
    x[5] = np.nan
    with pytest.raises(bz.TooFewClientsError, match=rf"{n_clients - 1}.*client 5: .*NaN") as error:
        bz.aggregate(x, rule)
    assert set(error.value.quarantined) == {5}


ALL_BAD = {
    "not updates": lambda x: [None, "text", 3, {}],
    "not finite": lambda x: list(x[:4] * np.nan),
    "all sorts": lambda x: [x[0] * np.nan, None, x[2] * np.inf, x[3].astype(complex)],
    "all different": lambda x: [x[0][:1] * np.nan, x[1][:2] * np.nan, x[2][:3] * np.nan, "text"],
}


@pytest.mark.parametrize("bad", ALL_BAD)
@pytest.mark.parametrize("rule", [bz.Mean(), bz.Krum(1), cw.Median(), bz.NNM(1) >> bz.GeometricMedian()], ids=repr)
def test_nobody_left_is_a_clear_error(rule, bad):
    with pytest.raises(bz.TooFewClientsError, match=r"clients? 0.* 3: ") as error:
        bz.aggregate(ALL_BAD[bad](honest()), rule)
    assert len(error.value.quarantined) == 4


def test_the_reasons_of_many_are_cut_short_in_the_message_but_all_held():
    with pytest.raises(bz.TooFewClientsError, match="and 495 more") as error:
        bz.aggregate([None] * 500, bz.Krum(2))
    assert len(error.value.quarantined) == 500
    assert len(str(error.value)) < 2000


@pytest.mark.parametrize("case", CASES)
def test_strict_names_the_client_and_the_reason(case):
    make, said, packs = CASES[case]
    pack, x = PACKS[next(iter(packs))], honest()
    clients = [pack(row) for row in x]
    clients[6] = make(pack, x[6])
    with pytest.raises(bz.BadClientError, match="client 6: .*(?:" + said + ")") as error:
        bz.aggregate(clients, bz.MultiKrum(2), strict=True)
    assert error.value.client == 6
    assert error.value.reason == bz.aggregate(clients, bz.MultiKrum(2)).quarantined[6]


@pytest.mark.parametrize("attackers", [[0, 1, 2, 3, 4], [0, 2, 4, 6, 8], [6, 7, 8, 9, 10]])
@pytest.mark.parametrize(
    "lie",
    [lambda r: {"w": r[:9], "b": r[9:]}, lambda r: {"w": r.astype(np.float64)}, lambda r: [r], lambda r: {"v": r}],
    ids=["split", "wider", "list", "renamed"],
)
def test_a_minority_never_decides_the_layout(lie, attackers):
    x = honest()
    out = bz.aggregate([lie(r) if m in attackers else {"w": r} for m, r in enumerate(x)], bz.GeometricMedian())
    assert list(out.quarantined) == attackers
    kept = np.setdiff1d(np.arange(M), attackers)
    same(out, bz.aggregate([{"w": r} for r in x[kept]], bz.GeometricMedian()), kept)


KINDS = {
    "a dict for a list": (lambda r: {0: r[:9], 1: r[9:]}, lambda r: [r[:9], r[9:]]),
    "a list for a dict": (lambda r: [r[:9], r[9:]], lambda r: {0: r[:9], 1: r[9:]}),
    "a tuple for a list": (lambda r: (r[:9], r[9:]), lambda r: [r[:9], r[9:]]),
    "a named tuple for a tuple": (collections.namedtuple("Odd", "rows").__call__, lambda r: (r,)),
    "a tensor for an array": (tensor, lambda r: r),
    "an array for a tensor": (lambda r: r, tensor),
    "an OrderedDict for a dict": (lambda r: collections.OrderedDict(w=r), lambda r: {"w": r}),
    "big-endian for native": (lambda r: r.astype(">f4"), lambda r: r),
    "a memmap's subclass for an array": (lambda r: r.view(np.recarray), lambda r: r),
    "other order of keys": (lambda r: {"b": r[9:], "a": r[:9]}, lambda r: {"a": r[:9], "b": r[9:]}),
    "an empty entry more": (lambda r: {"w": r, "odd": []}, lambda r: {"w": r}),
    "an empty dict inside": (lambda r: [r, {}], lambda r: [r]),
    "True for 1": (lambda r: {True: r}, lambda r: {1: r}),
    "numbers for float64": (lambda r: r.astype(np.float64).tolist(), lambda r: r.astype(np.float64)),
}


@pytest.mark.parametrize("kind", KINDS)
def test_the_first_client_never_decides_what_the_result_is_made_of(kind):
    odd, usual = KINDS[kind]
    x = honest()
    clients = [odd(x[0]), *(usual(row) for row in x[1:])]
    out = bz.aggregate(clients, bz.MultiKrum(2))
    assert skeleton(out.update) == skeleton(clients[1])


def billion_laughs(bottom, depth=60):
    for _ in range(depth):
        bottom = [bottom, bottom]
    return bottom


GREEDY = {
    "2^60 empty lists": lambda: billion_laughs([]),
    "2^60 arrays": lambda: billion_laughs(np.zeros(P, np.float32)),
    "2^60 dicts": lambda: {"w": billion_laughs({})},
    "a chain of 100,000 lists": lambda: chain(100_000),
    "a wide endless list": lambda: wide_endless(),
    "100,000 entries": lambda: dict.fromkeys(range(10**5), np.zeros(1, np.float32)),
    "a claim of terabytes": lambda: np.broadcast_to(np.float32(0), (10**13,)),
    "one number in many large arrays": lambda: [np.broadcast_to(np.float32(1), (2**24,))] * 10_000,
    "one array many times": lambda: [np.ones(10**5, np.float32)] * 99_000,
    "windows of one array": lambda: [*np.lib.stride_tricks.sliding_window_view(np.ones(60_000, np.float32), 10_000)],
    "a name of 10 MB": lambda: {"x" * 10**7: np.zeros(P, np.float32)},
    "a long name of text": lambda: {"x" * 10**6: "text"},
    "a dtype of 10,000 fields": lambda: np.zeros(1, [(f"field{i}", "f4") for i in range(10_000)]),
    "a thousand dimensions of names": lambda: chain(900, {"k" * 1000: None}),
    "long text": lambda: "x" * 10**7,
}


def chain(depth, bottom=None):
    for _ in range(depth):
        bottom = [bottom]
    return bottom


def wide_endless():
    node = []
    node.extend([node] * 1000)
    return node


@pytest.mark.parametrize("greedy", GREEDY)
@pytest.mark.parametrize("pack", ["array", "dict"])
def test_no_client_makes_it_hang_or_flood_the_log(greedy, pack):
    clients = [PACKS[pack](row) for row in honest()]
    clients[0] = GREEDY[greedy]()
    for aggregated in (lambda sent: bz.aggregate(sent, bz.MultiKrum(2)), through_a_round):
        aggregated(clients[1:])  # compiled
        with within(30):
            out = aggregated(clients)
        assert list(out.quarantined) == [0]
        assert len(out.quarantined[0]) < 1000


class Truncated(collections.UserDict):
    """A lazily read file whose end is missing."""

    def __getitem__(self, key):
        raise OSError("the file is cut short")


def test_a_container_that_cant_be_read_is_its_clients_fault():
    clients = [{"w": row} for row in honest()]
    clients[2] = Truncated(w=None)
    out = bz.aggregate(clients, bz.MultiKrum(2))
    assert list(out.quarantined) == [2]
    assert "cut short" in out.quarantined[2]


class Claiming(collections.UserDict):
    """An update that raises what the server's own limits raise."""

    def __init__(self, error):
        super().__init__(w=None)
        self.error = error

    def __getitem__(self, key):
        raise self.error


class Fickle(collections.UserDict):
    """A lazily read file that is gone after it was read so many times."""

    def __init__(self, content, times):
        super().__init__(content)
        self.left = times

    def __iter__(self):
        self.left -= 1
        if self.left < 0:
            raise OSError("the file is gone")
        return iter(self.data)


def through_a_round(updates, **settings):
    with bz.Aggregator(bz.MultiKrum(2), sketch=bz.Rotated(k=64)).round(seed=SEED, **settings) as r:
        for client, update in enumerate(updates):
            r.add(update, client)
        return r.close()


WAYS = {
    "one call": lambda updates, tmp_path: bz.aggregate(updates, bz.MultiKrum(2)),
    "a round": lambda updates, tmp_path: through_a_round(updates),
    "a round that copies": lambda updates, tmp_path: through_a_round(updates, copy=True),
    "a round that spills": lambda updates, tmp_path: through_a_round(updates, spill=tmp_path),
}


CLAIMS = [
    MemoryError("Unable to allocate 8 TiB"),
    OSError(errno.EMFILE, "Too many open files"),
    OSError(errno.ENOSPC, "No space left on device"),
    ServerResourceError(errno.EMFILE, "Too many open files"),
]


@pytest.mark.parametrize("claim", CLAIMS, ids=repr)
@pytest.mark.parametrize("way", WAYS)
def test_no_client_can_raise_the_servers_errors(way, claim, tmp_path):
    clients = [{"w": row} for row in honest()]
    clients[2] = Claiming(claim)
    assert list(WAYS[way](clients, tmp_path).quarantined) == [2]


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("place", [0, 5])
def test_what_a_container_is_made_of_is_asked_once(way, place, tmp_path):
    clients = [{"w": row} for row in honest()]
    wanted = WAYS[way](clients, tmp_path)
    clients[place] = Fickle(clients[place], times=1)
    out = WAYS[way](clients, tmp_path)
    assert out.quarantined == {}
    np.testing.assert_array_equal(out.update["w"], wanted.update["w"])


class Boasting(np.ndarray):
    """An array that says it is longer than it is."""

    @property
    def shape(self):
        return (10**6, P)


class Unsaid(Exception):
    def __str__(self):
        raise RuntimeError("nor this one")


class Nameless:
    def __str__(self):
        raise RuntimeError("no name")

    __repr__ = __str__


class Broken(collections.UserDict):
    def __iter__(self):
        raise Unsaid


class Posing:
    """Says that it is an array."""

    dtype, shape, itemsize = np.dtype("f4"), (P,), 4

    @property
    def __class__(self):
        return np.ndarray


class Unclassed:
    @property
    def __class__(self):
        raise RuntimeError("not telling")


ATTACKERS = {
    "an object that raises when it is asked for its class": (lambda x: Unclassed(), "Unclassed"),
    "an array longer than it is": (lambda x: {"w": np.stack([x, x]).view(Boasting)}, "shape"),
    "no array at all": (lambda x: {"w": Posing()}, "object|Posing"),
    "a list that lies": (lambda x: {"w": type("Odd", (list,), {"__iter__": lambda self: iter([0.5])})(["x"])}, "str"),
    "a key without a name": (lambda x: {Nameless(): x}, "missing"),
    "a key without a name, and text": (lambda x: {"w": {Nameless(): "text"}}, "<Nameless>"),
    "an error without words": (lambda x: Broken(w=x), "Unsaid: its message can't be read"),
    "a number repeated for ever": (
        lambda x: {"w": np.broadcast_to(x[:1], (10**13,))},
        "memory for 4, which",
    ),
    "a tensor repeated for ever": (
        lambda x: {"w": tensor(x[:1]).expand(10**9, 10**4)},
        "memory for 4, which",
    ),
}


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("attacker", ATTACKERS)
def test_no_lie_of_an_object_reaches_the_round(attacker, way, tmp_path):
    lie, reason = ATTACKERS[attacker]
    x = honest()
    clients = [{"w": row} for row in x]
    clients[4] = lie(x[4])
    with within(60):
        out = WAYS[way](clients, tmp_path)
    assert list(out.quarantined) == [4]
    assert re.search(reason, out.quarantined[4]), out.quarantined
    assert np.isfinite(out.update["w"]).all()


@pytest.mark.parametrize("way", WAYS)
def test_a_name_that_cant_be_written_ends_nothing(way, tmp_path):
    clients = [{"w": row} for row in honest()]
    clients[4] = {**clients[4], 10**5000: np.ones(3, np.float32)}
    out = WAYS[way](clients, tmp_path)
    assert out.quarantined == {4: "entry '<int>' (float32, shape (3,)) is not part of this round's updates"}


def test_tied_arrays_and_slices_of_one_are_an_honest_update():
    whole = np.ones(2**23, np.float32)  # of 32 MiB
    for update in ([whole, whole, whole], [*whole.reshape(2, -1), whole[::-1]], [*whole.reshape(-1, 2).T, whole]):
        assert not bz.aggregate([update] * 3, bz.Mean()).quarantined


def test_all_clients_may_repeat_their_numbers_within_reason():
    rows = [np.broadcast_to(np.float32(m), (1000,)) for m in range(5)]
    np.testing.assert_array_equal(bz.aggregate(rows, bz.Mean()).update, np.full(1000, 2.0))


def junk_arrays():
    dtypes = st.one_of(
        npst.scalar_dtypes(),
        npst.unicode_string_dtypes(),
        npst.array_dtypes(),
        st.sampled_from([np.dtype(d) for d in ("f2", "f4", "f8", ">f4", "i8", "?", "c8")]),
    )
    shapes = st.sampled_from([(P,), (2, 4), (16,), (), (0,), (1, P), (P, 1)])
    return st.builds(lambda d, s: np.zeros(s, d), dtypes, shapes) | npst.arrays(
        st.sampled_from([np.float32, np.float64]), shapes
    )


def junk_tensors():
    torch = pytest.importorskip("torch")
    dtypes = [torch.float32, torch.float64, torch.bfloat16, torch.complex64, torch.int64, torch.bool, torch.float8_e5m2]
    return st.builds(
        lambda d, s, view: view(torch.zeros(s, dtype=d)),
        st.sampled_from(dtypes),
        st.sampled_from([(P,), (2, 4), (16,), ()]),
        st.sampled_from(
            [
                lambda t: t,
                lambda t: t.to("meta"),
                lambda t: t.to_sparse() if t.itemsize > 1 else t,
                lambda t: t.T if t.ndim == 2 else t,
            ]
        ),
    )


junk = st.recursive(
    st.one_of(
        st.none() | st.booleans() | st.integers() | st.floats() | st.complex_numbers(),
        st.integers(10**308, 10**320) | st.fractions() | st.decimals(),
        st.text(max_size=5) | st.binary(max_size=5) | st.dates(),
        st.lists(st.floats() | st.integers() | st.booleans(), max_size=30),
        st.just(len) | st.just(object()) | st.just(dict) | st.builds(iter, st.just([])),
        junk_arrays(),
        *([junk_tensors()] if HAS_TORCH else []),
    ),
    lambda child: st.one_of(
        st.lists(child, max_size=4),
        st.lists(child, max_size=4).map(tuple),
        st.dictionaries(
            st.sampled_from(["w", "b", "n", "body"]) | st.integers(0, 2) | st.none() | st.text(max_size=2), child
        ),
        st.frozensets(st.integers(), max_size=2),
        st.lists(child, max_size=2).map(collections.deque),
        st.dictionaries(st.sampled_from(["w", "b"]), child).map(collections.UserDict),
    ),
    max_leaves=8,
)


@settings(max_examples=150, deadline=None)
@given(
    junk=junk,
    pack=st.sampled_from(sorted(PACKS) if HAS_TORCH else ["array", "layers", "dict", "nested"]),
    inside=st.booleans(),
)
def test_no_junk_ever_does_more_than_get_its_client_quarantined(junk, pack, inside):
    x = honest()
    clients = [PACKS[pack](row) for row in x]
    clients[3] = with_leaf(clients[3], junk) if inside else junk
    for rule in (bz.MultiKrum(2), cw.TrimmedMean(2)):
        out = bz.aggregate(clients, rule)
        assert set(out.quarantined) <= {3}
        assert all(np.isfinite(leaf).all() for leaf in leaves(out.update))
        assert skeleton(out.update) == skeleton(clients[0])


def test_quarantine_spends_no_counter_of_a_bad_client():
    clients = [{"w": row, "n": np.array(n)} for n, row in enumerate(honest(5))]
    clients[4] = {"w": clients[4]["w"] * np.nan, "n": np.array(2**62)}
    assert bz.aggregate(clients, bz.Mean()).update["n"] == 1


MISTAKES = {
    "one dimension": (lambda: np.zeros(5), "one row a client"),
    "no dimension": (lambda: np.array(5.0), "one row a client"),
    "a state dict": (lambda: {"weight": np.zeros((3, 2)), "bias": np.zeros(3)}, "pass a list of several, or a dict by"),
    "text": (lambda: "updates", "one update a client"),
    "bytes": (lambda: b"updates", "one update a client"),
    "None": (lambda: None, "one update a client"),
    "a number": (lambda: 3.5, "one update a client"),
    "an empty list": (list, "at least one client"),
    "no rows": (lambda: np.zeros((0, 5)), "at least one client"),
    "no columns": (lambda: np.zeros((5, 0)), "no floating-point numbers"),
    "integers": (lambda: np.ones((5, 3), int), "astype"),
    "bools": (lambda: np.ones((5, 3), bool), "astype"),
    "objects": (lambda: np.ones((5, 3), object), "object"),
    "complex": (lambda: np.ones((5, 3), complex), "complex"),
    "strings": (lambda: np.full((5, 3), "1.0"), "str"),
    "lists of integers": (lambda: [np.ones(3, int)] * 5, "astype"),
    "a sparse tensor": (lambda: tensor(np.eye(5)).to_sparse(), "sparse"),
}


@pytest.mark.parametrize("mistake", MISTAKES)
@pytest.mark.parametrize("rule", [bz.Mean(), bz.Krum(1), cw.Median()], ids=repr)
def test_the_callers_mistakes_are_clear_exceptions(rule, mistake):
    make, said = MISTAKES[mistake]
    with pytest.raises((TypeError, ValueError), match=said):
        bz.aggregate(make(), rule)


@pytest.mark.parametrize(
    ("setting", "said"),
    [
        ({"sizes": "many"}, "sizes must be 11 positive numbers, one per client; got 'many'"),
        ({"sizes": [[1], [1, 2]]}, "sizes must be 11 positive numbers"),
        ({"sizes": [10**400] * M}, "sizes must be 11 positive numbers"),
        ({"memory": "9" * 400 + " MiB"}, "memory must be a number of bytes"),
        ({"seed": list(range(10**5))}, "seed must be an integer"),
    ],
    ids=["text", "ragged", "too large", "memory", "seed"],
)
def test_a_wrong_argument_is_a_short_message_of_our_own(setting, said):
    with pytest.raises(ValueError, match=said) as error:
        bz.aggregate(honest(), bz.Mean(), **setting)
    assert len(str(error.value)) < 500


def test_a_results_file_of_another_version_is_told_in_a_short_message(tmp_path):
    (tmp_path / results.NAME).write_bytes(results.encode({"kind": "run", "version": "y" * 10**5}))
    with pytest.raises(results.CorruptFileError, match="version must be 1, got 'yyy") as error:
        results.read(tmp_path)
    assert len(str(error.value)) < 1000


@pytest.mark.parametrize("rule", [bz.Krum, None, len, bz.NNM(1), bz.Rotated(), 5], ids=repr)
def test_what_is_no_rule_is_refused(rule):
    with pytest.raises(TypeError, match=r"rule such as Krum\(n_byzantine=5\)"):
        bz.aggregate(honest(), rule)


@pytest.mark.parametrize("sketch", [bz.Rotated, bz.Exact, 4096, None, bz.Krum(1)], ids=repr)
def test_what_is_no_sketch_is_refused(sketch):
    with pytest.raises(TypeError, match=r"sketch such as Exact\(\) or Rotated"):
        bz.Aggregator(bz.Krum(1), sketch=sketch)


@pytest.mark.parametrize("sketch", SKETCHES[1:], ids=repr)
@pytest.mark.parametrize("rule", [cw.Median(), cw.TrimmedMean(1), cw.MeaMed(1)], ids=repr)
def test_a_coordinate_wise_rule_cant_be_projected_and_the_error_says_why(rule, sketch):
    with pytest.raises(ValueError, match="projection mixes the coordinates"):
        bz.Aggregator(rule, sketch=sketch)


@pytest.mark.parametrize(
    ("rule", "n_clients", "said"),
    [
        (bz.Bulyan(3), 14, "at least 15 clients, got 14.*at most 2"),
        (bz.Bulyan(1), 2, "at least 7 clients, got 2.*no n_byzantine"),
        (bz.Krum(5), 10, "at least 13 clients, got 10.*at most 3"),
        (cw.TrimmedMean(3), 6, "at least 7 clients, got 6.*at most 2"),
        (bz.NNM(3) >> bz.Mean(), 6, "at least 7 clients, got 6.*at most 2"),
    ],
    ids=repr,
)
def test_too_few_clients_for_a_rule_is_told_with_the_largest_number_that_will_do(rule, n_clients, said):
    with pytest.raises(bz.TooFewClientsError, match=said):
        bz.aggregate(honest(n_clients), rule)


@pytest.mark.parametrize("rule", [bz.FLTrust(), bz.MoNNA(2), bz.NNM(2) >> bz.FLTrust()], ids=repr)
def test_a_rule_that_needs_a_trusted_update_asks_for_it(rule):
    with pytest.raises(ValueError, match="trusted=") as error:
        bz.aggregate(honest(), rule)
    assert error.type is ValueError
