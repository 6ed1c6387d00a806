"""docs/results.md has the text, tables and figure that the kept results give."""

from __future__ import annotations

import importlib
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from studies.paper import compare
from paper_runs import cells_of, write

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"
CELLS = "rule=krum,attack=lie,b=0.3"


@pytest.fixture
def module(monkeypatch):
    monkeypatch.syspath_prepend(BENCHMARKS)
    return importlib.import_module("results_page")


@pytest.fixture
def page(module):
    return module.results_text


def test_page_and_figure_are_what_the_command_makes_of_the_kept_results():
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
    monkeypatch.setattr(module, "figures", lambda: {module.FIGURE: "of other results"})
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
    shown = tables.tables([own, loop, wrong, exact])
    assert "| ResNet18, 11.69M | Krum | 250 ms | 500 ms (2) | 1.5x (3) | 4.5x (9), wrong | 25x (50)† |  |" in shown
    assert "† timed once." in shown
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
        others = {label for label in tables.OTHERS if "H200" in machine or label != "bartizan achlioptas"}
        assert {(machine, dim, "krum", label) for label in (tables.PDR, *others)} <= had


def test_a_table_of_costs_is_of_one_run_and_shows_the_faster_of_two_inputs(module, tmp_path):
    tables, jsonl, schema = map(
        importlib.import_module, ("speed_tables", "bartizan._util.jsonl", "bartizan._util.schema")
    )
    first = tables.load(module.RESULTS / module.CPU)[0]
    own = replace(first, engine="bartizan", sketch="exact", rule="median", clients=9, dim=7, repeats=5, ok=True)
    own = replace(own, reads=2.0, seconds=0.5, read_seconds=0.25)
    tensor = replace(own, engine="byzfl", sketch=None, reads=8.0, seconds=2.0)
    array = replace(tensor, engine="byzfl-numpy", reads=4.0, seconds=1.0)

    def table(*rows):
        jsonl.rewrite(tmp_path / "rows.json", map(schema.as_row, rows))
        return tables.cost_table(tmp_path, "rows.json", 9, 7, ["median"])

    assert "| ByzFL 0.0.11, faster input | 4 (1 s) |" in table(own, tensor, array)
    # Timed once, beside a read that was too fast: the median read of the run counts.
    once = replace(tensor, reads=20.0, read_seconds=0.1, repeats=1, ok=False)
    assert "| 8 (2 s), wrong† |" in table(own, once)
    with pytest.raises(ValueError, match="rows of several runs"):
        table(own, replace(tensor, run="another"))


def test_the_figure_is_stale_when_what_draws_it_changes(module, monkeypatch, tmp_path):
    before = module.figures()[module.FIGURE]
    other = tmp_path / "picture.py"
    other.write_text("")
    monkeypatch.setattr(module.scatter_plot, "__file__", str(other))
    assert module.figures()[module.FIGURE] != before


@pytest.fixture
def four(tmp_path):
    """Four cells: one lost by the projection, one broken in both, one better, one that waits for its twin."""
    ends = {
        "rule=krum,attack=lie,b=0.3": (0.60, 0.58),
        "rule=krum,attack=foe,b=0.3": (0.25, 0.15),
        "rule=mca,attack=sign-flip,b=0.3": (0.11, 0.10),
        "rule=mca,attack=lie,b=0.3": (0.62, 0.63),
        "rule=bulyan,attack=lie,b=0.3": (0.5, None),
    }
    for filters, values in ends.items():
        for cell, accuracy in zip(cells_of(filters), values, strict=True):
            if accuracy is not None:
                write(tmp_path, cell, [accuracy], rounds=1)
    return compare.compare(tmp_path).rows


def test_differences_are_of_converged_pairs_and_raw_ones_of_all(page, four):
    all_ = page.PageSummary.of(four)
    assert len(all_.rows) == 4
    assert sorted(all_.differences) == pytest.approx([-2, 1])
    assert sorted(all_.raw_differences) == pytest.approx([-10, -2, -1, 1])
    assert compare.cell_text(all_.worst) == "krum, foe, b=0.3, beta=0.6"
    assert all_.spread_over_seeds is None


def test_who_breaks_down_is_counted_beside_the_paper(page, four):
    all_ = page.PageSummary.of(four)
    assert (all_.same_end, all_.paper_same_end) == (3, 4)
    # Of the paper's only MCA under sign flip is "-", in both; ours also krum's PDR under FoE.
    assert all_.end_as_in_the_paper == 7
    shown = page.breakdowns(four)
    assert "| 0.6 | 0.3 | sign-flip | mca | - | - | - (11.00) | - (10.00) |" in shown
    assert "| 0.6 | 0.3 | foe | krum | 64.35 | 74.58 | 25.00 | - (15.00) |" in shown
    assert "lie" not in shown


def test_the_summary_says_what_was_computed(page, four):
    said = page.bullets(four)
    assert "**Cells**: 4 pairs of base and PDR, one seed each; all are distinct." in said
    assert "-0.50 in the 2 where both converge, -3.00 ± 4.83 in the 4 where not both diverged" in said
    assert "The paper's own: +0.89, in the 2 cells where both its runs and ours converge." in said
    assert "**Worst and best pair**: -10.00 (krum, foe, b=0.3, beta=0.6), +1.00 (mca, lie, b=0.3, beta=0.6)." in said
    assert 'of 4 cells 1 are "-" in our base and 2 in our PDR; in the paper 1 and 1.' in said
    assert '7 of our 8 runs agree with the paper\'s on being "-" or not.' in said
    head = compare.headline(four)
    assert "On 4 of the paper's cells: cifar10, b=0.3, beta=0.6, one seed each." in head
    assert "by -0.50 points (mean over the 2 where both runs converge), at worst by -10.00" in head
    assert "In 3 of 4 either both runs converge or neither does." in head
    groups = page.groups(four)
    assert "| krum | 2 | 2 | -2.00 | -6.00 | -10.00 |" in groups
    assert page.bullets([]) == compare.headline([]) == compare.NOTHING


def test_spread_over_seeds_is_that_within_cells(page, tmp_path):
    base, pdr = cells_of(CELLS)
    for seed, (without, projected) in enumerate([(0.61, 0.62), (0.65, 0.64)]):
        write(tmp_path, base, [without], seed=seed, rounds=1)
        write(tmp_path, pdr, [projected], seed=seed, rounds=1)
    (row,) = compare.compare(tmp_path).rows
    all_ = page.PageSummary.of([row])
    assert all_.spread_over_seeds == pytest.approx(2**0.5)
    assert all_.base_spread_over_seeds == pytest.approx(8**0.5)
    assert "2 seeds each" in page.bullets([row])


def test_ranks_agree_where_the_order_is_the_same_and_a_dash_is_lowest(page, four):
    all_ = page.PageSummary.of(four)
    assert all_.ranks_of_base_and_pdr == pytest.approx(page.spearman([60, 25, 0, 62], [58, 0, 0, 63]))
    theirs = [of[0].accuracy_percent or 0 for row in all_.rows for of in (row.paper_base, row.cell.values)]
    assert [compare.cell_text(row).split(", ")[:2] for row in all_.rows] == [
        ["krum", "lie"],
        ["krum", "foe"],
        ["mca", "sign-flip"],
        ["mca", "lie"],
    ]
    expected = page.spearman([60, 58, 25, 0, 0, 0, 62, 63], theirs)
    assert all_.ranks_of_ours_and_paper == pytest.approx(expected)
    assert page.spearman([3, 1, 2], [30, 10, 20]) == pytest.approx(1)
    assert page.spearman([3, 1, 2], [10, 30, 20]) == pytest.approx(-1)


def copies(tmp_path):
    """Krum against two attacks that it gives nothing, one run twice; against LIE, where projecting changes nothing."""
    for attack, values in {"foe": (0.6, 0.5), "gaussian": (0.6, 0.5), "lie": (0.4, 0.4)}.items():
        for cell, accuracy in zip(cells_of(f"rule=krum,attack={attack},b=0.3"), values, strict=True):
            write(tmp_path, cell, [0.3, accuracy], rounds=2)
    return compare.compare(tmp_path).rows


def test_pairs_that_are_the_same_to_the_digit_count_once(page, tmp_path):
    rows = copies(tmp_path)
    all_ = page.PageSummary.of(rows)
    assert (len(all_.cells), len(all_.rows), all_.unchanged) == (3, 2, 1)
    assert sorted(all_.differences) == pytest.approx([-10, 0])
    assert "3 pairs of base and PDR, one seed each; 2 are distinct" in page.bullets(rows)
    assert "Pairs whose base and PDR are the same to the digit: 1." in page.bullets(rows)
    # Against the paper every cell counts.
    assert len(all_.paper_differences) == 3
    assert "| krum | 3 | 2 | -5.00 | -5.00 | -10.00 |" in page.groups(rows)
    # The same best accuracy on another way is another run.
    write(tmp_path, cells_of("rule=krum,attack=foe,b=0.3")[1], [0.31, 0.5], rounds=2)
    assert len(page.PageSummary.of(compare.compare(tmp_path).rows).rows) == 3


def test_speed_ups_are_told_by_rule_only(page, tmp_path):
    by_name = {line.split(" | ")[0].strip("| "): line for line in page.groups(copies(tmp_path)).splitlines()}
    assert by_name["krum"].endswith("| 1x |")
    assert by_name["foe"].endswith("|  |")


def test_two_runs_that_both_diverged_have_no_difference(page, tmp_path):
    for cell in cells_of("rule=bulyan,attack=sign-flip,b=0.3"):
        write(tmp_path, cell, [0.1], rounds=2, status="diverged")
    rows = compare.compare(tmp_path).rows
    assert compare.headline(rows).endswith("one seed each. In it either both runs converge or neither does.")
    assert "Worst" not in page.bullets(rows)
    assert "| bulyan | 1 | 1 |  |  |  |  | 1 of 1 | 1x |" in page.groups(rows)


def test_every_protocol_and_sketch_has_a_headline_of_its_own(tmp_path):
    base, pdr = cells_of(CELLS)
    for changes, accuracies in (((), (0.6, 0.5)), (["clients.local=2"], (0.6, 0.7))):
        for cell, accuracy in zip((base, pdr), accuracies, strict=True):
            write(tmp_path, cell, [accuracy], rounds=1, changes=changes)
    write(tmp_path, pdr, [0.3], rounds=1, sketch="achlioptas")
    said = compare.headlines(compare.compare(tmp_path).rows)
    assert {line[:1] for line in said} == {"A", "B"}
    assert sorted(line.split(":")[0][3:] for line in said) == ["achlioptas", "rotated", "rotated"]
    assert sum("by -10.00 points" in line for line in said) == sum("by +10.00 points" in line for line in said) == 1
    assert compare.headlines([]) == [compare.NOTHING]


def test_the_weight_on_attackers_and_what_the_projection_moved_are_shown(page, tmp_path):
    base, pdr = cells_of(CELLS)
    write(tmp_path, base, [0.5, 0.6], rounds=2, weights=([0.5, 0.25, 0.25], None))
    write(tmp_path, pdr, [0.5, 0.6], rounds=2, weights=([0.5, 0.5, 0.0], [0.5, 0.25, 0.25]))
    shown = page.weights(compare.compare(tmp_path).rows)
    assert shown.splitlines()[-1].endswith("| 25.0% | 50.0% | 25.0% |")
