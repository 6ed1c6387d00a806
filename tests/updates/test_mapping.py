"""Mapped files: few descriptors, no address from text, and the server's limits are no client's fault."""

from __future__ import annotations

import gc
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import safetensors.torch
import torch

import bartizan as bz
from bartizan.errors import MemoryBudgetError
from bartizan.updates import files, mapping, spill
from bartizan.updates.files import create_update, open_update
from hostile_objects import ClaimingPath

linux = pytest.mark.skipif(sys.platform != "linux", reason="limits and mappings are tested as Linux has them")

START = """
import errno, os, resource, sys
from pathlib import Path
import numpy as np, bartizan as bz
from bartizan.errors import MemoryBudgetError, ServerResourceError
folder = Path(sys.argv[1])

def limited(name, most):
    resource.setrlimit(name, (most, resource.getrlimit(name)[1]))

def warm(rule, sketch=bz.Exact()):
    bz.aggregate(np.ones((9, 64), np.float32), rule, sketch=sketch)
"""


def run(code: str, *arguments: object) -> str:
    """What a process of its own prints, which may change its limits."""
    command = [sys.executable, "-c", START + code, *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


MANY = """
limited(resource.RLIMIT_NOFILE, 256)
n, kind = 5000, sys.argv[2]
row = np.ones(4, np.float32)
if kind == "npy":
    updates = [folder / f"{m:04}.npy" for m in range(n)]
    for path in updates:
        np.save(path, row)
elif kind == "raw":
    for m in range(n):
        row.tofile(folder / f"{m:04}.bin")
    updates = [bz.files.open_update(folder / f"{m:04}.bin", dtype="f4", shape=4) for m in range(n)]
else:
    from safetensors.numpy import save_file
    parts = 1 if kind == "safetensors" else 3
    updates = [folder / f"{m:04}" for m in range(n // parts)]
    for path in updates:
        path.mkdir()
        for part in range(parts):
            save_file({f"w{part}": row}, path / f"model-{part + 1:05}-of-{parts:05}.safetensors")
attackers = len(updates) * 2 // 5
for update in updates[:attackers]:  # they sort first
    if kind == "npy":
        np.save(update, -9 * row)
out = bz.aggregate(updates, bz.coordinatewise.Median())
floats = out.update.values() if isinstance(out.update, dict) else [out.update]
print(len(out.clients), len(out.quarantined), {float(one) for array in floats for one in array})
"""


@linux
@pytest.mark.parametrize("kind", ["npy", "safetensors", "raw", "shards"])
def test_five_thousand_files_need_few_descriptors(kind, tmp_path):
    n = 1666 if kind == "shards" else 5000
    assert run(MANY, tmp_path, kind) == f"{n} 0 {{1.0}}"


SPILLED = """
limited(resource.RLIMIT_NOFILE, 256)
with bz.Aggregator(bz.Mean(), sketch="rotated").round(spill=folder) as r:
    for m in range(5000):
        assert r.add({"a": np.full(3, m, np.float32), "n": np.array(m)}, m) is None
    out = r.close()
print(len(out.clients), len(out.quarantined), out.update["a"].tolist(), out.update["n"].item())
"""


@linux
def test_five_thousand_spilled_updates_need_few_descriptors(tmp_path):
    assert run(SPILLED, tmp_path) == "5000 0 [2499.5, 2499.5, 2499.5] 2499"


EXHAUSTED = """
import http.server, tempfile
(folder / "temporary").mkdir()
tempfile.tempdir = str(folder / "temporary")
from bartizan import lora
rule = bz.Mean()
warm(rule)
bz.aggregate(np.ones((9, 5)), rule)  # loads the kernels of float64
with bz.Aggregator(rule).round() as streamed:
    streamed.add(np.ones(5), 0)
paths = [folder / f"{m}.npy" for m in range(4)]
for path in paths:
    np.save(path, np.ones(5))
(folder / "shards").mkdir()
paths.append(folder / "shards")
factors = {f"m.lora_{side}.weight": np.ones((2, 2), np.float32) for side in "AB"}
lora.save_adapter(folder / "adapter", factors, {"r": 2, "use_rslora": False}, alpha=4)
server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), http.server.BaseHTTPRequestHandler)
address = f"http://127.0.0.1:{server.server_port}/x.npy"
try:
    bz.files.open_update("http://127.0.0.1:1/x.npy")  # so that all modules are loaded
except ValueError:
    pass
limited(resource.RLIMIT_NOFILE, 64)
with bz.Aggregator(rule).round() as r, bz.Aggregator(rule).round(spill=folder / "spill") as spilled:
    r.add(paths[0], 0)
    held = []
    try:
        while True:
            held.append(os.open(os.devnull, os.O_RDONLY))
    except OSError:
        pass
    for call in (
        lambda: bz.aggregate(paths, rule),
        lambda: bz.aggregate(paths[4:], rule),
        lambda: bz.aggregate([np.ones(5)], rule, reference=paths[1]),
        lambda: bz.files.open_update(paths[2]),
        lambda: r.add(paths[1], 1),
        lambda: spilled.add(np.ones(5), 1),
        lambda: bz.Aggregator(rule).round(spill=folder / "other"),
        lambda: bz.files.create_update(folder / "out.npy", np.ones(5)).__enter__(),
        lambda: lora.AdapterRound(bz.Aggregator(bz.Krum(1)), lora.LoRA(alpha=4)).add(folder / "adapter", 1),
        lambda: bz.aggregate([address, np.ones(5)], rule),
    ):
        try:
            call()
        except ServerResourceError as full:
            assert full.errno == errno.EMFILE, full
            assert "ulimit -n" in str(full), full
        else:
            print("no error")
    for one in held:
        os.close(one)
    r.add(paths[1], 1)
    spilled.add(np.ones(5), 1)
    left = list(Path(tempfile.gettempdir()).glob("bartizan-*"))
    print(r.quarantined, r.close().clients, spilled.close().clients, left)
"""


@linux
def test_a_server_without_descriptors_is_named_and_quarantines_nobody(tmp_path):
    assert run(EXHAUSTED, tmp_path) == "{} (0, 1) (1,) []"


CROWDED = """
warm(bz.Mean())
paths = [folder / f"{m}.npy" for m in range(5)]
for path in paths:
    np.save(path, np.ones((5000, 1000), np.float32))
limited(resource.RLIMIT_AS, int(open("/proc/self/statm").read().split()[0]) * resource.getpagesize() + 5 * 10**7)
try:
    print(bz.aggregate(paths, bz.Mean()).quarantined)
except ServerResourceError as full:
    print(full.errno == errno.ENOMEM, "can't be mapped" in str(full), "ulimit -v" in str(full))
"""


@linux
def test_files_that_find_no_addresses_are_the_servers_fault(tmp_path):
    assert run(CROWDED, tmp_path) == "True True True"


def saved(folder: Path, rows: np.ndarray) -> list[Path]:
    paths = [folder / f"{m}.npy" for m in range(len(rows))]
    for path, row in zip(paths, rows, strict=True):
        np.save(path, row)
    return paths


def test_copied_files_hold_what_mapped_ones_hold(tmp_path, monkeypatch):
    def states():
        rng = np.random.default_rng(0)
        for m in range(7):
            kinds = {"w": torch.float32, "half": torch.bfloat16, "d": torch.float64, "h": torch.float16}
            yield {name: torch.tensor(rng.normal(size=(30, 11))).to(kind) for name, kind in kinds.items()} | {
                "steps": torch.tensor(m),
                "empty": torch.zeros(0, 3),
                "mask": torch.tensor([True, m > 3, False]),
            }

    paths = [tmp_path / f"{m}.safetensors" for m in range(7)]
    for path, state in zip(paths, states(), strict=True):
        safetensors.torch.save_file(state, path)
    wanted = bz.aggregate(paths, bz.MultiKrum(2))
    monkeypatch.setattr(files, "MAX_MAPPED", 0)
    out = bz.aggregate(paths, bz.MultiKrum(2))
    np.testing.assert_allclose(out.weights, wanted.weights)
    assert {name: type(array) for name, array in out.update.items()} == {
        name: type(array) for name, array in wanted.update.items()
    }
    for name, array in wanted.update.items():
        own, other = (np.asarray(one.float() if name == "half" else one) for one in (out.update[name], array))
        assert own.dtype == other.dtype
        np.testing.assert_allclose(own, other, rtol=1e-2 if name in ("half", "h") else 1e-5)


@pytest.mark.parametrize(
    ("harm", "mapped"), [("cut short", False), ("rewritten", False), ("gone", False), ("gone", True)]
)
def test_a_copied_file_that_changes_or_a_mapped_one_that_is_removed_counts_as_it_was(
    harm, mapped, tmp_path, monkeypatch
):
    paths = saved(tmp_path, np.random.default_rng(0).normal(size=(7, 900)))
    wanted = bz.aggregate(paths, bz.GeometricMedian(), sketch="rotated", seed=1)
    if not mapped:
        monkeypatch.setattr(files, "MAX_MAPPED", 0)
    with bz.Aggregator(bz.GeometricMedian(), sketch="rotated").round(seed=1, recheck=False) as r:
        assert [r.add(path, client) for client, path in enumerate(paths)] == [None] * 7
        if harm == "cut short":
            os.truncate(paths[3], 4000)
        elif harm == "gone":
            paths[3].unlink()
        else:
            np.lib.format.open_memmap(paths[3], mode="r+")[:] = 1e6
        out = r.close()
    assert not out.quarantined
    np.testing.assert_array_equal(out.update, wanted.update)


def test_copies_share_a_mapping_that_is_gone_with_them(tmp_path, monkeypatch):
    paths = saved(tmp_path, np.arange(30_000.0).reshape(3, 10_000))
    gc.collect()
    before = mapping.n_mapped()
    monkeypatch.setattr(files, "MAX_MAPPED", 0)
    monkeypatch.setattr(spill, "FIRST_PIECE", 200_000)  # room for two
    monkeypatch.setattr(spill, "LAST_PIECE", 200_000)
    monkeypatch.setattr(spill, "_copies", spill.TemporaryFiles())
    with bz.Aggregator(bz.Mean()).round() as r:
        for client, path in enumerate(paths):
            assert r.add(path, client) is None
            assert mapping.n_mapped() == before + 1 + client // 2
        np.testing.assert_allclose(r.close().update, 10_000.0 + np.arange(10_000))
    del r
    gc.collect()
    assert mapping.n_mapped() == before


FORGED = """
rule = bz.coordinatewise.Median()
x = [np.full(2**22, 1.0 + m, np.float32) for m in range(5)]
for end in ("\\r", "\\n", "\\x0b", "\\x0c", "\\x1c", "\\x85"):
    low = x[1].ctypes.data & ~0xFFF
    line = f"{low:x}-{low + x[1].nbytes + 0x2000:x} r--s 00000000 08:01 77 "
    path = folder / f"c{end}{line}{end}3.npy"
    np.save(path, np.full(2**22, 3.0, np.float32))
    with bz.Aggregator(rule).round(memory="1 GiB") as r:
        for client, update in enumerate([*x, path]):
            r.add(update, client)
        assert r.close().update[0] == 3
    out = bz.aggregate([*x, path], rule, memory="1 GiB", out=np.empty(2**22, np.float32))
    assert (out.update == 3).all(), (end, out.update)
    assert all((array == 1 + m).all() for m, array in enumerate(x)), end
    path.unlink()
print("unchanged")
"""


@linux
def test_a_file_name_reaches_no_memory_of_the_caller(tmp_path):
    assert run(FORGED, tmp_path) == "unchanged"


def test_a_name_is_shown_without_what_a_terminal_obeys(tmp_path):
    sound = saved(tmp_path, np.ones((4, 3)))
    for byte in (b for b in range(1, 256) if b != ord("/")):
        path = Path(os.fsdecode(os.fsencode(tmp_path) + b"/c" + bytes([byte]) + b"4.npy"))
        try:
            path.write_bytes(b"rubbish")
        except OSError:  # a file system without such names
            continue
        with pytest.raises(ValueError, match="can't be opened as an update: it is no") as refused:
            open_update(path)
        with pytest.raises(ValueError, match="one array makes a") as other, create_update(path, like={}):
            pass
        out = bz.aggregate([*sound, path, path.with_name(f"{path.name}x"), path / "y.npy"], bz.Mean())
        assert list(out.quarantined) == [4, 5, 6]
        for shown in (str(refused.value), str(other.value), *out.quarantined.values()):
            assert "4.npy" in shown
            assert shown.isprintable()
            assert shown.encode()  # no surrogates


def test_a_path_of_a_clients_own_class_is_its_own_fault(tmp_path, monkeypatch):
    updates = [np.ones(3), np.ones(3), ClaimingPath(tmp_path / "x.npy"), np.ones(3)]
    monkeypatch.setattr(ClaimingPath, "claims", True)
    assert list(bz.aggregate(updates, bz.Mean()).quarantined) == [2]
    with bz.Aggregator(bz.Mean()).round() as r:
        reasons = [r.add(update, client) for client, update in enumerate(updates)]
    assert [reason is None for reason in reasons] == [True, True, False, True]


COPIED = """
warm(bz.Mean())
x = np.zeros(2**28, np.uint8)
limited(resource.RLIMIT_AS, int(open("/proc/self/statm").read().split()[0]) * 4096 + 2**27)
with bz.Aggregator(bz.Mean()).round(copy=True) as r:
    r.add({"w": np.ones(3)}, 0)
    try:
        r.add({"w": np.ones(3), "n": x}, 1)
    except ServerResourceError as full:
        print(full.errno == errno.ENOMEM, "268,435,480 bytes" in str(full), r.quarantined, r.clients)
"""


@linux
def test_no_memory_for_a_copy_is_the_servers_fault(tmp_path):
    assert run(COPIED, tmp_path) == "True True {} (0,)"


FULL = """
warm(bz.Mean())
with bz.Aggregator(bz.Mean()).round(spill=folder) as r:
    for m in range(20):
        r.add(np.full(20_000, m, np.float32), m)
    limited(resource.RLIMIT_FSIZE, 1_000_000)  # the file of the first 20 is longer: another one begins
    for m in range(20, 40):
        r.add(np.full(20_000, m, np.float32), m)
    try:
        r.add(np.zeros(400_000, np.float32), 40)
    except ServerResourceError as full:
        assert "client 40's update of 1,600,000 bytes could not be written" in str(full), full
        assert "ulimit -f" in str(full), full
    try:
        bz.files.create_update(folder / "out.npy", np.zeros(400_000, np.float32)).__enter__()
    except ServerResourceError as full:
        assert "out.npy of 1,600,128 bytes can't be made" in str(full), full
    assert not list(folder.glob(".*"))
    limited(resource.RLIMIT_FSIZE, resource.getrlimit(resource.RLIMIT_FSIZE)[1])
    r.add(np.full(20_000, 40, np.float32), 40)  # there is room again: it is sent once more
    out = r.close()
print(len(out.clients), out.update[0])
"""


@linux
def test_a_file_that_may_not_grow_is_the_servers_fault(tmp_path):
    assert run(FULL, tmp_path) == "41 20.0"


def test_a_round_that_is_closed_maps_no_spilled_file_whose_disk_space_would_stay_in_use(tmp_path):
    gc.collect()
    before = mapping.n_mapped()
    with bz.Aggregator(bz.Mean()).round(spill=tmp_path) as r:
        for client in range(3):
            r.add(np.ones(1000), client)
        r.close()
    gc.collect()
    assert mapping.n_mapped() == before
    assert len(r) == 3  # the round itself is still there


def test_a_mapping_lasts_as_long_as_its_arrays_and_is_known_by_its_address(tmp_path):
    paths = saved(tmp_path, np.arange(30_000.0).reshape(3, 10_000))
    gc.collect()
    before = mapping.n_mapped()
    arrays = [open_update(path) for path in paths]
    parts = [array[7:].reshape(1, -1) for array in arrays]
    assert mapping.n_mapped() == before + 3
    del arrays
    gc.collect()
    assert mapping.n_mapped() == before + 3
    for part in parts:
        low, high = mapping.span(part)
        found = mapping.part_of(part, low)
        assert found is not None
        assert found.start <= low < high == found.stop
    del parts, part
    gc.collect()
    assert mapping.n_mapped() == before


def test_a_user_may_write_to_an_opened_tensor_and_the_file_stays_as_it_is(tmp_path):
    safetensors.torch.save_file({"a": torch.ones(9000).bfloat16(), "b": torch.ones(9000)}, tmp_path / "x.safetensors")
    before = (tmp_path / "x.safetensors").read_bytes()
    update = open_update(tmp_path / "x.safetensors")
    update["a"] += 1
    with pytest.raises(ValueError, match="read-only"):
        update["b"][0] = 1
    bz.aggregate([update] * 3, bz.Mean(), memory="64 MiB")
    assert update["a"].sum() == 18_000
    assert (tmp_path / "x.safetensors").read_bytes() == before


@pytest.mark.parametrize("rule", [bz.Mean(), bz.coordinatewise.Median()], ids=repr)
@pytest.mark.parametrize("a_round", [False, True])
def test_a_budget_has_no_part_for_distances_that_no_rule_asks_for(rule, a_round):
    x = np.ones((3000, 8), np.float32)  # whose distances would take 1.15 GB
    if not a_round:
        assert bz.aggregate(x, rule, memory="200 MiB").update.tolist() == [1.0] * 8
        with pytest.raises(MemoryBudgetError, match=r"memory=200 MiB is too little.*distances 1,099 MiB"):
            bz.aggregate(x, bz.Krum(1), memory="200 MiB")
        return
    with bz.Aggregator(rule).round(memory="200 MiB") as r:
        for client, row in enumerate(x):
            r.add(row, client)
        assert r.close().update.tolist() == [1.0] * 8
