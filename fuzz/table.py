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


CONFIG = "bartizan.lab.config"
DATA = "bartizan.lab.data"
REPORT = tuple(
    f"bartizan.lab.report.{name}" for name in ("load", "run_data", "fields", "content", "finding", "factors", "pack")
)
SURFACES = {
    "aggregate": Listed(
        "aggregating:surface", 6, ("bartizan.updates.updates", "bartizan.updates.layout", "bartizan.defense.quarantine")
    ),
    "round": Listed("rounds:surface", 5, ("bartizan.round", "bartizan.updates.updates", "bartizan.updates.spill")),
    "update-files": Listed(
        "updatefiles:surface", 2, ("bartizan.updates.files", "bartizan.updates.safetensors_header"), "safetensors"
    ),
    "cifar": Listed("datasets:cifar", 2, (f"{DATA}.safe_pickle", f"{DATA}.cifar", f"{DATA}.source_files"), "PIL"),
    "mnist": Listed("datasets:mnist", 1, (f"{DATA}.idx", f"{DATA}.source_files"), "PIL"),
    "tiny-imagenet": Listed("datasets:tiny_imagenet", 1, (f"{DATA}.tiny_imagenet", f"{DATA}.source_files"), "PIL"),
    "configs": Listed("configs:surface", 2, tuple(f"{CONFIG}.{n}" for n in ("experiment", "choices", "keys"))),
    "results": Listed("records:reports", 2, ("bartizan.records", "bartizan._util.jsonl", *REPORT)),
    "checkpoints": Listed("records:checkpoints", 1, ("bartizan.lab.runs.checkpoint",)),
    "flower": Listed("replies:surface", 2, ("bartizan.flower.decode", "bartizan.flower.client_metrics"), "flwr"),
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
