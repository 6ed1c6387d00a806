"""Updates whose columns are shared out among processes: the result is that of one, or the same error on all of them."""

from __future__ import annotations

import re
import sys
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import bartizan as bz
from bartizan.rules.coordinatewise import Median, TrimmedMean
from rule_cases import CASES

torch = pytest.importorskip("torch")
if not torch.distributed.is_available():
    pytest.skip("this torch has no torch.distributed", allow_module_level=True)

from bartizan._util.seeds import key_of  # noqa: E402
from bartizan.distributed import ShardedAggregator  # noqa: E402
from bartizan.kernels import reference  # noqa: E402
from bartizan.measure.sketches import Norms  # noqa: E402
from bartizan.sources.local import roster_of  # noqa: E402
from bartizan.sources.sharded.agreement import ShardInfo, agree  # noqa: E402
from bartizan.sources.sharded.shard import Shard, padded_to_block  # noqa: E402
from bartizan.sources.sharded.sharded_updates import ShardedUpdates, summands  # noqa: E402
from bartizan.updates import layout, parse, parse_updates  # noqa: E402
from lost_ranks import survivors_raise  # noqa: E402
from ranks import PATIENCE, Answer, Blind, Broken, Plain, Ranks, Sore, Unexplained, run_to_the_end  # noqa: E402
from shards import CUTS, SEED, M, all_raise, calls, numbers, parts, same  # noqa: E402

SKETCHES = [bz.Exact(), bz.Rotated(64, mixing=8), bz.Rotated(), bz.Gaussian(24), bz.Achlioptas(24, s=3)]


@pytest.fixture(scope="module")
def ranks(tmp_path_factory):
    pool = Ranks(4, tmp_path_factory.mktemp("ranks"))
    yield pool
    pool.end()


@pytest.mark.parametrize("n", CUTS)
@pytest.mark.parametrize("sketch", SKETCHES, ids=repr)
def test_the_result_is_that_of_one_process(ranks, n, sketch):
    x, rule = numbers(), bz.GeometricMedian()
    same(ranks(calls(x, CUTS[n], (rule, sketch), seed=SEED)), bz.aggregate(x, rule, sketch=sketch, seed=SEED))


@pytest.mark.parametrize("case", CASES, ids=repr)
def test_so_it_is_with_every_rule_reference_sizes_and_trusted_update(ranks, case):
    x, rule, sketch = numbers(), case.rule, bz.Rotated(64, mixing=8)
    points = {"reference": 0.1 * x[-1], "trusted": x[5:].mean(axis=0)}
    sizes = np.arange(1.0, M + 1)
    alone = bz.aggregate(x, rule, sketch=sketch, seed=SEED, sizes=sizes, **points)
    answers = ranks(calls(x, CUTS[3], (rule, sketch), points=points, seed=SEED, sizes=sizes))
    same(answers, alone, 1e-7)
    np.testing.assert_allclose(answers[1].history, alone.history)


@pytest.mark.parametrize("rule", [Median(), TrimmedMean(3), bz.NNM(2) >> Median()], ids=repr)
def test_so_it_is_with_coordinate_wise_rules(ranks, rule):
    x = numbers()
    same(ranks(calls(x, CUTS[4], (rule,))), bz.aggregate(x, rule))


def test_noise_is_that_of_the_seed_and_the_coordinate_however_columns_are_divided(ranks):
    x, rule = numbers(), bz.FLAME(noise=0.5)
    alone = bz.aggregate(x, rule, sketch=bz.Rotated(64), seed=SEED)
    same(ranks(calls(x, CUTS[4], (rule, bz.Rotated(64)), seed=SEED)), alone)
    assert np.abs(alone.update - bz.aggregate(x, bz.FLAME(), sketch=bz.Rotated(64), seed=SEED).update).max() > 0.1


@pytest.mark.parametrize(("form", "tolerance"), [("float32", 1e-5), ("bfloat16", 0.02)])
@pytest.mark.parametrize("sketch", [bz.Exact(), bz.Rotated(64)], ids=repr)
def test_so_it_is_with_tensors_of_less_precision(ranks, form, tolerance, sketch):
    x = numbers(np.float32)
    tensors = torch.from_numpy(x).to(getattr(torch, form))
    alone = bz.aggregate(tensors, bz.GeometricMedian(), sketch=sketch, seed=SEED)
    answers = ranks(calls(x, CUTS[4], (bz.GeometricMedian(), sketch), form=form, seed=SEED))
    for answer in answers:
        np.testing.assert_allclose(answer.weights, alone.weights, atol=1e-5)
    np.testing.assert_allclose(np.concatenate([a.update for a in answers]), alone.update.float(), atol=tolerance)


def test_clients_that_hardly_differ_are_looked_at_once_more(ranks):
    x = numbers() + 3e6
    for sketch in (bz.Exact(), bz.Rotated(64, mixing=8)):
        alone = bz.aggregate(x, bz.GeometricMedian(), sketch=sketch, seed=SEED)
        answers = ranks(calls(x, CUTS[3], (bz.GeometricMedian(), sketch), seed=SEED))
        same(answers, alone, 1e-6)
        assert answers[1].traffic["reduce"] > 1.9 * 8 * M * min(getattr(sketch, "k", M), 64)


@pytest.mark.parametrize("as_list", [False, True])
def test_shards_follow_each_other_if_no_rank_says_where_it_begins_and_else_lie_in_any_order(ranks, as_list):
    x = numbers()
    made = calls(x, [10, 700], (bz.MultiKrum(2), bz.Rotated(64)), seed=SEED)
    for _, _, call in made:
        del call["offset"]
        call["shard"] = list(call["shard"]) if as_list else call["shard"]
    alone = bz.aggregate(x, bz.MultiKrum(2), sketch=bz.Rotated(64), seed=SEED)
    same(ranks(made), alone)
    turned = ranks(calls(x, CUTS[3], (bz.MultiKrum(2), bz.Rotated(64)), seed=SEED)[::-1])  # by their offsets
    same(turned[::-1], alone)


def test_a_dtensor_brings_its_offset_and_gets_a_dtensor(ranks):
    x = numbers(p=1003)
    points = {"reference": 0.1 * x[3], "trusted": x[7]}
    alone = bz.aggregate(x, bz.GeometricMedian(), sketch=bz.Rotated(64), seed=SEED, **points)
    call = ((bz.GeometricMedian(), bz.Rotated(64)), "dtensor", {"shard": x, "seed": SEED} | points)
    listed = (call[0], "dtensor", call[2] | {"placement": "one per client"})
    for called in (call, listed):
        answers = ranks([called] * 3)
        same(answers, alone)
        assert {answer.form for answer in answers} == {"DTensor ['S(0)']"}
    for placement in ("rows", "copies"):
        wrong = (call[0], "dtensor", call[2] | {"placement": placement})
        all_raise(ranks([wrong] * 3), "ValueError", r"redistribute\(placements=\[Shard\(1\)\]\)")


@pytest.mark.parametrize("name", ["reference", "trusted"])
def test_a_point_that_is_placed_otherwise_than_the_updates_is_refused(ranks, name):
    x = numbers(p=1000)
    call = {"shard": x, name: x[3], "placement": "copies of columns", "points": "columns of copies of them"}
    wanted = f"{name} must hold DTensors that are placed as the clients' are"
    all_raise(ranks([((bz.CenteredClipping(1.0),), "dtensor", call)] * 4), "ValueError", wanted)


@pytest.mark.parametrize(
    ("client", "sent", "reason"),
    [
        (4, "copies of one per client, over the other axis", "its DTensors are placed otherwise"),
        (0, "copies of one per client, over the other axis", "its DTensors are placed otherwise"),
        (0, None, "the update is a NoneType"),
        (0, np.zeros(500), "wanted DTensors, as others sent"),
        (4, "shards of shards, no copies of them", ".* wanted at most one Shard, and Replicate"),
    ],
)
def test_a_client_that_is_no_such_dtensor_as_most_is_quarantined(ranks, client, sent, reason):
    x = numbers(p=1000)
    call = {"shard": x, "placement": "copies of one per client", "odd": {client: sent}, "seed": SEED}
    answers = ranks([((bz.MultiKrum(2),), "dtensor", call)] * 4)
    listed = list(x)
    listed[client] = None
    same(answers[:2], bz.aggregate(listed, bz.MultiKrum(2), seed=SEED))
    assert re.match(f"rank 0: {reason}", answers[0].quarantined[client])


def test_one_dtensor_without_a_row_per_client_is_refused_by_its_shape(ranks):
    wanted = r"Wanted a DTensor with one row per client, \(M, p\); got one of shape \(1000,\)"
    call = {"shard": numbers(p=1000)[0], "placement": "one row"}
    all_raise(ranks([((bz.Mean(),), "dtensor", call)] * 3), "ValueError", wanted)


PLACED = {"w": "S(0)", "norm": "R", "v": "S(1)", "b": "R", "small": "S(0)", "steps": "plain"}


def states(x):
    """State dicts of these rows; what is replicated holds most of the numbers in which clients differ."""
    shapes = {"w": (20, 10), "norm": (300,), "v": (6, 50), "b": (101,), "small": (1, 102)}
    ends = np.cumsum([np.prod(shape) for shape in shapes.values()])
    assert ends[-1] == x.shape[1]
    split = [np.split(row, ends[:-1]) for row in x]
    made = [{name: a.reshape(shape) for (name, shape), a in zip(shapes.items(), row, strict=True)} for row in split]
    return [state | {"steps": np.array([m])} for m, state in enumerate(made)]


def same_states(answers, alone, tolerance=1e-9):
    for answer in answers:
        assert isinstance(answer, Answer), answer
        np.testing.assert_allclose(answer.weights, alone.weights, rtol=0, atol=tolerance)
        np.testing.assert_allclose(answer.scores, alone.scores, rtol=1e-6)
        assert answer.quarantined.keys() == alone.quarantined.keys()
        assert list(answer.update) == list(alone.update)
        for name, leaf in alone.update.items():
            np.testing.assert_allclose(answer.update[name], leaf, rtol=0, atol=tolerance)


@pytest.mark.parametrize("n", [1, 2, 3, "2 x 2"])
def test_state_dicts_of_dtensors_count_what_is_replicated_once(ranks, n):
    """As local parts, `.to_local()`, replicated entries would count once a rank, and Krum drop another client."""
    x = np.random.default_rng(5).normal(size=(M, 1003))
    x[3, 200:500] += 1.5  # in what is replicated ...
    x[4, :200] += 1.9  # ... and in what is sharded: farther from the others, unless the first counts three times
    listed = states(x)
    points = {"reference": states(0.1 * x[:1])[0], "trusted": states(x[7:8])[0]}
    rule = bz.MultiKrum(1)
    alone = bz.aggregate(listed, rule, **points)
    thrice = [state | {"again": state["norm"], "once more": state["norm"]} for state in listed]
    assert (bz.aggregate(thrice, rule).weights != alone.weights).any()
    call = {"shard": listed, "placements": PLACED, "copies": n == "2 x 2"} | points
    answers = ranks([((rule,), "states", call)] * (4 if n == "2 x 2" else n))
    same_states(answers, alone)
    copies = ["Replicate()"] if n == "2 x 2" else []
    for name, how in (("w", "Shard(dim=0)"), ("norm", "Replicate()")):
        assert answers[-1].form[name] == f"({', '.join([*copies, how])}{'' if copies else ','})"
    assert answers[-1].form["steps"] == "plain"


def test_state_dicts_that_are_all_replicated_and_coordinate_wise_rules(ranks):
    x = numbers(p=1003)
    replicated = dict.fromkeys(PLACED, "R")
    for placements in (PLACED, replicated):
        call = {"shard": states(x), "placements": placements}
        alone = bz.aggregate(states(x), Median())
        for answer in ranks([((Median(),), "states", call)] * 3):
            for name, leaf in alone.update.items():
                np.testing.assert_allclose(answer.update[name], leaf, rtol=0, atol=1e-12)


def test_a_client_whose_state_dict_is_placed_otherwise_is_quarantined(ranks):
    x = numbers(p=1003)
    listed = states(x)
    listed[2], listed[5] = None, listed[5] | {"w": listed[5]["w"][:, :9]}
    call = {"shard": listed, "placements": PLACED, "odd": {0: {"norm": "S(0)"}, 1: {"norm": "plain"}}}
    answers = ranks([((bz.MultiKrum(2),), "states", call)] * 3)
    kept = [None if m in (0, 1, 2, 5) else state for m, state in enumerate(listed)]
    same_states(answers, bz.aggregate(kept, bz.MultiKrum(2)))
    reasons = answers[0].quarantined
    assert "its DTensors are placed otherwise than those of most clients" in reasons[0]
    assert "entry 'norm' is no DTensor" in reasons[1]
    assert "placed otherwise" in reasons[5]


def test_state_dicts_of_dtensors_with_a_group_or_an_offset_or_other_points_are_refused(ranks):
    call = {"shard": states(numbers(p=1003)), "placements": PLACED}
    point = states(numbers(p=1003))[0]
    for more, wanted in (
        ({"offset": 3}, "rank 0: DTensors have no offset"),
        ({"reference": None, "trusted": np.zeros(3)}, "rank 0: trusted must hold DTensors that are placed as"),
        ({"placements": PLACED | {"norm": "plain"}}, "rank 0: No client's DTensors .* entry 'norm' is no DTensor"),
        ({"reference": {name: a for name, a in point.items() if name != "b"}}, "rank 0: reference must hold DTensors"),
    ):
        all_raise(ranks([((bz.Krum(2),), "states", call | more)] * 3), "ValueError", wanted)


def test_one_client_that_sends_dtensors_does_not_decide_how_all_are_read(ranks):
    x = numbers(p=1003)
    others = {"placements": dict.fromkeys(PLACED, "plain"), "odd": {3: PLACED}}
    for form, call in (
        ("states", {"shard": states(x)} | others),
        ("dtensor", {"shard": x, "placement": "one per client", "odd": {m: x[m] for m in range(M) if m != 3}}),
    ):
        answers = ranks([((bz.MultiKrum(2),), form, call)] * 4)
        assert [list(answer.quarantined) for answer in answers] == [[3]] * 4


@pytest.mark.parametrize(
    ("placement", "form", "first"),
    [("copies of columns", "R, S(0)", [0, 1]), ("columns of copies of them", "S(0), R", [0, 2])],
)
def test_copies_of_the_shards_get_the_same_bits_and_the_answer_of_one(ranks, placement, form, first):
    x = numbers(p=1003)
    x[4, 900] = np.nan
    points = {"reference": 0.1 * x[3], "trusted": x[7]}
    alone = bz.aggregate(x, bz.GeometricMedian(), sketch=bz.Rotated(64), seed=SEED, **points)
    call = {"shard": x, "placement": placement, "seed": SEED} | points
    answers = ranks([((bz.GeometricMedian(), bz.Rotated(64)), "dtensor", call)] * 4)
    same([answers[i] for i in first], alone)
    for one, other in zip(first, sorted({0, 1, 2, 3} - set(first)), strict=True):
        np.testing.assert_array_equal(answers[one].update, answers[other].update)
    assert answers[0].form == f"DTensor {[str(s) for s in form.split(', ')]}"
    assert answers[3].quarantined == answers[0].quarantined
    # A process is called by its own rank, not by that in the group of its shards.
    assert answers[0].quarantined[4].startswith(f"rank {first[1]}, columns 502 to 1003: ")
    np.testing.assert_array_equal(answers[3].weights, answers[0].weights)


def test_copies_draw_one_seed_and_hear_every_error(ranks):
    def calls(**changes):
        call = {"shard": numbers(p=1003), "placement": "copies of columns"}
        return [((bz.Krum(2), bz.Rotated(64)), "dtensor", call | (changes if i == 3 else {})) for i in range(4)]

    assert len({answer.seed for answer in ranks(calls())}) == 1
    all_raise(ranks(calls(strict=True)), "ValueError", "disagree on strict: rank 0 has False, rank 3 has True")
    all_raise(ranks(calls(offset=5)), "ValueError", "rank 3: DTensors have no offset")
    blind = [((bz.Krum(2), Blind(64)), *call[1:]) for call in calls()]
    all_raise(ranks(blind), "RuntimeError", "rank 1 failed: MemoryError: no room")
    wrong = {"shard": numbers(p=1003), "placement": "shards of shards, no copies of them"}
    wanted = r"redistribute\(placements=\[Replicate\(\), Shard\(1\)\]\)"
    all_raise(ranks([((bz.Krum(2),), "dtensor", wrong)] * 4), "ValueError", wanted)
    same(ranks([((bz.Krum(2),), "dtensor", calls()[0][2])] * 4)[:2], bz.aggregate(numbers(p=1003), bz.Krum(2)))


def test_copies_must_hold_what_the_first_ones_hold():
    same = {"same": {}, "dtypes": ("float32",), "device": "cpu", "quarantined": {}}
    places = ((0, 5), (5, 4), (0, 5), (5, 4))
    claims = [ShardInfo(rank=rank, first=first, width=width, **same) for rank, (first, width) in enumerate(places)]
    assert agree(claims, 2)[0] == (0, 5, 0, 5)
    claims[3] = replace(claims[3], first=4, width=5)
    with pytest.raises(ValueError, match="rank 3 must hold a copy of rank 1's 4 columns from 5 on; got 5 from 4 on"):
        agree(claims, 2)


def test_nan_is_the_same_on_all_ranks(ranks):
    x, sizes = numbers(), np.ones(M)
    x[3, 0] = sizes[3] = np.nan
    settings = {"sizes": sizes, "history": (np.nan,)}
    alone = bz.aggregate(x, bz.GeometricMedian(), **settings)
    same(ranks(calls(x, CUTS[3], (bz.GeometricMedian(),), **settings)), alone, 1e-7)
    sizes[4] = np.nan
    all_raise(ranks(calls(x, CUTS[3], (bz.Mean(),), sizes=sizes)), "ValueError", "^sizes must be a positive number")


def test_a_rule_without_a_repr_is_compared_by_its_settings(ranks):
    x = numbers()
    for _ in range(2):  # the rank that decides remembers the first round
        same(ranks(calls(x, CUTS[2], (Plain(),))), bz.aggregate(x, Plain()))
    made = calls(x, CUTS[2], (bz.NNM(2) >> Plain(),))
    made[1] = ((bz.NNM(2) >> Plain(2),), *made[1][1:])
    all_raise(ranks(made), "ValueError", r"the rule: rank 0 has .*NNM\(n_byzantine=2\), .*ranks.Plain\(power=1\)")


def test_the_seed_is_fresh_secret_and_the_same_on_all_ranks(ranks):
    made = calls(numbers(), CUTS[3], (bz.Krum(2), bz.Rotated(64)))
    first, second = [[answer.seed for answer in ranks(made)] for _ in range(2)]
    assert len(set(first)) == len(set(second)) == 1
    assert first[0] != second[0]


@pytest.mark.parametrize("late", [0, 2])
def test_the_seed_is_drawn_after_the_last_update_has_arrived_on_every_rank(ranks, late):
    """So nobody sends anything who could know it, and there is no second look by another seed as in a round."""
    made = calls(numbers(), CUTS[3], (bz.Krum(2), bz.Rotated(64)))
    for rank, (_, _, call) in enumerate(made):
        call["shard"] = list(call["shard"])
        call["late"] = 0.3 if rank == late else 0.0
    answers = ranks([(arguments, "arriving", call) for arguments, _, call in made])
    last = max(arrived for arrived, _, _ in answers)
    drawn = [drawn for _, drawn, _ in answers]
    assert drawn[1:] == [None, None]
    assert drawn[0] > last
    assert len({seed for _, _, seed in answers}) == 1


def test_the_first_rank_plans_for_all(ranks):
    for x, wanted in ((numbers(p=9), bz.Exact()), (numbers(np.float32, p=10**5), bz.Rotated())):
        answers = ranks(calls(x, [4, 5], (bz.Krum(2), "auto")))
        assert [answer.sketch for answer in answers] == [wanted] * 3
        assert set(answers[1].seconds) - {"compile"} == {"agree", "sketch", "weigh", "combine"}


# Ranks without columns.


def as_dicts(x, counter):
    return [{"w": row.copy(), "counter": np.array([counter + i])} for i, row in enumerate(x)]


@pytest.mark.parametrize("form", ["numpy", "float64"])
@pytest.mark.parametrize("at", [0, 2])
def test_state_dicts_without_columns_keep_their_counters(ranks, form, at):
    x, points = numbers(), {"reference": 0.1 * numbers()[3]}
    alone = bz.aggregate(x, bz.MultiKrum(2), sketch=bz.Rotated(64), seed=SEED, **points)
    made = calls(x, [0, 5003] if at == 0 else [5003, 9001], (bz.MultiKrum(2), bz.Rotated(64)), form=form, seed=SEED)
    made[at][2]["shard"] = made[at][2]["shard"][:, :0]
    for i, (_, _, call) in enumerate(made):
        call["reference"] = {"w": parts(points["reference"], [0, 5003] if at == 0 else [5003, 9001])[i][1]}
        call["reference"]["counter"] = np.array([100 * i])
        call["shard"] = as_dicts(call["shard"], 100 * i)
        del call["offset"]
    answers = ranks(made)
    assert [100 * i <= int(answer.update["counter"][0]) < 100 * i + M for i, answer in enumerate(answers)] == [True] * 3
    assert answers[at].update["w"].shape == (0,)
    same([replace(answer, update=np.asarray(answer.update["w"])) for answer in answers], alone)


@pytest.mark.parametrize("nothing", [{}, {"counter": np.array([5])}], ids=["empty", "integers"])
@pytest.mark.parametrize("odd", [None, {"w": np.empty(0, np.float16)}], ids=["all", "all but one"])
def test_a_rank_without_any_floats_takes_the_dtype_of_the_others(ranks, nothing, odd):
    x = numbers()
    x[4, 7] = 1e100  # in float32 its square would overflow
    made = calls(x, [5003], (bz.MultiKrum(2), bz.Rotated(64)), seed=SEED)
    for _, _, call in made:
        del call["offset"]
    leads = (
        (bz.MultiKrum(2), bz.Rotated(64)),
        "numpy",
        {"shard": [odd or nothing] + [nothing] * (M - 1), "seed": SEED},
    )
    none, *others = ranks([leads, *made])
    listed = list(x) if odd is None else [None, *x[1:]]
    same(others, bz.aggregate(listed, bz.MultiKrum(2), sketch=bz.Rotated(64), seed=SEED))
    assert none.update == nothing


@pytest.mark.parametrize(("sent", "reason"), [(np.zeros(5), "wanted .* got float64 of shape"), (None, ".*NoneType")])
def test_a_client_with_columns_where_others_have_none_is_quarantined(ranks, sent, reason):
    x = numbers()
    made = calls(x, [5003, 9001], (bz.MultiKrum(2), bz.Rotated(64)), seed=SEED)
    for _, _, call in made:
        del call["offset"]
    made[2][2]["shard"] = [row if i != 4 else sent for i, row in enumerate(x[:, :0])]
    answers, listed = ranks(made), list(x)
    listed[4] = None
    same(answers, bz.aggregate(listed, bz.MultiKrum(2), sketch=bz.Rotated(64), seed=SEED))
    assert re.match(f"rank 2: {reason}", answers[0].quarantined[4])


def test_no_result_keeps_a_graph_of_gradients(ranks):
    x = numbers(np.float32)
    answers = ranks(calls(x, [5003, 9001], (bz.Mean(),), form="float32 with gradients"))
    same(answers, bz.aggregate(x, bz.Mean()), 1e-5)  # a tensor with a graph has no .numpy()


# Who can't take part.


@pytest.mark.parametrize("rule", [bz.MultiKrum(2), Median()], ids=repr)
def test_who_is_broken_on_one_rank_is_out_on_all(ranks, rule):
    x = numbers(np.float32)
    x[3, 8000], x[6, 0] = np.nan, np.inf
    answers = ranks(calls(x, CUTS[3], (rule,), seed=SEED))
    same(answers, bz.aggregate(x, rule, seed=SEED), 1e-5)
    assert answers[0].quarantined[3].startswith("rank 2, columns 5003 to 9001: the update (float32, shape (3998,)) ")
    assert "holds Inf, first at 0" in answers[0].quarantined[6]


def test_squares_that_overflow_only_in_sum_are_seen(ranks):
    x = numbers(np.float32)
    x[4, 0] = x[4, -1] = 1.5e19
    for answer in ranks(calls(x, [4000], (bz.Krum(2),))):
        assert list(answer.quarantined) == [4]
        assert "summed over all ranks, overflow" in answer.quarantined[4]


def test_who_sends_another_layout_to_one_rank_is_out_on_all(ranks):
    x = numbers()
    made = calls(x, CUTS[3], (bz.MultiKrum(2), bz.Rotated(64)), seed=SEED)
    for _, _, call in made:
        call["shard"] = list(call["shard"])
    made[1][2]["shard"][9] = made[1][2]["shard"][9][:7]
    made[2][2]["shard"][0] = "nothing"
    answers = ranks(made)
    assert [list(answer.quarantined) for answer in answers] == [[0, 9]] * 3
    assert answers[0].quarantined[9].startswith("rank 1: wanted")
    x[[0, 9]] = np.nan
    same(answers, bz.aggregate(x, bz.MultiKrum(2), sketch=bz.Rotated(64), seed=SEED))


def test_an_address_that_one_rank_cant_open_is_out_on_all(ranks, tmp_path):
    pytest.importorskip("fsspec")
    x = numbers()
    made = calls(x, [5003], (bz.MultiKrum(2), bz.Rotated(64)), seed=SEED)
    for rank, (_, _, call) in enumerate(made):
        for client, row in enumerate(call["shard"]):
            np.save(tmp_path / f"{rank}-{client}.npy", row)
        call["shard"] = [f"file://{tmp_path}/{rank}-{client}.npy" for client in range(M)]
    (tmp_path / "1-4.npy").unlink()
    answers = ranks(made)
    x[4] = np.nan
    same(answers, bz.aggregate(x, bz.MultiKrum(2), sketch=bz.Rotated(64), seed=SEED))
    assert "no such object" in answers[0].quarantined[4]


@pytest.mark.parametrize(
    ("rule", "broken", "error", "message"),
    [
        (
            (bz.Bulyan(2),),
            3,
            "TooFewClientsError",
            "3 of 13 clients are out .* Bulyan with n_byzantine=2 needs at least 11",
        ),
        ((bz.Krum(2),), 1, "BadClientError", "client 0: rank 2, columns 5003"),
        ((bz.MultiKrum(2), Unexplained(64)), 1, "RuntimeError", "rank 2 failed: OSError: .*no descriptors"),
    ],
    ids=["too few", "strict", "no descriptors, which is no fault of a client"],
)
def test_what_ends_a_round_is_an_error_on_all_ranks(ranks, rule, broken, error, message):
    x = numbers()
    x[:broken, 8000] = np.nan
    strict = error == "BadClientError"
    all_raise(ranks(calls(x, CUTS[3], rule, seed=SEED, strict=strict)), error, message)


# What is wrong on one rank is an error on all, and the group can go on.


@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        ({"shard": numbers()[:12, 1:5003]}, "ValueError", "number of clients: rank 0 has 13, rank 1 has 12"),
        ({"shard": numbers(np.float32)[:, 1:5003]}, "ValueError", r"dtypes.*'float64'.*'float32'"),
        ({"shard": numbers()[:, 1:5000]}, "ValueError", "Columns 5000 to 5003 are held by no rank"),
        ({"shard": numbers()[:, 1:5010]}, "ValueError", "Columns 5003 to 5010 are held twice, by ranks 1 and 2"),
        ({"offset": 0}, "ValueError", "Columns 0 to 1 are held twice, by ranks 0 and 1"),
        ({"offset": None}, "ValueError", "rank 1 passed no offset, but others did"),
        ({"offset": -1}, "ValueError", "rank 1: offset must be the coordinate"),
        ({"shard": numbers()[0]}, "ValueError", "rank 1: Wanted one row per client"),
        ({"shard": {"a": 1}}, "TypeError", "rank 1: Wanted a 2-D array or a list"),
        ({"shard": None}, "TypeError", "rank 1: Wanted a 2-D array or a list"),
        ({"reference": np.full(5002, np.nan)}, "ValueError", "rank 1: reference must be finite"),
        ({"reference": np.zeros(5002)}, "ValueError", "whether there is a reference: rank 0 has False"),
        ({"trusted": np.zeros(7)}, "ValueError", "rank 1: trusted must have the names and shapes"),
        ({"sizes": np.ones(M)}, "ValueError", r"the clients' sizes \(ranks 0 and 1\)"),
        ({"sizes": np.ones(M - 1)}, "ValueError", "rank 1: sizes must be 13 positive numbers"),
        ({"seed": 5}, "ValueError", r"the seed \(ranks 0 and 1\)"),
        ({"seed": -5}, "ValueError", "rank 1: seed must be an integer"),
        ({"strict": True}, "ValueError", "disagree on strict"),
        ({"history": (1.0,)}, "ValueError", "disagree on the history"),
        ({"rule": bz.Krum(3)}, "ValueError", r"the rule: rank 0 has .*Krum\(n_byzantine=2\), rank 1"),
        ({"sketch": bz.Rotated(128)}, "ValueError", r"the sketch: rank 0 has .*Rotated\(k=64"),
    ],
    ids=lambda value: next(iter(value)) if isinstance(value, dict) else None,
)
def test_ranks_that_disagree_hear_why_on_all(ranks, change, error, message):
    made = calls(numbers(), CUTS[3], (bz.Krum(2), bz.Rotated(64)), seed=SEED)
    chosen = change.get("rule", bz.Krum(2)), change.get("sketch", bz.Rotated(64))
    other = {name: value for name, value in change.items() if name not in ("rule", "sketch")}
    made[1] = chosen, made[1][1], made[1][2] | other
    all_raise(ranks(made), error, message)


def test_a_rule_that_fails_and_a_look_that_fails_are_errors_on_all(ranks):
    x = numbers()
    zero = ranks(calls(x, CUTS[3], (Broken(),)))
    assert zero == [("RuntimeError", "rank 0 failed: ZeroDivisionError: no rule at all")] * 3
    singular = ranks(calls(x, CUTS[3], (Broken(np.linalg.LinAlgError),)))
    assert singular == [("ValueError", "LinAlgError: no rule at all")] * 3
    blind = ranks(calls(x, CUTS[3], (bz.Krum(2), Blind(64))))
    assert blind == [("RuntimeError", "rank 2 failed: MemoryError: no room for a look")] * 3
    sore = x.copy()
    sore[0, 6000] = 7
    unfinished = ranks(calls(sore, CUTS[3], (Sore(),)))
    assert unfinished == [("RuntimeError", "rank 2 failed: MemoryError: no room to combine")] * 3
    all_raise(ranks(calls(x[:, :0], [0, 0], (bz.Krum(2),))), "ValueError", "No rank holds any column")
    same(ranks(calls(x, CUTS[3], (bz.Krum(2),))), bz.aggregate(x, bz.Krum(2)))


@pytest.mark.parametrize("call", [{}, {"said": {"no": "claim"}}, {"said": 5}], ids=["bytes", "dict", "number"])
def test_a_rank_that_makes_another_call_is_a_rank_error_on_the_others(ranks, call):
    made = calls(numbers(), CUTS[3], (bz.Krum(2),))
    made[1] = (None, "another call", call)
    one, said, other = ranks(made)
    assert said == "said"
    all_raise([one, other], "RankError", "another call.* Start the group anew")


def test_without_a_group_it_says_how_to_get_one():
    with pytest.raises(RuntimeError, match=r"start them with torchrun and call torch.distributed.init_process_group"):
        ShardedAggregator(bz.Mean())(np.ones((3, 2)))


def test_what_an_aggregator_refuses_is_refused():
    with pytest.raises(TypeError, match="rule='krum' needs settings"):
        ShardedAggregator("krum")
    with pytest.raises(TypeError, match="n_byzantine=5 for the default rule"):
        ShardedAggregator()
    assert ShardedAggregator(n_byzantine=2) == ShardedAggregator(bz.Aggregator(n_byzantine=2).rule)
    assert ShardedAggregator("median") == ShardedAggregator(Median())
    with pytest.raises(ValueError, match="can't be projected"):
        ShardedAggregator(Median(), bz.Rotated())


# What travels.


@pytest.mark.parametrize(
    ("rule", "sketch", "summed"),
    [
        (bz.MultiKrum(2), bz.Rotated(64), 8 * (M * 64 + M)),
        (bz.MultiKrum(2), bz.Exact(), 8 * M * M),
        (Median(), bz.Exact(), 8 * M),
    ],
    ids=str,
)
def test_what_travels_does_not_depend_on_how_many_coordinates_there_are(ranks, rule, sketch, summed):
    few, many = (ranks(calls(numbers(p=p), [p // 3, p // 2], (rule, sketch), seed=SEED)) for p in (900, 90_000))
    for a, b in zip(few, many, strict=True):
        assert a.traffic["reduce"] == b.traffic["reduce"] == summed
        talk = [answer.traffic["all_gather"] + answer.traffic["broadcast"] for answer in (a, b)]
        assert abs(talk[0] - talk[1]) <= 32  # the numbers of columns have more digits
        assert talk[0] < 1300 + 8 * 3 * M  # no M x M numbers, which would be another 1352 bytes


# A sketch is a function of the coordinate, wherever a rank's columns begin.


def columns_alone(clients, first):
    """The columns of one rank, without its group."""
    return ShardedUpdates(SimpleNamespace(global_rank=0), clients, first, 0, roster_of(clients))


@settings(deadline=None, max_examples=30)
@given(cuts=st.lists(st.integers(0, 700), max_size=4), which=st.integers(0, 5), far=st.booleans())
def test_the_sketches_of_the_parts_add_up_to_that_of_the_whole(cuts, which, far):
    sketch = [*SKETCHES[:2], bz.Rotated(128, 1), bz.Gaussian(5), bz.Achlioptas(5), Norms()][which]
    begin = 2**40 if far else 0
    x, about = np.random.default_rng(1).normal(size=(2, 4, 700))
    total = None
    for offset, shard in parts(x, sorted(cuts)):
        if shard.shape[1]:
            points = {"reference": about[0, offset:][: shard.shape[1]], "trusted": about[1, offset:][: shard.shape[1]]}
            own = columns_alone(parse_updates(shard, **points), begin + offset)._own(sketch, SEED, None, None, None)
            total = own if total is None else total + own
    y, out, norms = np.vstack([x, about[1]]) - about[0], np.zeros((5, getattr(sketch, "k", 0))), np.zeros(5)
    if isinstance(sketch, bz.Rotated):
        reference.rotated(y, None, begin, key_of(SEED), sketch.mixing, out, norms)
    elif isinstance(sketch, bz.Gaussian):
        reference.gaussian(y, None, begin, key_of(SEED), out, norms)
    elif isinstance(sketch, bz.Achlioptas):
        reference.achlioptas(y, None, begin, key_of(SEED), sketch.s, out, norms)
    wanted = [y @ y.T] if isinstance(sketch, bz.Exact) else [out, (y**2).sum(axis=1), y @ y[-1]]
    for a, b in zip(summands(total).values(), wanted, strict=True):
        np.testing.assert_allclose(a, b, atol=1e-9)


def test_so_they_do_on_a_gpu(monkeypatch):
    pytest.importorskip("triton")
    device = "cuda" if torch.cuda.is_available() else "cpu"
    x = torch.from_numpy(numbers(p=5000)[:2]).to(torch.bfloat16)
    wanted = bz.Rotated(1024).measure(parse_updates(x, reference=x[1].float()), SEED)
    if device == "cpu":  # Triton's interpreter reads the CPU's tensors
        for module in (layout, parse):
            monkeypatch.setattr(module, "on_gpu", layout.is_tensor)
    total = 0
    for offset, shard in parts(x.to(device), [77, 3001]):
        clients = parse_updates(shard, reference=shard[1].float())
        reading = bz.Rotated(1024).measure(padded_to_block(clients, offset, 1024), SEED)
        total = total + np.hstack([reading.sketches.cpu(), reading.squared_norms.cpu()[:, None]])
    np.testing.assert_allclose(total, np.hstack([wanted.sketches, wanted.squared_norms[:, None]]), rtol=1e-4, atol=1e-3)
    columnless = [
        {"w": row[:0].float(), "steps": torch.ones(1, dtype=torch.int64, device=device)} for row in x.to(device)
    ]
    none = Shard.of(columnless, [], None, {"reference": columnless[0]}).clients
    for effective_sketch in (bz.Exact(), bz.Rotated(1024)):
        own = columns_alone(none, 77)._own(effective_sketch, SEED, None, None, None)
        assert not any(total.any() for total in summands(own).values())


# Ranks that die or fall silent: processes of their own, since their group is of no use afterwards.


@pytest.mark.parametrize("gone", ["dead", "silent"])
def test_a_dead_or_silent_rank_is_an_error_on_the_others_within_the_timeout(tmp_path, gone):
    survivors_raise(tmp_path, gone)


def test_the_example_runs():
    example = Path(__file__).parents[2] / "examples" / "torchrun_sharded.py"
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", str(example)]
    code, said, complained = run_to_the_end([*command, "--dim", "9001"], PATIENCE)
    assert code == 0, complained
    assert "rank 1: columns 4,500 to 9,001, mean " in said
    assert re.search(r"weight of the attackers 0\.00\d\d; quarantined {4: 'rank 1, columns 4500 to 9001: ", said)
