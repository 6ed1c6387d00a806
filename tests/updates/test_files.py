"""Updates in files: mapped, never trusted, aggregated within a budget, written whole or not at all."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tracemalloc
from pathlib import Path

import numpy as np
import pytest
import safetensors.numpy
import safetensors.torch
import torch

import bartizan as bz
from bartizan.updates.files import create_update, open_update

RNG = np.random.default_rng(0)


def state_dict(scale: float = 1.0) -> dict:
    return {
        "w": scale * torch.tensor(RNG.normal(size=(300, 20))).float(),
        "half": scale * torch.tensor(RNG.normal(size=400)).bfloat16(),
        "steps": torch.tensor(7),
        "empty": torch.zeros(0, 3),
        "d": scale * torch.tensor(RNG.normal(size=(2, 3))).double(),
        "mask": torch.tensor([True, False, True]),
    }


def test_a_header_that_claims_more_than_the_file_has_asks_for_no_memory(tmp_path):
    path = tmp_path / "x.npy"
    path.write_bytes(b"\x93NUMPY\x02\x00" + (2**32 - 1).to_bytes(4, "little") + b"{}")
    tracemalloc.start()
    try:
        with pytest.raises(ValueError, match=r"its .npy header would be 4,294,967,295 bytes long"):
            open_update(path)
        assert tracemalloc.get_traced_memory()[1] < 2**20
    finally:
        tracemalloc.stop()


def test_a_plain_file_is_an_array_of_what_the_caller_says(tmp_path):
    x = RNG.normal(size=(6, 4)).astype(np.float16)
    x.tofile(tmp_path / "x.bin")
    np.testing.assert_array_equal(open_update(tmp_path / "x.bin", dtype="float16", shape=(6, 4)), x)
    np.testing.assert_array_equal(open_update(tmp_path / "x.bin", dtype=np.float16, shape=24), x.ravel())


def test_what_we_write_others_can_read_and_so_can_we(tmp_path):
    like = state_dict()
    with create_update(tmp_path / "x.safetensors", like=like) as out:
        assert list(out) == list(like)
        for name, tensor in out.items():
            tensor.copy_(like[name])
    came, ours = safetensors.torch.load_file(tmp_path / "x.safetensors"), open_update(tmp_path / "x.safetensors")
    for name, tensor in like.items():
        own = ours[name] if isinstance(ours[name], torch.Tensor) else torch.tensor(np.array(ours[name]))
        for found in (came[name], own):
            assert torch.equal(found, tensor)
            assert found.dtype == tensor.dtype
    array = RNG.normal(size=(3, 5)).astype(np.float16)
    with create_update(tmp_path / "x.npy", like=array) as out:
        out[:] = array
    np.testing.assert_array_equal(np.load(tmp_path / "x.npy"), array)


def test_a_new_update_appears_whole_or_not_at_all(tmp_path):
    path = tmp_path / "x.npy"
    np.save(path, np.ones(4))
    with pytest.raises(ValueError, match="could not broadcast"), create_update(path, like=np.ones(4)) as out:
        out[:2], out[2:] = 2, np.ones(3)
    assert np.load(path).tolist() == [1.0] * 4
    assert list(tmp_path.iterdir()) == [path]
    code = (
        "import os, sys, signal, numpy as np\nfrom bartizan.updates.files import create_update\n"
        "with create_update(sys.argv[1], like=np.ones(4)) as out:\n"
        "    out[:2] = 7\n    os.kill(os.getpid(), signal.SIGKILL)"
    )
    subprocess.run([sys.executable, "-c", code, path], check=False)
    assert np.load(path).tolist() == [1.0] * 4
    assert all(other.name.startswith(".") for other in tmp_path.iterdir() if other != path)


@pytest.mark.parametrize(
    ("name", "like", "message"),
    [
        ("x.npy", {"a": np.ones(3)}, r"one array makes a .npy file, a dict .* a .safetensors file"),
        ("x.safetensors", np.ones(3), r"one array makes a .npy file"),
        ("x.safetensors", {"a": {"b": np.ones(3)}}, r"a dict from names to arrays"),
        ("x.bin", np.ones(3), r"one array makes a .npy file"),
        ("x.npy", torch.ones(3).bfloat16(), r"a .npy file can't hold bfloat16"),
    ],
)
def test_a_file_that_can_not_hold_the_update_is_refused(name, like, message, tmp_path):
    with pytest.raises(ValueError, match=f"(?i){message}"), create_update(tmp_path / name, like=like):
        pass
    assert list(tmp_path.iterdir()) == []


def header(**tensors) -> bytes:
    text = json.dumps(tensors).encode()
    return len(text).to_bytes(8, "little") + text


GOOD = {"dtype": "F32", "shape": [2, 3], "data_offsets": [0, 24]}


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "header would be 0 bytes long, and the file has 0"),
        (b"\xff" * 40, "header would be 18,446,744,073,709,551,615 bytes long"),
        ((2**27).to_bytes(8, "little") + b"{}" + b" " * 40, "header would be 134,217,728 bytes"),
        ((4).to_bytes(8, "little") + b"[[]]", "header is no JSON object"),
        ((4).to_bytes(8, "little") + b"{{}}", "header is no JSON"),
        ((3).to_bytes(8, "little") + b"{\xff}", "header is not UTF-8"),
        (len(b'{"a":' * 90_000).to_bytes(8, "little") + b'{"a":' * 90_000, "nested too deeply|no JSON"),
        (b"\x0d" + bytes(7) + b'{"a":1,"a":2}', "has a name twice"),
        (header(a=GOOD) + bytes(23), "its arrays end at byte .* and the file has"),
        (header(a=GOOD) + bytes(25), "its arrays end at byte .* and the file has"),
        (header(a=GOOD, b=GOOD) + bytes(24), "'b' overlaps another array"),
        (header(a=GOOD | {"data_offsets": [8, 32]}) + bytes(32), "'a' comes after a hole"),
        (header(a=GOOD | {"data_offsets": [24, 0]}) + bytes(24), "'a' has -24 bytes"),
        (header(a=GOOD | {"data_offsets": [-24, 0]}) + bytes(24), "not a begin and an end"),
        (header(a=GOOD | {"data_offsets": [0, 24, 48]}) + bytes(24), "not a begin and an end"),
        (header(a=GOOD | {"shape": [2, 4]}) + bytes(24), "'a' has 24 bytes where F32"),
        (header(a=GOOD | {"shape": [-2, -3]}) + bytes(24), "not a list of sizes"),
        (header(a=GOOD | {"shape": [6.0]}) + bytes(24), "not a list of sizes"),
        (header(a=GOOD | {"shape": [True] * 6}) + bytes(24), "not a list of sizes"),
        (header(a=GOOD | {"shape": [1] * 1000}) + bytes(24), "not a list of sizes"),
        (header(a=GOOD | {"shape": [2**62, 2**62]}) + bytes(24), "'a' has 24 bytes"),
        (header(a=GOOD | {"dtype": "F8_E4M3"}) + bytes(24), "has dtype 'F8_E4M3'; known are F64"),
        (header(a=GOOD | {"dtype": ["F32"]}) + bytes(24), "has dtype"),
        (header(a=GOOD | {"more": 1}) + bytes(24), "and nothing else"),
        (header(a=[1]) + bytes(24), "must have dtype, shape and data_offsets"),
        (header(a=GOOD, __metadata__={"a": 1}) + bytes(24), "__metadata__"),
    ],
)
def test_an_unsound_safetensors_file_is_refused_by_name(content, message, tmp_path):
    path = tmp_path / "eve.safetensors"
    path.write_bytes(content)
    with pytest.raises(ValueError, match=rf"eve.safetensors can't be opened as an update: .*({message})"):
        open_update(path)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "it is no .npy file"),
        (b"PK\x03\x04" + bytes(99), "it is no .npy file"),
        (b"\x93NUMPY\x09\x00" + bytes(99), "version"),
        (b"\x93NUMPY\x01\x00\xff\xff" + b"(" * 65535, "header would be 65,535 bytes long"),
        (None, "bytes, and the file has"),
    ],
)
def test_an_unsound_npy_file_is_refused_by_name(content, message, tmp_path):
    path = tmp_path / "eve.npy"
    np.save(path, np.ones(50))
    path.write_bytes(path.read_bytes()[:-3] if content is None else content)
    with pytest.raises(ValueError, match=rf"eve.npy can't be opened as an update: .*{message}"):
        open_update(path)


@pytest.mark.parametrize("fortran", ["False", "True", "1", "None"])
@pytest.mark.parametrize(
    "shape",
    [
        *("(1)", "(01,)", "(1, 01)", "(,)", "(1,,1)"),
        *("(True,)", "(1, True)", "(1.0,)", "(1e0,)", "(-1,)", "('1',)", "((1,),)", "[1]", "(None,)", "True"),
        *("(0, 9999999999999999999)", f"({2**63}, 0)", f"({2**63 - 1}, 2)", f"({'1, ' * 65})", f"({'0, ' * 65})"),
    ],
)
def test_an_odd_npy_header_is_quarantined(shape, fortran, tmp_path):
    paths = [tmp_path / f"{m}.npy" for m in range(4)]
    for path in paths:
        np.save(path, np.ones(1, np.float32))
    head = f"{{'descr': '<f4', 'fortran_order': {fortran}, 'shape': {shape}, }}\n".encode()
    content = b"\x93NUMPY\x01\x00" + len(head).to_bytes(2, "little") + head
    for n_bytes in (0, 4):
        paths[3].write_bytes(content + bytes(n_bytes))
        assert list(bz.aggregate(paths, bz.Mean()).quarantined) == [3]


@pytest.mark.parametrize(
    "array", [np.array([{}], dtype=object), np.ones(3, complex), np.array(["a"]), np.ones(2, "f4,f4")]
)
def test_a_npy_file_of_anything_but_numbers_is_refused(array, tmp_path):
    np.save(tmp_path / "eve.npy", array)
    with pytest.raises(ValueError, match=r"eve.npy .* (wanted floats, integers or booleans|for an array of numbers)"):
        open_update(tmp_path / "eve.npy")


def test_a_plain_file_must_have_the_size_that_was_said(tmp_path):
    np.ones(10).tofile(tmp_path / "x.bin")
    for shape in (9, 11, (2**40, 2**40), np.int64(9)):
        with pytest.raises(ValueError, match=r"x.bin .* takes .* bytes, and the file has 80"):
            open_update(tmp_path / "x.bin", dtype=float, shape=shape)
    for shape in (True, (10, True), (-5, -2), 10.0, "10", ("10",), [(10,)]):
        with pytest.raises(ValueError, match=r"x.bin .* shape must be whole numbers from 0 up"):
            open_update(tmp_path / "x.bin", dtype=float, shape=shape)
    with pytest.raises(ValueError, match="dtype and shape belong together"):
        open_update(tmp_path / "x.bin", dtype=float)
    with pytest.raises(ValueError, match=r"known are .npy, .safetensors"):
        open_update(tmp_path / "x.bin")
    with pytest.raises(FileNotFoundError):
        open_update(tmp_path / "y.npy")


def test_a_file_that_needs_a_library_we_do_not_have_ends_no_round(tmp_path, monkeypatch):
    for m in range(5):
        np.save(tmp_path / f"{m}.npy", np.full(4, m, np.float32))
    content = header(a={"dtype": "BF16", "shape": [4], "data_offsets": [0, 8]}) + bytes(8)
    (tmp_path / "odd.safetensors").write_bytes(content)
    for library in ("torch", "ml_dtypes"):
        monkeypatch.setitem(sys.modules, library, None)
    out = bz.aggregate(sorted(tmp_path.iterdir()), bz.Mean())
    assert list(out.quarantined) == [5]
    assert "bfloat16 needs torch" in out.quarantined[5]


@pytest.mark.parametrize("sketch", [bz.Rotated(k=256), bz.Rotated(), bz.Exact()], ids=repr)
@pytest.mark.parametrize("rule", [bz.Krum(1), bz.GeometricMedian(), bz.NNM(1) >> bz.coordinatewise.Median()], ids=repr)
def test_no_budget_changes_a_projected_answer(rule, sketch, tmp_path):
    """To the bit where it is projected; exact inner products are summed in other blocks, and so to rounding."""
    x = np.random.default_rng(1).normal(size=(9, 1_200_001)).astype(np.float32)
    paths = [tmp_path / f"{m}.npy" for m in range(9)]
    for path, row in zip(paths, x, strict=True):
        np.save(path, row)
    wanted = bz.aggregate(x, rule, sketch=sketch, seed=1)
    for memory in ("40 MiB", "60 MiB", "2 GB"):
        came = bz.aggregate(paths, rule, sketch=sketch, seed=1, memory=memory)
        if isinstance(sketch, bz.Exact):
            np.testing.assert_allclose(came.update, wanted.update, rtol=1e-6)
        else:
            np.testing.assert_array_equal(came.update, wanted.update)
            np.testing.assert_array_equal(came.weights, wanted.weights)
            np.testing.assert_array_equal(came.scores, wanted.scores)


def test_a_budget_that_is_too_small_says_what_is_needed():
    x = np.ones((9, 3_000_000), np.float32)
    with pytest.raises(
        ValueError, match=r"memory=2 MiB is too little: at least (\d+) MiB is needed .*sketches.*result"
    ):
        bz.aggregate(x, bz.Krum(1), sketch=bz.Rotated(), memory="2 MiB")
    with pytest.raises(ValueError, match=r'memory must be .* such as "512 MiB"'):
        bz.aggregate(x, bz.Krum(1), memory="lots")


MEASURED = """
import resource, sys
from pathlib import Path
import numpy as np, bartizan as bz
from bartizan.updates.files import create_update, open_update

def status(key):
    line = next(line for line in open("/proc/self/status") if line.startswith(key))
    return int(line.split()[1]) * 1024

folder, memory, rule = Path(sys.argv[1]), sys.argv[2], eval(sys.argv[3])
sketch = bz.Rotated(k=1024) if sys.argv[4] == "rotated" else bz.Exact()
bz.aggregate(np.ones((5, 9000), np.float32), rule, sketch=sketch, reference=np.ones(9000, np.float32))  # compile
paths = sorted(folder.glob("*.npy"))
reference = open_update(paths[0])
updates = [np.load(path, mmap_mode=sys.argv[5]) for path in paths] if sys.argv[5] else paths
told = []
open("/proc/self/clear_refs", "w").write("5")  # the peak is now what is held now
before = status("VmRSS")
with create_update(folder / "out.npy", like=reference) as out:
    done = bz.aggregate(updates, rule, sketch=sketch, memory=memory, out=out, reference=reference, seed=1,
                        progress=lambda *step: told.append(step))
print(status("VmHWM") - before, len(done.quarantined), [step for step in told if step[1] == step[2]][-1][0], len(told))
"""


def grown(folder: Path, n_files: int, numbers: int, memory: str, rule: str, sketch: str, mode: str = "") -> int:
    """How much a process grew that aggregated so many files, or maps of them, one of which ends in NaN."""
    row = np.random.default_rng(0).normal(size=numbers).astype(np.float32)
    for m in range(n_files):
        row += 1
        if m == 1:
            row[-1] = np.nan
        np.save(folder / f"{m:02}.npy", row)
        row[-1] = 0
    try:
        run = subprocess.run(
            [sys.executable, "-c", MEASURED, folder, memory, rule, sketch, mode],
            capture_output=True,
            text=True,
            check=False,
        )
        assert run.returncode == 0, run.stderr
        grew, quarantined, stage, _ = run.stdout.split()
        assert (quarantined, stage) == ("1", "combine")
        return int(grew)
    finally:
        for path in folder.glob("*.npy"):
            path.unlink()


linux = pytest.mark.skipif(not os.path.exists("/proc/self/clear_refs"), reason="the peak is read as Linux tells it")


@linux
@pytest.mark.parametrize("sketch", ["rotated", "exact"])
@pytest.mark.parametrize(
    "rule", ["bz.Krum(1)", "bz.GeometricMedian()", "bz.NNM(1) >> bz.coordinatewise.TrimmedMean(1)"]
)
def test_what_is_held_stays_within_the_budget(rule, sketch, tmp_path):
    # Of 144 MB. A busy kernel now and then maps more pages around a fault than were asked for.
    assert any(grown(tmp_path, 12, 3_000_000, "48 MiB", rule, sketch) <= 48 * 2**20 for _ in range(3))


@linux
@pytest.mark.parametrize("mode", ["r", "r+"])
def test_maps_of_the_caller_stay_within_the_budget(mode, tmp_path):
    assert grown(tmp_path, 12, 3_000_000, "48 MiB", "bz.GeometricMedian()", "rotated", mode) <= 48 * 2**20


def test_a_result_can_be_written_into_any_container():
    x = np.random.default_rng(0).normal(size=(7, 40, 30)).astype(np.float32)
    wanted = bz.aggregate(list(x), bz.GeometricMedian()).update
    backwards = np.empty((30, 40), np.float32).T
    for out in (np.empty((40, 30), np.float32), backwards, np.empty((40, 30), ">f4"), torch.empty(40, 30)):
        done = bz.aggregate(list(x), bz.GeometricMedian(), out=out)
        assert done.update is out
        np.testing.assert_array_equal(np.asarray(out), wanted)
    dicts = [{"a": torch.tensor(row).bfloat16(), "n": torch.tensor(m)} for m, row in enumerate(x)]
    out = {"n": torch.tensor(0), "a": torch.empty(40, 30).bfloat16()}
    done = bz.aggregate(dicts, bz.GeometricMedian(), out=out)
    wanted = bz.aggregate(dicts, bz.GeometricMedian()).update
    assert torch.equal(out["a"], wanted["a"])
    assert out["n"] == wanted["n"]


def test_a_result_is_written_where_each_number_of_its_place_lies():
    x = np.random.default_rng(0).normal(size=(7, 9000)).astype(np.float32)
    for rule in (bz.GeometricMedian(), bz.coordinatewise.Median()):
        wanted = bz.aggregate(x, rule).update
        for part in (slice(None, 18_000, 2), slice(9000, 0, -1), slice(1, 9001)):
            ground = np.full(20_000, 7, np.float32)
            bz.aggregate(x, rule, out=ground[part])
            np.testing.assert_array_equal(ground[part], wanted)
            ground[part] = 7
            assert (ground == 7).all()  # and nowhere else


@pytest.mark.parametrize(
    "wrap",
    [
        lambda x: x,
        lambda x: torch.from_numpy(x) if x.strides[0] > 0 else x,
        lambda x: {"a": x.astype(np.float16), "n": x.view(np.int64)},
    ],
)
@pytest.mark.parametrize("name", ["reference", "trusted"])
def test_a_result_is_never_written_over_the_reference_or_the_trusted_update(name, wrap):
    x, ground = RNG.normal(size=(7, 900)), RNG.normal(size=2000)
    updates, before = [wrap(row) for row in x], ground.copy()
    for part in (slice(0, 900), slice(899, None, -1), slice(850, 1750)):  # itself, backwards, a part of it
        with pytest.raises(ValueError, match=f"out must not overlap {name}, which is never changed"):
            bz.aggregate(updates, bz.Mean(), out=wrap(ground[:900]), **{name: wrap(ground[part])})
    np.testing.assert_array_equal(ground, before)
    bz.aggregate(updates, bz.Mean(), out=wrap(ground[:900]), **{name: wrap(ground[900:1800])})


def read_only() -> np.ndarray:
    out = np.empty(9)
    out.flags.writeable = False
    return out


@pytest.mark.parametrize(
    ("out", "message"),
    [
        (
            np.empty(8),
            r"out must have the names, shapes and dtypes of a client's update: wanted .* got float64 of shape",
        ),
        (np.empty(9, np.float32), "got float32"),
        ({}, "it is empty"),
        ("out.npy", "out must be like a client's update"),
        (read_only(), "out must be writable"),
        (np.lib.stride_tricks.as_strided(np.empty(1), (9,), (0,)), "out must have memory for each number"),
        (np.lib.stride_tricks.as_strided(np.empty(9), (9,), (4,)), "out must have memory for each number"),
        (torch.empty(1, dtype=torch.float64).expand(9), "out must have memory for each number"),
    ],
)
def test_a_wrong_out_is_the_callers_mistake(out, message):
    with pytest.raises(ValueError, match=message):
        bz.aggregate(np.ones((5, 9)), bz.Mean(), out=out)


def test_a_result_is_never_written_over_an_update():
    x = np.ones((5, 9))
    with pytest.raises(ValueError, match="out must not be a client's update"):
        bz.aggregate(x, bz.Mean(), out=x[2])
    pairs = [{"a": np.ones(9), "b": np.ones(9)} for _ in range(5)]
    with pytest.raises(ValueError, match="out must not be a client's update"):
        bz.aggregate(pairs, bz.Mean(), out={"a": pairs[3]["b"], "b": np.empty(9)})


@pytest.mark.parametrize("wrap", [lambda x: x, torch.from_numpy])
def test_entries_of_a_result_have_memory_of_their_own(wrap):
    ground = np.full((9, 7), 5.0)
    updates = [{"a": wrap(np.full((9, 3), m * 1.0)), "b": wrap(np.full(9, m * 1.0))} for m in range(5)]
    for a, b in [(slice(0, 3), 2), (slice(0, 6, 2), 4), (slice(0, 6, 2), 5)]:
        with pytest.raises(ValueError, match="out must have memory of its own for each entry"):
            bz.aggregate(updates, bz.Mean(), out={"a": wrap(ground)[:, a], "b": wrap(ground)[:, b]})
    assert (ground == 5).all()
    own = np.full(40, 5.0)
    bz.aggregate(updates, bz.Mean(), out={"a": wrap(own[9:36].reshape(9, 3)), "b": wrap(own[:9])})
    assert own.tolist() == [2.0] * 36 + [5.0] * 4


def test_pages_that_somebody_wrote_to_are_never_dropped(tmp_path):
    """A private map's changes live in memory only: letting them go would undo them."""
    np.save(tmp_path / "x.npy", np.zeros(400_000, np.float32))
    updates = [np.load(tmp_path / "x.npy", mmap_mode="c") for _ in range(5)]
    for m, update in enumerate(updates):
        update[:] = m
    out = np.load(tmp_path / "x.npy", mmap_mode="c")
    for sketch in (bz.Exact(), bz.Rotated(k=64)):
        bz.aggregate(updates, bz.Mean(), sketch=sketch, memory="32 MiB", out=out)
        assert (out == 2).all()
        assert all((update == m).all() for m, update in enumerate(updates))


def test_progress_counts_every_number_that_is_read():
    told: list = []
    x = np.random.default_rng(0).normal(size=(9, 1_200_000)).astype(np.float32)
    bz.aggregate(x, bz.Krum(2), sketch=bz.Rotated(), progress=lambda *step: told.append(step))
    assert list(dict.fromkeys(stage for stage, _, _ in told)) == ["sketch", "combine"]
    last = {stage: (done, total) for stage, done, total in told}
    assert last == {"sketch": (x.size, x.size), "combine": (1_200_000, 1_200_000)}
    assert all(0 < done <= total for _, done, total in told)
