"""The protocol of S3, by s3fs, on a server of moto's on this machine: 8 clients of 8 MB."""

from __future__ import annotations

import io
import json
from pathlib import Path

import numpy as np
import pytest
import torch

import bartizan as bz
from bartizan import cli
from object_server import made_shards

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("default")]  # of boto's and Flask's

M = 8
RULE = bz.NNM(2) >> bz.GeometricMedian()


@pytest.fixture(scope="module")
def store():
    """A filesystem of s3fs on a running server, which fsspec finds by its configuration."""
    pytest.importorskip("s3fs", reason="the store is reached by s3fs, of the extra s3")
    server_of = pytest.importorskip("moto.server", reason="the S3 server is moto's, of the extra s3")
    import fsspec

    server = server_of.ThreadedMotoServer(ip_address="127.0.0.1", port=0)
    server.start()
    host, port = server.get_host_and_port()
    fsspec.config.conf["s3"] = {"endpoint_url": f"http://{host}:{port}", "key": "test", "secret": "test"}
    yield fsspec.filesystem("s3")
    del fsspec.config.conf["s3"]
    server.stop()


@pytest.fixture(scope="module")
def folders(tmp_path_factory) -> list[Path]:
    root = tmp_path_factory.mktemp("clients")
    for client in range(M):
        (root / f"c{client}").mkdir()
        for name, content in made_shards(client, 2, 2_000_000).items():
            (root / f"c{client}" / name).write_bytes(content)
    return sorted(root.iterdir())


@pytest.fixture
def bucket(store, folders) -> str:
    name = "round-7"
    store.mkdir(name)
    for folder in folders:
        store.put(str(folder), f"{name}/", recursive=True)
    yield f"s3://{name}"
    store.rm(name, recursive=True)


def bits(update: dict) -> dict[str, bytes]:
    return {name: np.asarray(array.view(dtype=torch.int16)).tobytes() for name, array in update.items()}


@pytest.mark.parametrize("memory", [None, "128 MiB"])
def test_s3_gives_what_local_files_give_to_the_bit(memory, bucket, folders):
    local = bz.aggregate(folders, RULE, sketch="rotated", seed=7, memory=memory)
    addresses = [f"{bucket}/{folder.name}/" for folder in folders]
    there = bz.aggregate(addresses, RULE, sketch="rotated", seed=7, memory=memory)
    assert not there.quarantined
    assert there.weights.tolist() == local.weights.tolist()
    assert bits(there.update) == bits(local.update)


def test_the_command_reads_from_a_bucket_and_writes_to_it(bucket, store, folders, capsys):
    # Two clients are out: one folder is empty of arrays, one shard is cut short.
    store.rm(f"{bucket}/c0/model.safetensors.index.json")
    store.rm(f"{bucket}/c0/model-00001-of-00002.safetensors")
    cut = f"{bucket}/c1/model-00002-of-00002.safetensors"
    store.pipe_file(cut, store.cat_file(cut)[:-10])
    arguments = ["aggregate", f"{bucket}/*/", "--rule", "nnm >> geometric-median", "--byzantine", "2"]
    arguments += ["--sketch", "rotated", "--seed", "7", "--memory", "128 MiB"]
    arguments += ["--out", f"{bucket}/next.safetensors", "--report", f"{bucket}/report.json"]
    assert cli.main(arguments) == 0
    shown = capsys.readouterr().out
    assert "quarantined: c0: " in shown
    assert "6 of 8 clients took part" in shown
    report = json.loads(store.cat_file(f"{bucket}/report.json"))
    assert list(report["quarantined"]) == ["c0", "c1"]
    expected = bz.aggregate(folders[2:], RULE, sketch="rotated", seed=7)
    assert report["weights"][2:] == expected.weights.tolist()
    found = bz.files.open_update(f"{bucket}/next.safetensors")
    assert bits(found) == bits(expected.update)
    written = {one.rsplit("/", 1)[1] for one in store.ls(bucket, refresh=True)}
    assert {"next.safetensors", "report.json"} <= written
    assert not any(name.endswith(".part") for name in written)


def test_a_key_is_data(bucket, store, tmp_path, capsys):
    """Of one object each; s3fs would read the name with `?versionId=` as that of another object."""
    names = ["c1", "c3", "c3.npy?", "x::memory:", "%2e%2e", "a b", "c#1", "c[1]", "c3?versionId=null&x"]
    for number, name in enumerate(names):
        content = io.BytesIO()
        np.save(content, np.full(3, float(number)))
        _call(store, "put_object", bucket, f"keys/{name}.npy", Body=content.getvalue())
    arguments = [f"{bucket}/keys/*.npy", "--rule", "mean", "--out", str(tmp_path / "next.npy")]
    assert cli.main(["aggregate", *arguments, "--report", str(tmp_path / "report.json")]) == 0
    report = json.loads((tmp_path / "report.json").read_text())
    assert sorted(report["clients"]) == sorted(names)
    assert "c1" in capsys.readouterr().out
    _call(store, "delete_object", bucket, f"keys/{names[-1]}.npy")
    assert list(report["quarantined"]) == [names[-1]]
    assert "its name would be read as that of another object" in report["quarantined"][names[-1]]
    assert np.load(tmp_path / "next.npy")[0] == pytest.approx(np.mean(range(len(names) - 1)))


def _call(store, method: str, bucket: str, key: str, **more) -> None:
    """Write or delete an object whose key no path of s3fs can name."""
    store.call_s3(method, Bucket=bucket.removeprefix("s3://"), Key=key, **more)
