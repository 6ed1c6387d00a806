"""The demo: it shows what it says, on a terminal and off it, and its story is true."""

from __future__ import annotations

import csv
import io
import shutil

import pytest

from bartizan import cli
from bartizan import records as results
from bartizan.studies.demo import demo_display as screen
from bartizan.studies.demo import training_demo as training

pytest.importorskip("torch")
rich = pytest.importorskip("rich.console")


@pytest.fixture(scope="module")
def shown(tmp_path_factory):
    """What two runs of two rounds print where there is no terminal, and where they are."""
    folder = tmp_path_factory.mktemp("demo")
    words = io.StringIO()
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr("sys.stdout", words)
        few = ["--attacks", "sign-flip", "--rules", "mean,krum", "--rounds", "2", "--workers", "1"]
        assert cli.main(["demo", *few, "--out", str(folder)]) == 0
    return words.getvalue(), folder


def test_the_demo_trains_every_pair_and_prints_where_its_report_is(shown):
    text, folder = shown
    recorded = [results.read(path) for path in results.find(folder)]
    assert {(one.run["config"]["rule"]["name"], one.end["status"]) for one in recorded} == {
        ("mean", "finished"),
        ("krum", "finished"),
    }
    assert str(folder / "report.html") in text
    assert (folder / "report.html").stat().st_size > 10_000
    assert "sign-flip, mean: started" in text
    assert "2 of 2 runs done" in text
    assert "\x1b" not in text


def test_the_live_table_shows_the_accuracy_and_weights_that_were_recorded(shown):
    _, out = shown
    runs = {one.slug: one for one in training.experiments(["sign-flip"], ["mean", "krum"], 2)}
    folder = training.place(out, list(runs.values()))
    terminal = rich.Console(file=io.StringIO(), force_terminal=True, width=80)
    with screen.display(runs, terminal) as live:
        for slug in runs:
            recorded = results.read(folder / slug)
            for line in (recorded.run, *recorded.rounds, recorded.end):
                live.see(slug, line)
            accuracy, attackers = live.reached(slug)
            assert accuracy == f"{100 * recorded.rounds[-1]['accuracy']:.1f}%"
            assert attackers == ("0%" if "krum" in slug else "29%")
        assert live.part == 1
    text = terminal.file.getvalue()
    assert "mean" in text
    assert "sign-flip" in text


def test_half_a_demo_says_how_much_is_left(shown):
    _, out = shown
    runs = {one.slug: one for one in training.experiments(["sign-flip"], ["mean", "krum"], 2)}
    folder = training.place(out, list(runs.values()))
    watching = screen.DemoTable(runs)
    assert watching.state == "starting the workers ..."
    first = next(iter(runs))
    recorded = results.read(folder / first)
    for line in (recorded.run, *recorded.rounds, recorded.end):
        watching.see(first, line)
    assert (watching.part, len(watching.ended)) == (0.5, 1)
    assert "1 of 2 runs done, about" in watching.state


def test_the_report_shows_the_runs_of_this_demo_and_of_no_other_in_the_same_folder(shown, tmp_path):
    _, out = shown
    shutil.copytree(out, tmp_path, dirs_exist_ok=True)
    few = ["--attacks", "sign-flip", "--rules", "mean", "--rounds", "1", "--workers", "1"]
    assert cli.main(["demo", *few, "--out", str(tmp_path)]) == 0
    rows = list(csv.DictReader((tmp_path / "runs.csv").read_text().splitlines()))
    assert [(row["rule"], row["rounds"]) for row in rows] == [("mean", "1")]
    assert len(results.find(tmp_path)) == 3


def test_the_demo_of_aggregation_shows_every_attack_and_rule(capsys):
    assert cli.main(["demo", "aggregation", "--clients", "11", "--byzantine", "2", "--dim", "9k"]) == 0
    shown = capsys.readouterr().out
    for word in ("Gaussian", "Sign flip", "LIE", "FoE", "Krum", "Bulyan", "MCA", "projected", "Done in"):
        assert word in shown


@pytest.mark.slow
def test_the_mean_fails_and_robust_rules_survive_what_stands_far_from_the_honest(tmp_path):
    assert training.run(tmp_path, training.experiments(["sign-flip"])) == 0
    recorded = [results.read(path) for path in results.find(tmp_path)]
    last = {one.run["config"]["rule"]["name"]: one.end["last"] for one in recorded}
    assert last.pop("mean") < 0.2
    assert sorted(last) == ["geometric-median", "krum", "mca"]
    assert min(last.values()) > 0.4
