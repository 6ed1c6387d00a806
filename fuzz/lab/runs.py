"""Surfaces: result files, up to the report's data, checkpoints, and files of first weights."""

import io
import json
import os
import tempfile
import zlib
from contextlib import redirect_stdout, suppress
from functools import partial
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import torch
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from safetensors.torch import save as save_tensors

from bartizan import records
from bartizan.lab.config.experiment import Experiment
from bartizan.lab.config.sections import ServerSettings as Settings
from bartizan.lab.models.weights import FirstWeights, WeightsError
from bartizan.lab.report.content import content, data
from bartizan.lab.report.load import load
from bartizan.lab.runs.checkpoint import Checkpoint
from bartizan.lab.runs.folder import recorded as recorded_by
from bartizan.lab.runs.progress_display import Display, summary
from bartizan.lab.runs.run import lines_of
from bartizan.lab.training.optimisers import OPTIMISERS
from bartizan.lab.training.server import Server
from bartizan.records import AnotherRunError, CorruptFileError
from fuzz.surfaces import ACCEPTED, COMPARED, RefusedError, Surface, documented, require, surface_of_calls
from fuzz.values import changed, files, pick, rarely
from tests.support.report_runs import write_run

EXPERIMENT = Experiment()
M = 4


def line_of(value):
    """Return a value as a line with a valid checksum."""
    body = json.dumps(value, separators=(",", ":")).encode("utf-8", "surrogatepass")
    return body[:-1] + b',"crc":"%08x"}\n' % zlib.crc32(body)


with tempfile.TemporaryDirectory() as _folder:
    WHOLE = (write_run(Path(_folder) / "abc", rounds=3, clients=M) / records.NAME).read_bytes()
_LINES = map(json.loads, WHOLE.splitlines())
RUN, *ROUNDS, END = ({key: value for key, value in line.items() if key != "crc"} for line in _LINES)
CHANGED = list(map(changed, (RUN, *ROUNDS, END)))


def _results(run, text, wanted=None):
    """Load a file with the report and whatever else reads it; `wanted` are the weights of a valid one."""
    (run / records.NAME).write_bytes(text)
    _read_by_all(run)
    found = reported(run.parent, sound=wanted is not None)
    if wanted is None:
        return ACCEPTED
    require(np.array_equal(found.weights, wanted), "other weights than were written")
    return COMPARED


def reported(folder, sound=False):
    """Return the only run of a folder as the report loads it."""
    found = load(folder)
    json.dumps(data(content(found)), allow_nan=False)
    require(len(found.runs) + len(found.broken) == 1, "the run is neither loaded nor listed as broken")
    if found.broken:
        require(not sound, f"a valid run was refused: {found.broken[0][1][-100:]}")
        require(10 < len(found.broken[0][1]) < 3000, "the message about a broken run is too long or too short")
        raise RefusedError
    return found.runs[0]


def _read_by_all(run):
    """Pass a run's lines to whatever else reads them: `bartizan run`, which shows a finished run, and `paper`."""
    try:
        with documented(CorruptFileError):
            recorded = records.read(run)
    except RefusedError:
        return
    progress = Display({"run": 3, "other": 3})
    with open(os.devnull, "w") as nowhere, redirect_stdout(nowhere):
        for line in recorded.lines():
            progress.update("run", line)
    for line in recorded.rounds:
        require(len(summary(recorded.run, line)) < 500, "the summary of a round is too long")
    with suppress(RefusedError), documented(CorruptFileError, AnotherRunError):
        recorded_by(run, EXPERIMENT)


@st.composite
def _valid_lines(draw):
    """Draw a file as a run writes it, and its weights."""
    weights = draw(hnp.arrays("f8", (draw(st.integers(1, 6)), M), elements=st.floats(0, 1, width=32)))
    rounds = [{**ROUNDS[0], "round": t, "weights": row.tolist()} for t, row in enumerate(weights, start=1)]
    return b"".join(map(line_of, [RUN, *rounds, *([END] if draw(st.booleans()) else [])])), weights


@st.composite
def _wrong_lines(draw):
    """Draw lines with valid checksums, some with wrong values."""
    lines = [RUN, *ROUNDS, END]
    for at in draw(st.lists(st.integers(0, len(lines) - 1), min_size=1, max_size=3)):
        value = draw(CHANGED[at])
        lines[at] = value if isinstance(value, dict) else {"kind": "round"}
    lines = lines[: draw(st.integers(0, len(lines)))] if draw(rarely(6)) else lines
    return b"".join(map(line_of, lines)) + draw(st.sampled_from([b"", b"", b"", b"{"]))


def results(folder):
    run = folder / "runs" / "one"
    run.mkdir(parents=True, exist_ok=True)
    texts = st.one_of(files(WHOLE, line_of(RUN)), _wrong_lines(), _wrong_lines())
    valid = _valid_lines().map(lambda one: partial(_results, run, *one))
    return surface_of_calls(st.one_of(valid, texts.map(lambda text: partial(_results, run, text))))


def saved(content):
    out = io.BytesIO()
    torch.save(content, out)
    return out.getvalue()


STATE = {"id": "a", "round": 1, "lines": 5, "seconds": 1.0, "server": {"weights": torch.zeros(3)}, "history": (0.5,)}
SAVED = saved({**STATE, "diverged": False})
OTHERS = [SAVED, saved({**STATE, "history": 7}), saved([1, 2]), saved({"x": np.float64(1)}), saved(STATE)]
OTHERS += [saved({**STATE, name: junk}) for name in STATE for junk in (None, -1, "x", [None], torch.zeros(2))]


def _loaded(folder, body, sound=False):
    (folder / "checkpoint.pt").write_bytes(body)
    with documented(CorruptFileError, sound=sound):
        found = Checkpoint.load(folder)
    require(found is not None and type(found.round) is type(found.lines) is int, "round and lines must be integers")
    require(found.lines >= 0 and type(found.server) is dict, "lines must not be negative, and server must be a dict")
    theirs, again = (torch.load(io.BytesIO(body), map_location="cpu", weights_only=True) for _ in range(2))
    if saved(theirs) != saved(again):  # torch returns uninitialised memory for some broken archives
        return ACCEPTED
    for name, one in theirs.items():
        same = saved(getattr(found, name)) == saved(tuple(one) if name == "history" else one)
        require(same, f"{name!r} is not what torch reads")
    return COMPARED


TENSORS = [
    *(torch.zeros(4), torch.ones(5), torch.zeros(4, dtype=torch.int64), torch.zeros(()), torch.tensor(float("nan"))),
    *(torch.zeros(1).expand(4), torch.zeros(1).expand(10**13), torch.zeros(4).to_sparse(), torch.zeros(2, 2)),
    *(torch.zeros(4, dtype=torch.complex64), torch.zeros(4, dtype=torch.float64), torch.zeros(8)[::2]),
]


@st.composite
def _forged(draw):
    """Draw a server after some steps, and its state, changed; not at all in a quarter of the cases."""
    optimiser = pick(draw, [one for one in OPTIMISERS if one != "prodigy" or find_spec("prodigyopt")])
    one, other = (Server(torch.ones(6), 4, Settings(optimiser), step_size=0.1, rounds=5) for _ in range(2))
    for _ in range(draw(st.integers(0, 2))):
        one.step(torch.ones(6))
    if sound := draw(rarely(4)):
        return one, other, one.state_dict(), sound
    state = draw(changed(one.state_dict()))
    if isinstance(state, dict) and state and draw(st.booleans()):
        state = {**state, pick(draw, list(state)): pick(draw, TENSORS)}
    return one, other, state, sound


def _restored(folder, one, other, forged, sound):
    """Let another server go on from a forged state; it may refuse it, but not fail in a later round."""
    lines = b"".join(map(line_of, [RUN, *ROUNDS[: one.round]]))
    (folder / records.NAME).write_bytes(lines)
    state = {**STATE, "id": EXPERIMENT.id, "round": one.round, "lines": len(lines)}
    try:
        (folder / "checkpoint.pt").write_bytes(saved({**state, "server": forged}))
    except (TypeError, ValueError, RuntimeError, OverflowError):
        raise RefusedError from None
    with documented(CorruptFileError, sound=sound):
        found = Checkpoint.load(folder)
        assert found is not None
        lines_of(found, folder, EXPERIMENT)
    try:
        other.load_state_dict(found.server)
    except (ValueError, TypeError, LookupError, AttributeError, RuntimeError) as refused:  # `run` names the file
        require(not sound, f"a valid state was refused: {refused}")
        raise RefusedError from None
    for _ in range(2):
        other.step(torch.ones(6))
        if sound:
            one.step(torch.ones(6))
    require(not sound or torch.equal(one.weights, other.weights), "a restored server takes other steps")
    return COMPARED if sound else ACCEPTED


WRITTEN = st.fixed_dictionaries(
    {
        **{"id": st.sampled_from(["a", "é", ""]), "round": st.integers(0, 500), "lines": st.integers(0, 5000)},
        **{"seconds": st.floats(0, 40), "diverged": st.booleans(), "history": st.lists(st.floats(0, 28)).map(tuple)},
        "server": st.fixed_dictionaries({"weights": st.lists(st.floats(0, 255, width=32)).map(torch.tensor)}),
    }
)
"""The content of a checkpoint as a run writes it."""


def checkpoints(folder):
    return surface_of_calls(
        st.one_of(
            WRITTEN.map(lambda one: partial(_loaded, folder, saved(one), True)),
            files(*OTHERS).map(lambda body: partial(_loaded, folder, body)),
            _forged().map(lambda one: partial(_restored, folder, *one)),
        )
    )


def _model():
    return torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.BatchNorm1d(4), torch.nn.Linear(4, 3))


MODEL = {name: tensor.clone() for name, tensor in _model().state_dict().items()}
WHOLE_MODELS = [(".pt", saved(MODEL)), (".pth", saved(MODEL)), (".safetensors", save_tensors(MODEL))]
FORGED_MODELS = st.builds(
    lambda name, tensor: (".pt", saved({**MODEL, name: tensor})), st.sampled_from([*MODEL]), st.sampled_from(TENSORS)
)
MODELS = files(saved(MODEL), save_tensors(MODEL), saved({"state_dict": MODEL}))
MODEL_FILES = st.tuples(st.sampled_from([".pt", ".pth", ".safetensors"]), MODELS)


def _loaded_weights(folder, file):
    suffix, body = file
    path, model = folder / f"first{suffix}", _model()
    path.write_bytes(body)
    with documented(WeightsError, sound=file in WHOLE_MODELS):
        FirstWeights.read(str(path)).load_into(model)
    loaded = model.state_dict()
    require(all(bool(tensor.isfinite().all()) for tensor in loaded.values()), "the model has NaN or infinity")
    same = all(torch.equal(loaded[name], MODEL[name]) for name in MODEL)
    require(same or file not in WHOLE_MODELS, "other weights were loaded")
    return COMPARED


def first_weights(folder):
    return Surface(
        partial(_loaded_weights, folder), {"file": st.one_of(st.sampled_from(WHOLE_MODELS), FORGED_MODELS, MODEL_FILES)}
    )
