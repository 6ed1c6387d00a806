"""The page of results says what the kept results make it say."""

from __future__ import annotations

import importlib
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

BENCHMARKS = Path(__file__).parents[1] / "benchmarks"


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
    own = replace(first, rule="krum", dim=11_689_512, seconds=0.5, read_seconds=0.25, ok=True)
    loop = replace(own, engine="pair-loop", sketch=None, seconds=12.5)
    wrong = replace(own, engine="byzfl", sketch=None, seconds=2.25, ok=False)
    shown = tables.tables([own, loop, wrong])
    assert "| ResNet18, 11.69M | Krum | 250 ms | 500 ms (2) |  | 4.5x (9), wrong | 25x (50) |  |" in shown
    said = tables.sentence([own, loop, wrong])
    assert "takes 500 ms on" in said
    assert "25 times as long with a loop over pairs" in said
    assert "ByzFL" not in said
