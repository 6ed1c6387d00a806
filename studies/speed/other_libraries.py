"""Engines that call the rules of other libraries as their users do; `docs/explanation/peers.md` compares their answers.

Each library is imported when it is used. ByzFL and ByzPy need an environment of their own: `make speed`.
"""

from __future__ import annotations

import importlib
import importlib.util
import logging
import sys
from typing import Any

import numpy as np

from studies.speed.engines import Engine, Rules
from studies.speed.problem import Problem


def byzfl_rules() -> Any:
    """Return ByzFL's aggregators, without importing its top module: that needs torchvision, which they do not."""
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
    return ModuleNotFoundError(f"The peer {name} is not installed here; `make speed` builds an environment for it.")


class ByzFL(Engine):
    """ByzFL on one tensor, the faster input for its distances; for other rules an array is: see `ByzFLNumPy`."""

    name = "byzfl"
    exact = False

    def rules(self, problem: Problem) -> Rules:
        rules, f = byzfl_rules(), problem.byzantine
        return {
            "mean": lambda x: rules.Average()(x),
            "krum": lambda x: rules.Krum(f)(x),
            "multi-krum": lambda x: rules.MultiKrum(f)(x),
            "geometric-median": lambda x: rules.GeometricMedian()(x),
            "median": lambda x: rules.Median()(x),
            "trimmed-mean": lambda x: rules.TrMean(f)(x),
            "meamed": lambda x: rules.Meamed(f)(x),
            "nnm >> geometric-median": lambda x: rules.GeometricMedian()(rules.NNM(f)(x)),
        }


class ByzFLNumPy(ByzFL):
    """ByzFL on one array."""

    name = "byzfl-numpy"

    def rules(self, problem: Problem) -> Rules:
        return super().rules(problem) if isinstance(problem.x, np.ndarray) else {}

    def prepare(self, problem: Problem) -> Any:
        return problem.x


class ByzPy(Engine):
    """ByzPy on a list of tensors."""

    name = "byzpy"
    exact = False

    def rules(self, problem: Problem) -> Rules:
        geometric, coordinate_wise = (_import(f"byzpy.aggregators.{kind}_wise") for kind in ("geometric", "coordinate"))
        f, M = problem.byzantine, problem.clients
        return {
            "krum": lambda rows: geometric.Krum(f).aggregate(rows),
            "multi-krum": lambda rows: geometric.MultiKrum(f, M - f).aggregate(rows),
            "geometric-median": lambda rows: geometric.GeometricMedian().aggregate(rows),
            "median": lambda rows: coordinate_wise.CoordinateWiseMedian().aggregate(rows),
            "trimmed-mean": lambda rows: coordinate_wise.CoordinateWiseTrimmedMean(f).aggregate(rows),
            "meamed": lambda rows: coordinate_wise.MeanOfMedians(f).aggregate(rows),
        }

    def prepare(self, problem: Problem) -> Any:
        return list(problem.tensor())


class KrumPackage(Engine):
    """The package `krum` of the rule's authors, on one tensor."""

    name = "krum"
    exact = False

    def rules(self, problem: Problem) -> Rules:
        def rule(module: str, name: str) -> Any:
            return getattr(_import(f"krum.primitives.aggregators.{module}"), name)

        about = {"n": problem.clients, "f": problem.byzantine}
        m = problem.clients - problem.byzantine
        return {
            "mean": lambda x: rule("average", "Average").aggregate(x),
            "krum": lambda x: rule("krum", "Krum").aggregate(x, **about),
            "multi-krum": lambda x: rule("multikrum", "MultiKrum").aggregate(x, **about, m=m),
            "bulyan": lambda x: rule("bulyan", "Bulyan").aggregate(x, **about),
            "geometric-median": lambda x: rule("geometric_median", "GeometricMedian").aggregate(x, **about),
            "median": lambda x: rule("median", "Median").aggregate(x, **about),
            "trimmed-mean": lambda x: rule("trimmed_mean", "TrimmedMean").aggregate(x, **about),
        }


class Flower(Engine):
    """Flower's strategies, from replies in bytes to new arrays."""

    name = "flower"
    exact = False

    def rules(self, problem: Problem) -> Rules:
        strategies, f, M = _import("flwr.serverapp.strategy"), problem.byzantine, problem.clients
        if not isinstance(problem.x, np.ndarray):
            return {}

        def trained(strategy: Any, replies: Any) -> Any:
            logging.getLogger("flwr").setLevel(logging.WARNING)  # or it would write into the table
            return strategy.aggregate_train(1, replies)[0].to_numpy_ndarrays()[0]

        return {
            "mean": lambda replies: trained(strategies.FedAvg(), replies),
            "krum": lambda replies: trained(strategies.Krum(num_malicious_nodes=f), replies),
            "multi-krum": lambda replies: trained(
                strategies.MultiKrum(num_malicious_nodes=f, num_nodes_to_select=M - f), replies
            ),
            "bulyan": lambda replies: trained(strategies.Bulyan(num_malicious_nodes=f), replies),
            "median": lambda replies: trained(strategies.FedMedian(), replies),
            "trimmed-mean": lambda replies: trained(strategies.FedTrimmedAvg(beta=(f + 0.5) / M), replies),
        }

    def prepare(self, problem: Problem) -> Any:
        app = _import("flwr.app")
        return [_reply(app, row, node) for node, row in enumerate(problem.x, start=1)]


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
