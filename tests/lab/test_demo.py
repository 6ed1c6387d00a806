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
from bartizan.lab.report.content import content
from bartizan.lab.report.load import load
from bartizan.lab.report.verdicts import verdict
from report_runs import write_brief

pytest.importorskip("torch")


@pytest.fixture(scope="module")
def shown(tmp_path_factory):
    """The output of three runs of two rounds where there is no terminal, and their folder."""
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
    pairs = {(one["rule"]["name"], one["attack"]["name"]) for one in settings}
    assert pairs == {(rule, attack) for rule in ("mean", "krum") for attack in ("none", "sign-flip")}
    assert {one.end["status"] for one in recorded} == {"finished"}
    assert str(folder / "report.html") in text
    assert (folder / "report.html").stat().st_size > 10_000
    assert text.count("finished, best accuracy") == 4
    assert "begun" not in text
    assert "\x1b" not in text


def test_the_table_shows_the_accuracy_and_weights_that_were_recorded(shown):
    text, folder = shown
    ends = {}
    for one in map(results.read, results.find(folder)):
        config = one.run["config"]
        ends[config["rule"]["name"], config["attack"]["name"]] = f"{100 * one.rounds[-1]['accuracy']:.1f}%"
    (mean,) = [line.split() for line in text.splitlines() if line.startswith("mean ")]
    (krum,) = [line.split() for line in text.splitlines() if line.startswith("krum ")]
    assert mean[1:5] == [ends["mean", "none"], ends["mean", "sign-flip"], "(30%)", "broke"]
    assert krum[1:4] == [ends["krum", "none"], ends["krum", "sign-flip"], "(0%)"]


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
    assert len(results.find(tmp_path)) == 6


def test_the_demo_of_aggregation_shows_every_attack_and_rule_and_marks_bad_values_without_colour(capsys):
    assert cli.main(["demo", "aggregation", "--clients", "11", "--byzantine", "2", "--dim", "9k"]) == 0
    shown = capsys.readouterr().out
    (mean,) = [line for line in shown.splitlines() if line.startswith("Sign flip")]
    assert mean.split()[3].endswith("!")
    assert "\x1b" not in shown
    for word in ("Gaussian", "Sign flip", "LIE", "FoE", "Krum", "Bulyan", "MCA", "projected", "Done in"):
        assert word in shown


def test_the_default_rule_is_trained_projected_and_exact_with_every_seed_and_the_paper_s_mca_from_the_mean():
    runs = training.experiments(["lie"], ["mca", training.DEFAULT_RULE], seeds=[0, 4])
    attacks = ("lie", "none")
    assert sorted({(one.rule.name, one.sketch.name, one.attack.name) for one in runs}) == [
        *(("arc >> caf", sketch, attack) for sketch in ("exact", "rotated") for attack in attacks),
        *(("mca", "rotated", attack) for attack in attacks),
        ("mean", "rotated", "none"),
    ]
    assert len(runs) == 14
    assert {one.rule.settings["start"] for one in runs if one.rule.name == "mca"} == {"mean"}
    assert [(one.rule.name, one.attack.name, one.seed) for one in runs[:2]] == [
        ("mean", "none", 0),
        ("mean", "none", 4),
    ]


def write_runs(folder, runs, ends):
    """Runs of a demo that ended at given accuracies; the last of 4 clients attacks, and gets 0.4 of the weight."""
    for one in runs:
        end = ends[one.rule.name, one.sketch.name].get(one.attack.name, 0.8)
        about = {"rule": one.rule.name, "attack": one.attack.name, "sketch": one.sketch.name}
        write_brief(folder / one.slug, **about, accuracy=end, converged=end > 0.15, on_attacker=0.4)
    return content(load(folder))


@pytest.mark.parametrize(("worst", "told"), [(0.74, "held"), (0.6, "lost 20 points"), (0.1, "broke")])
def test_table_and_advice_follow_from_the_runs(worst, told, tmp_path):
    runs = training.experiments(rules=["mean", "krum", training.DEFAULT_RULE])
    own = {"sign-flip": worst, "lie": 0.78}
    ends = {("mean", "rotated"): {"sign-flip": 0.1, "lie": 0.79}, ("krum", "rotated"): {"lie": 0.5}}
    made = write_runs(tmp_path, runs, ends | {("arc >> caf", sketch): own for sketch in ("rotated", "exact")})
    rows = {line[:18].strip(): line[18:].split() for line in training.table(made.cells, runs).splitlines()}
    assert rows["arc >> caf"] == rows["arc >> caf, exact"]
    shown = ["80.0%", f"{100 * worst:.1f}%", "(40%)", "78.0%", "(40%)", "80.0%", "(40%)"]
    assert rows["arc >> caf"] == [*shown, *told.split()]
    assert rows["mean"][:2] == ["80.0%", "10.0%"]
    assert rows["mean"][-1] == "broke"
    assert any("Take arc >> caf here" in sentence for sentence in made.findings) == (told == "held")
    assert ("None of the rules held under all attacks" in made.findings[0]) == (told != "held")
    (cost,) = training.cost_of_lie(made.cells)
    best = "krum 30 points" if told == "broke" else "arc >> caf 2 points"
    assert cost == f"LIE hides among the honest updates, and still costs mean 1 point and {best}."


def test_no_times_are_shown_where_answers_differ(monkeypatch, capsys):
    from bartizan.lab.demo import aggregation_demo

    aggregation_demo.speed(training.DEFAULT_RULE, n_clients=12, n_byzantine=3, dim=9000)
    assert "arc >> caf, projected" in capsys.readouterr().out
    monkeypatch.setattr(aggregation_demo, "plain_krum", lambda x, f: x[0])
    with pytest.raises(AssertionError, match="no times are shown"):
        aggregation_demo.speed(training.DEFAULT_RULE, n_clients=12, n_byzantine=3, dim=9000)
    assert capsys.readouterr().out == ""


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(5))
def test_the_mean_breaks_and_the_default_holds_under_all_attacks_that_the_demo_shows(seed, tmp_path):
    runs = training.experiments(rules=["mean", training.DEFAULT_RULE], seeds=[seed])
    assert training.run(tmp_path, runs) == 0
    cells = content(load(tmp_path)).cells
    assert verdict(cells, "mean") == "broke"
    assert verdict(cells, training.DEFAULT_RULE) == "held"
