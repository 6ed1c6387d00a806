"""Surface: replies of Flower nodes, arrays and metrics in a RecordDict, compared with NumPy's reader."""

from __future__ import annotations

import io
import json
from pathlib import Path
from typing import Any

import numpy as np
from flwr.app import Array, ArrayRecord, MetricRecord, RecordDict

import bartizan as bz
from bartizan.flower.replies import (
    Model,
    aggregate_metrics,
    arrays_of,
    medians,
    records_of,
    reported_size,
    without_arrays,
)
from fuzz.draw import Draw
from fuzz.mutate import mutated_bytes
from fuzz.surfaces import COMPARED, Surface, documented, require
from fuzz.updates.files import NPY, npy

ARRAYS = {"w": np.arange(6, dtype=np.float32).reshape(2, 3), "n": np.array(3)}
NAMES = ("w", "n", "extra", "", "w\0", "x" * 3000)
STYPES = ("numpy.ndarray", "torch", "", "numpy.ndarray ")
HEADERS = ("<f4", ">f4", "<f8", "|O", "<c8", "f4", "<f44444444444444", "|V9")
NUMBERS: list[Any] = [3, 0, -1, 2**63 - 1, 0.5, float("nan"), float("inf"), [1, 2], [], 1e-320]


def case(data: bytes) -> str:
    draw = Draw(data)
    model = Model.of(ArrayRecord({name: Array(one) for name, one in ARRAYS.items()}))
    sound = draw.chance(5)
    content = _honest(draw) if sound else _reply(draw)
    metrics(draw, content)
    with documented(ValueError, sound=sound):
        found = model.decode(arrays_of(content))
        reported_size(content, "num-examples")
    for name, one in found.items():
        theirs = np.load(io.BytesIO(records_of(content, ArrayRecord)[0][name].data), allow_pickle=False)
        require(np.array_equal(one, theirs, equal_nan=True), f"{name!r} has other numbers than NumPy reads")
    honest = [{name: array + m for name, array in ARRAYS.items()} for m in range(3)]
    out = bz.aggregate([found, *honest], bz.Mean(), reference=ARRAYS)
    require(set(out.quarantined) <= {0} and np.isfinite(out.update["w"]).all(), "one reply changed the fate of others")
    return COMPARED


def _honest(draw: Draw) -> RecordDict:
    arrays = {"w": ARRAYS["w"] + np.float32(draw.byte()), "n": np.array(draw.below(1000))}
    return RecordDict(
        {
            "arrays": ArrayRecord({name: Array(one) for name, one in arrays.items()}),
            "metrics": MetricRecord({"num-examples": 1 + draw.below(500), "loss": draw.byte() / 9}),
        }
    )


def _reply(draw: Draw) -> RecordDict:
    arrays = {}
    for name in ("w", "n") if not draw.chance(4) else [draw.pick(NAMES) for _ in range(draw.below(4))]:
        data = _bytes(draw, name)
        shape = draw.pick([(2, 3), (), (9,), (2**40,)])
        stype = STYPES[0] if not draw.chance(8) else draw.pick(STYPES)
        arrays[name] = Array(dtype=draw.pick(["float32", "object", ""]), shape=shape, stype=stype, data=data)
    found = RecordDict({"arrays": ArrayRecord(arrays)})
    if not draw.chance(9):
        found["metrics"] = MetricRecord({"num-examples": 3 if not draw.chance(4) else draw.pick(NUMBERS)})
    if draw.chance(8):
        found["more"] = MetricRecord({draw.pick(["num-examples", "loss", ""]): draw.pick(NUMBERS)})
    if draw.chance(12):
        found["again"] = ArrayRecord(arrays)
    return found


def _bytes(draw: Draw, name: str) -> bytes:
    """Return a .npy file that is valid, mutated, has a wrong header, or is arbitrary bytes."""
    whole = npy(ARRAYS.get(name, ARRAYS["w"]))
    how = draw.below(5)
    if how == 1:
        return mutated_bytes(whole, draw)
    if how == 2:
        descr, order = draw.pick(HEADERS), draw.pick(["False", "True", "None"])
        shape = draw.pick(["(2, 3)", "()", "(6,)", "(2, 3, )", "(99999999999999999999,)", "(-1,)", "(2, 3), **{}"])
        text = f"{{'descr': '{descr}', 'fortran_order': {order}, 'shape': {shape}, }}".encode()
        text += b" " * draw.below(64) + b"\n"
        return b"\x93NUMPY\1\0" + len(text).to_bytes(2, "little") + text + bytes(draw.pick([24, 0, 48, 23]))
    if how == 3:
        return draw.pick(NPY)
    return whole if how == 0 else draw.rest()


def metrics(draw: Draw, content: RecordDict) -> None:
    """Require that one node moves no median beyond those of the honest nodes."""
    honest = [RecordDict({"m": MetricRecord({"loss": 0.1 * n, "num-examples": 3})}) for n in range(1, 4)]
    found = aggregate_metrics([without_arrays(content, medians), *honest], "num-examples", medians)
    require(set(found) <= {"loss"}, f"metrics {json.dumps(sorted(found))[:60]} that most nodes did not report")
    require(0.1 <= found["loss"] <= 0.3, "one node moved the median beyond all honest ones")


def surface(folder: Path) -> Surface:
    seeds = [b"", *(bytes([n]) * 30 for n in range(1, 40))]
    return Surface(case, seeds)
