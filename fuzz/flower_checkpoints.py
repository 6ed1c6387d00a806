"""Surface: checkpoints of Flower runs. A damaged one is refused or read as it was written; a forged one is harmless."""

from __future__ import annotations

import io
import json
import math
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
from flwr.app import Array, ArrayRecord

from bartizan.flower import saved_state
from bartizan.flower.replies import Model
from bartizan.flower.saved_state import Saved
from bartizan.judge.reputation import Reputation
from bartizan.records import CorruptFileError
from fuzz.draw import Draw
from fuzz.mutate import mutated_bytes, mutated_json
from fuzz.surfaces import ACCEPTED, COMPARED, Surface, documented, require

MODEL = Model.of(ArrayRecord({"w": Array(np.zeros((2, 3), np.float32)), "n": Array(np.array(0))}))


def _saved(draw: Draw) -> Saved:
    reputation = Reputation()
    for _ in range(draw.below(4)):
        weights = {node: draw.below(3) / 2 for node in range(2, 2 + draw.below(4))}
        reputation.add(weights, {2**64 - 1: "NaN"} if draw.chance(3) else {}, {7: "late"} if draw.chance(3) else {})
    arrays = {"w": np.full((2, 3), draw.byte(), np.float32), "n": np.array(draw.byte())}
    record = {name: Array(array) for name, array in arrays.items()}
    history = tuple(draw.byte() / 9 for _ in range(draw.below(3)))
    return Saved(1 + draw.below(9), draw.byte() / 7, history, reputation, {"rule": "Mean()"}, record)


def _state(saved: Saved) -> Any:
    arrays = {name: array.data for name, array in saved.arrays.items()}
    return saved.round, saved.seconds, saved.history, saved.reputation.as_dict(), dict(saved.settings), arrays


def _forged(whole: bytes, draw: Draw) -> bytes:
    """Change fields, and keep the checksums right."""
    with zipfile.ZipFile(io.BytesIO(whole)) as archive:
        entries = {name: archive.read(name) for name in archive.namelist()}
    if draw.chance(3):
        entries["0.npy"] = mutated_bytes(entries["0.npy"], draw)
    else:
        entries[saved_state.ABOUT] = mutated_json(json.loads(entries[saved_state.ABOUT]), draw)
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w") as archive:
        for name, data in entries.items():
            archive.writestr(name, data)
    return out.getvalue()


def surface(folder: Path) -> Surface:
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / saved_state.NAME

    def case(data: bytes) -> str:
        draw = Draw(data)
        kind, written = draw.below(4), _saved(draw)
        saved_state.save(folder, written)
        if kind == 1:
            path.write_bytes(mutated_bytes(path.read_bytes(), draw))
        elif kind == 2:
            path.write_bytes(_forged(path.read_bytes(), draw))
        elif kind == 3:
            path.write_bytes(draw.rest())
        with documented(CorruptFileError, ValueError, sound=kind == 0):  # a model of other shapes is a ValueError
            found = saved_state.load(folder, MODEL, {"rule": "Mean()"})
        found.reputation.suspects()
        require(found.round >= 1 and found.seconds >= 0, "round and seconds of no run")
        require(all(map(math.isfinite, found.history)), "a history that is not finite")
        require(np.isfinite(Model.of(found.arrays).arrays["w"]).all(), "a model that is not finite")
        if kind == 2:
            return ACCEPTED
        require(_state(found) == _state(written), "another state than was written")
        return COMPARED

    return Surface(case, [bytes([kind]) + bytes(range(40)) for kind in range(4)], length=600)
