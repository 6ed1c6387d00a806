"""The surfaces by their names: where each is made, which modules steer the search, and its part of the time."""

from __future__ import annotations

from dataclasses import dataclass
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path

from fuzz.surface import Surface


@dataclass(frozen=True)
class Listed:
    """A line of the table."""

    make: str
    part: int
    guided: tuple[str, ...]
    needs: str = "torch"


DATA = "bartizan.federated.data"
REPORT = tuple(
    f"bartizan.report.{name}" for name in ("load", "runs", "fields", "content", "finding", "factors", "pack")
)
SURFACES = {
    "aggregate": Listed("aggregating:surface", 6, ("bartizan.updates", "bartizan.layout", "bartizan.quarantine")),
    "round": Listed("rounds:surface", 5, ("bartizan.round", "bartizan.updates", "bartizan.storage.spill")),
    "update-files": Listed("updatefiles:surface", 2, ("bartizan.files", "bartizan.storage.tensorfile"), "safetensors"),
    "cifar": Listed("datasets:cifar", 2, (f"{DATA}.pickled", f"{DATA}.cifar", f"{DATA}.folders"), "PIL"),
    "mnist": Listed("datasets:mnist", 1, (f"{DATA}.idx", f"{DATA}.folders"), "PIL"),
    "tiny-imagenet": Listed("datasets:tiny_imagenet", 1, (f"{DATA}.tiny_imagenet", f"{DATA}.folders"), "PIL"),
    "configs": Listed(
        "configs:surface", 2, tuple(f"bartizan.federated.{n}" for n in ("experiment", "choices", "keys"))
    ),
    "results": Listed("records:reports", 2, ("bartizan.results", *REPORT)),
    "checkpoints": Listed("records:checkpoints", 1, ("bartizan.federated.checkpoint",)),
    "flower": Listed("replies:surface", 2, ("bartizan.flower.decode", "bartizan.flower.metrics"), "flwr"),
}


def made(name: str, folder: Path) -> Surface:
    module, _, function = SURFACES[name].make.partition(":")
    found: Surface = getattr(import_module(f"fuzz.{module}"), function)(folder)
    return found


def guided_by(name: str) -> tuple[str, ...]:
    return SURFACES[name].guided


def missing(name: str) -> list[str]:
    """What a surface needs and is not installed."""
    return [one for one in ("torch", SURFACES[name].needs) if find_spec(one) is None]
