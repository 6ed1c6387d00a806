"""The pages have the tables and figures that the kept results give."""

from __future__ import annotations

import pytest

from paper_runs import cells_of, write, write_pair
from studies.__main__ import main
from studies.pages import results_page as module
from studies.pages import speed_tables
from studies.paper import compare
from studies.paper import comparison_tables as tables


def test_pages_and_figures_are_what_the_command_makes_of_the_kept_results(capsys):
    assert main(["pages", "--check"]) == 0, capsys.readouterr().out


def test_a_number_that_was_changed_by_hand_is_found(monkeypatch, tmp_path):
    copies = [tmp_path / f"{number}-{path.name}" for number, path in enumerate(module.PAGES)]
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


def test_no_group_of_rows_lacks_an_engine_that_another_rule_has():
    rows = speed_tables.read_rows(module.RESULTS)
    had = set(rows[["machine", "dim", "rule", "label"]].itertuples(index=False, name=None))
    for machine, dim, rule, _ in had:
        assert {(machine, dim, rule, label) for label in (speed_tables.PDR, "bartizan exact")} <= had
    for machine, dim in {(machine, dim) for machine, dim, *_ in had}:
        others = {label for label in speed_tables.OTHERS if "H200" in machine or label != "bartizan achlioptas"}
        # Half an hour of the machine is not enough for slower engines at VGG16's size.
        others = others if dim <= speed_tables.RESNET18 else {"byzfl"}
        assert {(machine, dim, "krum", label) for label in (speed_tables.PDR, *others)} <= had


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
    assert all_.same_end == 3


def test_pairs_that_are_the_same_to_the_digit_count_once(tmp_path):
    """Krum against two attacks that it gives nothing, one run twice; against LIE, where projecting changes nothing."""
    for attack, values in {"foe": (0.6, 0.5), "gaussian": (0.6, 0.5), "lie": (0.4, 0.4)}.items():
        write_pair(tmp_path, f"rule=krum,attack={attack},b=0.3", *([0.3, accuracy] for accuracy in values))
    rows = compare.compare(tmp_path).rows
    all_ = compare.Summary.of(rows)
    assert (len(all_.cells), len(all_.rows)) == (3, 2)
    assert sorted(all_.differences) == pytest.approx([-10, 0])
    # Against the paper every cell counts.
    assert len(all_.paper_differences) == 3
    by_name = {line.split(" | ")[0].strip("| "): line for line in tables.groups(rows).splitlines()}
    assert by_name["krum"].startswith("| krum | 3 | 2 | -5.00 | -5.00 | -10.00 |")
    assert by_name["krum"].endswith("| 1x |")
    assert by_name["foe"].endswith("|  |")
    # The same best accuracy on another way is another run.
    write(tmp_path, cells_of("rule=krum,attack=foe,b=0.3")[1], [0.31, 0.5], rounds=2)
    assert len(compare.Summary.of(compare.compare(tmp_path).rows).rows) == 3
