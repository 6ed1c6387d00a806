"""Whatever a client sends instead of an update: it is quarantined with a reason, and the others go on without it."""

import collections
import itertools
import re
import signal
from contextlib import contextmanager
from functools import partial

import numpy as np
import pytest

import bartizan as bz
import oracle
from bartizan import coordinatewise as cw
from bartizan.judge.judge import rule_for_remaining
from containers import flat, leaves, skeleton, streamed
from fuzz.rules import RULES

M, P, SEED = 11, 24, 5


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


def endless_list():
    node = []
    node.append(node)
    return node


def endless_dict():
    node = {}
    node["w"] = node
    return node


NUMBER = np.float32(1)
REASONS = {  # (what becomes of a dict of arrays, what the reason says)
    "NaN": (lambda u: {**u, "b": u["b"] * np.nan}, "NaN"),
    "Inf": (lambda u: {**u, "w": -np.inf * u["w"]}, "Inf"),
    "squares overflow": (lambda u: {**u, "b": np.full(16, 1e20, np.float32)}, "overflow"),
    "float64": (lambda u: {**u, "b": u["b"].astype(np.float64)}, "float64"),
    "integers": (lambda u: {**u, "b": u["b"].astype(np.int64)}, "int64"),
    "strings": (lambda u: {**u, "b": u["b"].astype(str)}, "str"),
    "objects": (lambda u: {**u, "b": u["b"].astype(object)}, "object"),
    "records": (lambda u: {**u, "b": u["b"].view([("re", np.float32)])}, "dtype"),
    "masked": (lambda u: {**u, "b": np.ma.masked_array(u["b"], u["b"] > 0)}, "mask"),
    "too short": (lambda u: {**u, "b": u["b"][:-1]}, "shape"),
    "a scalar": (lambda u: {**u, "b": NUMBER}, "shape"),
    "a claim of terabytes": (lambda u: {**u, "b": np.broadcast_to(NUMBER, (10**6, 10**7))}, "which they repeat"),
    "None": (lambda u: {**u, "b": None}, "NoneType"),
    "bytes": (lambda u: {**u, "b": bytes(96)}, "bytes"),
    "an integer beyond float64": (lambda u: {**u, "b": [10**400, 1]}, "large|int"),
    "ragged numbers": (lambda u: {**u, "b": [[1.0], [1.0, 2.0]]}, "missing"),
    "an endless list": (lambda u: {**u, "b": endless_list()}, "nested"),
    "an endless dict": (lambda u: endless_dict(), "nested"),
    "a key missing": (lambda u: {"b": u["b"]}, "'w'"),
    "a key too many": (lambda u: {**u, "extra": NUMBER}, "extra"),
    "wrapped": (lambda u: [u], "missing"),
    "an empty dict": (lambda u: {}, "empty"),
    "nothing": (lambda u: None, "NoneType"),
    "text": (lambda u: "update", "str"),
    "a sparse tensor": (lambda u: {**u, "w": tensor(u["w"]).to_sparse()}, "sparse"),
    "on no device": (lambda u: {**u, "w": tensor(u["w"]).to("meta")}, "meta"),
}
RULE_NAMES = list(RULES)


def rules(f):
    """Every rule, for up to f faulty clients where it wants to know."""
    return [make(f) for make in RULES.values()]


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


@pytest.mark.parametrize("case", REASONS)
def test_a_bad_client_is_quarantined_with_a_reason_and_named_under_strict(case):
    make, said = REASONS[case]
    clients = [PACKS["dict"](row) for row in honest()]
    good = clients.copy()
    clients[5] = make(good.pop(5))
    for rule in FEW:
        with within(200):
            out = bz.aggregate(clients, rule, seed=SEED)
        assert list(out.quarantined) == [5]
        assert re.search(said, out.quarantined[5]), out.quarantined
        assert len(out.quarantined[5]) < 500
        same(out, bz.aggregate(good, rule, seed=SEED), np.delete(np.arange(M), 5))
    with pytest.raises(bz.BadClientError, match="client 5: ") as error:
        bz.aggregate(clients, FEW[0], strict=True)
    assert (error.value.client, error.value.reason) == (5, out.quarantined[5])


# Coordinate-wise rules can't be projected.
RULE_AND_SKETCH = [
    pytest.param(i, sketch, id=f"{name}-{sketch!r}")
    for i, (name, rule) in enumerate(zip(RULE_NAMES, rules(2), strict=True))
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


@pytest.mark.parametrize("rule", range(len(RULE_NAMES)), ids=RULE_NAMES)
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


def test_the_reasons_of_many_are_cut_short_in_the_message_but_all_held():
    with pytest.raises(bz.TooFewClientsError, match="and 495 more") as error:
        bz.aggregate([None] * 500, bz.Krum(2))
    assert len(error.value.quarantined) == 500
    assert len(str(error.value)) < 2000


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
    assert list(map(type, leaves(out.update))) == list(map(type, leaves(clients[1])))


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
    "one number in many large arrays": lambda: [np.broadcast_to(np.float32(1), (2**24,))] * 10_000,
    "one array many times": lambda: [np.ones(10**5, np.float32)] * 99_000,
    "windows of one array": lambda: [*np.lib.stride_tricks.sliding_window_view(np.ones(60_000, np.float32), 10_000)],
    "a name of 10 MB": lambda: {"x" * 10**7: np.zeros(P, np.float32)},
    "a long name of text": lambda: {"x" * 10**6: "text"},
    "a dtype of 10,000 fields": lambda: np.zeros(1, [(f"field{i}", "f4") for i in range(10_000)]),
    "a thousand dimensions of names": lambda: chain(900, {"k" * 1000: None}),
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
    projected = bz.Aggregator(bz.MultiKrum(2), bz.Rotated(k=64))
    for aggregated in (lambda sent: bz.aggregate(sent, bz.MultiKrum(2)), partial(streamed, projected)):
        aggregated(clients[1:])  # compiled
        with within(30):
            out = aggregated(clients)
        assert list(out.quarantined) == [0]
        assert len(out.quarantined[0]) < 1000


def test_tied_arrays_and_slices_of_one_are_an_honest_update():
    whole = np.ones(2**23, np.float32)  # of 32 MiB
    for update in ([whole, whole, whole], [*whole.reshape(2, -1), whole[::-1]], [*whole.reshape(-1, 2).T, whole]):
        assert not bz.aggregate([update] * 3, bz.Mean()).quarantined


def test_all_clients_may_repeat_their_numbers_within_reason():
    rows = [np.broadcast_to(np.float32(m), (1000,)) for m in range(5)]
    np.testing.assert_array_equal(bz.aggregate(rows, bz.Mean()).update, np.full(1000, 2.0))


def test_quarantine_spends_no_counter_of_a_bad_client():
    clients = [{"w": row, "n": np.array(n)} for n, row in enumerate(honest(5))]
    clients[4] = {"w": clients[4]["w"] * np.nan, "n": np.array(2**62)}
    assert bz.aggregate(clients, bz.Mean()).update["n"] == 1


MISTAKES = {
    "one dimension": (lambda: np.zeros(5), "one row per client"),
    "no dimension": (lambda: np.array(5.0), "one row per client"),
    "a state dict": (lambda: {"weight": np.zeros((3, 2)), "bias": np.zeros(3)}, "pass a list of several, or a dict by"),
    "text": (lambda: "updates", "one update per client"),
    "bytes": (lambda: b"updates", "one update per client"),
    "None": (lambda: None, "one update per client"),
    "a number": (lambda: 3.5, "one update per client"),
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
        ({"memory": "9" * 400 + " MiB"}, "memory must be a number of bytes"),
        ({"seed": list(range(10**5))}, "seed must be an integer"),
    ],
    ids=["memory", "seed"],
)
def test_a_wrong_argument_is_a_short_message_of_our_own(setting, said):
    with pytest.raises(ValueError, match=said) as error:
        bz.aggregate(honest(), bz.Mean(), **setting)
    assert len(str(error.value)) < 500
