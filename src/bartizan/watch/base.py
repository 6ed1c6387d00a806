"""The lines of a run as numbers by name, and what callbacks that follow a run have in common."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from hashlib import sha256
from importlib import import_module
from re import sub
from typing import Any

from bartizan._util.text import did_you_mean, short
from bartizan.judge.reputation import Reputation

Line = Mapping[str, Any]
Watch = Callable[[Line], object]
"""Called with each line of a run's `results.jsonl`: one of kind "run", one "round" per round, and "end"."""
ROUND_NUMBERS = (
    *("accuracy", "perplexity", "test_loss", "backdoor", "loss", "norm", "step", "read"),
    *("n_byzantine",),
)
WATCHERS = {
    "mlflow": "mlflow_watch:MLflow",
    "opentelemetry": "opentelemetry_watch:OpenTelemetry",
    "tensorboard": "tensorboard_watch:TensorBoard",
    "wandb": "wandb_watch:WandB",
}


def check_watcher(name: str, **settings: Any) -> None:
    """Raise unless there is a ready-made callback of this name."""
    if name not in WATCHERS:
        raise ValueError(f"watch must be one of {', '.join(WATCHERS)}, got {name!r}.{did_you_mean(name, WATCHERS)}")


def watcher(name: str, **settings: Any) -> Watch:
    """Return the ready-made callback of a name in `WATCHERS`, with its settings."""
    check_watcher(name)
    module, _, kind = WATCHERS[name].partition(":")
    made: Watch = getattr(import_module(f"bartizan.watch.{module}"), kind)(**settings)
    return made


class Watcher:
    """Base of callbacks that send the numbers of each round somewhere.

    A subclass implements `log`, and `begin` and `end` where its server has runs.

    Args:
        clients: Whether to send numbers of each client: its weight, 1 if it was quarantined, and its suspicion, which
            is 1 minus the probability that chance alone leaves it out or makes it fail so often.
    """

    def __init__(self, *, clients: bool = True) -> None:
        self.clients = clients
        self.reputation = Reputation()

    def __call__(self, line: Line) -> None:
        """Take a line of the run."""
        if line["kind"] == "run":
            self.reputation = Reputation()
            self.begin(line)
        elif line["kind"] == "round":
            self.log(line["round"], self.numbers(line))
        else:
            self.end(line)

    def begin(self, run: Line) -> None:
        """Open a run; `run` has its name, its configuration and its clients, as far as they are known."""

    def log(self, step: int, numbers: Mapping[str, float]) -> None:
        """Send the numbers of a round."""
        raise NotImplementedError

    def end(self, end: Line) -> None:
        """Close the run; `end` has its status."""

    def numbers(self, line: Line) -> dict[str, float]:
        """Return the finite numbers of a round by name, and add the round to the reputation."""
        found = {name: line.get(name) for name in ROUND_NUMBERS}
        found |= {f"seconds/{stage}": spent for stage, spent in (line.get("seconds") or {}).items()}
        clients = [str(client) for client in line["clients"]]
        weights = None if line.get("weights") is None else dict(zip(clients, line["weights"], strict=True))
        sizes = None if line.get("sizes") is None else dict(zip(clients, line["sizes"], strict=True))
        quarantined, failed = line.get("quarantined") or {}, line.get("failed") or {}
        self.reputation.add(weights, quarantined, failed, took_part=clients, sizes=sizes)
        found |= {"clients/quarantined": len(quarantined), "clients/failed": len(failed)}
        for client in dict.fromkeys([*clients, *quarantined, *failed]) if self.clients else ():
            tag = tag_of(client)
            found[f"weight/{tag}"] = (weights or {}).get(client)
            found[f"quarantined/{tag}"] = float(client in quarantined)
            found[f"suspicion/{tag}"] = 1.0 - self.reputation.nodes[client].odds
        return {name: float(one) for name, one in found.items() if one is not None and math.isfinite(one)}


class Guarded:
    """A callback on a server whose run must go on: what it raises is reported, and the round is not tracked."""

    def __init__(self, watch: Watch | None, report: Callable[[str], object]) -> None:
        self.watch, self.report = watch, report

    def __call__(self, line: Line) -> None:
        """Pass the line on."""
        if self.watch is None:
            return
        try:
            self.watch(line)
        except Exception as wrong:
            what = f"round {line['round']}" if line["kind"] == "round" else f"the line of kind {line['kind']!r}"
            self.report(f"watch raised {type(wrong).__name__} at {what}, which goes on untracked: {short(wrong)}")


def tag_of(client: str) -> str:
    """Return a client's id as a part of a metric's name, distinct for distinct ids.

    >>> tag_of("hospital-7"), tag_of("../7")
    ('hospital-7', '.._7-beae25')
    """
    plain = sub(r"[^A-Za-z0-9_.-]", "_", client[:60])
    return plain if plain == client else f"{plain}-{sha256(client.encode('utf-8', 'replace')).hexdigest()[:6]}"


def settings_of(run: Line) -> dict[str, Any]:
    """Return the configuration of a run by dotted names, with what else its first line says about it."""
    from bartizan._util.jsonl import flatten

    more = {key: run.get(key) for key in ("bartizan", "torch", "machine", "dim", "byzantine")}
    return flatten(run.get("config") or {}) | {key: value for key, value in more.items() if value is not None}
