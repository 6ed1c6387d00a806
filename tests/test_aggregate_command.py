"""`bartizan aggregate`: what it writes, prints and returns to a script."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import fsspec
import numpy as np
import pytest

import bartizan as bz
from bartizan import cli
from bartizan.aggregate_command import _StageLines, client_names, matching

M = 9
RULE = ["--rule", "nnm >> geometric-median", "--byzantine", "2", "--seed", "7"]


@pytest.fixture
def clients(tmp_path) -> list[Path]:
    """Nine clients of which one sent NaN and one an outlier."""
    paths = [tmp_path / f"client-{m}.npy" for m in range(M)]
    for m, path in enumerate(paths):
        update = np.random.default_rng(m).normal(1, 1, 5000).astype(np.float32)
        update[7] = np.nan if m == 3 else 0
        np.save(path, 40 * update if m == 4 else update)
    return paths


def run(*arguments: object) -> int:
    return cli.main(["aggregate", *map(str, arguments)])


def test_it_writes_what_one_call_gives(clients, tmp_path, capsys):
    out, report = tmp_path / "next.npy", tmp_path / "reports" / "round.json"
    expected = bz.aggregate(clients, bz.NNM(2) >> bz.GeometricMedian(), sketch="auto", seed=7)
    assert run(tmp_path / "client-*.npy", *RULE, "--out", out, "--report", report, "--memory", "64 MiB") == 0
    assert np.load(out).tolist() == expected.update.tolist()
    told = json.loads(report.read_text())
    assert told["status"] == "ok"
    assert told["clients"] == [f"client-{m}" for m in range(M)]
    assert told["weights"] == expected.weights.tolist()
    assert told["scores"][3] is None
    assert "holds NaN" in told["quarantined"]["client-3"]
    assert told["seed"] == "7"
    shown = capsys.readouterr().out.splitlines()
    assert shown[0].split() == ["client", "weight", "distance"]
    assert shown[-2].startswith("quarantined: client-3: ")
    assert shown[-1].startswith(f"{out}: 8 of 9 clients took part")
    weights = {line.split()[0]: float(line.split()[1]) for line in shown[1:-2]}
    assert weights["client-4"] == 0
    assert sum(weights.values()) == pytest.approx(1, abs=1e-3)


def test_too_few_clients_are_exit_status_3_and_no_result(clients, tmp_path, capsys):
    out, report = tmp_path / "next.npy", tmp_path / "round.json"
    out.write_bytes(b"the last one")
    for path in (*clients[:3], clients[5]):
        path.write_bytes(b"broken")
    assert run(*clients, *RULE, "--out", out, "--report", report) == 3
    assert out.read_bytes() == b"the last one"
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted(
        [*(p.name for p in clients), "next.npy", "round.json"]
    )
    told = json.loads(report.read_text())
    assert told["status"] == "refused"
    assert list(told["quarantined"]) == ["client-0", "client-1", "client-2", "client-3", "client-5"]
    assert "5 of 9 clients are out" in told["problem"]
    assert "5 of 9 clients are out" in capsys.readouterr().err
    assert run(tmp_path / "nothing-*.npy", *RULE, "--out", out) == 3
    assert run(*clients[3:], *RULE, "--out", out, "--strict") == 3


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--rule", "krum"], "--byzantine F"),
        (["--rule", "mean", "--byzantine", "2"], "has no setting 'n_byzantine'"),
        (["--rule", "krumm", "--byzantine", "2"], "Did you mean 'krum'?"),
        ([*RULE, "--sketch", "rotatde"], "Did you mean 'rotated'?"),
        ([*RULE, "--sketch", "exact", "--k", "64"], "no setting 'k'"),
        ([*RULE, "--memory", "much"], "memory must be a number of bytes"),
        ([*RULE, "--reference", "nowhere.npy"], "nowhere.npy"),
        ([*RULE, "--sizes", "SIZES"], "it has none for 'client-1'"),
        ([*RULE, "--out", "next.bin"], "--out must end in"),
        (["--rule", "fltrust"], "trusted"),
    ],
)
def test_a_wrong_argument_is_exit_status_2_and_one_line(options, message, clients, tmp_path, capsys):
    (tmp_path / "sizes.json").write_text('{"client-0": 3}')
    options = [str(tmp_path / "sizes.json") if one == "SIZES" else one for one in options]
    assert run(*clients, "--out", tmp_path / "next.npy", *options) == 2
    said = capsys.readouterr().err
    assert message in said
    assert said.count("\n") == 1
    assert not (tmp_path / "next.npy").exists()


def test_sizes_reference_and_trusted_are_given_by_files(clients, tmp_path):
    sizes = {f"client-{m}": 1 + m for m in range(M)}
    (tmp_path / "sizes.json").write_text(json.dumps(sizes))
    reference = tmp_path / "last.npy"
    np.save(reference, np.full(5000, 0.5, np.float32))
    options = ["--sizes", tmp_path / "sizes.json", "--reference", reference, "--trusted", reference]
    assert run(*clients, "--rule", "mean", *options, "--out", tmp_path / "next.npy") == 0
    expected = bz.aggregate(clients, bz.Mean(), sizes=list(sizes.values()), reference=np.load(reference))
    np.testing.assert_array_equal(np.load(tmp_path / "next.npy"), expected.update)


def test_addresses_are_read_and_written(clients):
    fs = fsspec.filesystem("memory")
    try:
        for path in clients:
            fs.pipe_file(f"/round/{path.stem}/update.npy", path.read_bytes())
        assert matching("memory://round/*/update.npy") == [
            f"memory:///round/{path.stem}/update.npy" for path in clients
        ]
        places = ["--out", "memory://next/next.npy", "--report", "memory://next/report.json"]
        assert run("memory://round/*/update.npy", *RULE, *places) == 0
        expected = bz.aggregate(clients, bz.NNM(2) >> bz.GeometricMedian(), sketch="auto", seed=7)
        assert np.asarray(bz.files.open_update("memory://next/next.npy")).tolist() == expected.update.tolist()
        assert json.loads(fs.cat_file("/next/report.json"))["clients"][0] == "client-0"
        assert fs.find("/next") == ["/next/next.npy", "/next/report.json"]
    finally:
        fs.store.clear()
        fs.pseudo_dirs[:] = [""]


def test_clients_are_named_by_what_differs():
    assert client_names(["s3://r/a/", "s3://r/b/"]) == ["a", "b"]
    assert client_names(["x/a/1/m.safetensors", "x/b/2/m.safetensors"]) == ["a/1", "b/2"]
    assert client_names(["x/a.npy", "x/a.safetensors"]) == ["x/a.npy", "x/a.safetensors"]
    assert client_names(["https://h/a.npy?sig=1", "https://h/b.npy?sig=2"]) == ["a", "b"]
    assert client_names(["https://h/a.npy?sig=1", "b.npy"]) == ["https://h/a.npy", "b.npy"]


@pytest.mark.slow
def test_dask_workers_share_the_clients(clients, tmp_path):
    pytest.importorskip("bartizan.partitioned", reason="clients are divided by bartizan.partitioned")
    distributed = pytest.importorskip("dask.distributed", reason="needs Dask, of the extra dask")
    with distributed.LocalCluster(n_workers=2, threads_per_worker=1, dashboard_address=None) as cluster:
        command = [sys.executable, "-m", "bartizan", "aggregate", *map(str, clients), *RULE, "--sketch", "rotated"]
        command += ["--out", str(tmp_path / "next.npy"), "--report", str(tmp_path / "round.json")]
        subprocess.run([*command, "--dask", cluster.scheduler_address], check=True, timeout=300)
    expected = bz.aggregate(clients, bz.NNM(2) >> bz.GeometricMedian(), sketch="rotated", seed=7)
    assert json.loads((tmp_path / "round.json").read_text())["weights"] == expected.weights.tolist()
    np.testing.assert_allclose(np.load(tmp_path / "next.npy"), expected.update, rtol=1e-6, atol=1e-7)


def test_a_client_that_rewrites_its_file_meanwhile_is_quarantined(clients, tmp_path, monkeypatch):
    """Its numbers are overwritten when all were measured, which the lines of progress tell."""
    show = _StageLines.__call__

    def rewriting(lines, stage, done, total):
        show(lines, stage, done, total)
        if stage == "sketch" and done == total:
            with open(clients[1], "r+b") as file:
                file.seek(-800, 2)
                file.write(bytes(range(100)) * 8)

    monkeypatch.setattr(_StageLines, "__call__", rewriting)
    report = tmp_path / "round.json"
    assert run(*clients, *RULE, "--out", tmp_path / "next.npy", "--report", report) == 0
    reason = json.loads(report.read_text())["quarantined"]["client-1"]
    assert reason == "its file changed between measuring and summing"
