"""The type of `Aggregation.update` follows from what was passed in, as mypy sees it."""

from __future__ import annotations

from pathlib import Path

import pytest

api = pytest.importorskip("mypy.api")
pytest.importorskip("torch")

ROOT = Path(__file__).parents[1]
PROGRAM = """
from pathlib import Path
from typing import Any, assert_type

import numpy as np
import numpy.typing as npt
from torch import Tensor

import bartizan as bz

State = dict[str, Tensor]


def results(x: npt.NDArray[np.float32], t: Tensor, states: list[State], paths: list[Path]) -> None:
    rule, aggregator = bz.Krum(n_byzantine=1), bz.Aggregator(bz.Krum(n_byzantine=1), "rotated")
    assert_type(bz.aggregate(x, rule).update, npt.NDArray[np.float32])
    assert_type(bz.aggregate(t, rule, sketch="auto", seed=7).update, Tensor)
    assert_type(bz.aggregate(states, rule, strict=True), bz.Aggregation[State])
    assert_type(bz.aggregate([[t, t], [t, t]], rule).update, list[Tensor])
    assert_type(bz.aggregate([[1.0, 2.0], [1.0, 2.0]], rule).update, npt.NDArray[Any])
    assert_type(bz.aggregate(paths, rule).update, Any)
    assert_type(aggregator(x, sizes=[1, 2]).update, npt.NDArray[np.float32])
    assert_type(aggregator(iter(states)).update, State)
    opened: bz.Round[State] = aggregator.round()
    opened.add(states[0], "a client")
    assert_type(opened.close().update, State)
    by_id = {"amy": x, "bob": x}
    assert_type(bz.aggregate(by_id, "median", sizes={"amy": 1, "bob": 2}).update, npt.NDArray[np.float32])
    assert_type(bz.aggregate({"amy": states[0]}, rule).update, State)
    assert_type(aggregator({"amy": [1.0, 2.0]}).update, npt.NDArray[Any])
    assert_type(bz.aggregate({"amy": Path("amy.npy")}, rule).update, Any)
    assert_type(bz.aggregate(x, n_byzantine=3).update, npt.NDArray[np.float32])
    assert_type(bz.Aggregator("multi-krum", n_byzantine=3)(t).update, Tensor)
    bz.aggregate(x, rule, unknown=1)  # type: ignore[call-overload]
"""


def test_the_update_has_the_type_of_what_was_passed_in(tmp_path, monkeypatch):
    program = tmp_path / "program.py"
    program.write_text(PROGRAM)
    monkeypatch.setenv("MYPYPATH", str(ROOT / "src"))
    monkeypatch.chdir(ROOT)  # for the settings and the cache of `make check`
    out, errors, status = api.run([str(program)])
    assert status == 0, out + errors
