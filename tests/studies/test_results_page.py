"""The page of results says what the kept results make it say."""

from __future__ import annotations

import importlib
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"


@pytest.fixture
def module(monkeypatch):
    monkeypatch.syspath_prepend(BENCHMARKS)
    return importlib.import_module("results_page")


def test_page_readme_and_figure_are_what_the_command_makes_of_the_kept_results():
    command = [sys.executable, str(BENCHMARKS / "results_page.py"), "--check"]
    run = subprocess.run(command, capture_output=True, text=True, timeout=200)
    assert run.returncode == 0, run.stdout + run.stderr


def test_a_number_that_was_changed_by_hand_is_found(module, monkeypatch, tmp_path):
    copies = [tmp_path / path.name for path in module.PAGES]
    for path, copy in zip(module.PAGES, copies, strict=True):
        copy.write_text(path.read_text(encoding="utf-8"), encoding="utf-8")
    monkeypatch.setattr(module, "PAGES", copies)
    assert module.stale() == []
    made = module.MADE.search(copies[0].read_text(encoding="utf-8"))[0]
    digit = next(letter for letter in made if letter.isdigit())
    copies[0].write_text(
        copies[0].read_text(encoding="utf-8").replace(made, made.replace(digit, "x")), encoding="utf-8"
    )
    monkeypatch.setattr(module, "digest", lambda: "of other results")
    assert module.stale() == [copies[0], module.FIGURE]


def test_places_are_filled_and_the_text_around_stays(module):
    text = "before\n<!-- made: a -->\n<!-- end -->\nbetween\n<!-- made: b -->\nold\nold\n<!-- end -->\nafter\n"
    filled = "before\n<!-- made: a -->\n1\n<!-- end -->\nbetween\n<!-- made: b -->\n2\n<!-- end -->\nafter\n"
    assert module.made(text, {"a": "1", "b": "2"}) == filled
    assert module.made(filled, {"a": "1", "b": "2"}) == filled


def test_speed_is_told_as_times_of_pdr_and_in_reads(module):
    tables = importlib.import_module("speed_tables")
    first = next(row for row in tables.read_rows(module.RESULTS) if row.label == tables.PDR)
    own = replace(first, rule="krum", dim=11_689_512, seconds=0.5, read_seconds=0.25, reads=2.0, repeats=5, ok=True)
    # Timed once, while the machine had other work: its read took four times as long.
    loop = replace(own, engine="pair-loop", sketch=None, seconds=50.0, read_seconds=1.0, reads=50.0, repeats=1)
    wrong = replace(own, engine="byzfl", sketch=None, seconds=2.25, reads=9.0, ok=False)
    exact = replace(own, sketch="exact", seconds=1.0, reads=3.0)
    shown = tables.tables([own, loop, wrong, exact], [])
    assert "| ResNet18, 11.69M | Krum | 250 ms | 500 ms (2) | 1.5x (3) | 4.5x (9), wrong | 25x (50)† |  |" in shown
    assert "† timed once." in shown
    assert "‡" not in shown
    assert "500 ms (2)‡" in tables.tables([own, loop], [own])
    assert "‡ of an earlier run, 5 calls (`benchmarks/results/h200-50x138M.json`)." in tables.tables([own], [own])
    said = tables.sentence([own, loop, wrong, exact])
    assert "takes 500 ms on" in said
    assert "25 times as long with a loop over pairs, timed once" in said
    assert "our exact engine takes 1.5 to 1.5 times as long as PDR on" in said
    assert "ByzFL" not in said


def test_no_group_of_rows_lacks_an_engine_that_another_rule_has(module):
    tables = importlib.import_module("speed_tables")
    rows = tables.read_rows(module.RESULTS)
    had = {(row.machine, row.dim, row.rule, row.label) for row in rows}
    for machine, dim, rule, _ in had:
        assert {label for label in (tables.PDR, "bartizan exact") if (machine, dim, rule, label) not in had} == set()
    for machine, dim in {(machine, dim) for machine, dim, *_ in had}:
        assert {(machine, dim, "krum", label) for label in (tables.PDR, *tables.OTHERS)} <= had


def test_the_figure_is_stale_when_what_draws_it_changes(module, monkeypatch, tmp_path):
    before = module.digest()
    other = tmp_path / "picture.py"
    other.write_text("")
    monkeypatch.setattr(module.picture, "__file__", str(other))
    assert module.digest() != before
