"""Callbacks for `watch=`: the numbers of a round, and the real client libraries, offline."""

from __future__ import annotations

import json
import time
import urllib.request

import pytest

from bartizan import records
from bartizan.watch import Guarded, MLflow, OpenTelemetry, TensorBoard, WandB, Watcher, watcher

NAN = "the update holds NaN, first at 7"
RUN = records.deployment_line("ward", "MultiKrum(n_byzantine=1)", "Exact()", 3)
ROUND = {
    "kind": "round",
    "round": 1,
    "clients": ["amy", "../bob", "cal", "dan"],
    "weights": [0.5, 0.0, 0.5, 0.0],
    "quarantined": {"dan": NAN},
    "failed": {"eve": "late"},
    "n_byzantine": 1,
    "accuracy": 0.75,
    "loss": float("nan"),
    "seconds": {"train": 2.0, "sketch": 0.25, "weigh": 0.5, "combine": 0.125},
}
LINES = [RUN, ROUND, {**ROUND, "round": 2, "accuracy": 0.8}, {"kind": "end", "status": "finished"}]


class Kept(Watcher):
    """Keep what is sent."""

    def __init__(self, **settings):
        super().__init__(**settings)
        self.sent = []

    def log(self, step, numbers):
        self.sent.append((step, numbers))


def test_the_numbers_of_a_round_are_finite_and_name_each_client():
    kept = Kept()
    for line in LINES:
        kept(line)
    (first, numbers), (second, later) = kept.sent
    assert (first, second) == (1, 2)
    bob = next(name for name in numbers if name.startswith("weight/.._bob-"))
    assert (numbers["weight/amy"], numbers[bob], numbers["clients/quarantined"], numbers["clients/failed"]) == (
        0.5,
        0.0,
        1,
        1,
    )
    assert (numbers["accuracy"], numbers["n_byzantine"], numbers["seconds/sketch"]) == (0.75, 1, 0.25)
    assert (numbers["quarantined/dan"], numbers["suspicion/dan"], numbers["suspicion/amy"]) == (1.0, 1.0, 0.0)
    assert "loss" not in numbers and "weight/eve" not in numbers  # noqa: PT018
    assert 0 <= numbers["suspicion/eve"] < 1 and later["accuracy"] == 0.8  # noqa: PT018


def test_clients_are_left_out_on_request():
    kept = Kept(clients=False)
    kept(RUN)
    kept(ROUND)
    assert not [name for name in kept.sent[0][1] if "amy" in name]


def test_what_a_callback_raises_is_reported():
    said = []
    guarded = Guarded(lambda line: 1 / 0, said.append)
    for line in LINES[:2]:
        guarded(line)
    assert said[1] == "watch raised ZeroDivisionError at round 1, which goes on untracked: division by zero"


def test_a_wrong_name_says_which_there_are():
    with pytest.raises(ValueError, match=r"watch must be one of mlflow, .*'mlfow'\. Did you mean 'mlflow'\?"):
        watcher("mlfow")


def test_tensorboard_reads_back_what_was_written(tmp_path):
    pytest.importorskip("tensorboard")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    watch = TensorBoard(tmp_path / "new")
    for line in LINES[:2]:
        watch(line)
    live = EventAccumulator(str(tmp_path / "new")).Reload()  # while the run goes on
    assert [one.value for one in live.Scalars("accuracy")] == [0.75]
    for line in LINES[2:]:
        watch(line)
    read = EventAccumulator(str(tmp_path / "new")).Reload()
    assert [(one.step, one.value) for one in read.Scalars("suspicion/dan")] == [(1, 1.0), (2, 1.0)]


@pytest.mark.slow
def test_mlflow_reads_back_what_was_sent(tmp_path, monkeypatch):
    pytest.importorskip("mlflow")
    from mlflow.tracking import MlflowClient

    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    uri = f"file://{tmp_path}"
    watch = MLflow("wards", uri)
    for line in LINES:
        watch(line)
    run = MlflowClient(uri).get_run(watch.run_id)
    assert (run.info.run_name, run.info.status) == ("ward", "FINISHED")
    assert run.data.params["rule.name"] == "MultiKrum(n_byzantine=1)"
    history = MlflowClient(uri).get_metric_history(watch.run_id, "accuracy")
    assert [(one.step, one.value) for one in history] == [(1, 0.75), (2, 0.8)]
    assert run.data.metrics["suspicion/dan"] == 1.0


def leveldb_records(data, at=7, block=32768):
    """Records of a LevelDB log: seven bytes of its own header, then parts with a header of seven bytes in blocks."""
    parts = []
    while at + 7 <= len(data):
        if block - at % block < 7:
            at += block - at % block
            continue
        size, kind = int.from_bytes(data[at + 4 : at + 6], "little"), data[at + 6]
        parts.append(data[at + 7 : at + 7 + size])
        at += 7 + size
        if kind in (1, 4):  # whole, or the last part
            yield b"".join(parts)
            parts = []


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_wandb_reads_back_what_was_sent(tmp_path):
    pytest.importorskip("wandb")
    from wandb.proto import wandb_internal_pb2

    watch = WandB("wards", mode="offline", dir=str(tmp_path))
    for line in LINES:
        watch(line)
    (file,) = tmp_path.glob("wandb/offline-run-*/*.wandb")
    kinds: dict[str, list] = {}
    until = time.monotonic() + 60
    while "exit" not in kinds and time.monotonic() < until:  # another process writes it
        kinds = {}
        for data in leveldb_records(file.read_bytes()):
            record = wandb_internal_pb2.Record()
            record.ParseFromString(data)
            kinds.setdefault(record.WhichOneof("record_type"), []).append(record)
        time.sleep(0.1)
    sent = [
        [("/".join(one.nested_key), json.loads(one.value_json)) for one in r.history.item] for r in kinds["history"]
    ]
    histories = [dict(items) for items in sent]
    configs = {one.key: json.loads(one.value_json) for one in kinds["run"][0].run.config.update}
    assert [one["accuracy"] for one in histories] == [0.75, 0.8]
    assert (histories[1]["_step"], histories[1]["suspicion/dan"]) == (2, 1.0)
    assert configs["rule.name"] == "MultiKrum(n_byzantine=1)"


@pytest.mark.slow
def test_prometheus_scrapes_the_metrics_of_a_server():
    pytest.importorskip("opentelemetry.exporter.prometheus")
    from opentelemetry.exporter.prometheus import PrometheusMetricReader
    from opentelemetry.sdk.metrics import MeterProvider
    from prometheus_client import start_http_server

    provider = MeterProvider([PrometheusMetricReader()])
    watch = OpenTelemetry(provider, {"federation": "wards"})
    for line in LINES:
        watch(line)
    server, thread = start_http_server(0, "127.0.0.1")
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{server.server_port}/metrics", timeout=10) as answer:
            scraped = answer.read().decode()
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
        provider.shutdown()
    lines = {line.split(" ")[0].partition("{")[0]: line for line in scraped.splitlines() if "bartizan_" in line[:9]}
    assert lines["bartizan_clients_quarantined_total"].endswith(" 2.0")
    assert 'reason="values"' in lines["bartizan_clients_quarantined_total"]
    assert 'federation="wards"' in lines["bartizan_rounds_total"]
    assert lines["bartizan_n_byzantine"].endswith(" 1.0")
    assert float(lines["bartizan_process_memory_bytes"].split()[-1]) > 1e7
    assert "bartizan_stage_duration_seconds_sum{" in scraped and 'stage="sketch"' in scraped  # noqa: PT018
    assert "amy" not in scraped


def test_a_laboratory_run_is_followed(tmp_path):
    pytest.importorskip("torch")
    accumulator = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    from bartizan.lab import run
    from bartizan.watch import TensorBoard
    from laboratory import SMALL

    done = run(SMALL, tmp_path / "run", watch=TensorBoard(tmp_path / "events"))
    read = accumulator.EventAccumulator(str(tmp_path / "events")).Reload()
    assert [one.step for one in read.Scalars("accuracy")] == [2, 4, 6]
    sent = [one.value for one in read.Scalars("weight/3")]
    assert sent == pytest.approx([line["weights"][3] for line in done.rounds], rel=1e-6)  # float32
