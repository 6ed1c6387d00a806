"""The demo: it shows what it says, on a terminal and off it, and its story is true."""

from __future__ import annotations

import csv
import io
import re
import shutil

import pytest

from bartizan import cli
from bartizan import records as results
from bartizan.lab.demo import training_demo as training
from bartizan.lab.report.wording import percent

pytest.importorskip("torch")


@pytest.fixture(scope="module")
def shown(tmp_path_factory):
    """What three runs of two rounds print where there is no terminal, and where they are."""
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
    settings = [one.run["config"] for one in recorded]
    assert {(one["rule"]["name"], one["attack"]["name"]) for one in settings} == {
        ("mean", "none"),
        ("mean", "sign-flip"),
        ("krum", "sign-flip"),
    }
    assert {one.end["status"] for one in recorded} == {"finished"}
    assert str(folder / "report.html") in text
    assert (folder / "report.html").stat().st_size > 10_000
    assert text.count("finished, best accuracy") == 3
    assert "\x1b" not in text


def test_the_table_shows_the_accuracy_and_weights_that_were_recorded(shown):
    text, folder = shown
    ends = {
        (one.run["config"]["rule"]["name"], one.run["config"]["attack"]["name"]): percent(one.rounds[-1]["accuracy"])
        for one in map(results.read, results.find(folder))
    }
    (mean,) = [line.split() for line in text.splitlines() if line.startswith("mean ")]
    (krum,) = [line.split() for line in text.splitlines() if line.startswith("krum ")]
    assert mean[1:] == [ends["mean", "none"], "-", ends["mean", "sign-flip"], "29%"]
    assert krum[1:] == [ends["krum", "sign-flip"], "0%"]


def test_the_headline_is_printed_and_stands_in_the_report(shown):
    text, folder = shown
    page = " ".join((folder / "report.html").read_text().split())
    (lead,) = re.findall(r'class="lead">(.*?)</p>', page)
    assert lead.endswith("One seed.")
    assert lead in " ".join(text.split())


def test_the_report_shows_the_runs_of_this_demo_and_of_no_other_in_the_same_folder(shown, tmp_path):
    _, out = shown
    shutil.copytree(out, tmp_path, dirs_exist_ok=True)
    few = ["--attacks", "sign-flip", "--rules", "mean", "--rounds", "1", "--workers", "1"]
    assert cli.main(["demo", *few, "--out", str(tmp_path)]) == 0
    rows = list(csv.DictReader((tmp_path / "runs.csv").read_text().splitlines()))
    assert [(row["rule"], row["rounds"]) for row in rows] == [("mean", "1")] * 2
    assert len(results.find(tmp_path)) == 5


def test_the_demo_of_aggregation_shows_every_attack_and_rule_and_marks_bad_values_without_colour(capsys):
    assert cli.main(["demo", "aggregation", "--clients", "11", "--byzantine", "2", "--dim", "9k"]) == 0
    shown = capsys.readouterr().out
    (mean,) = [line for line in shown.splitlines() if line.startswith("Sign flip")]
    assert mean.split()[3].endswith("!")
    assert "\x1b" not in shown
    for word in ("Gaussian", "Sign flip", "LIE", "FoE", "Krum", "Bulyan", "MCA", "projected", "Done in"):
        assert word in shown


@pytest.mark.slow
def test_the_mean_fails_and_robust_rules_survive_what_stands_far_from_the_honest(tmp_path):
    assert training.run(tmp_path, training.experiments(["sign-flip"])) == 0
    recorded = [results.read(path) for path in results.find(tmp_path)]
    attacked = [one for one in recorded if one.run["config"]["attack"]["name"] != "none"]
    last = {one.run["config"]["rule"]["name"]: one.end["last"] for one in attacked}
    assert len(recorded) == len(attacked) + 1
    assert last.pop("mean") < 0.2
    assert sorted(last) == ["geometric-median", "krum", "mca"]
    assert min(last.values()) > 0.4
