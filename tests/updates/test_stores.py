"""Updates in stores: addresses give what local files give, and no store or client can end a round."""

from __future__ import annotations

import gc
import json
import os
import re
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from types import SimpleNamespace

import fsspec
import numpy as np
import pytest
import safetensors.numpy
import safetensors.torch
import torch

import bartizan as bz
from bartizan import partitioned
from bartizan.errors import ServerResourceError
from bartizan.updates import mapping, stores
from bartizan.updates.files import create_update, max_bytes_like, open_paths, open_update
from object_server import ObjectServer

M = 8
RULE = bz.NNM(2) >> bz.GeometricMedian()
ROOT = Path(__file__).parents[2]


def state_dict(client: int) -> dict[str, torch.Tensor]:
    g = torch.Generator().manual_seed(client)
    return {
        "embed": torch.randn(30, 100, generator=g).bfloat16(),
        "steps": torch.tensor(10 + client),
        "flag": torch.ones(3, dtype=torch.int8),  # what follows it is not aligned
        "bias": torch.randn(77, generator=g, dtype=torch.float16),
        "head": torch.randn(40_001, generator=g),
        "empty": torch.zeros(0, 3),
    }


def write_shards(folder: Path, client: int) -> Path:
    """A client's update in two shards with an index."""
    folder.mkdir(parents=True)
    update, places = state_dict(client), {}
    for i, names in enumerate((["embed", "steps", "flag", "bias"], ["head", "empty"])):
        shard = f"model-{i + 1:05}-of-00002.safetensors"
        safetensors.torch.save_file({name: update[name] for name in names}, folder / shard)
        places |= dict.fromkeys(names, shard)
    (folder / "model.safetensors.index.json").write_text(json.dumps({"metadata": {}, "weight_map": places}, indent=2))
    return folder


@pytest.fixture(scope="module")
def folders(tmp_path_factory) -> list[Path]:
    root = tmp_path_factory.mktemp("clients")
    return [write_shards(root / f"c{client}", client) for client in range(M)]


@pytest.fixture
def memory(folders):
    """The same clients in fsspec's store in memory."""
    fs = fsspec.filesystem("memory")
    for folder in folders:
        for file in folder.iterdir():
            fs.pipe_file(f"/round/{folder.name}/{file.name}", file.read_bytes())
    yield fs
    fs.store.clear()
    fs.pseudo_dirs[:] = [""]


@pytest.fixture
def server(folders):
    with ObjectServer() as server:
        for folder in folders:
            for file in folder.iterdir():
                server.put(f"/{folder.name}/{file.name}", file.read_bytes())
        yield server


def addresses(store: str) -> list[str]:
    if store == "memory":
        return [f"memory://round/c{client}/" for client in range(M)]
    return [f"{store}/c{client}/model.safetensors.index.json?token=secret" for client in range(M)]


def bits(array) -> bytes:
    return (array.view(torch.int16).numpy() if isinstance(array, torch.Tensor) else np.asarray(array)).tobytes()


def assert_same(one: bz.Aggregation, other: bz.Aggregation) -> None:
    assert one.quarantined == other.quarantined
    assert one.weights is None or one.weights.tolist() == other.weights.tolist()
    assert list(one.update) == list(other.update)
    for name, array in one.update.items():
        assert type(array) is type(other.update[name])
        assert bits(array) == bits(other.update[name])


@pytest.mark.parametrize("budget", [None, "100 MiB"])
@pytest.mark.parametrize("rule", [RULE, bz.Krum(2), bz.Mean(), bz.TrimmedMean(2)], ids=repr)
def test_addresses_give_what_local_files_give_to_the_bit(rule, budget, folders, memory, server):
    sketch = "rotated" if rule.needs_distances else "exact"
    local = bz.aggregate(folders, rule, sketch=sketch, seed=7, memory=budget)
    assert local.update["steps"] in range(10, 10 + M)
    for store in ("memory", server.url):
        assert_same(bz.aggregate(addresses(store), rule, sketch=sketch, seed=7, memory=budget), local)


def test_a_reference_may_be_an_address(folders, memory):
    local = bz.aggregate(folders, RULE, sketch="rotated", seed=1, reference=folders[0])
    there = bz.aggregate(addresses("memory"), RULE, sketch="rotated", seed=1, reference="memory://round/c0/")
    assert_same(there, local)


@pytest.mark.parametrize("name", ["adapter_model.safetensors", "model.safetensors", "weights.safetensors"])
def test_a_folder_with_one_file_is_that_update(name, tmp_path, memory):
    content = safetensors.numpy.save({"base.lora_A.weight": np.arange(6, dtype=np.float32).reshape(2, 3)})
    for file, data in {name: content, "adapter_config.json": b"{}", "README.md": b""}.items():
        (tmp_path / file).write_bytes(data)
        memory.pipe_file(f"/peft/{file}", data)
    for place in (tmp_path, "memory://peft", "memory://peft/", f"memory://peft/{name}"):
        found = open_update(place)
        assert np.asarray(found["base.lora_A.weight"]).tolist() == [[0, 1, 2], [3, 4, 5]]


def test_plain_arrays_are_read_where_they_are(memory):
    x = np.arange(12, dtype=">f4").reshape(3, 4)
    with memory.open("/x.npy", "wb") as file:
        np.save(file, x)
    memory.pipe_file("/x.bin", x.tobytes())
    for found in (open_update("memory://x.npy"), open_update("memory://x.bin", dtype=">f4", shape=(3, 4))):
        assert np.array_equal(np.asarray(found), x)
        assert np.asarray(found).dtype == x.dtype
    with memory.open("/x.npy", "wb") as file:
        np.save(file, np.asfortranarray(x))
    assert np.array_equal(open_update("memory://x.npy"), x)


def index(**places: str) -> bytes:
    return json.dumps({"weight_map": places}).encode()


def shard(*names: str) -> bytes:
    return safetensors.numpy.save({name: np.ones(4, np.float32) for name in names})


INDEX = "model.safetensors.index.json"
UNSOUND = {
    "up": ({INDEX: index(w="../secret.safetensors")}, "wanted a .safetensors file beside the index"),
    "absolute": ({INDEX: index(w="/etc/secret.safetensors")}, "wanted a .safetensors file beside the index"),
    "address": ({INDEX: index(w="s3://other/x.safetensors")}, "wanted a .safetensors file beside the index"),
    "hidden": ({INDEX: index(w="..safetensors")}, "wanted a .safetensors file beside the index"),
    "other kind": ({INDEX: index(w="x.bin")}, "wanted a .safetensors file beside the index"),
    "twice": ({INDEX: b'{"weight_map": {"w": "a.safetensors", "w": "b.safetensors"}}'}, "has a name twice"),
    "no map": ({INDEX: b'{"weight_map": []}'}, "must have a weight_map"),
    "no JSON": ({INDEX: b"{"}, "is no JSON"),
    "nested": ({INDEX: b'{"weight_map":' + b"[" * 200_000}, "nested too deeply|is no JSON"),
    "too many": ({INDEX: index(**{f"w{i}": f"{i}.safetensors" for i in range(1025)})}, "at most 1,024 are read"),
    "too long": ({INDEX: b"{" + b" " * 2**23 + b"}"}, "up to 8,388,608 are read|at most 8,388,608 are read"),
    "two": ({INDEX: index(w="a.safetensors"), "b" + INDEX: b"{}"}, "several index files"),
    "missing shard": ({INDEX: index(w="a.safetensors")}, "a.safetensors"),
    "missing array": ({INDEX: index(w="a.safetensors", v="a.safetensors"), "a.safetensors": shard("w")}, "'v' of its"),
    "other array": ({INDEX: index(w="a.safetensors"), "a.safetensors": shard("w", "v")}, "the index does not say so"),
    "other shard": (
        {INDEX: index(w="a.safetensors", v="b.safetensors"), **dict.fromkeys(("a.safetensors", "b.safetensors"))},
        "the index does not say so",
    ),
    "overlap": ({"a.safetensors": shard("w"), "b.safetensors": shard("w")}, "is in two files"),
    "incomplete": ({"m-00001-of-00002.safetensors": shard("w")}, "one of 2 files, and the folder has 1"),
    "no arrays": ({"weights.bin": b"12"}, "a folder without .safetensors files; it holds 'weights.bin'"),
    "outside": ({"a.safetensors": shard("w")[:-4]}, "its arrays end at byte"),
    "cut header": ({"a.safetensors": shard("w")[:40]}, "its header would be"),
}


@pytest.mark.parametrize("case", UNSOUND)
def test_an_unsound_folder_is_refused_and_its_client_quarantined(case, tmp_path, memory, folders):
    files, message = UNSOUND[case]
    files = {name: shard("w", "v") if content is None else content for name, content in files.items()}
    (tmp_path.parent / "secret.safetensors").write_bytes(shard("w"))
    memory.pipe_file("/secret.safetensors", shard("w"))
    for name, content in files.items():
        (tmp_path / name).write_bytes(content)
        memory.pipe_file(f"/bad/{name}", content)
    for place in (tmp_path, "memory://bad/"):
        with pytest.raises(ValueError, match=message) as refused:
            open_update(place)
        assert str(place).rstrip("/") in str(refused.value)
        assert len(str(refused.value)) < 1000
        out = bz.aggregate([place, *folders[1:]], RULE, sketch="rotated")
        assert list(out.quarantined) == [0]


FAULTS = {
    "truncated": "Payload",
    "slow": "no answer in 0.5 s",
    "endless": "it is too large: an update may have 1,000,000 bytes",
    "gone": "there is no such object as 'model-00002",
    "broken": "HTTP status 500",
    "forbidden": "HTTP status 403",
}
SHARD = "/c3/model-00002-of-00002.safetensors"


def opened_with(places: list[str], **limits: float) -> list[object]:
    """The updates, of which client 3 has these limits."""
    updates = open_paths([*places[:3], *places[4:]])
    return [*updates[:3], *open_paths(places[3:4], **limits), *updates[3:]]


def without_3(folders: list[Path]) -> bz.Aggregation:
    return bz.aggregate([*folders[:3], Path("nowhere.npy"), *folders[4:]], RULE, sketch="rotated", seed=7)


@pytest.mark.parametrize("fault", FAULTS)
def test_a_store_that_fails_costs_one_client(fault, folders, server, monkeypatch):
    monkeypatch.setattr(stores, "ATTEMPTS", 2)
    server.faults[SHARD] = fault, 1
    updates = opened_with(addresses(server.url), timeout=0.5 if fault == "slow" else 60, max_bytes=10**6)
    out = bz.aggregate(updates, RULE, sketch="rotated", seed=7)
    assert list(out.quarantined) == [3]
    assert f"{server.url}/c3/" in out.quarantined[3]
    assert re.search(FAULTS[fault], out.quarantined[3]), out.quarantined[3]
    assert "secret" not in out.quarantined[3]
    assert bits(out.update["head"]) == bits(without_3(folders).update["head"])


@pytest.mark.parametrize("begins", [1, 2], ids=["while it is sketched", "while it is read again"])
def test_so_does_one_that_fails_workers(begins, folders, server):
    server.faults[SHARD] = "gone", begins
    places = addresses(server.url)
    out = partitioned.aggregate([places[:2], places[2:]], RULE, sketch="rotated", seed=7)
    assert list(out.quarantined) == [3]
    assert "no such object" in out.quarantined[3]
    np.testing.assert_array_equal(out.weights, without_3(folders).weights)


@pytest.mark.parametrize(("rule", "reads"), [(bz.GeometricMedian(), 2), (bz.Krum(2), 1.2)], ids=repr)
def test_workers_read_what_they_sketch_once_and_what_they_sum_once_more(rule, reads, folders, server):
    places = addresses(server.url)
    out = partitioned.aggregate([places[:3], places[3:]], rule, sketch="rotated", seed=7)
    np.testing.assert_array_equal(out.weights, bz.aggregate(folders, rule, sketch="rotated", seed=7).weights)
    total = sum(size for size, _ in server.objects.values())
    assert total < server.sent.total() <= reads * total


def test_an_object_may_come_without_its_size(server, folders):
    server.faults[SHARD] = "unsized", 1
    assert_same(
        bz.aggregate(addresses(server.url), RULE, sketch="rotated", seed=7),
        bz.aggregate(folders, RULE, sketch="rotated", seed=7),
    )


def test_calls_that_never_return_delay_no_other_client(memory, monkeypatch):
    """A store without coroutines: the calls are in threads, which nobody can stop."""
    cat, over = type(memory).cat_file, threading.Event()

    def stuck(fs, path, start=None, end=None, **options):
        if "/c3/" in path:
            over.wait()
        return cat(fs, path, start, end, **options)

    monkeypatch.setattr(type(memory), "cat_file", stuck)
    try:
        out = bz.aggregate(opened_with(addresses("memory"), timeout=0.3), RULE, sketch="rotated", seed=7)
    finally:
        over.set()
    assert list(out.quarantined) == [3]
    assert "no answer in 0.3 s" in out.quarantined[3]


def test_a_fault_that_passes_costs_nobody(folders, server):
    answer, failed = server.answer, []

    def first_fails(request, asked):
        if asked == SHARD and len(failed) < 2:
            failed.append(asked)
            return server._send(request, 503, b"", {})
        return answer(request, asked)

    server.answer = first_fails
    out = bz.aggregate(addresses(server.url), RULE, sketch="rotated", seed=7)
    assert len(failed) == 2
    assert_same(out, bz.aggregate(folders, RULE, sketch="rotated", seed=7))


def test_an_object_that_is_replaced_while_it_is_fetched_is_not_aggregated(memory, monkeypatch):
    path, cat = f"/round{SHARD}", type(memory).cat_file

    def replaced(fs, asked, start=None, end=None, **options):
        answer = cat(fs, asked, start, end, **options)
        if asked == path:
            memory.pipe_file(path, memory.store[path].getvalue())
        return answer

    monkeypatch.setattr(type(memory), "cat_file", replaced)
    out = bz.aggregate(addresses("memory"), bz.Mean(), seed=7)
    assert list(out.quarantined) == [3]
    assert "changed while it was being fetched" in out.quarantined[3]


@pytest.mark.parametrize("change", ["replaced", "removed"])
def test_an_object_that_changes_after_it_was_fetched_has_no_influence(change, memory, folders):
    with bz.Aggregator(RULE, sketch="rotated").round(seed=3, recheck=False) as r:
        for client, address in enumerate(addresses("memory")):
            assert r.add(address, client) is None
        assert "there is no such object" in r.add("memory://round/nowhere.safetensors", M)
        if change == "replaced":
            memory.pipe_file(f"/round{SHARD}", memory.cat_file(f"/round{SHARD}")[:-4] + np.float32(1e4).tobytes())
        else:
            memory.rm(f"/round{SHARD}")
        out = r.close()
    assert list(out.quarantined) == [M]
    with bz.Aggregator(RULE, sketch="rotated").round(seed=3, recheck=False) as r:
        for client, folder in enumerate(folders):
            r.add(folder, client)
        r.add(Path("nowhere.npy"), M)
        assert bits(r.close().update["head"]) == bits(out.update["head"])


def test_an_update_that_is_too_large_is_not_fetched(server, monkeypatch):
    """The reference tells how large an update may be; the store states how large it is."""
    small = np.zeros(3)
    assert max_bytes_like(small) == 8 * 3 + 2**24
    server.objects["/huge.npy"] = 2**40, bytes(9)
    for limits in ({"reference": small}, {}):
        out = bz.aggregate([f"{server.url}/huge.npy", small + 1, small + 1], bz.Mean(), **limits)
        assert list(out.quarantined) == [0]
        most = max_bytes_like(limits.get("reference"))
        assert f"it is too large: an update may have {most:,} bytes" in out.quarantined[0]
    with bz.Aggregator(bz.Mean()).round(reference=small) as r:
        assert f"{2**24 + 24:,} bytes" in r.add(f"{server.url}/huge.npy", 0)


def test_all_objects_of_an_update_count(server):
    size = sum(size for path, (size, _) in server.objects.items() if path.startswith("/c3/"))
    place = addresses(server.url)[3]
    open_update(place, max_bytes=size)
    with pytest.raises(ValueError, match=f"an update may have {size - 1:,} bytes"):
        open_update(place, max_bytes=size - 1)


def test_what_was_fetched_has_no_name_and_is_gone_with_its_arrays(server, tmp_path, monkeypatch):
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    gc.collect()
    before = mapping.n_mapped()
    update = open_update(addresses(server.url)[0])
    assert mapping.n_mapped() == before + 2
    assert list(tmp_path.iterdir()) == []
    part = update["head"][5:]
    del update
    gc.collect()
    assert mapping.n_mapped() == before + 1
    del part
    gc.collect()
    assert mapping.n_mapped() == before


def test_a_disk_that_is_full_is_the_servers_fault(tmp_path):
    np.save(tmp_path / "x.npy", np.zeros(400_000, np.float32))
    code = """
import resource, sys
import numpy as np, bartizan as bz
from bartizan.errors import ServerResourceError
resource.setrlimit(resource.RLIMIT_FSIZE, (1_000_000, resource.getrlimit(resource.RLIMIT_FSIZE)[1]))
try:
    bz.aggregate([sys.argv[1], np.zeros(400_000, np.float32)], bz.Mean())
except ServerResourceError as full:
    print("ulimit -f" in str(full), "TMPDIR" in str(full))
"""
    done = subprocess.run([sys.executable, "-c", code, f"file://{tmp_path}/x.npy"], capture_output=True, text=True)
    assert done.stdout == "True True\n", done.stderr


def test_no_folder_for_temporary_files_is_the_servers_fault(server, tmp_path, monkeypatch):
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "nowhere"))
    with pytest.raises(ServerResourceError, match="No temporary folder can be made"):
        bz.aggregate(addresses(server.url), bz.Mean())


def test_ctrl_c_waits_for_no_store(server):
    over, ended, answer = threading.Event(), [], server.answer

    def stuck(request, asked):
        if asked == SHARD:
            signal.pthread_kill(threading.main_thread().ident, signal.SIGINT)
            ended.append(over.wait(30))
        return answer(request, asked)

    server.answer = stuck
    with pytest.raises(KeyboardInterrupt):
        bz.aggregate(addresses(server.url), bz.Mean())
    assert not ended
    over.set()


def test_a_client_that_drips_is_left_behind(monkeypatch):
    """Each answer comes in time, and the whole would take hours; the clock is the test's own."""
    now = [1000.0]
    monkeypatch.setattr(stores, "time", SimpleNamespace(monotonic=lambda: now[0]))
    limits = stores.FetchLimits(timeout=60)
    for came in range(1, 5):
        now[0] += 29
        limits.see("x.npy", 10**9, came)
        limits.check()
    limits.see("x.npy", 10**9, 2**16 * 20)
    now[0] += 21
    limits.check()
    now[0] += 10
    with pytest.raises(ValueError, match=r"it came too slowly: 1,310,720 bytes in 147 s"):
        limits.check()
    now[0] += 30
    with pytest.raises(TimeoutError):
        limits.check()


def test_results_appear_at_an_address_whole_or_not_at_all(memory, monkeypatch):
    like = state_dict(0)
    with create_update("memory://out/next.safetensors", like) as place:
        for name, array in like.items():
            place[name][...] = array
        assert not memory.exists("/out")
    found = open_update("memory://out/next.safetensors")
    for name, array in like.items():
        assert bits(found[name]) == bits(array if array.dtype == torch.bfloat16 else array.numpy())
    kept = memory.store["/out/next.safetensors"].getvalue()
    with pytest.raises(RuntimeError), create_update("memory://out/next.safetensors", like):
        raise RuntimeError
    put = type(memory).put_file

    def cut(fs, local, path, **options):
        os.truncate(local, 100)
        put(fs, local, path, **options)
        os.truncate(local, 200)

    monkeypatch.setattr(type(memory), "put_file", cut)
    with (
        pytest.raises(OSError, match=r"next.safetensors can't be written: .*100 bytes of 200"),
        create_update("memory://out/next.safetensors", like),
    ):
        pass
    assert memory.find("/out") == ["/out/next.safetensors"]
    assert memory.store["/out/next.safetensors"].getvalue() == kept


@pytest.mark.parametrize("rule", [RULE, bz.Krum(2), bz.Mean()], ids=repr)
def test_each_object_is_fetched_once_several_at_a_time(rule, server):
    """Counted at the server."""
    answer = server.answer
    server.answer = lambda *asked: (time.sleep(0.02), answer(*asked))  # as a network does: others are asked meanwhile
    out = bz.aggregate(addresses(server.url), rule, sketch="rotated" if rule.needs_distances else "exact", seed=7)
    assert not out.quarantined
    assert set(server.requests.values()) == {1}
    assert server.sent.total() == sum(size for size, _ in server.objects.values())
    assert server.most_in_flight > 1


def test_no_secret_of_an_address_is_told():
    said = stores.reason_of_failure(OSError("URL('http://h/x?sig=1') is bad?"), 1)
    assert said == "OSError: URL('http://h/x') is bad?"
    out = bz.aggregate(["https://me:pw@127.0.0.1:9/b.npy?sig=1", np.ones(3), np.ones(3)], bz.Mean())
    assert "pw" not in out.quarantined[0]
    assert "sig" not in out.quarantined[0]


def test_without_fsspec_the_extra_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "fsspec.core", None)
    with pytest.raises(ModuleNotFoundError, match=r"pip install '.\[remote\]'"):
        open_update("s3://bucket/x.npy")
    out = bz.aggregate(["s3://bucket/x.npy", np.ones(3), np.ones(3)], bz.Mean())
    assert "'.[remote]'" in out.quarantined[0]
