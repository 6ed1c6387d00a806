"""The benchmark: wrong answers are found out, rows are what they say, and an interrupt keeps what is done."""

from __future__ import annotations

import time

import numpy as np
import pytest

import bartizan as bz
from bartizan._util.console import ProgressLine
from studies.__main__ import main
from studies.speed import measure
from studies.speed import peak_memory as memory
from studies.speed import speed_rows as rows
from studies.speed.command import PEERS, attackers_of, speed
from studies.speed.engines import Answer, Bartizan, Engine, Job, rule_of
from studies.speed.measure import judged
from studies.speed.problem import Problem

RULES = ["krum", "multi-krum", "bulyan", "geometric-median", "mca"]
TINY = ["speed", "--clients", "11", "--dim", "9k", "--repeats", "2"]


@pytest.fixture(scope="module")
def problem():
    return Problem.draw(11, 2, 9000, "float32", "cpu")


def quiet(_):
    pass


class Broken(Engine):
    """An engine that answers with whatever it is given."""

    name = "broken"

    def __init__(self, answer, exact=True):
        self.answer, self.exact = answer, exact

    def job(self, rule, problem):
        return Job(lambda given: self.answer(problem))


def failing(problem):
    raise ZeroDivisionError("as expected")


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32", "float64"])
def test_the_data_are_a_function_of_the_seed_and_tell_honest_from_attackers(dtype):
    one, same, other = (Problem.draw(11, 2, 5000, dtype, "cpu", seed) for seed in (0, 0, 1))
    assert str(one.x.dtype).removeprefix("torch.") == dtype
    assert (one.x == same.x).all()
    assert not (one.x == other.x).all()
    lengths = np.sqrt(np.diag(one.gram))
    assert lengths[:2].min() > 3 * lengths[2:].max()


def test_distances_and_definition_are_those_of_numpy(problem):
    x = problem.x.astype(np.float64)
    np.testing.assert_allclose(problem.mean, x[2:].mean(axis=0))
    assert problem.spread == pytest.approx(np.linalg.norm(x[2:] - x[2:].mean(axis=0), axis=1).max())
    assert problem.distance(problem.x[5], x[3]) * problem.spread == pytest.approx(np.linalg.norm(x[5] - x[3]))
    for name in RULES:
        rule = rule_of(name, 2)
        np.testing.assert_allclose(problem.defined(rule), rule(bz.Geometry.of(x)) @ x, atol=1e-6)
    np.testing.assert_allclose(problem.defined(bz.Median()), np.median(x, axis=0))
    np.testing.assert_allclose(problem.defined(bz.TrimmedMean(2)), np.sort(x, axis=0)[2:-2].mean(axis=0))


COORDINATEWISE = ["mean", "median", "trimmed-mean", "meamed"]
EXACT = [(engine, rule) for engine in (Bartizan("exact"), PEERS["pair-loop"]()) for rule in RULES]
EXACT += [(engine, rule) for engine in (Bartizan("exact"), PEERS["torch"]()) for rule in COORDINATEWISE]
EXACT += [(Bartizan("exact"), "nnm >> median"), (Bartizan("exact"), "nnm >> krum")]


@pytest.mark.parametrize(("engine", "rule"), EXACT, ids=lambda one: getattr(one, "label", one))
def test_exact_engines_meet_the_definition(engine, rule, problem):
    job = engine.job(rule, problem)
    verdict = judged(problem, engine, job.run(job.prepare()), problem.defined(rule_of(rule, 2)))
    assert verdict.ok
    assert verdict.judged == "meets the definition"
    assert verdict.definition_error < 1e-4


@pytest.mark.parametrize(
    ("answer", "message"),
    [
        (lambda p: Answer(p.x.mean(axis=0)), "spreads from the definition"),
        (lambda p: Answer(p.x[4]), "spreads from the definition"),
        (lambda p: Answer(p.x[0] * np.nan), "not finite"),
        (lambda p: Answer(p.x[:, 0]), "wrong shape"),
        (lambda p: Answer(p.x[5], np.eye(11)[6]), "what its own weights make"),
        (lambda p: Answer(p.x[5], 2 * np.eye(11)[5]), "with a sum of at most 1"),
    ],
)
def test_a_wrong_answer_is_found_out(answer, message, problem):
    verdict = judged(problem, Broken(None), answer(problem), problem.defined(bz.MCA()))
    assert not verdict.ok
    assert message in verdict.judged


def test_an_engine_that_need_not_meet_the_definition_must_stay_among_the_honest(problem):
    defined, engine = problem.defined(bz.Krum(2)), Broken(None, exact=False)
    for client in range(11):
        verdict = judged(problem, engine, Answer(problem.x[client]), defined)
        assert verdict.ok == (client >= 2)
        assert verdict.mean_error == pytest.approx(problem.distance(problem.x[client], problem.mean))
    assert not judged(problem, engine, Answer(10 * problem.x[5]), defined).ok


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float64"])
@pytest.mark.parametrize("sketch", ["exact", "rotated:256", "auto"])
def test_ours_is_right_in_every_dtype(dtype, sketch):
    problem = Problem.draw(11, 2, 5000, dtype, "cpu")
    for row in measure.rows(problem, "geometric-median", [Bartizan(sketch)], 1, 60, quiet):
        assert row.ok, row.judged


def test_who_fails_gets_a_row_that_says_so_and_the_others_go_on(problem):
    engines = [Broken(failing), Bartizan("exact")]
    failed, fine = measure.rows(problem, "krum", engines, 2, 60, quiet)
    assert (failed.seconds, failed.reads, failed.ok) == (None, None, False)
    assert failed.judged == "ZeroDivisionError: as expected"
    assert fine.ok
    assert fine.repeats == 2
    assert failed.failure == "fails"


def test_a_row_gives_the_median_between_least_and_most(problem):
    (row,) = measure.rows(problem, "krum", [Bartizan("rotated:256")], 5, 60, quiet)
    assert 0 < row.seconds_min <= row.seconds <= row.seconds_max
    assert 0 < row.reads_min <= row.reads <= row.reads_max
    assert row.repeats == 5
    assert row.read_seconds > 0
    (once,) = measure.rows(problem, "krum", [Bartizan("exact")], 5, 0.0, quiet)
    assert once.repeats == 1, "it is beyond the limit"


def test_who_is_far_beyond_the_limit_is_not_run_and_says_so():
    calls = []

    def slow(problem):
        calls.append(problem.dim)
        return Answer(problem.x[5])

    problem = Problem.draw(11, 2, 64 * 5000, "float32", "cpu")
    (row,) = measure.rows(problem, "krum", [Broken(slow)], 5, 0.0, quiet)
    assert calls == [5000, 5000, 5000]  # to compile, and to tell
    assert not row.ok
    assert row.judged.startswith("not run: it would take about")
    assert row.failure == "not run"


def test_a_first_call_that_compiled_is_not_the_one_that_counts():
    problem, waits = Problem.draw(11, 2, 64 * 5000, "float32", "cpu"), [1.0]

    def compiling(given):
        if given.dim == problem.dim and waits:
            time.sleep(waits.pop())
        return Answer(given.x[5])

    (row,) = measure.rows(problem, "krum", [Broken(compiling)], 3, 0.9, quiet)
    assert row.repeats == 3  # which the slow call, if it had counted, would have left no time for


@pytest.mark.skipif(not memory.CLEAR.exists(), reason="only Linux tells")
def test_memory_beside_pythons_own_is_seen():
    def wasteful():
        return float(np.full(2**23, 1.5).sum())  # 64 MiB

    total, extra = memory.watched(wasteful, "cpu")
    assert total == 1.5 * 2**23
    assert 60 * 2**20 < extra < 90 * 2**20
    assert memory.watched(lambda: None, "cpu")[1] < 8 * 2**20


def test_the_command_measures_every_size_rule_and_engine(tmp_path, capsys):
    file = tmp_path / "new" / "rows.json"
    arguments = ["speed", "--clients", "11,12", "--dim", "5k,9k", "--rules", "krum,mean", "--repeats", "1"]
    peers = ["--peers", "torch,pair-loop"]
    assert main([*arguments, *peers, "--json", str(file)]) == 0
    done = rows.load(file)
    asked = {(row.clients, row.dim, row.rule, row.label) for row in done}
    engines = [(rule, f"bartizan {sketch}") for rule in ("krum", "mean") for sketch in ("exact", "rotated")]
    engines += [("krum", "pair-loop"), ("mean", "torch")]
    assert asked == {(M, p, *engine) for M in (11, 12) for p in (5000, 9000) for engine in engines}
    assert all(row.ok for row in done)
    shown = capsys.readouterr().out
    for word in ("11 clients, 2 of them attackers, 9k coordinates", "krum", "pair-loop"):
        assert word in shown
    assert [path.name for path in file.parent.iterdir()] == ["rows.json"]


def test_what_is_not_measured_again_stays_where_rows_are_added(tmp_path, capsys):
    out = tmp_path / "rows.json"
    asked = ["speed", "--clients", "11", "--dim", "3k", "--repeats", "1", "--json", str(out)]
    assert main([*asked, "--rules", "krum,mca"]) == 0
    before = rows.load(out)
    assert main([*asked, "--rules", "mca", "--sketches", "exact", "--peers", "pair-loop", "--add"]) == 0
    after = rows.load(out)
    same = [(row.rule, row.label) for row in after if row in before]
    assert same == [("krum", "bartizan exact"), ("krum", "bartizan rotated"), ("mca", "bartizan rotated")]
    again = [row for row in after if row not in before]
    assert [row.label for row in again] == ["bartizan exact", "pair-loop"]
    assert len({row.run for row in before}) == len({row.run for row in again}) == 1
    assert main([*asked[:-2], "--add"]) == 2
    assert "--add needs --json" in capsys.readouterr().err


def test_an_interrupt_keeps_the_rows_that_are_done(tmp_path, monkeypatch):
    def interrupt(progress, note=""):
        if "timing" in note and "mca" in note:
            raise KeyboardInterrupt

    monkeypatch.setattr(ProgressLine, "show", interrupt)
    file = tmp_path / "rows.json"
    with pytest.raises(KeyboardInterrupt):
        speed(clients=[11], dim=[5000], rules=["krum", "mca"], sketches=["exact"], repeats=1, json=file)
    assert [row.rule for row in rows.load(file)] == ["krum"]


def test_as_many_lie_as_all_rules_withstand():
    assert attackers_of(["krum", "bulyan"], 50) == 10
    assert attackers_of(["krum", "bulyan"], 10) == 1
    assert attackers_of(["krum"], 10) == 2
    assert attackers_of(["krum"], 10, byzantine=0) == 0
    assert attackers_of(["mca"], 3) == 0


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--rules", "krumm"], "Unknown rule 'krumm'"),
        (["--rules", "fltrust"], "needs a trusted update of the server"),
        (["--sketches", "rotated:many"], "such as rotated:8192; got 'rotated:many'"),
        (["--peers", "nobody"], "Unknown peer 'nobody'. Known: byzfl"),
        (["--rules", "mean", "--byzantine", "11"], "--byzantine must leave an honest client: at most 10 of 11, got 11"),
        (["--json", f"{__file__}/rows.json"], "is not a folder"),
        (["--dim", "900G"], "Take a smaller --dim or fewer --clients"),
    ],
)
def test_what_can_not_be_run_is_one_line_and_status_2(arguments, message, capsys):
    assert main([*TINY, *arguments]) == 2
    told = capsys.readouterr().err
    assert message in told
    assert told.count("\n") == 1
