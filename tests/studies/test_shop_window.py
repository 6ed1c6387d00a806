"""The table of deployments and the training picture have what the kept rows say, and nothing else."""

from __future__ import annotations

import json

import pytest

from bartizan import records
from bartizan.registry import DEFAULT_RULE
from studies.guide import kept_rows
from studies.pages import shop_window, training_figure

CLEAN, BROKEN, HELD = [0.8, 0.82], [0.1, 0.12], [0.79, 0.8]


def examples(folder, platform, rows):
    document = [{"rule": rule, "hostile": hostile, "ends": ends} for rule, hostile, ends in rows]
    (folder / f"example-attacks-{platform}.json").write_text(json.dumps(document))


def lab(folder, name, rows):
    """Write rows of the laboratory's runs: rule, attack, last perplexity."""
    fixed = {"metric": "perplexity", "seed": 0}
    lines = [
        {"slug": str(n), **fixed, "rule": rule, "attack": attack, "last": last}
        for n, (rule, attack, last) in enumerate(rows)
    ]
    (folder / name).write_bytes(b"".join(map(records.encode, lines)))


def cells(table):
    """Return the three numbers of each line, by setting."""
    lines = [line.strip("| ").split(" | ") for line in table.splitlines()[2:]]
    return {line[0].split(",")[0]: line[1:4] for line in lines}


@pytest.mark.parametrize("missing", [None, 0, 1, 2])
def test_a_line_is_the_mean_of_the_kept_ends_and_left_out_where_one_of_three_is_missing(tmp_path, missing):
    rows = [("mean", 0, CLEAN), ("mean", 3, BROKEN), (DEFAULT_RULE, 3, HELD)]
    examples(tmp_path, "flower", [row for n, row in enumerate(rows) if n != missing])
    expected = {} if missing is not None else {"Flower app": ["81%", "11%", "79.5%"]}
    assert cells(shop_window.does_it_help(tmp_path)) == expected


def test_under_several_attacks_the_worst_counts_for_each_rule_alone_and_a_diverged_run_is_said(tmp_path):
    clean = [("mean", "none", 11.0), (DEFAULT_RULE, "none", 11.1)]
    attacked = [
        ("mean", "ipm", 12.0),
        ("mean", "mimic", 11.3),
        (DEFAULT_RULE, "ipm", 11.4),
        (DEFAULT_RULE, "mimic", 11.6),
    ]
    lab(tmp_path, "window-text.jsonl", clean + attacked)
    assert cells(shop_window.does_it_help(tmp_path)) == {"text": ["11.00", "12.00", "11.60"]}
    lab(tmp_path, "window-text.jsonl", [*clean, *attacked, ("mean", "ipm", None)])
    assert cells(shop_window.does_it_help(tmp_path)) == {"text": ["11.00", "diverges (1 of 2 runs)", "11.60"]}


def test_rules_that_met_other_attacks_are_not_compared(tmp_path):
    lab(tmp_path, "window-text.jsonl", [("mean", "none", 11.0), ("mean", "ipm", 12.0), (DEFAULT_RULE, "mimic", 11.6)])
    assert cells(shop_window.does_it_help(tmp_path)) == {}


def test_runs_by_all_weights_are_not_told_as_those_by_adapters():
    kept = kept_rows.kept(shop_window.RESULTS / "adapters.jsonl")
    own = kept[(kept.adapters == 8) & (kept.attack == "none") & (kept.rule == "mean")]
    ends = shop_window.trained(shop_window.RESULTS / "adapters.jsonl", adapters=8)
    assert sorted(ends["mean", "none"]) == sorted(own["last"])


def test_a_run_is_kept_with_its_weights_where_the_picture_shows_them(tmp_path):
    lines = [{"round": t, "accuracy": 0.1 * t, "weights": [0.0, 1 / 3, 2 / 3]} for t in (1, 2)]
    for rule, attack in (("mean", "sign-flip"), (DEFAULT_RULE, "sign-flip")):
        config = {"rule": {"name": rule}, "attack": {"name": attack}, "seed": 0}
        row = training_figure.row_of(records.Recorded(tmp_path, {"config": config, "byzantine": [0]}, lines))
        assert row["accuracy"] == [[1, 0.1], [2, 0.2]]
        assert row.get("weights") == (None if rule == "mean" else [[0.0, 0.3333, 0.6667]] * 2)
