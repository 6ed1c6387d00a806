"""The single studies: each can be started, and the span that `Rotated` lost without swaps is one that they measure."""

from __future__ import annotations

import numpy as np
import pytest

from bartizan import Gaussian, Rotated
from bartizan._util.seeds import key_of
from bartizan.kernels import reference
from studies.__main__ import COMMANDS, main
from studies.measurements import tails
from studies.pages import measured_tables
from studies.rows import keep, kept


@pytest.mark.parametrize("name", COMMANDS)
def test_every_study_starts(name, capsys):
    pytest.importorskip("torch")
    if name.startswith("flower"):
        pytest.importorskip("flwr")
    with pytest.raises(SystemExit) as ended:
        main([name, "--help"])
    assert ended.value.code == 0
    assert f"python -m studies {name}" in capsys.readouterr().out


def test_a_whole_lane_of_two_blocks_is_lost_without_swaps_only(monkeypatch):
    """Blocks meet in one of 32 rows of 128 cells with a probability of 0.22: 13 of 60 seeds, 3 to 26 but for 1e-4."""
    rows = tails.lane(32)
    assert np.array_equal(rows @ rows.T, np.eye(64))

    def least(sketch, seed):
        y = sketch(rows, seed=seed)
        return np.linalg.eigvalsh(y @ y.T)[0]

    def without_swaps(rows, seed):
        out = np.zeros((64, 4096))
        monkeypatch.setattr(reference, "swapped", lambda x, swaps: x)
        reference.rotated(rows, None, 0, key_of(seed), 32, out, np.zeros(64))
        return out

    assert 3 <= sum(least(without_swaps, seed) < 1e-9 for seed in range(60)) <= 26
    assert min(least(Rotated(4096, 32), seed) for seed in range(60)) > 0.5
    assert min(least(Gaussian(4096), seed) for seed in range(3)) > 0.5


def test_kept_rows_come_back_without_the_line_of_their_origin(tmp_path, monkeypatch):
    monkeypatch.setattr("studies.rows.RESULTS", tmp_path)
    rows = [{"rule": "krum", "bytes": 7, "error": 0.25}]
    keep(tmp_path / "some.jsonl", rows)
    assert kept("some") == rows
    assert "machine" in (tmp_path / "some.jsonl").read_text().splitlines()[0]


def test_the_guarantees_are_those_of_a_gaussian_matrix_and_end_before_a_thousand_clients():
    lines = measured_tables.guarantees().splitlines()
    assert lines[2] == "| 50 | 0.128 | 1,783 | 0.541 | 4,795 |"
    assert lines[4] == "| 1,000 | 0.153 | 2,472 | no guarantee | 73,195 |"
