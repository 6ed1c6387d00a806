"""Kept runs: each once, small, the same rows as from their folders; and what all cells say together."""

from __future__ import annotations

import json

import pytest

from bartizan import cli
from bartizan import records as results
from bartizan.studies.paper import compare, kept, summary
from bartizan.studies.paper import results_page as page
from bartizan.studies.paper import scatter as picture
from bartizan.studies.paper import table_text as show
from paper_runs import cells_of, write

CELLS = "rule=krum,attack=lie,b=0.3"


@pytest.fixture
def runs(tmp_path):
    """Two seeds of a cell and its base."""
    folder = tmp_path / "runs"
    base, pdr = cells_of(CELLS)
    for seed, (without, projected) in enumerate([(0.61, 0.62), (0.65, 0.64)]):
        write(folder, base, [0.3, without, 0.4], seed=seed, rounds=3, server=8.0, sizes=[25_000, 25_000])
        write(folder, pdr, [0.3, 0.4, projected], seed=seed, rounds=3, server=0.5, sizes=[25_000, 25_000])
    return folder


def kept_in(folder, file, **more):
    kept.keep(folder, file, **more)
    return kept.read(file)


def test_kept_runs_are_compared_as_their_folders_are(runs, tmp_path):
    file = tmp_path / "new" / "kept.jsonl"
    kept.keep(runs, file)
    assert compare.compare(file) == compare.compare(runs)
    assert list(file.parent.iterdir()) == [file]


def test_whom_the_rules_trusted_is_kept_and_shown(tmp_path):
    base, pdr = cells_of(CELLS)
    write(tmp_path / "runs", base, [0.5, 0.6], rounds=2, weights=([0.5, 0.25, 0.25], None))
    write(tmp_path / "runs", pdr, [0.5, 0.6], rounds=2, weights=([0.5, 0.5, 0.0], [0.5, 0.25, 0.25]))
    without, projected = kept_in(tmp_path / "runs", tmp_path / "kept.jsonl")
    assert (without.on_liars, without.moved) == (0.25, None)
    assert (projected.on_liars, projected.moved) == (0.5, 0.25)
    shown = page.weights(compare.compare(tmp_path / "kept.jsonl").rows)
    assert shown.splitlines()[-1].endswith("| 25.0% | 50.0% | 25.0% |")


def test_keeping_twice_changes_nothing_and_needs_no_order(runs, tmp_path):
    file, other = tmp_path / "kept.jsonl", tmp_path / "other.jsonl"
    assert kept.keep(runs, file) == kept.Outcome(runs=4, new=4)
    before = file.read_bytes()
    assert kept.keep(runs, file) == kept.Outcome(runs=4)
    assert file.read_bytes() == before
    for folder in reversed(results.find(runs)):
        kept.keep(folder, other)
    assert other.read_bytes() == before


def test_a_run_that_was_made_again_takes_the_place_of_the_old_one(runs, tmp_path):
    file = tmp_path / "kept.jsonl"
    kept.keep(runs, file)
    base, _ = cells_of(CELLS)
    write(runs, base, [0.7, 0.7, 0.7], seed=1, rounds=3, sizes=[25_000, 25_000])
    assert kept.keep(runs, file) == kept.Outcome(runs=4, changed=1)
    assert sorted(run.best for run in kept.read(file)) == [0.61, 0.62, 0.64, 0.7]


def test_a_run_on_a_sample_is_another_run_and_never_shares_a_row(runs, tmp_path):
    file = tmp_path / "kept.jsonl"
    kept.keep(runs, file)
    base, _ = cells_of(CELLS)
    sample = tmp_path / "sample"
    write(sample, base, [0.2, 0.2, 0.2], rounds=3, sizes=[100, 100])
    assert kept.keep(sample, file) == kept.Outcome(runs=5, new=1)
    rows = compare.compare(file).rows
    assert {(len(row.base), len(row.pdr)) for row in rows} == {(2, 2), (1, 0)}


def test_what_is_not_finished_not_the_papers_or_not_whole_is_told_and_not_kept(runs, tmp_path):
    base, pdr = cells_of("rule=mca,attack=foe,b=0.1")
    write(runs, base, [0.3], rounds=2, end=False)
    write(runs, pdr, [0.3], rounds=1, changes=["attack.factor=-5.0"])
    broken = runs / "broken"
    broken.mkdir()
    (broken / results.NAME).write_text("{}\n")
    done = kept.keep(runs, tmp_path / "kept.jsonl")
    assert (done.runs, done.new, done.unfinished, done.strangers, len(done.unread)) == (4, 4, 1, 1, 1)
    assert "broken" in done.unread[0]


def test_the_revision_is_what_was_said_and_stays_until_another_is(runs, tmp_path):
    file = tmp_path / "kept.jsonl"
    assert {run.commit for run in kept_in(runs, file)} == {None}
    assert {run.commit for run in kept_in(runs, file, commit="abc")} == {"abc"}
    assert {run.commit for run in kept_in(runs, file)} == {"abc"}


def test_a_line_is_small_and_names_no_folder_of_anybodys_machine(tmp_path):
    base, _ = cells_of(CELLS)
    write(tmp_path / "runs", base, [0.5123] * 100, data=tmp_path)
    file = tmp_path / "kept.jsonl"
    kept.keep(tmp_path / "runs", file)
    (line,) = file.read_text().splitlines()
    assert len(line) < 4000
    assert str(tmp_path) not in line
    assert json.loads(line)["accuracy"][-1] == [100, 0.5123]


def test_a_file_that_was_changed_by_hand_is_one_line_and_status_2(runs, tmp_path, capsys):
    file = tmp_path / "kept.jsonl"
    kept.keep(runs, file)
    file.write_text(file.read_text().replace("0.62", "0.92"))
    assert cli.main(["paper", "compare", str(file)]) == 2
    assert "its checksum does not fit" in capsys.readouterr().err
    assert cli.main(["paper", "keep", str(runs), str(file)]) == 2


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"version": 9}, "version 9; this bartizan reads version 1"),
        ({"colour": 1}, "unexpected keyword argument 'colour'"),
        ({"kind": "run"}, "wanted a line of kind 'kept', got 'run'"),
    ],
)
def test_a_line_of_another_form_is_refused(runs, tmp_path, change, message):
    file = tmp_path / "kept.jsonl"
    kept.keep(runs, file)
    line = json.loads(file.read_text().splitlines()[0])
    del line["crc"]
    file.write_bytes(results.encode({**line, **change}))
    with pytest.raises(results.CorruptFileError, match=message):
        kept.read(file)


def test_the_commands_keep_compare_and_draw(runs, tmp_path, capsys):
    file, drawn = tmp_path / "kept.jsonl", tmp_path / "points.png"
    assert cli.main(["paper", "keep", str(runs), str(file), "--commit", "abc"]) == 0
    assert "4 runs, of which new: 4, changed: 0." in capsys.readouterr().out
    assert cli.main(["paper", "compare", str(file), "--plot", str(drawn)]) == 0
    assert "A, rotated: On 1 of the paper's cells: cifar10, b=0.3, beta=0.6, 2 seeds each." in capsys.readouterr().out
    assert drawn.read_bytes().startswith(b"\x89PNG")
    assert cli.main(["paper", "compare", str(file), "--plot", "points.doc"]) == 2
    assert "ends in .png or .svg, got 'points.doc'" in capsys.readouterr().err


def test_the_same_runs_give_the_same_picture_to_the_byte(runs, tmp_path):
    rows = compare.compare(runs).rows
    for kind, begins in ((".png", b"\x89PNG"), (".svg", b"<?xml")):
        for name in ("one", "two"):
            picture.draw(rows, tmp_path / f"{name}{kind}")
        drawn = (tmp_path / f"one{kind}").read_bytes()
        assert drawn.startswith(begins)
        assert drawn == (tmp_path / f"two{kind}").read_bytes()
    with pytest.raises(ValueError, match="nothing to draw"):
        picture.draw([], tmp_path / "none.png")


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
    all_ = summary.Summary.of(four)
    assert len(all_.rows) == 4
    assert sorted(all_.differences) == pytest.approx([-2, 1])
    assert sorted(all_.raw_differences) == pytest.approx([-10, -2, -1, 1])
    assert page.named(all_.worst) == "krum, foe, b=0.3, beta=0.6"
    assert all_.spread_over_seeds is None


def test_who_breaks_down_is_counted_beside_the_paper(four):
    all_ = summary.Summary.of(four)
    assert (all_.same_end, all_.paper_same_end) == (3, 4)
    # Of the paper's only MCA under sign flip is "-", in both; ours also krum's PDR under FoE.
    assert all_.end_as_in_the_paper == 7
    shown = page.breakdowns(four)
    assert "| 0.6 | 0.3 | sign-flip | mca | - | - | - (11.00) | - (10.00) |" in shown
    assert "| 0.6 | 0.3 | foe | krum | 64.35 | 74.58 | 25.00 | - (15.00) |" in shown
    assert "lie" not in shown


def test_the_summary_says_what_was_computed(four):
    said = page.bullets(four)
    assert "**Cells**: 4 pairs of base and PDR, one seed each; all are distinct." in said
    assert "-0.50 in the 2 where both converge, -3.00 ± 4.83 in the 4 where not both diverged" in said
    assert "The paper's own: +0.89, in the 2 cells where both its runs and ours converge." in said
    assert "**Worst and best pair**: -10.00 (krum, foe, b=0.3, beta=0.6), +1.00 (mca, lie, b=0.3, beta=0.6)." in said
    assert 'of 4 cells 1 are "-" in our base and 2 in our PDR; in the paper 1 and 1.' in said
    assert '7 of our 8 runs agree with the paper\'s on being "-" or not.' in said
    head = page.headline(four)
    assert "On 4 of the paper's cells: cifar10, b=0.3, beta=0.6, one seed each." in head
    assert "by -0.50 points (mean over the 2 where both runs converge), at worst by -10.00" in head
    assert "In 3 of 4 either both runs converge or neither does." in head
    groups = page.groups(four)
    assert "| krum | 2 | 2 | -2.00 | -6.00 | -10.00 |" in groups
    assert page.bullets([]) == page.headline([]) == page.NOTHING


def test_spread_over_seeds_is_that_within_cells(runs):
    (row,) = compare.compare(runs).rows
    all_ = summary.Summary.of([row])
    assert all_.spread_over_seeds == pytest.approx(2**0.5)
    assert all_.base_spread_over_seeds == pytest.approx(8**0.5)
    assert "2 seeds each" in page.bullets([row])


def test_ranks_agree_where_the_order_is_the_same_and_a_dash_is_lowest(four):
    all_ = summary.Summary.of(four)
    assert all_.ranks_of_base_and_pdr == pytest.approx(summary.spearman([60, 25, 0, 62], [58, 0, 0, 63]))
    theirs = [of[0].accuracy or 0 for row in all_.rows for of in (row.paper_base, row.cell.values)]
    assert [page.named(row).split(", ")[:2] for row in all_.rows] == [
        ["krum", "lie"],
        ["krum", "foe"],
        ["mca", "sign-flip"],
        ["mca", "lie"],
    ]
    expected = summary.spearman([60, 58, 25, 0, 0, 0, 62, 63], theirs)
    assert all_.ranks_of_ours_and_paper == pytest.approx(expected)
    assert summary.spearman([3, 1, 2], [30, 10, 20]) == pytest.approx(1)
    assert summary.spearman([3, 1, 2], [10, 30, 20]) == pytest.approx(-1)


def copies(tmp_path):
    """Krum against two attacks that it gives nothing, one run twice; against LIE, where projecting changes nothing."""
    for attack, values in {"foe": (0.6, 0.5), "gaussian": (0.6, 0.5), "lie": (0.4, 0.4)}.items():
        for cell, accuracy in zip(cells_of(f"rule=krum,attack={attack},b=0.3"), values, strict=True):
            write(tmp_path, cell, [0.3, accuracy], rounds=2)
    return compare.compare(tmp_path).rows


def test_pairs_that_are_the_same_to_the_digit_count_once(tmp_path):
    rows = copies(tmp_path)
    all_ = summary.Summary.of(rows)
    assert (len(all_.cells), len(all_.rows), all_.unchanged) == (3, 2, 1)
    assert sorted(all_.differences) == pytest.approx([-10, 0])
    assert "3 pairs of base and PDR, one seed each; 2 are distinct" in page.bullets(rows)
    assert "Pairs whose base and PDR are the same to the digit: 1." in page.bullets(rows)
    # Against the paper every cell counts.
    assert len(all_.paper_differences) == 3
    assert "| krum | 3 | 2 | -5.00 | -5.00 | -10.00 |" in page.groups(rows)
    # The same best accuracy on another way is another run.
    write(tmp_path, cells_of("rule=krum,attack=foe,b=0.3")[1], [0.31, 0.5], rounds=2)
    assert len(summary.Summary.of(compare.compare(tmp_path).rows).rows) == 3


def test_speed_ups_are_told_by_rule_only(tmp_path):
    by_name = {line.split(" | ")[0].strip("| "): line for line in page.groups(copies(tmp_path)).splitlines()}
    assert by_name["krum"].endswith("| 1x |")
    assert by_name["foe"].endswith("|  |")


def test_two_runs_that_both_diverged_have_no_difference(tmp_path):
    for cell in cells_of("rule=bulyan,attack=sign-flip,b=0.3"):
        write(tmp_path, cell, [0.1], rounds=2, status="diverged")
    rows = compare.compare(tmp_path).rows
    assert page.headline(rows).endswith("one seed each. In it either both runs converge or neither does.")
    assert "Worst" not in page.bullets(rows)
    assert "| bulyan | 1 | 1 |  |  |  |  | 1 of 1 | 1x |" in page.groups(rows)


def test_every_protocol_and_sketch_has_a_headline_of_its_own(tmp_path):
    base, pdr = cells_of(CELLS)
    for changes, accuracies in (((), (0.6, 0.5)), (["clients.local=2"], (0.6, 0.7))):
        for cell, accuracy in zip((base, pdr), accuracies, strict=True):
            write(tmp_path, cell, [accuracy], rounds=1, changes=changes)
    write(tmp_path, pdr, [0.3], rounds=1, sketch="achlioptas")
    said = page.headlines(compare.compare(tmp_path).rows)
    assert {line[:1] for line in said} == {"A", "B"}
    assert sorted(line.split(":")[0][3:] for line in said) == ["achlioptas", "rotated", "rotated"]
    assert sum("by -10.00 points" in line for line in said) == sum("by +10.00 points" in line for line in said) == 1
    assert page.headlines([]) == [page.NOTHING]


def test_a_configuration_from_before_a_key_was_there_has_its_default(runs, tmp_path):
    file = tmp_path / "kept.jsonl"
    kept.keep(runs, file)
    lines = [json.loads(line) for line in file.read_text().splitlines()]
    for line in lines:
        del line["crc"], line["config"]["clients"]["sends"]
    file.write_bytes(b"".join(map(results.encode, lines)))
    found = compare.compare(file)
    assert [protocol["clients"]["sends"] for protocol in found.protocols.values()] == ["changes"]
    assert "clients.sends=changes" in show.notes(found)[0]
