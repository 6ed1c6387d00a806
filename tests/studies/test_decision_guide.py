"""The decision guide: its tables follow from the kept rows."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from bartizan.lab import Experiment
from report_runs import write_brief
from studies.__main__ import main
from studies.guide import decision_guide as guide
from studies.guide import experiments, kept_rows

STUDIES = Path(__file__).parents[2] / "studies"


def rows(ends, metric="accuracy", b=0.3):
    """Rows of three seeds by (rule, attack, split): the end given, a little less and a little more."""
    found = [
        {"metric": metric, "clients_differ": split, "b": b, "attack": attack, "rule": rule, "seed": seed}
        | {"last": None if end is None else end + step}
        for (rule, attack, split), end in ends.items()
        for seed, step in enumerate((-0.01, 0.0, 0.01))
    ]
    return pd.DataFrame(found)


IMAGES = {
    ("mean", "none", "iid"): 0.8,
    ("mean", "ipm", "iid"): 0.3,
    ("mean", "lie", "iid"): None,
    ("krum", "none", "iid"): 0.7,
    ("krum", "ipm", "iid"): 0.65,
    ("krum", "lie", "iid"): 0.6,
    ("mean", "sign-flip", "iid"): 0.68,
    ("krum", "sign-flip", "iid"): 0.62,
    ("mca", "sign-flip", "iid"): 0.75,
    ("mca", "none", "iid"): 0.78,
    ("mca", "ipm", "iid"): 0.7,
    ("mca", "lie", "iid"): 0.69,
}
TEXT = {
    ("mean", "none", "natural"): 12.0,
    ("mean", "lie", "natural"): 30.0,
    ("mean", "ipm", "natural"): 13.9,
    ("mca", "ipm", "natural"): 12.9,
    ("krum", "none", "natural"): 13.0,
    ("krum", "lie", "natural"): 13.5,
    ("krum", "ipm", "natural"): 14.0,
    ("mca", "none", "natural"): 12.5,
    ("mca", "lie", "natural"): 14.01,
}


def test_rules_stand_in_the_order_of_their_worst_case_beside_the_mean():
    lines = guide.worst_case_table(rows(IMAGES)).splitlines()
    assert lines[0] == "| rule | no attack | worst case | worse than the mean under |"
    assert lines[2:] == [
        "| `mca` | 78% ± 2.5 | 69% ± 2.5 (lie) |  |",
        "| `krum` | 70% ± 2.5 | 60% ± 2.5 (lie) | sign-flip |",
        "| `mean` | 80% ± 2.5 | fails (3 of 3 seeds) (lie) |  |",
    ]


def test_of_text_the_highest_perplexity_is_the_worst_case():
    lines = guide.worst_case_table(rows(TEXT, "perplexity")).splitlines()
    assert lines[2:] == [
        "| `krum` | 13.00 ± 0.02 | 14.00 ± 0.02 (ipm) | ipm |",
        "| `mca` | 12.50 ± 0.02 | 14.01 ± 0.02 (lie) |  |",
        "| `mean` | 12.00 ± 0.02 | 30.00 ± 0.02 (lie) |  |",
    ]


def test_the_screen_drops_a_rule_below_the_fifth_best_and_finds_the_five_best(monkeypatch):
    monkeypatch.setattr(experiments, "LIKELY", ("r0", "r1", "r2", "r3", "r4"))
    rules, attacks = [f"r{i}" for i in range(40)], experiments.SCREEN_ATTACKS
    generator = np.random.default_rng(1)
    truth = {(rule, attack): generator.random() for rule in rules for attack in attacks}
    all_cells = [{"rule": {"name": rule}, "attack": {"name": attack}} for rule in rules for attack in attacks]
    ends: dict[tuple[str, str], float] = {}
    while cells := experiments.still_open(iter(all_cells), ends):
        ends |= {key: truth[key] for cell in cells for key in [(cell["rule"]["name"], cell["attack"]["name"])]}
    assert len(ends) < len(truth)

    def best(found):
        whole = [rule for rule in rules if (rule, "none") in found]
        worst = {rule: min(found[rule, one] for one in attacks if one != "none") for rule in whole}
        return sorted(worst, key=lambda rule: -worst[rule])[:5]

    assert best(ends) == best(truth)


def test_choices_of_the_study_follow_from_its_kept_rows():
    steps = guide.chosen_steps(kept_rows.kept(kept_rows.stage_file("step-sizes")))
    assert steps == {name: experiments.STEP_SIZES[name] for name in steps}
    screen = guide.cells(kept_rows.kept(kept_rows.stage_file("screen")))
    whole = screen["merit"].notna().all(axis="columns") & (screen.index != "mean")
    assert set(experiments.FINALISTS) == set(screen.index[whole][: len(experiments.FINALISTS)])


def test_a_row_is_kept_of_every_run_and_an_unfinished_one_is_refused(tmp_path, capsys):
    config = {"split": {"kind": "dirichlet", "beta": 0.1}, "clients": {"byzantine": 0.3}}
    runs, kept = tmp_path / "runs", tmp_path / "kept.jsonl"
    write_brief(runs / "a", "krum", "lie", accuracy=0.5, on_attacker=0.25, **config)
    write_brief(runs / "b", "mean", "lie", accuracy=0.1, converged=False, **config)
    for _ in range(2):  # the second time adds nothing
        assert main(["guide", "keep-rows", str(runs), "--out", str(kept)]) == 0
        assert "kept 2 runs" in capsys.readouterr().out
    found = kept_rows.kept(kept)
    assert found[["slug", "rule", "last", "clients_differ", "b", "on_attackers"]].values.tolist() == [
        ["a", "krum", 0.5, "dirichlet 0.1", 0.3, 0.25],
        ["b", "mean", 0.1, "dirichlet 0.1", 0.3, 0.0],
    ]
    for end in ({"status": "diverged", "last": 0.1}, {"status": "finished", "last": float("inf")}):
        assert kept_rows.last_of(end) is None
    write_brief(runs / "c", "krum", "lie", ends=False, **config)
    with pytest.raises(ValueError, match="is not finished"):
        kept_rows.keep(kept, runs / "c")


def test_a_stage_goes_on_where_its_kept_rows_end(tmp_path, monkeypatch):
    tiny = {"clients.count": 4, "clients.byzantine": 1, "rounds": 2, "evaluation.every": 1, "model.name": "logistic"}
    own = [{**tiny, **experiments._cell({"name": "mean"}, "none", seed)} for seed in range(2)]
    monkeypatch.setitem(experiments.STAGES, "convergence", lambda: iter(own))
    file = kept_rows.stage_file("convergence", tmp_path)

    def run(out):
        assert (
            main(["guide", "run", "convergence", "--out", str(out), "--results", str(tmp_path), "--workers", "1"]) == 0
        )
        return sorted(path.name for path in out.glob("convergence/*"))

    wanted = sorted(one.slug for one in experiments.experiments("convergence"))
    assert run(tmp_path / "first") == wanted
    assert kept_rows.slugs(file) == set(wanted)
    whole = file.read_bytes()
    file.write_bytes(whole[:-9])  # stopped within the last row
    again = run(tmp_path / "elsewhere")  # without the folders of the runs
    assert len(again) == 1
    rows = kept_rows.kept(file)
    assert rows.slug.tolist() == wanted
    assert rows.seed.tolist() == [0, 1]
    assert (rows["last"] > 0.2).all()
    assert run(tmp_path / "third") == []


@pytest.mark.parametrize(("name", "count"), [("momentum", 72), ("adapters", 12)])
def test_the_sweep_files_are_experiments_of_three_seeds(name, count):
    runs = Experiment.from_toml(STUDIES / "guide" / f"{name}.toml").runs()
    assert len(runs) == count
    assert {run.seed for run in runs} == {0, 1, 2}
