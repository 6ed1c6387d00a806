"""Surfaces: result files, up to the report's data, and checkpoints."""

from __future__ import annotations

import io
import json
import os
import zlib
from contextlib import redirect_stdout, suppress
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import torch

from bartizan import records
from bartizan.lab.config.experiment import Experiment
from bartizan.lab.config.sections import ServerSettings as Settings
from bartizan.lab.report.content import content, data
from bartizan.lab.report.load import load
from bartizan.lab.runs.checkpoint import Checkpoint
from bartizan.lab.runs.folder import recorded as recorded_by
from bartizan.lab.runs.progress_display import Display
from bartizan.lab.runs.run import lines_of
from bartizan.lab.training.server import Server
from bartizan.lab.training.step_sizes import STEP_SIZES
from bartizan.records import AnotherRunError, CorruptFileError
from fuzz.draw import Draw
from fuzz.mutate import mutated_bytes, mutated_value
from fuzz.surfaces import ACCEPTED, COMPARED, RefusedError, Surface, documented, require

EXPERIMENT = Experiment()
M = 4
RUN = {
    **{"kind": "run", "version": 1, "id": "abc", "name": "n", "config": {"seed": 1, "rule": {"name": "krum"}}},
    **{"clients": [0, 1, 2, 3], "byzantine": [3], "ratio": {"count": 0.25, "data": 0.2}, "sizes": [5, 5, 5, 5]},
    **{"split": [[1, 4]] * M, "classes": ["a", "b"], "dim": 9, "bartizan": "0.1.0", "torch": "2", "machine": "m"},
}
ROUNDS = [
    {
        **{"kind": "round", "round": t, "clients": [0, 1, 2, 3], "weights": [0.5, 0.5, 0.0, 0.0], "accuracy": 0.1 * t},
        **{"exact_weights": [0.25] * M, "quarantined": {"3": "NaN"}, "loss": 2.0, "norm": 1.0, "read": 1e-3},
        **{"seconds": {"train": 1.0, "sketch": 0.1, "weigh": 0.1, "combine": 0.1}, "sketch": "Rotated(k=64)"},
    }
    for t in (1, 2, 3)
]
END = {"kind": "end", "status": "finished", "best": 0.3, "last": 0.3, "seconds": 3.0, "converged": True}
LINES: list[Any] = [RUN, *ROUNDS, END]


def line_of(value: Any) -> bytes:
    """Return a value as a line with a valid checksum."""
    body = json.dumps(value, separators=(",", ":")).encode("utf-8", "surrogatepass")
    return body[:-1] + b',"crc":"%08x"}\n' % zlib.crc32(body)


WHOLE = b"".join(map(line_of, LINES))


def _results_case(folder: Path) -> Any:
    run = folder / "runs" / "one"
    run.mkdir(parents=True, exist_ok=True)

    def case(data_: bytes) -> str:
        draw = Draw(data_)
        kind, wanted = draw.below(5), None
        try:
            if kind == 4:
                text, wanted = _valid_results(draw)
            else:
                text = [draw.rest, lambda: mutated_bytes(WHOLE, draw), lambda: _lines(draw), lambda: _lines(draw)][
                    kind
                ]()
        except (ValueError, RecursionError):  # JSON can't express the value
            raise RefusedError from None
        (run / records.NAME).write_bytes(text)
        _read_by_all(run)
        found = load(folder / "runs")
        json.dumps(data(content(found)), allow_nan=False)
        require(len(found.runs) + len(found.broken) == 1, "the run is neither loaded nor listed as broken")
        if found.broken:
            require(wanted is None, f"a valid run was refused: {found.broken[0][1][-100:]}")
            require(10 < len(found.broken[0][1]) < 3000, "the message about a broken run is too long or too short")
            raise RefusedError
        if wanted is None:
            return ACCEPTED
        require(np.array_equal(found.runs[0].weights, wanted), "other weights than were written")
        return COMPARED

    return case


def _read_by_all(run: Path) -> None:
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
        require(len(progress.runs["run"].summary) < 500, "the summary of a run is too long")
    with suppress(RefusedError), documented(CorruptFileError, AnotherRunError):
        recorded_by(run, EXPERIMENT)


def _valid_results(draw: Draw) -> tuple[bytes, np.ndarray]:
    """Return a file as a run writes it, and its weights."""
    weights = np.array([[draw.byte() / 256 for _ in range(M)] for _ in range(1 + draw.below(6))])
    rounds = [
        {**ROUNDS[0], "round": t, "weights": row.tolist(), "accuracy": draw.byte() / 256}
        for t, row in enumerate(weights, start=1)
    ]
    return b"".join(map(line_of, [RUN, *rounds, *([END] if draw.chance(2) else [])])), weights


def _lines(draw: Draw) -> bytes:
    """Return lines with valid checksums, some with wrong values."""
    lines = list(LINES)
    for _ in range(1 + draw.below(3)):
        at = draw.below(len(lines))
        changed = mutated_value(lines[at], draw)
        lines[at] = changed if isinstance(changed, dict) else {"kind": "round"}
    if draw.chance(6):
        lines = lines[: draw.below(len(lines))]
    return b"".join(map(line_of, lines)) + (draw.rest()[:20] if draw.chance(5) else b"")


def results(folder: Path) -> Surface:
    seeds = [b"\0" + WHOLE, b"\0" + line_of(RUN), *(bytes([k]) + bytes(range(60)) for k in (1, 2, 3, 4))]
    return Surface(_results_case(folder), seeds, length=4000)


def saved(content: Any) -> bytes:
    out = io.BytesIO()
    torch.save(content, out)
    return out.getvalue()


STATE = {"id": "a", "round": 1, "lines": 5, "seconds": 1.0, "server": {"weights": torch.zeros(3)}, "history": (0.5,)}
SAVED = saved({**STATE, "diverged": False})
OTHERS = [SAVED, saved({**STATE, "history": 7}), saved([1, 2]), saved({"x": np.float64(1)}), saved(STATE)]
OTHERS += [saved({**STATE, name: junk}) for name in STATE for junk in (None, -1, "x", [None], torch.zeros(2))]


def _checkpoint_case(folder: Path) -> Any:
    folder.mkdir(parents=True, exist_ok=True)

    def case(data_: bytes) -> str:
        draw = Draw(data_)
        kind = draw.below(5)
        if kind == 4:
            return _restored(draw, folder)
        if kind == 3:
            body = _state(draw)
        else:
            body = (
                draw.rest() if kind == 0 else mutated_bytes(draw.pick(OTHERS), draw) if kind == 1 else draw.pick(OTHERS)
            )
        (folder / "checkpoint.pt").write_bytes(body)
        with documented(CorruptFileError, sound=kind == 3):
            found = Checkpoint.load(folder)
        require(found is not None and type(found.round) is type(found.lines) is int, "round and lines must be integers")
        require(
            found is not None and found.lines >= 0 and type(found.server) is dict,
            "lines must not be negative, and server must be a dict",
        )
        theirs, again = (torch.load(io.BytesIO(body), map_location="cpu", weights_only=True) for _ in range(2))
        if not _same(theirs, again):  # torch returns uninitialised memory for some broken archives
            return ACCEPTED
        for name, one in theirs.items():
            own = getattr(found, name)
            require(_same(own, tuple(one) if name == "history" else one), f"{name!r} is not what torch reads")
        return COMPARED

    return case


TENSORS: list[Any] = [
    *(torch.zeros(4), torch.ones(5), torch.zeros(4, dtype=torch.int64), torch.zeros(()), torch.tensor(float("nan"))),
    *(torch.zeros(1).expand(4), torch.zeros(1).expand(10**13), torch.zeros(4).to_sparse(), torch.zeros(2, 2)),
    *(torch.zeros(4, dtype=torch.complex64), torch.zeros(4, dtype=torch.float64), torch.zeros(8)[::2]),
]


def _restored(draw: Draw, folder: Path) -> str:
    """A server goes on from a forged state, or refuses it: it does not fail in a later round."""
    optimiser = draw.pick(["sgd", "momentum", *(["prodigy"] if find_spec("prodigyopt") else []), *STEP_SIZES])
    one, other = (Server(torch.ones(6), 4, Settings(optimiser), step_size=0.1, rounds=5) for _ in range(2))
    for _ in range(draw.below(3)):
        one.step(torch.ones(6))
    sound = draw.chance(4)
    forged = one.state_dict() if sound else mutated_value(one.state_dict(), draw)
    if not sound and isinstance(forged, dict) and forged and draw.chance(2):
        forged = {**forged, draw.pick(list(forged)): draw.pick(TENSORS)}
    lines = b"".join(map(line_of, [RUN, *ROUNDS[: one.round]]))
    (folder / records.NAME).write_bytes(lines)
    state = {**STATE, "id": EXPERIMENT.id, "round": one.round, "lines": len(lines)}
    try:
        (folder / "checkpoint.pt").write_bytes(saved({**state, "server": forged}))
    except (TypeError, ValueError, RuntimeError, OverflowError):
        raise RefusedError from None
    with documented(CorruptFileError):
        found = Checkpoint.load(folder)
    assert found is not None
    with documented(CorruptFileError, sound=sound):
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


def _state(draw: Draw) -> bytes:
    """Return a checkpoint as a run writes it."""
    weights = torch.tensor([float(draw.byte()) for _ in range(draw.below(9))])
    counts = {"round": draw.below(500), "lines": draw.below(5000), "seconds": draw.byte() / 7}
    past = tuple(draw.byte() / 9 for _ in range(draw.below(4)))
    state = {"id": draw.pick(["a", "é", ""]), **counts, "server": {"weights": weights}, "history": past}
    return saved({**state, "diverged": draw.chance(2)})


def _same(one: Any, other: Any) -> bool:
    """Return whether two values are equal, tensors and NaN included."""
    if isinstance(one, torch.Tensor) and isinstance(other, torch.Tensor):
        return one.dtype == other.dtype and torch.equal(one.nan_to_num(7), other.nan_to_num(7))
    if isinstance(one, dict) and isinstance(other, dict):
        return list(one) == list(other) and all(_same(one[key], other[key]) for key in one)
    if isinstance(one, (list, tuple)):
        return type(one) is type(other) and len(one) == len(other) and all(map(_same, one, other))
    return bool(one == other or (one != one and other != other))


def checkpoints(folder: Path) -> Surface:
    seeds = [b"\2", b"\3" + bytes(range(30)), b"\2\1", b"\2\4", b"\0" + SAVED, b"\1" + bytes(range(40))]
    seeds += [bytes([4, optimiser, 2, n]) + bytes(range(n, n + 30)) for optimiser in range(6) for n in (1, 2, 3)]
    return Surface(_checkpoint_case(folder), seeds, length=3000)
