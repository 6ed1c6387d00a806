"""`bartizan compare`: pairs, differences and their intervals."""

from __future__ import annotations

import math

import pytest
from scipy import stats

from bartizan import cli
from bartizan.lab.report.compare import compare, difference
from bartizan.lab.report.intervals import interval, student_quantile
from bartizan.lab.report.load import load
from report_runs import write_brief

ATTACKS = {"lie": 0.0, "alie": -0.1}


def sweep(folder, sketch, gain, seeds=range(5), **settings):
    """Runs of two attacks; each seed has a shift of its own, which pairs cancel."""
    for attack, harm in ATTACKS.items():
        for seed in seeds:
            accuracy = 0.7 + harm + 0.02 * seed + gain + (0.001 * seed if gain else 0)
            write_brief(folder / f"{attack}-{seed}", "krum", attack, sketch, accuracy=accuracy, seed=seed, **settings)
    return folder


def test_the_quantile_is_that_of_scipy():
    for freedom in (1, 2, 3, 4, 7, 30, 400):
        assert student_quantile(freedom) == pytest.approx(stats.t.ppf(0.975, freedom), rel=1e-9)
    numbers = [0.3, 0.9, 0.1, 0.5, 0.4]
    assert interval(numbers) == pytest.approx(stats.t.ppf(0.975, 4) * stats.sem(numbers))
    assert interval(numbers[:4]) is None
    assert interval([1.0], least=1) is None


def test_pairs_share_attack_and_seed_and_differ_in_what_is_compared(tmp_path):
    first = load(sweep(tmp_path / "a", "exact", 0.0)).runs
    second = load(sweep(tmp_path / "b", "rotated", 0.03, seeds=range(6))).runs
    made = compare(first, second)
    assert made.changed == {"sketch.name": ("exact", "rotated")}
    assert made.alone == (0, 2)
    assert {cell: sorted(pairs) for cell, pairs in made.cells.items()} == {
        (("attack.name", attack),): ["0", "1", "2", "3", "4"] for attack in ATTACKS
    }
    gains = [0.03 + 0.001 * seed for seed in range(5)]
    (pairs,) = [pairs for cell, pairs in made.cells.items() if cell[0][1] == "lie"]
    *_, change, half = difference([(one.last, two.last) for one, two in pairs.values()], 100)
    assert change == pytest.approx(100 * sum(gains) / 5)
    assert half == pytest.approx(100 * stats.t.ppf(0.975, 4) * stats.sem(gains))


def test_the_command_prints_cells_and_their_mean_over_seeds(tmp_path, capsys):
    sweep(tmp_path / "a", "exact", 0.0)
    sweep(tmp_path / "b", "rotated", 0.03)
    assert cli.main(["compare", str(tmp_path / "a"), str(tmp_path / "b")]) == 0
    shown = capsys.readouterr().out
    assert "sketch.name: exact -> rotated" in shown
    assert "last accuracy (higher is better), B - A in points with its 95% interval" in shown
    assert "all cells  69.0%  72.2%  +3.2 ± 0.2  5 seeds" in shown


def test_one_run_beside_another_has_no_interval(tmp_path, capsys):
    write_brief(tmp_path / "a", "mean", "lie", accuracy=0.5)
    write_brief(tmp_path / "b", "krum", "lie", accuracy=0.7)
    assert cli.main(["compare", str(tmp_path / "a"), str(tmp_path / "b")]) == 0
    shown = capsys.readouterr().out
    assert "rule.name: mean -> krum" in shown
    assert "all runs  50.0%  70.0%  +20.0  1 of 1" in shown


def test_folders_without_a_pair_say_what_was_wanted(tmp_path, capsys):
    sweep(tmp_path / "a", "exact", 0.0, seeds=[1])
    sweep(tmp_path / "b", "exact", 0.0, seeds=[2])
    assert cli.main(["compare", str(tmp_path / "a"), str(tmp_path / "b")]) == 2
    assert "share the values of what varies within them (attack.name), and their seeds" in capsys.readouterr().err


def test_a_run_that_was_never_evaluated_is_not_counted(tmp_path, capsys):
    sweep(tmp_path / "a", "exact", 0.0, seeds=[1, 2])
    sweep(tmp_path / "b", "rotated", 0.03, seeds=[1, 2])
    write_brief(tmp_path / "b" / "lie-1", "krum", "lie", "rotated", accuracy=None, seed=1)
    made = compare(load(tmp_path / "a").runs, load(tmp_path / "b").runs)
    assert any(math.isnan(two.last) for pairs in made.cells.values() for _, two in pairs.values())
    cli.main(["compare", str(tmp_path / "a"), str(tmp_path / "b")])
    assert "1 of 2" in capsys.readouterr().out
