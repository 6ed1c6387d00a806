"""What projecting changes: paired by seed, pooled by seed, and told with its control, placebo and knee."""

from __future__ import annotations

import json
import math

import pytest

from studies.guide import experiments
from studies.guide import projection_tables as tables

RULES, SEEDS = ("krum", "mca", "caf"), range(5)
T5 = 2.776445  # of Student's distribution with 4 degrees of freedom


def rows(changes, seeds=SEEDS, rules=RULES, **fields):
    """Rows of exact runs that end at 70, 71, ... by seed, and of sketches changes[sketch](cell, seed) above."""
    return [
        {"slug": f"{rule} {sketch} {seed}", "rule": rule, "attack": "ipm", "seed": seed, "sketch": sketch, "b": 15}
        | {"last": (70 + seed + change(cell, seed)) / 100, "best": 0.9, "dim": 1000, "on_attackers": 0.25, **fields}
        for sketch, change in {"exact": lambda cell, seed: 0.0, **changes}.items()
        for cell, rule in enumerate(rules)
        for seed in seeds
    ]


@pytest.fixture
def written(tmp_path):
    def write(found):
        path = tmp_path / "rows.jsonl"
        path.write_text("".join(json.dumps(row) + "\n" for row in found))
        return path

    return write


def line(text, begins):
    (found,) = [one for one in text.splitlines() if one.startswith(begins)]
    return [cell.strip() for cell in found.strip("|").split("|")]


def test_pooled_intervals_are_over_seeds_and_not_over_cells(written):
    by_cell = lambda cell, seed: 3.0 * cell - 3.0  # noqa: E731  # -3, 0, 3 in every seed
    by_seed = lambda cell, seed: seed - 2.0  # noqa: E731  # -2 to 2, the same in every cell
    text = tables.projection_tables(written(rows({"rotated 256": by_cell, "rotated 64": by_seed})[::-1]))
    assert line(text, "| Rotated(256)")[2] == "+0.00 ± 0.00"
    half = T5 * math.sqrt(2.5 / 5)
    assert line(text, "| Rotated(64)")[2] == f"+0.00 ± {half:.2f}"
    assert line(text, "| Rotated(256)")[4:7] == ["1 of 3", "2", "-3.00 (krum under ipm)"]
    assert line(text, "| Rotated(64)")[4:6] == ["0 of 3", "0"]
    assert line(text, "| Rotated(256)")[8:] == ["25.0% / 25.0%", "inside"]
    assert line(text, "| `caf`")[2:] == ["72.0 ± 1.6", "+3.0 ± 0.0", f"+0.0 ± {half:.1f}"]


def test_pairs_share_a_seed_and_a_seed_that_lacks_a_cell_is_left_out(written):
    found = rows({"rotated 64": lambda cell, seed: 50.0 if seed == 4 else 0.5})
    stopped = [row for row in found if (row["rule"], row["seed"], row["sketch"]) != ("caf", 4, "rotated 64")]
    text = tables.projection_tables(written(stopped))
    assert line(text, "| Rotated(64)")[1:3] == ["4", "+0.50 ± 0.00"]
    assert line(text, "| `caf`")[3] == "+0.5 ± 0.0"


def test_a_run_that_diverged_counts_as_chance(written):
    found = rows({"rotated 64": lambda cell, seed: 0.0})
    lost = [{**row, "last": None} if row["sketch"] != "exact" and row["seed"] == 0 else row for row in found]
    assert line(tables.projection_tables(written(lost)), "| Rotated(64)")[2].startswith("-12.00 ± ")  # 60 / 5


def test_sketches_of_fewer_cells_are_compared_on_these_and_other_counts_of_attackers_are_left_out(written):
    some = rows({"gaussian 2": lambda cell, seed: -9.0}, rules=RULES[:1])
    others = rows({"gaussian 2": lambda cell, seed: 30.0}, b=5)
    many = rows({"rotated 64": lambda cell, seed: 0.0})
    known = {row["slug"]: row for row in (*some, *many)}
    text = tables.projection_tables(written([*known.values(), *others]), b=15)
    assert line(text, "| Gaussian(2)")[2:6:2] == ["-9.00 ± 0.00", "0 of 1"]
    assert line(text, "| Rotated(64)")[4] == "3 of 3"
    assert line(text, "| `caf`")[-1] == ""


def test_findings_name_the_control_the_placebo_and_where_the_others_lie(written):
    level = lambda points: lambda cell, seed: points + 0.1 * (seed - 2)  # noqa: E731
    own = {"rotated 1024": level(0.0), "rotated 256": level(-0.3), "rotated 64": level(-1.1)}
    said = tables.findings(written(rows({**own, "gaussian 2": level(-9.0)})), "gaussian 2")
    assert said.startswith("The control Gaussian(2), which must lose, loses 9.00 ± 0.20 points: a loss")
    assert "The placebo Rotated(1024), an isometry, lies inside ±1 point." in said
    assert said.endswith("Of the others inside it: Rotated(256). Of the others across it: Rotated(64).")
    said = tables.findings(written(rows({**own, "gaussian 2": level(+9.0)})), "gaussian 2")
    assert (
        "does not lose: it changes the last accuracy by +9.00 ± 0.20 points, so these cells can't show a loss." in said
    )
    own["rotated 256"] = level(-2.0)
    said = tables.findings(written(rows({**own, "gaussian 2": level(-1.1)})), "gaussian 2")
    assert "does not lose: it changes the last accuracy by -1.10" in said  # its interval reaches into ±1 point
    assert said.endswith("Of the others across it: Rotated(64). Of the others outside it: Rotated(256).")


def test_without_rows_the_tables_say_so(tmp_path):
    for text in (tables.projection_tables(tmp_path / "none.jsonl"), tables.findings(tmp_path / "none.jsonl", "x 2")):
        assert text == "*No pairs of runs are kept in none.jsonl yet.*"


@pytest.mark.parametrize(("stage", "runs"), [("projection", 305), ("projection-large", 120), ("achlioptas", 216)])
def test_runs_stand_seed_by_seed_and_every_sketch_has_its_exact_run(stage, runs):
    found = experiments.experiments(stage)
    assert len({one.slug for one in found}) == len(found) == runs
    assert [one.seed for one in found] == sorted(one.seed for one in found)
    cell = lambda one: (one.rule, one.attack.name, one.seed, one.clients)  # noqa: E731
    exact = [cell(one) for one in found if one.sketch.name == "exact"]
    assert all(cell(one) in exact for one in found)
