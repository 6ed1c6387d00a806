"""The aggregator without processes: what NVFlare's controllers pass on to it, and what it makes of it."""

from __future__ import annotations

import json
import sys

import numpy as np
import pytest
import torch
from nvflare.apis.event_type import EventType
from nvflare.apis.fl_constant import FLContextKey, ProcessType, ReturnCode
from nvflare.apis.fl_context import FLContextManager
from nvflare.app_common.abstract.fl_model import FLModel, ParamsType

import bartizan as bz
from bartizan import records
from bartizan.lab.report.load import load
from bartizan.nvflare import RobustAggregator, load_reputation
from nvflare_server import ERRORS, Server, fedavg, scatter_and_gather

SITES = [f"site-{i}" for i in range(1, 10)]


def numpy_model():
    rng = np.random.default_rng(7)
    return {"weight": rng.normal(size=(20, 30)).astype("f4"), "steps": np.array([5])}


def torch_model():
    return {name: torch.from_numpy(array.copy()) for name, array in numpy_model().items()}


def steps(sent, scale=1.0):
    """A step of +1 with a little noise on every weight, and a counter that goes up by ten."""

    def step(array):
        if "float" not in str(array.dtype):
            return array + 10
        noise = np.random.default_rng(3).normal(1, 0.1, size=tuple(array.shape)).astype("f4")
        return array + scale * (torch.from_numpy(noise) if isinstance(array, torch.Tensor) else noise)

    return {name: step(array) for name, array in sent.items()}


def full(sent):
    return FLModel(ParamsType.FULL, steps(sent.params), current_round=sent.current_round)


def diff(sent):
    new = steps(sent.params)
    return FLModel(ParamsType.DIFF, {k: new[k] - sent.params[k] for k in new}, current_round=sent.current_round)


def sends(change, answer=full):
    """A site whose parameters are changed, from the model sent and its own step."""

    def hostile(sent):
        model = answer(sent)
        model.params = change(model.params)
        return model

    return hostile


HOSTILE = {
    "far away": sends(lambda p: {**p, "weight": p["weight"] * 1e6}),
    "NaN": sends(lambda p: {**p, "weight": p["weight"] * float("nan")}),
    "Inf": sends(lambda p: {**p, "weight": p["weight"] * float("inf")}),
    "another shape": sends(lambda p: {**p, "weight": p["weight"][:3]}),
    "repeated": sends(lambda p: {**p, "weight": p["weight"][:1]}),
    "a name less": sends(lambda p: {"weight": p["weight"]}),
    "a name more": sends(lambda p: {**p, "\x1b[31mweight" * 1000: p["weight"]}),
    "names that are no texts": sends(lambda p: {7: p["weight"], None: p["steps"]}),
    "integers for floats": sends(lambda p: {**p, "weight": np.ones((20, 30), "i8")}),
    "texts": sends(lambda p: {"weight": "x", "steps": [["y"]]}),
    "objects": sends(lambda p: {**p, "weight": np.array([None, "a"])}),
    "a list": sends(lambda p: list(p.values())),
    "a number": sends(lambda p: 7),
    "nothing": sends(lambda p: {}),
    "an error": lambda sent: ReturnCode.EXECUTION_EXCEPTION,
    "no DXO": lambda sent: ReturnCode.OK,
    "the other kind": diff,
    "another round": lambda sent: FLModel(ParamsType.FULL, steps(sent.params), current_round=99),
    "a round of 5001 digits": lambda sent: FLModel(ParamsType.FULL, steps(sent.params), current_round=10**5000),
    "a metric only": lambda sent: FLModel(metrics={"accuracy": 1e9}, current_round=sent.current_round),
}


def run(folder, aggregator, model, answers, **settings):
    """Run FedAvg to its end and return the model."""
    return Server(folder, aggregator, fedavg(aggregator, model, len(answers), **settings), answers).run()


def rounds_of(folder):
    return json.loads((folder / "bartizan.json").read_text())["rounds"]


def moved(model, by=1.0):
    """Whether every weight is a step of `by` from the start."""
    step = np.asarray(model.params["weight"]) - numpy_model()["weight"]
    return abs(step.mean() - by) < 0.02 and step.std() < 0.5


def suspects(folder):
    return {suspect.node for suspect in load_reputation(folder).suspects()}


@pytest.mark.parametrize("answer", [full, diff])
@pytest.mark.parametrize("start", [numpy_model, torch_model])
@pytest.mark.parametrize("rule", ["multi-krum", "nnm >> trimmed-mean", "trimmed-mean", None])
def test_three_hostile_sites_of_nine_do_not_move_the_model(tmp_path, rule, start, answer):
    answers = dict.fromkeys(SITES, answer)
    answers |= dict.fromkeys(SITES[:2], sends(lambda p: {**p, "weight": -50 * p["weight"]}, answer))
    answers["site-3"] = sends(lambda p: {**p, "weight": p["weight"] * float("nan")}, answer)
    model = run(tmp_path, RobustAggregator(rule, 3), start(), answers, rounds=3)
    assert moved(model, 3.0)
    assert model.params["steps"] == 35
    assert {type(array) for array in model.params.values()} == {type(array) for array in start().values()}
    assert model.params["weight"].dtype == start()["weight"].dtype
    assert suspects(tmp_path) == (set(SITES[:3]) if rule in ("multi-krum", None) else {"site-3"})


def test_a_model_of_arrays_takes_tensors_of_bfloat16(tmp_path):
    answer = sends(lambda p: {**p, "weight": torch.from_numpy(p["weight"]).bfloat16()})
    model = run(tmp_path, RobustAggregator("multi-krum", 2), numpy_model(), dict.fromkeys(SITES, answer))
    assert moved(model)
    assert model.params["weight"].dtype == np.float32


@pytest.mark.parametrize("kind", HOSTILE)
@pytest.mark.parametrize("start", [numpy_model, torch_model])
def test_no_answer_of_a_site_ends_the_job_or_moves_the_model(tmp_path, kind, start):
    answers = dict.fromkeys(SITES, full) | {"site-4": HOSTILE[kind]}
    aggregator = RobustAggregator("multi-krum", 2)
    assert moved(run(tmp_path, aggregator, start(), answers))
    record = rounds_of(tmp_path)[0]
    if kind == "far away":
        assert record["weights"]["site-4"] == 0
    else:
        assert set(record["quarantined"]) | set(record["failed"]) == {"site-4"}
        assert all(len(reason) < 600 and reason.isprintable() for reason in record["quarantined"].values())


@pytest.mark.parametrize("answer", [full, diff])
def test_a_refused_round_keeps_the_model_and_says_why(tmp_path, answer):
    bad = sends(lambda p: {**p, "weight": p["weight"] * float("nan")}, answer)
    answers = dict.fromkeys(SITES, bad) | dict.fromkeys(SITES[:5], answer)
    model = run(tmp_path, RobustAggregator("multi-krum", 2), torch_model(), answers, rounds=2)
    assert torch.equal(model.params["weight"], torch_model()["weight"])
    record = rounds_of(tmp_path)
    assert [round["round"] for round in record] == [0, 1]
    assert "4 of 9" in record[0]["refused"]
    assert set(record[0]["quarantined"]) == set(SITES[5:])


def test_failed_sites_count_with_the_quarantined_ones(tmp_path, caplog):
    answers = dict.fromkeys(SITES, full) | {"site-1": HOSTILE["NaN"], "site-2": HOSTILE["an error"]}
    answers["site-3"] = HOSTILE["far away"]
    assert moved(run(tmp_path, RobustAggregator("multi-krum", 3), numpy_model(), answers))
    record = rounds_of(tmp_path)[0]
    assert list(record["failed"]) == ["site-2"]
    assert "EXECUTION_EXCEPTION" in record["failed"]["site-2"]
    assert record["n_byzantine"] == 2  # of 7 sites MultiKrum admits no more
    assert "The rule ran with n_byzantine=2 instead of 3: 2 out (1 quarantined, 1 failed)." in caplog.text


def test_a_site_that_never_answers_is_left_out_after_the_timeout(tmp_path):
    answers = dict.fromkeys(SITES, full) | {"site-9": lambda sent: None}
    model = run(tmp_path, RobustAggregator("multi-krum", 2, timeout=0.5), numpy_model(), answers, rounds=2)
    assert moved(model, 2.0)
    rounds = rounds_of(tmp_path)
    assert [round["failed"] for round in rounds] == [{"site-9": "it sent no result"}] * 2


def test_a_controller_that_was_set_to_end_the_job_on_errors_still_does(tmp_path):
    answers = dict.fromkeys(SITES, full) | {"site-4": HOSTILE["an error"]}
    with pytest.raises(RuntimeError, match="EXECUTION_EXCEPTION"):
        run(tmp_path, RobustAggregator("krum", 2), numpy_model(), answers, ignore_result_error=False)


@pytest.mark.parametrize("answer", [full, diff])
def test_scatter_and_gather_is_served_as_fedavg_is(tmp_path, answer):
    aggregator = RobustAggregator("multi-krum", 2)
    answers = dict.fromkeys(SITES, answer)
    answers["site-2"] = sends(lambda p: {**p, "weight": -50 * p["weight"]}, answer)
    # A site may claim another's name, and a result of a finished task is passed on to the aggregator.
    answers["site-1"] = lambda sent: FLModel(ParamsType.FULL, {"x": np.ones(3)}, meta={"client_name": "site-5"})
    controller = scatter_and_gather(numpy_model(), 9, rounds=3)
    server = Server(tmp_path, aggregator, controller, answers)
    late = full(FLModel(ParamsType.FULL, numpy_model()))
    submit, server.submit = server.submit, lambda *about: (submit("site-3", "finished long ago", late), submit(*about))
    assert moved(server.run(), 3.0)
    named = {suspect.node for suspect in aggregator.suspects()}
    assert {"site-1", "site-2"} <= named
    assert not {"site-3", "site-5"} & named
    assert not any(round["failed"] or round["refused"] for round in rounds_of(tmp_path))


def test_an_error_of_one_site_does_not_end_scatter_and_gather(tmp_path):
    aggregator, answers = RobustAggregator("multi-krum", 2), dict.fromkeys(SITES, full)
    answers["site-7"] = HOSTILE["an error"]
    server = Server(tmp_path, aggregator, scatter_and_gather(numpy_model(), 9), answers)
    assert moved(server.run())
    assert rounds_of(tmp_path)[0]["failed"] == {"site-7": "it sent no result"}


def test_metrics_are_the_medians_of_the_trusted_sites(tmp_path):
    def reports(value, answer=full):
        def site(sent):
            model = answer(sent)
            model.metrics = {"accuracy": value}
            return model

        return site

    answers = {site: reports(0.1 * i) for i, site in enumerate(SITES)}
    answers |= {"site-8": reports(1e9, HOSTILE["NaN"]), "site-9": reports(-1e9, HOSTILE["far away"])}
    model = run(tmp_path, RobustAggregator("multi-krum", 2), numpy_model(), answers)
    assert 0 < model.metrics["accuracy"] < 0.6
    assert "bartizan" not in str(model.meta)  # which NVFlare sends to the sites


def accept(aggregator, site, model, **about):
    model.meta |= {"client_name": site, **about}
    return aggregator.accept_model(model)


def given(value, **about):
    return FLModel(ParamsType.FULL, {"w": np.full(100, value, "f4")}, **about)


@pytest.mark.parametrize(
    ("settings", "weight"),
    [({}, 1 / 3), ({"sizes": "reported", "size_cap": 50}, 50 / 70), ({"sizes": {"a": 2, "b": 1, "c": 1}}, 0.5)],
)
def test_sizes_count_on_request_only(settings, weight):
    aggregator = RobustAggregator("mean", **settings)
    for site, n in (("a", 1e9), ("b", 10), ("c", 10)):
        assert accept(aggregator, site, given(float(site == "a")), NUM_STEPS_CURRENT_ROUND=n)
    assert aggregator.aggregate_model().params["w"][0] == pytest.approx(weight)


@pytest.mark.parametrize("claim", [None, True, 0, "many", 1e30, 10**400])
@pytest.mark.parametrize("rule", [{"rule": "geometric-median"}, {"rule": "trimmed-mean", "n_byzantine": 1}], ids=str)
def test_a_site_without_a_valid_size_is_quarantined_and_no_round_refused(rule, claim):
    aggregator = RobustAggregator(**rule, sizes="reported", size_cap=50)
    for site, n in zip("abcde", (10, 10, 10, 10, claim), strict=True):
        accept(aggregator, site, given(1.0), NUM_STEPS_CURRENT_ROUND=n)
    assert aggregator.aggregate_model().params["w"][0] == 1
    (line,) = aggregator._rounds
    assert line["refused"] is None
    assert list(line["quarantined"]) == ["e"]


def test_an_address_that_a_site_sends_is_not_opened(tmp_path):
    np.save(tmp_path / "secret.npy", np.full(100, 1e3, "f4"))
    aggregator = RobustAggregator("mean")
    for site, params in zip("abcd", [{"w": np.ones(100, "f4")}] * 3 + [f"file://{tmp_path}/secret.npy"], strict=True):
        model = given(1.0)
        model.params = params
        assert accept(aggregator, site, model) == (site != "d")
    assert aggregator.aggregate_model().params["w"].tolist() == [1.0] * 100
    assert "its parameters are a str, not arrays" in str(aggregator.suspects()[0])


def test_the_first_result_of_a_site_counts_and_a_late_one_does_not():
    aggregator = RobustAggregator("mean")
    for site in "abc":
        assert accept(aggregator, site, given(1.0))
    assert not accept(aggregator, "a", given(1e9))
    assert not accept(aggregator, "a", FLModel(ParamsType.DIFF, {"w": np.ones(100, "f4")}))
    assert aggregator.aggregate_model().params["w"][0] == 1
    assert not accept(aggregator, "d", given(1e9))
    aggregator.reset_stats()
    for site in "abc":
        assert accept(aggregator, site, given(2.0))
    assert aggregator.aggregate_model().params["w"][0] == 2


@pytest.mark.parametrize(
    ("arguments", "error", "says"),
    [
        ({"rule": bz.Krum(1)}, TypeError, "rule must be a name"),
        ({"rule": "krum", "sketch": bz.Rotated()}, TypeError, "sketch must be a name"),
        ({}, TypeError, "n_byzantine=5 for the default rule"),
        ({"n_byzantine": 3, "rule_settings": {"size": 2}}, TypeError, "rule_settings are those of a rule by name"),
        ({"n_byzantine": 3, "sketch": None}, TypeError, "sketch must be a name"),
        ({"rule": "krum"}, TypeError, "n_byzantine"),
        ({"rule": "mean", "sketch": "auto", "sketch_settings": {"k": 9}}, ValueError, "auto"),
        ({"rule": "fltrust"}, ValueError, "trusted"),
        ({"rule": "mean", "sizes": "all"}, ValueError, "sizes must be"),
        ({"rule": "mean", "sizes": "reported"}, ValueError, "size_cap"),
        ({"rule": "mean", "timeout": 0}, ValueError, "timeout"),
        ({"rule": "mean", "memory": "much"}, ValueError, "memory"),
    ],
)
def test_a_wrong_argument_is_named_before_the_job_is_exported(arguments, error, says):
    with pytest.raises(error, match=says):
        RobustAggregator(**arguments)


def test_a_full_disk_fails_the_site_and_not_the_round(tmp_path, monkeypatch):
    aggregator = RobustAggregator("mean", spill=tmp_path)
    from bartizan.updates.spill import Spill

    keep, full_for = Spill.keep, {"b"}

    def no_room(self, update, client):
        if client in full_for:
            raise OSError(28, "No space left on device")
        return keep(self, update, client)

    monkeypatch.setattr(Spill, "keep", no_room)
    for site in "abc":
        accept(aggregator, site, given(1.0))
    assert aggregator.aggregate_model().params["w"][0] == 1
    assert aggregator.reputation.nodes["b"].failed == 1


def test_without_nvflare_the_import_names_the_extra(monkeypatch):
    monkeypatch.setitem(sys.modules, "nvflare", None)
    for name in [name for name in sys.modules if name.startswith("bartizan.nvflare")]:
        monkeypatch.delitem(sys.modules, name)
    with pytest.raises(ModuleNotFoundError, match=r"bartizan.nvflare needs NVFlare: pip install '.\[nvflare\]'"):
        import bartizan.nvflare  # noqa: F401


@pytest.mark.parametrize("error", [np.linalg.LinAlgError("no SVD"), KeyError(7)], ids=repr)
def test_whatever_a_rule_raises_keeps_the_old_model_for_that_round_only(tmp_path, error):
    ERRORS[:] = [error]
    aggregator = RobustAggregator("nvflare_server:RaisesOnce")
    assert moved(run(tmp_path, aggregator, numpy_model(), dict.fromkeys(SITES, full), rounds=2))
    first, second = rounds_of(tmp_path)
    assert first["refused"].startswith(f"the server raised {type(error).__name__}:")
    assert second["refused"] is None


@pytest.mark.parametrize("process", [ProcessType.CLIENT_JOB, ProcessType.CLIENT_PARENT])
def test_a_job_that_aggregates_on_a_site_ends_at_its_start_and_says_why(tmp_path, process):
    aggregator = RobustAggregator("multi-krum", 3)
    server = Server(tmp_path, aggregator, fedavg(aggregator, numpy_model(), 9), dict.fromkeys(SITES, full))
    server.contexts = FLContextManager(server, "site-1", "job", private_stickers={FLContextKey.PROCESS_TYPE: process})
    aggregator.handle_event(EventType.START_RUN, server.new_context())
    (reason,) = server.panics
    assert "runs on the server only" in reason
    assert "as swarm learning does" in reason


def test_nvflare_passes_on_every_line_and_writes_a_record_for_the_report(tmp_path, monkeypatch):
    lines = []
    monkeypatch.setattr("bartizan.nvflare.aggregator.watcher", lambda name, **settings: lines.append)
    answers = [full] * 7 + [HOSTILE["NaN"], HOSTILE["an error"]]
    aggregator = RobustAggregator("multi-krum", 2, watch={"name": "tensorboard", "folder": "/logs"})
    run(tmp_path, aggregator, numpy_model(), dict(zip(SITES, answers, strict=True)), rounds=2)
    (folder,) = {path.parent for path in tmp_path.rglob(records.NAME)}
    assert [line["kind"] for line in lines] == [line["kind"] for line in records.read(folder).lines()]
    (shown,) = load(folder).runs
    assert (shown.status, shown.n_rounds, set(shown.clients)) == ("finished", 2, set(SITES))
    assert shown.quarantined[:, shown.clients.index(SITES[7])].all()
    assert shown.failed[:, shown.clients.index(SITES[8])].all()


def test_a_callback_that_can_not_be_made_does_not_end_the_job(tmp_path, monkeypatch, caplog):
    monkeypatch.setattr("bartizan.nvflare.aggregator.watcher", lambda name: 1 / 0)
    model = run(tmp_path, RobustAggregator("multi-krum", 2, watch="mlflow"), numpy_model(), dict.fromkeys(SITES, full))
    assert moved(model)
    assert "watch raised ZeroDivisionError at round 1" in caplog.text
