"""The fuzz campaign in small: no case fails, and a library that is broken on purpose does."""

from __future__ import annotations

import json
import random
import re
import subprocess
import sys
import time
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import Phase
from hypothesis import strategies as st

pytest.importorskip("torch")
pytest.importorskip("safetensors")
pytest.importorskip("PIL")

import bartizan as bz
from bartizan import files
from bartizan._util import schema
from bartizan.judge import judge
from bartizan.lab.data import cifar, idx
from bartizan.lab.runs import checkpoint
from bartizan.sources.adapters import merge
from bartizan.sources.committed import record, replay
from bartizan.sources.committed.committed_updates import CommittedUpdates
from bartizan.sources.committed.round_messages import decoded
from bartizan.sources.committed.transcript import Transcript
from bartizan.updates import Updates, parse_updates
from bartizan.updates import build as combining
from bartizan.updates.updates import usual_container
from fuzz import search, surfaces
from fuzz.search import Search
from fuzz.surfaces import CLIENT_MEMORY_ERROR, SURFACES, RefusedError, Surface, documented, fair, missing

ROOT = Path(__file__).parent.parent


@pytest.fixture(autouse=True)
def patience(monkeypatch):
    """Let a hang fail, and nothing that is only slow: kernels may be compiled, on a busy machine."""
    monkeypatch.setattr(search, "SECONDS_PER_CASE", 300.0)


def search_of(name, folder):
    if missing(name):
        pytest.skip(f"{missing(name)} not installed")
    return Search(name, surfaces.build(name, folder))


def found(tried, says, most=10):
    """Return whether one of so many runs, each until something new fails, fails with this message."""
    for number in range(most):
        tried.by_seed(number, max_examples=250, phases=[Phase.generate])
        if any(says in failure["said"] for failure in tried.failures.values()):
            return True
    return False


@pytest.mark.parametrize("name", SURFACES)
def test_no_case_of_a_short_campaign_fails(name, tmp_path):
    tried = search_of(name, tmp_path)
    tried.by_seed(0, max_examples=100)
    assert not tried.failures
    assert tried.cases >= 100
    assert tried.outcomes["accepted"]
    assert tried.outcomes["refused"] or name.startswith("weightless")


@pytest.mark.parametrize("name", ["aggregate", "round", "nvflare", "checkpoints"])
def test_no_case_that_is_drawn_from_bytes_fails(name, tmp_path):
    tried, draw = search_of(name, tmp_path), random.Random(0)
    run = tried.test().hypothesis.fuzz_one_input
    for _ in range(40):
        run(draw.randbytes(4096))
    assert tried.cases > 20


def rolled(weighted_sum=combining._weighted_sum):
    return lambda clients, weights: weighted_sum(clients, np.roll(weights, 1))


def refusing(*given):
    raise ValueError("no file is good enough")


def inverted(read=idx._read):
    return lambda source, path, axes: 255 - read(source, path, axes) if axes == 3 else read(source, path, axes)


def without_reference(parse=parse_updates):
    return lambda *args, **settings: parse(*args, **{**settings, "reference": None})


def by_another_seed(read=bz.Rotated.measure):
    return lambda self, clients, seed, about=None: read(self, clients, seed + len(clients.clients), about)


def container_without_weights(self, weights):
    return usual_container(self.containers, np.ones(len(self)))


def rank_without_weights(choose=merge.Template.of):
    return lambda clients, weights, settings: choose(clients, np.ones(len(clients)), settings)


def of_another_round(kind, content):
    return replace(schema.parse(kind, content), round=7)


PARSED = sys.modules["bartizan.sources.local"]
SIZES = sys.modules["bartizan.measure.client_sizes"]


def of_other_clients():
    """Weights that are computed from the sketches of other clients than those that get them."""
    measure = CommittedUpdates.measure

    def broken(self, *given, **named):
        found = measure(self, *given, **named)
        return replace(
            found, sketches=np.roll(found.sketches, 1, axis=0), squared_norms=np.roll(found.squared_norms, 1)
        )

    return broken


def unchained(file):
    """Yield the messages of a record whatever the hashes say that are written behind them."""
    data, at, head = file.read(), len(record.FIRST_LINE), record.FIRST_HEAD
    while at < len(data):
        size = int.from_bytes(data[at : at + 4], "little")
        message = decoded(data[at + 4 : at + 4 + size])
        at, head = at + size + 36, record.head_after(head, message)
        yield message, head


BROKEN = [  # the surface, what is broken and where, the thing put there, what the campaign says
    ("aggregate", judge, "unusable_numbers", lambda source, measured: {}, "bad clients took part"),
    ("aggregate", combining, "_weighted_sum", rolled(), "the update is not the weighted sum"),
    ("aggregate", PARSED, "parse_updates", without_reference(), "the clients' geometry"),
    ("aggregate", bz.Rotated, "measure", by_another_seed(), "the clients' geometry"),
    ("sizes", SIZES, "LEAST_SIZE", 0.0, "were taken"),
    ("update-files", files, "check_array", refusing, "no file is good enough"),
    ("cifar", cifar, "_safely", lambda source, path, read, value: read(value), "NotDataError"),
    ("mnist", idx, "_read", inverted(), "other pixels than were written"),
    ("checkpoints", checkpoint, "schema", SimpleNamespace(parse=of_another_round), "'round' is not what torch reads"),
    ("committed", CommittedUpdates, "measure", of_other_clients(), "the result is not that of the others"),
    ("committed", Transcript, "sharing_a_root", lambda self: ["a"], "an honest client was put out"),
    ("committed", replay, "entries", unchained, "a changed record was accepted"),
    ("weightless", Updates, "like_of", container_without_weights, "a client without weight"),
    ("weightless-adapters", merge.Template, "of", rank_without_weights(), "a client without weight changed"),
]


@pytest.mark.parametrize(
    ("name", "where", "attribute", "put", "says"), BROKEN, ids=lambda one: one if isinstance(one, str) else ""
)
def test_a_campaign_finds(name, where, attribute, put, says, monkeypatch, tmp_path):
    tried = search_of(name, tmp_path)
    monkeypatch.setattr(where, attribute, put)
    assert found(tried, says)


def test_a_case_that_hangs_is_a_failure(monkeypatch):
    monkeypatch.setattr(search, "SECONDS_PER_CASE", 0.05)
    tried = Search("made_up", Surface(lambda n: time.sleep(20) or "accepted", {"n": st.just(0)}))
    assert found(tried, "TimeoutError")


def over(limit):
    """A surface that fails above a limit."""

    def check(n):
        surfaces.require(n <= limit, "too large")
        return "accepted"

    return Surface(check, {"n": st.integers(0, 2**16)})


def test_a_failure_is_shrunk_and_replayed_until_it_is_mended():
    tried = Search("made_up", over(999))
    tried.by_seed(0, max_examples=100)
    said = tried.failures["WrongError: too large"]["case"]
    assert "n=1000" in said
    (blob,) = re.findall(r"b'(.*?)'", said)
    again, mended = Search("made_up", over(999)), Search("made_up", over(2**16))
    for one in (again, mended):
        one.replay(blob.encode())
    assert again.failures.keys() == tried.failures.keys()
    assert not mended.failures


ACCIDENTS = {
    "a conversion in C": "float('no number at all')",
    "a sum of unequal shapes": "np.zeros(3) + np.zeros(4)",
    "a search in a list": "[1, 2].index(3)",
    "a parser of Python's": "json.loads('no json at all')",
    "an error within a raise": "raise ValueError(int(text))",
}


def ours(code: str) -> None:
    """Run code as if it were a file of the library."""
    where = str(Path(surfaces.HOME) / "made_up.py")
    exec(compile(code, where, "exec"), {"np": np, "json": json, "text": "no number"})


@pytest.mark.parametrize("code", ACCIDENTS.values(), ids=ACCIDENTS)
def test_an_error_that_the_library_did_not_raise_itself_is_a_failure(code):
    with pytest.raises(ValueError, match=r"no number|shapes|not in list|Expecting value"), documented(ValueError):
        ours(code)


@pytest.mark.parametrize(
    "code", ["raise ValueError(\n'what was wanted')", "raise ValueError('what came, and why') from None"]
)
def test_an_error_that_the_library_raises_is_a_refusal(code):
    with pytest.raises(RefusedError), documented(ValueError):
        ours(code)
    with pytest.raises(RefusedError), documented(ValueError):
        bz.Krum(-1)


def test_a_memory_error_is_a_failure_unless_a_client_raised_it():
    code = "try: raise MemoryError({!r})\nexcept MemoryError as e: raise ValueError('it is not sound') from e"
    with pytest.raises(ValueError, match="not sound"), documented(ValueError):
        ours(code.format("Unable to allocate 4 GiB"))
    with pytest.raises(RefusedError), documented(ValueError):
        ours(code.format(CLIENT_MEMORY_ERROR))
    assert not fair("it can't be read: MemoryError: Unable to allocate 4 GiB")
    assert fair(f"it can't be read: MemoryError: {CLIENT_MEMORY_ERROR}")


@pytest.mark.parametrize("name", SURFACES)
def test_the_packages_that_guide_the_search_exist(name):
    assert [one for one in SURFACES[name].packages.split() if find_spec(f"bartizan.{one}") is None] == []


def test_the_campaign_writes_its_figures(tmp_path):
    out = tmp_path / "report.json"
    command = [sys.executable, "-m", "fuzz", "--minutes", "0.005", "--surface", "mnist", "--out", str(out)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stderr
    report = json.loads(out.read_text())
    assert report["surfaces"]["mnist"]["cases"] == report["cases"] > 10
    assert report["crashes"] == report["wrong"] == 0
