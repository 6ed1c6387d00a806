"""The pages have the tables and figures that the kept results give."""

from __future__ import annotations

from dataclasses import replace

import pytest

from bartizan._util import jsonl, schema
from paper_runs import cells_of, write
from studies.__main__ import main
from studies.pages import results_page as module
from studies.pages import speed_tables
from studies.paper import compare
from studies.paper import comparison_tables as tables
from studies.speed.speed_rows import load

CELLS = "rule=krum,attack=lie,b=0.3"


def test_pages_and_figures_are_what_the_command_makes_of_the_kept_results(capsys):
    assert main(["pages", "--check"]) == 0, capsys.readouterr().out


def test_a_number_that_was_changed_by_hand_is_found(monkeypatch, tmp_path):
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


def test_places_are_filled_and_the_text_around_stays():
    text = "before\n<!-- made: a -->\n<!-- end -->\nbetween\n<!-- made: b -->\nold\nold\n<!-- end -->\nafter\n"
    filled = "before\n<!-- made: a -->\n1\n<!-- end -->\nbetween\n<!-- made: b -->\n2\n<!-- end -->\nafter\n"
    assert module.made(text, {"a": "1", "b": "2"}) == filled
    assert module.made(filled, {"a": "1", "b": "2"}) == filled


def speed_row(**changes):
    first = load(module.RESULTS / module.CPU)[0]
    own = {"engine": "bartizan", "sketch": "rotated", "rule": "krum", "clients": 50, "dim": 11_689_512, "repeats": 5}
    times = {"seconds": 0.5, "read_seconds": 0.25, "reads": 2.0, "ok": True}
    return replace(first, **{**own, **times, **changes})


def test_speed_is_told_as_times_of_pdr_and_in_reads():
    # Timed once, while the machine had other work: its read took four times as long.
    loop = speed_row(engine="pair-loop", sketch=None, seconds=50.0, read_seconds=1.0, reads=50.0, repeats=1)
    wrong = speed_row(engine="byzfl", sketch=None, seconds=2.25, reads=9.0, ok=False)
    exact = speed_row(sketch="exact", seconds=0.75, reads=3.0)
    shown = speed_tables.tables(speed_tables.frame([speed_row(), loop, wrong, exact]))
    assert "| ResNet18, 11.69M | Krum | 250 ms | 500 ms (2) | 1.5x (3) | 4.5x (9), wrong | 100x (200)† |  |" in shown
    assert "† timed once." in shown


def test_no_group_of_rows_lacks_an_engine_that_another_rule_has():
    rows = speed_tables.read_rows(module.RESULTS)
    had = set(rows[["machine", "dim", "rule", "label"]].itertuples(index=False, name=None))
    for machine, dim, rule, _ in had:
        assert {(machine, dim, rule, label) for label in (speed_tables.PDR, "bartizan exact")} <= had
    for machine, dim in {(machine, dim) for machine, dim, *_ in had}:
        others = {label for label in speed_tables.OTHERS if "H200" in machine or label != "bartizan achlioptas"}
        assert {(machine, dim, "krum", label) for label in (speed_tables.PDR, *others)} <= had


def test_a_table_of_costs_is_of_one_run_and_shows_the_faster_of_two_inputs(tmp_path):
    own = speed_row(sketch="exact", rule="median", clients=9, dim=7)
    tensor = replace(own, engine="byzfl", sketch=None, reads=8.0, seconds=2.0)
    array = replace(tensor, engine="byzfl-numpy", reads=4.0, seconds=1.0)

    def table(*rows):
        jsonl.rewrite(tmp_path / "rows.json", map(schema.as_row, rows))
        return speed_tables.cost_table(tmp_path, "rows.json", 9, 7, ["median"])

    assert "| ByzFL 0.0.11, faster input | 4 (1 s) |" in table(own, tensor, array)
    # Timed once, beside a read that was too fast: the median read of the run counts.
    once = replace(tensor, reads=20.0, read_seconds=0.1, repeats=1, ok=False)
    assert "| 8 (2 s), wrong† |" in table(own, once)
    with pytest.raises(ValueError, match="rows of several runs"):
        table(own, replace(tensor, run="another"))


def test_the_figure_is_stale_when_what_draws_it_changes(monkeypatch, tmp_path):
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


def test_differences_are_of_converged_pairs_and_raw_ones_of_all(four):
    all_ = compare.Summary.of(four)
    assert len(all_.rows) == 4
    assert sorted(all_.differences) == pytest.approx([-2, 1])
    assert sorted(all_.raw_differences) == pytest.approx([-10, -2, -1, 1])
    assert compare.cell_text(all_.worst) == "krum, foe, b=0.3, beta=0.6"


def test_who_breaks_down_is_shown_beside_the_paper(four):
    assert compare.Summary.of(four).same_end == 3
    shown = tables.breakdowns(four)
    assert "| 0.6 | 0.3 | sign-flip | mca | - | - | - (11.00) | - (10.00) |" in shown
    assert "| 0.6 | 0.3 | foe | krum | 64.35 | 74.58 | 25.00 | - (15.00) |" in shown
    assert "lie" not in shown


def test_the_statistics_are_those_of_the_cells(four):
    assert "| krum | 2 | 2 | -2.00 | -6.00 | -10.00 |" in tables.groups(four)
    (line,) = tables.totals(four).splitlines()[2:]
    cells = [text.strip() for text in line.split("|")[1:-1]]
    assert cells[:4] == ["cifar10-0.6, A, rotated(k=4096)", "4", "4", "-0.50"]
    assert cells[4:8] == ["-3.00 ± 4.83", "-10.00", "+0.89", "3 of 4"]


def copies(tmp_path):
    """Krum against two attacks that it gives nothing, one run twice; against LIE, where projecting changes nothing."""
    for attack, values in {"foe": (0.6, 0.5), "gaussian": (0.6, 0.5), "lie": (0.4, 0.4)}.items():
        for cell, accuracy in zip(cells_of(f"rule=krum,attack={attack},b=0.3"), values, strict=True):
            write(tmp_path, cell, [0.3, accuracy], rounds=2)
    return compare.compare(tmp_path).rows


def test_pairs_that_are_the_same_to_the_digit_count_once(tmp_path):
    rows = copies(tmp_path)
    all_ = compare.Summary.of(rows)
    assert (len(all_.cells), len(all_.rows)) == (3, 2)
    assert sorted(all_.differences) == pytest.approx([-10, 0])
    # Against the paper every cell counts.
    assert len(all_.paper_differences) == 3
    assert "| krum | 3 | 2 | -5.00 | -5.00 | -10.00 |" in tables.groups(rows)
    # The same best accuracy on another way is another run.
    write(tmp_path, cells_of("rule=krum,attack=foe,b=0.3")[1], [0.31, 0.5], rounds=2)
    assert len(compare.Summary.of(compare.compare(tmp_path).rows).rows) == 3


def test_speed_ups_are_told_by_rule_only(tmp_path):
    by_name = {line.split(" | ")[0].strip("| "): line for line in tables.groups(copies(tmp_path)).splitlines()}
    assert by_name["krum"].endswith("| 1x |")
    assert by_name["foe"].endswith("|  |")


def test_two_runs_that_both_diverged_have_no_difference(tmp_path):
    for cell in cells_of("rule=bulyan,attack=sign-flip,b=0.3"):
        write(tmp_path, cell, [0.1], rounds=2, status="diverged")
    rows = compare.compare(tmp_path).rows
    assert "| bulyan | 1 | 1 |  |  |  |  | 1 of 1 | 1x |" in tables.groups(rows)


def test_every_protocol_and_sketch_has_a_line_of_its_own(tmp_path):
    base, pdr = cells_of(CELLS)
    for changes, accuracies in (((), (0.6, 0.5)), (["clients.local=2"], (0.6, 0.7))):
        for cell, accuracy in zip((base, pdr), accuracies, strict=True):
            write(tmp_path, cell, [accuracy], rounds=1, changes=changes)
    write(tmp_path, pdr, [0.3], rounds=1, sketch="achlioptas")
    lines = tables.totals(compare.compare(tmp_path).rows).splitlines()[2:]
    kinds = sorted(line.split("(")[0].split(", ")[1:] for line in lines)
    assert [sketch for _, sketch in sorted(kinds, key=lambda kind: kind[1])] == ["achlioptas", "rotated", "rotated"]
    assert {letter for letter, _ in kinds} == {"A", "B"}
    assert sum("-10.00" in line for line in lines) == sum("+10.00" in line for line in lines) == 1


def test_the_weight_on_attackers_and_what_the_projection_moved_are_shown(tmp_path):
    base, pdr = cells_of(CELLS)
    write(tmp_path, base, [0.5, 0.6], rounds=2, weights=([0.5, 0.25, 0.25], None))
    write(tmp_path, pdr, [0.5, 0.6], rounds=2, weights=([0.5, 0.5, 0.0], [0.5, 0.25, 0.25]))
    shown = tables.weights(compare.compare(tmp_path).rows)
    assert shown.splitlines()[-1].endswith("| 25.0% | 50.0% | 25.0% |")
