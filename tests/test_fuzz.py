"""The fuzz campaign in small: no case fails, and a library that is broken on purpose does."""

from __future__ import annotations

import itertools
import json
import signal
import subprocess
import sys
import time
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

pytest.importorskip("torch")
pytest.importorskip("safetensors")
pytest.importorskip("PIL")

import bartizan as bz
from bartizan import files, registry
from bartizan._util import schema
from bartizan.judge import judge
from bartizan.kernels import reference
from bartizan.lab.data import cifar, idx
from bartizan.lab.runs import checkpoint
from bartizan.rules.krum import Krum
from bartizan.sources.adapters import result_template, two_sided
from bartizan.updates import Updates, fetch, layout, parse_updates
from bartizan.updates import build as combining
from fuzz import monitor, search
from fuzz.draw import Draw
from fuzz.monitor import Monitor
from fuzz.rules import RULES
from fuzz.shrink import shrunk
from fuzz.surfaces import CLIENT_MEMORY_ERROR, HOME, SURFACES, RefusedError, Surface, build, documented, fair, missing
from round_machine import RoundMachine

ROOT = Path(__file__).parent.parent
FEW = settings(max_examples=25, derandomize=True, deadline=None, database=None, suppress_health_check=list(HealthCheck))


@pytest.fixture(scope="module", params=SURFACES)
def surface(request, tmp_path_factory):
    if missing(request.param):
        pytest.skip(f"{missing(request.param)} not installed")
    return build(request.param, tmp_path_factory.mktemp("fuzz"))


@pytest.fixture
def alarm(monkeypatch):
    """Let a hang fail, and nothing that is only slow: kernels may be compiled, on a busy machine."""
    monkeypatch.setattr(monitor, "TIME_LIMIT", 300.0)
    before = signal.getsignal(signal.SIGALRM)
    monitor.raise_on_alarm()
    yield
    signal.signal(signal.SIGALRM, before)


def first(surface: Surface, count: int) -> Monitor:
    """Run this many cases."""
    seen = Monitor(surface)
    for data in itertools.islice(search.cases(surface, seed=0), count):
        seen.run(data)
    return seen


def found(surface: Surface, says: str, most: int = 2500) -> bool:
    """Return whether one of `most` cases fails with this message."""
    seen = Monitor(surface)
    for data in itertools.islice(search.cases(surface, seed=0), most):
        if not seen.run(data) and says in messages(seen):
            return True
    return False


def messages(seen: Monitor) -> str:
    return "; ".join(failure["said"] for failure in seen.failures.values())


def test_no_case_of_a_short_campaign_fails(surface, alarm):
    seen = first(surface, 100)
    assert not seen.failures
    assert seen.outcomes["accepted"]
    assert seen.outcomes["refused"]


@pytest.mark.parametrize("name", ["aggregate", "round"])
def test_no_bytes_that_hypothesis_draws_make_a_case_that_fails(name, tmp_path, alarm):
    seen = Monitor(build(name, tmp_path))

    @FEW
    @given(st.binary(max_size=300))
    @example(bytes(range(256)))
    def try_one(data):
        assert seen.run(data), seen.failures

    try_one()


TestRoundMachine = RoundMachine.TestCase
TestRoundMachine.settings = settings(FEW, max_examples=20, stateful_step_count=20)


def test_a_campaign_finds_quarantine_switched_off(monkeypatch, tmp_path, alarm):
    monkeypatch.setattr(judge, "unusable_numbers", lambda clients, stats, find_faults: {})
    assert found(build("aggregate", tmp_path), "bad clients took part")


def test_a_campaign_finds_weights_that_are_off_by_one(monkeypatch, tmp_path, alarm):
    weighted_sum = combining._weighted_sum
    monkeypatch.setattr(combining, "_weighted_sum", lambda clients, weights: weighted_sum(clients, np.roll(weights, 1)))
    assert found(build("aggregate", tmp_path), "the update is not the weighted sum of the clients")


def test_a_campaign_finds_a_rule_that_trusts_the_wrong_client(monkeypatch, tmp_path, alarm):
    def worst(self, geometry):
        weights = np.zeros(geometry.n_clients)
        weights[geometry.squared_distances.sum(axis=1).argmax()] = 1.0
        return weights

    monkeypatch.setattr(Krum, "weigh", worst)
    assert found(build("aggregate", tmp_path), "Krum selected a client of too large a score")


def test_a_campaign_finds_a_loader_that_lets_errors_through(monkeypatch, tmp_path, alarm):
    monkeypatch.setattr(cifar, "_safely", lambda source, path, read, value: read(value))
    assert "NotDataError" in " ".join(first(build("cifar", tmp_path), 200).failures)


def refusing(path):
    raise ValueError("no file is good enough")


def inverted(read=idx._read):
    return lambda source, path, axes: 255 - read(source, path, axes) if axes == 3 else read(source, path, axes)


def without_reference(parse=parse_updates):
    return lambda *args, **settings: parse(*args, **{**settings, "reference": None})


def by_another_seed(read=bz.Rotated.measure):
    return lambda self, clients, seed, about=None: read(self, clients, seed + len(clients.clients), about)


def without_weights(choose=result_template.Template.of):
    return lambda clients, weights, settings: choose(clients, np.ones(len(clients)), settings)


def of_another_round(kind, content):
    return replace(schema.parse(kind, content), round=7)


def hadamard_rows(self, modules, side, low, x):
    """Signs of `TwoSided` before rows were independent: equal groups of rows vanish on both sides."""
    rng, n_blocks = np.random.default_rng([int(self.key[0] >> 32), side == "A"]), -(-x.shape[2] // self.rows)
    first, second = rng.choice([-1.0, 1.0], size=(2, n_blocks, self.rows))
    signs = first[:, :, None] * reference.hadamard(self.rows) * second[:, None]
    return signs.reshape(1, -1, self.rows)[:, : x.shape[2]].astype(x.dtype)


def sizes_only(folder, path, state=fetch.StoredFolder._state):
    return state(folder, path)[:1]


BROKEN = {  # what is broken: the surface, where, the thing put there, what the campaign says
    "a reader that refuses every file": ("update-files", files, "npy_dtype", refusing, "a sound input was refused"),
    "objects whose versions are not compared": ("stores", fetch.StoredFolder, "_state", sizes_only, "request "),
    "pixels inverted": ("mnist", idx, "_read", inverted(), "other pixels than the independent reader"),
    "checkpoints of another round": (
        "checkpoints",
        checkpoint,
        "schema",
        SimpleNamespace(parse=of_another_round),
        "'round' is not what torch reads",
    ),
    "a reference that is ignored": (
        *("aggregate", sys.modules["bartizan.aggregate"], "parse_updates"),
        *(without_reference(), "the clients' geometry"),
    ),
    "a rule that trusts all alike": (
        *("aggregate", bz.MultiKrum, "weigh"),
        *(lambda self, geometry: geometry.shares, "MultiKrum did not select"),
    ),
    "sizes of any ratio": ("sizes", sys.modules["bartizan.measure.geometry"], "LEAST_SIZE", 0.0, "were taken"),
    "a container chosen without the weights": (
        *("weightless", Updates, "like_of"),
        *(lambda self, weights: layout.usual_container(self.containers, np.ones(len(self))), "a client without weight"),
    ),
    "a rank chosen without the weights": (
        *("weightless-adapters", result_template.Template, "of"),
        *(without_weights(), "a client without weight changed the result"),
    ),
    "a blind spot": ("blind-spots", two_sided.RandomSigns, "columns", hadamard_rows, "hides a vector"),
    "a projection by another seed": (
        "aggregate",
        bz.Rotated,
        "measure",
        by_another_seed(),
        "the clients' geometry",
    ),
}


@pytest.mark.parametrize("name", BROKEN)
def test_a_campaign_finds(name, monkeypatch, tmp_path, alarm):
    which, where, attribute, put, says = BROKEN[name]
    surface = build(which, tmp_path)
    monkeypatch.setattr(where, attribute, put)
    assert found(surface, says)


def test_a_case_that_hangs_is_a_failure(monkeypatch, alarm):
    monkeypatch.setattr(monitor, "TIME_LIMIT", 0.05)
    seen = Monitor(Surface(lambda data: time.sleep(20) or "accepted"))
    assert not seen.run(b"")
    assert "HangError" in next(iter(seen.failures))


ACCIDENTS = {
    "a conversion in C": "float('no number at all')",
    "a sum of unequal shapes": "np.zeros(3) + np.zeros(4)",
    "a search in a list": "[1, 2].index(3)",
    "a parser of Python's": "json.loads('no json at all')",
    "an error within a raise": "raise ValueError(int(text))",
}


def ours(code: str) -> None:
    """Run code as if it were a file of the library."""
    where = str(Path(HOME) / "made_up.py")
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
        Krum(-1)


def test_a_memory_error_is_a_failure_unless_a_client_raised_it():
    code = "try: raise MemoryError({!r})\nexcept MemoryError as e: raise ValueError('it is not sound') from e"
    with pytest.raises(ValueError, match="not sound"), documented(ValueError):
        ours(code.format("Unable to allocate 4 GiB"))
    with pytest.raises(RefusedError), documented(ValueError):
        ours(code.format(CLIENT_MEMORY_ERROR))
    assert not fair("it can't be read: MemoryError: Unable to allocate 4 GiB")
    assert fair(f"it can't be read: MemoryError: {CLIENT_MEMORY_ERROR}")


def test_failures_are_shrunk():
    assert shrunk(lambda data: b"\xff" in data, bytes(range(200, 256)) * 3) == b"\xff"


@pytest.mark.parametrize("name", SURFACES)
def test_the_modules_that_guide_the_search_exist(name):
    assert [module for module in SURFACES[name].modules if find_spec(module) is None] == []


def test_choices_end_where_the_bytes_do():
    draw = Draw(b"\x05")
    assert [draw.below(4), draw.below(1000), draw.chance(2)] == [1, 0, False]


def test_every_rule_of_the_registry_is_drawn_and_six_behind_a_pre_aggregator():
    known = {
        cls.__name__ for each in (registry.RULES, registry.COORDINATEWISE) for cls in map(each.find, each.built_in)
    }
    assert known <= RULES.keys()
    assert sum(" >> " in name for name in RULES) == 6


def test_the_campaign_writes_its_figures(tmp_path):
    out = tmp_path / "report.json"
    command = [sys.executable, "-m", "fuzz", "--minutes", "0.005", "--surface", "mnist", "--out", str(out)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stderr
    report = json.loads(out.read_text())
    assert report["surfaces"]["mnist"]["cases"] == report["cases"] > 10
    assert report["crashes"] == report["wrong"] == 0
