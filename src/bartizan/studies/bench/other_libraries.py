"""Other libraries' rules, called as their users call them; what their answers are, `docs/explanation/peers.md` says.

Each is imported when it is asked for. ByzFL and ByzPy want an environment of their own: `make bench-peers`.
"""

from __future__ import annotations

import importlib
import importlib.util
import logging
import sys
from collections.abc import Callable
from typing import Any

import numpy as np

from bartizan.studies.bench.engines import Answer, Engine, Job
from bartizan.studies.bench.problem import Problem


def byzfl_rules() -> Any:
    """ByzFL's aggregators. Its own top imports torchvision and more, of which they use nothing: stand in for it."""
    if "byzfl" not in sys.modules:
        found = importlib.util.find_spec("byzfl")
        if found is None:
            raise _missing("byzfl")
        sys.modules["byzfl"] = importlib.util.module_from_spec(found)
    return importlib.import_module("byzfl.aggregators")


def _import(name: str) -> Any:
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as missing:
        if missing.name == name.partition(".")[0]:
            raise _missing(missing.name) from missing
        raise


def _missing(name: str) -> ModuleNotFoundError:
    return ModuleNotFoundError(
        f"The peer {name} is not installed here; `make bench-peers` builds an environment for it."
    )


class ByzFL(Engine):
    """On one tensor: on an array its Krum takes SciPy's distances in float64, and longer."""

    name = "byzfl"
    exact = False

    def job(self, rule: str, problem: Problem) -> Job | None:
        rules, f = byzfl_rules(), problem.byzantine
        makes: dict[str, Callable[[], Any]] = {
            "mean": rules.Average,
            "krum": lambda: rules.Krum(f),
            "multi-krum": lambda: rules.MultiKrum(f),
            "geometric-median": rules.GeometricMedian,
            "mda": lambda: rules.MDA(f),
            "smea": lambda: rules.SMEA(f),
            "caf": lambda: rules.CAF(f),
        }
        if rule not in makes:
            return None
        updates = problem.tensor()
        return Job(lambda given: Answer(makes[rule]()(updates)))


class ByzPy(Engine):
    """On a list of tensors."""

    name = "byzpy"
    exact = False

    def job(self, rule: str, problem: Problem) -> Job | None:
        far, f, M = _import("byzpy.aggregators.geometric_wise"), problem.byzantine, problem.clients
        norm_wise = _import("byzpy.aggregators.norm_wise")
        makes: dict[str, Callable[[], Any]] = {
            "krum": lambda: far.Krum(f),
            "multi-krum": lambda: far.MultiKrum(f, M - f),
            "geometric-median": far.GeometricMedian,
            "mda": lambda: far.MinimumDiameterAveraging(f),
            "smea": lambda: far.SMEA(f),
            "caf": lambda: norm_wise.CAF(f),
            "cge": lambda: norm_wise.ComparativeGradientElimination(f),
        }
        if rule not in makes:
            return None
        rows = list(problem.tensor())
        return Job(lambda given: Answer(makes[rule]().aggregate(rows)))


class Flower(Engine):
    """Flower's strategies, from the replies as they arrive, in bytes, to the new arrays."""

    name = "flower"
    exact = False

    def job(self, rule: str, problem: Problem) -> Job | None:
        strategies, app = _import("flwr.serverapp.strategy"), _import("flwr.app")
        f, M = problem.byzantine, problem.clients
        makes: dict[str, Callable[[], Any]] = {
            "mean": strategies.FedAvg,
            "krum": lambda: strategies.Krum(num_malicious_nodes=f),
            "multi-krum": lambda: strategies.MultiKrum(num_malicious_nodes=f, num_nodes_to_select=M - f),
            "bulyan": lambda: strategies.Bulyan(num_malicious_nodes=f),
        }
        if rule not in makes or not isinstance(problem.x, np.ndarray):
            return None

        def replies() -> list[Any]:
            return [_reply(app, row, node) for node, row in enumerate(problem.x, start=1)]

        def run(given: Any) -> Answer:
            logging.getLogger("flwr").setLevel(logging.WARNING)  # or it would write into the table
            arrays, _ = makes[rule]().aggregate_train(1, given)
            return Answer(arrays.to_numpy_ndarrays()[0])

        return Job(run, replies)


def _reply(app: Any, row: Any, node: int) -> Any:
    content = app.RecordDict(
        {"arrays": app.ArrayRecord([row]), "metrics": app.MetricRecord({"num-examples": 1, "loss": 0.0})}
    )
    metadata = app.Metadata(
        run_id=1,
        message_id="",
        src_node_id=node,
        dst_node_id=0,
        reply_to_message_id="",
        group_id="1",
        created_at=0.0,
        ttl=1.0,
        message_type="train",
    )
    return app.Message(content=content, metadata=metadata)


class FlowerLegacy(Engine):
    """The functions behind Flower's older strategies, on lists of arrays."""

    name = "flower-legacy"
    exact = False

    def job(self, rule: str, problem: Problem) -> Job | None:
        legacy = _import("flwr.server.strategy.aggregate")
        f, M = problem.byzantine, problem.clients
        calls: dict[str, Callable[[Any], Any]] = {
            "mean": legacy.aggregate,
            "krum": lambda results: legacy.aggregate_krum(results, f, 0),
            "multi-krum": lambda results: legacy.aggregate_krum(results, f, M - f),
            "bulyan": lambda results: legacy.aggregate_bulyan(results, f, legacy.aggregate_krum, to_keep=0),
        }
        if rule not in calls or not isinstance(problem.x, np.ndarray):
            return None
        return Job(lambda results: Answer(calls[rule](results)[0]), lambda: [([row], 1) for row in problem.x])
