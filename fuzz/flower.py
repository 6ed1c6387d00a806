"""Surfaces: replies of Flower nodes, compared with NumPy's reader, and checkpoints of Flower runs.

A damaged checkpoint is refused or read as it was written; a forged one is harmless.
"""

import io
import json
import math
import tempfile
import zipfile
from functools import partial
from pathlib import Path

import numpy as np
from flwr.app import Array, ArrayRecord, MetricRecord, RecordDict
from hypothesis import strategies as st

import bartizan as bz
from bartizan.flower import replies as library
from bartizan.flower import saved_state
from bartizan.flower.saved_state import Saved
from bartizan.judge.reputation import Reputation
from bartizan.records import CorruptFileError
from fuzz.surfaces import ACCEPTED, COMPARED, Surface, documented, require, surface_of_calls
from fuzz.updates.files import NPY, npy
from fuzz.values import ARRAYS, NUMBERS, changed, edited, files, pick, rarely

GLOBAL = {"w": np.arange(6, dtype=np.float32).reshape(2, 3), "n": np.array(3)}
MODEL = library.Model.of(ArrayRecord({name: Array(one) for name, one in GLOBAL.items()}))
NAMES = ("w", "n", "extra", "", "w\0", "x" * 3000)
SHAPES = ["(2, 3)", "()", "(6,)", "(2, 3, )", "(99999999999999999999,)", "(-1,)", "(2, 3), **{}"]
HEADERS = st.builds(
    "{{'descr': '{}', 'fortran_order': {}, 'shape': {}, }} \n".format,
    st.sampled_from(["<f4", ">f4", "<f8", "|O", "<c8", "f4", "<f44444444444444", "|V9"]),
    *(st.sampled_from(["False", "True", "None"]), st.sampled_from(SHAPES)),
)
FORGED = st.builds(
    lambda text, n: b"\x93NUMPY\1\0" + len(text).to_bytes(2, "little") + text.encode() + bytes(n),
    *(HEADERS, st.sampled_from([24, 0, 48, 23])),
)
"""Files with a header of their own."""
BYTES = st.one_of(*[files(npy(one)) for one in GLOBAL.values()], FORGED, st.sampled_from(NPY), ARRAYS.map(npy))


def _record(w, n, size, loss):
    arrays = {"w": Array(GLOBAL["w"] + np.float32(w)), "n": Array(np.array(n))}
    metrics = MetricRecord({"num-examples": size, "loss": loss})
    return RecordDict({"arrays": ArrayRecord(arrays), "metrics": metrics})


HONEST = st.builds(_record, st.integers(0, 255), st.integers(0, 999), st.integers(1, 500), st.floats(0, 30))


@st.composite
def _hostile(draw):
    arrays = {}
    for name in ("w", "n") if not draw(rarely(4)) else draw(st.lists(st.sampled_from(NAMES), max_size=3)):
        data, shape = draw(BYTES), pick(draw, [(2, 3), (), (9,), (2**40,)])
        stype = pick(draw, [*["numpy.ndarray"] * 8, "torch", "", "numpy.ndarray "])
        arrays[name] = Array(dtype=pick(draw, ["float32", "object", ""]), shape=shape, stype=stype, data=data)
    found = RecordDict({"arrays": ArrayRecord(arrays)})
    if not draw(rarely(9)):
        found["metrics"] = MetricRecord({"num-examples": 3 if not draw(rarely(4)) else pick(draw, NUMBERS)})
    if draw(rarely(8)):
        found["more"] = MetricRecord({pick(draw, ["num-examples", "loss", ""]): pick(draw, NUMBERS)})
    if draw(rarely(12)):
        found["again"] = ArrayRecord(arrays)
    return found


def _reply(content, sound):
    honest = [RecordDict({"m": MetricRecord({"loss": 0.1 * n, "num-examples": 3})}) for n in range(1, 4)]
    found = library.aggregate_metrics(
        [library.without_arrays(content, library.medians), *honest], "num-examples", library.medians
    )
    require(set(found) <= {"loss"}, f"metrics {json.dumps(sorted(found))[:60]} that most nodes did not report")
    require(0.1 <= found["loss"] <= 0.3, "one node moved the median beyond all honest ones")
    with documented(ValueError, sound=sound):
        arrays = MODEL.decode(library.arrays_of(content))
        library.reported_size(content, "num-examples")
    for name, one in arrays.items():
        theirs = np.load(io.BytesIO(library.records_of(content, ArrayRecord)[0][name].data), allow_pickle=False)
        require(np.array_equal(one, theirs, equal_nan=True), f"{name!r} has other numbers than NumPy reads")
    others = [{name: array + m for name, array in GLOBAL.items()} for m in range(3)]
    out = bz.aggregate([arrays, *others], bz.Mean(), reference=GLOBAL)
    require(set(out.quarantined) <= {0} and np.isfinite(out.update["w"]).all(), "one reply changed the fate of others")
    return COMPARED


def replies(folder):
    sound, hostile = HONEST.map(lambda one: (one, True)), _hostile().map(lambda one: (one, False))
    return Surface(lambda reply: _reply(*reply), {"reply": st.one_of(hostile, hostile, hostile, sound)})


@st.composite
def _saved(draw):
    reputation = Reputation()
    for _ in range(draw(st.integers(0, 3))):
        weights = draw(st.dictionaries(st.integers(2, 5), st.sampled_from([0.0, 0.5, 1.0]), max_size=4))
        reputation.add(weights, {2**64 - 1: "NaN"} if draw(rarely(3)) else {}, {7: "late"} if draw(rarely(3)) else {})
    arrays = {"w": np.full((2, 3), draw(st.integers(0, 255)), np.float32), "n": np.array(draw(st.integers(0, 255)))}
    record = {name: Array(array) for name, array in arrays.items()}
    seconds, history = draw(st.floats(0, 40)), tuple(draw(st.lists(st.floats(0, 30), max_size=3)))
    return Saved(draw(st.integers(1, 9)), seconds, history, reputation, {"rule": "Mean()"}, record)


@st.composite
def _damaged(draw):
    """Draw what is saved, the file that is found, and whether it is forged: changed, with checksums that are right."""
    saved, out = draw(_saved()), io.BytesIO()
    with tempfile.TemporaryDirectory() as folder:
        saved_state.save(Path(folder), saved)
        whole = (Path(folder) / saved_state.NAME).read_bytes()
    if forged := draw(st.booleans()):
        with zipfile.ZipFile(io.BytesIO(whole)) as archive:
            entries = {name: archive.read(name) for name in archive.namelist()}
        if draw(rarely(3)):
            entries["0.npy"] = draw(edited(entries["0.npy"]))
        else:
            about = draw(changed(json.loads(entries[saved_state.ABOUT])))
            entries[saved_state.ABOUT] = json.dumps(about).encode("utf-8", "surrogatepass")
        with zipfile.ZipFile(out, "w") as archive:
            for name, data in entries.items():
                archive.writestr(name, data)
    return saved, out.getvalue() if forged else draw(files(whole)), forged


def _loaded(folder, written, content=None, forged=False):
    saved_state.save(folder, written)
    if content is not None:
        (folder / saved_state.NAME).write_bytes(content)
    with documented(CorruptFileError, ValueError, sound=content is None):  # a model of other shapes is a ValueError
        found = saved_state.load(folder, MODEL, {"rule": "Mean()"})
    found.reputation.suspects()
    require(found.round >= 1 and found.seconds >= 0, "round and seconds of no run")
    require(all(map(math.isfinite, found.history)), "a history that is not finite")
    require(np.isfinite(library.Model.of(found.arrays).arrays["w"]).all(), "a model that is not finite")
    require(forged or _state(found) == _state(written), "another state than was written")
    return ACCEPTED if forged else COMPARED


def _state(saved):
    arrays = {name: array.data for name, array in saved.arrays.items()}
    return saved.round, saved.seconds, saved.history, saved.reputation.as_dict(), dict(saved.settings), arrays


def checkpoints(folder):
    sound, damaged = _saved().map(lambda one: (one,)), _damaged()
    return surface_of_calls(st.one_of(sound, damaged, damaged).map(lambda one: partial(_loaded, folder, *one)))
