"""`watch=` of the strategy gets the lines of results.jsonl, and can't end a run."""

from __future__ import annotations

import json

from bartizan import records
from flower_nodes import ATTACKERS, honest, run


def without_checksum(lines):
    """As they are written; the first line names all clients of the run only at its end."""
    first, *others = [json.loads(records.encode(line)) | {"crc": None} for line in lines]
    return [first | {"clients": []}, *others]


def test_flower_passes_on_every_line_also_after_a_restart(tmp_path):
    lines = []
    nodes = {**honest(), 5: ATTACKERS["NaN"]}
    run(nodes, rounds=2, folder=tmp_path, watch=lines.append)
    assert without_checksum(lines) == without_checksum(records.read(tmp_path).lines())
    again = []
    run(nodes, rounds=3, folder=tmp_path, watch=again.append)
    assert without_checksum(again) == without_checksum(records.read(tmp_path).lines())
    assert [line["round"] for line in again if line["kind"] == "round"] == [1, 2, 3]


def test_flower_goes_on_if_a_callback_raises(caplog):
    caplog.set_level("ERROR", logger="flwr")
    _, result = run(honest(), rounds=2, watch=lambda line: 1 / 0)
    assert len(result.train_metrics_clientapp) == 2
    assert "watch raised ZeroDivisionError at round 2, which goes on untracked" in caplog.text
