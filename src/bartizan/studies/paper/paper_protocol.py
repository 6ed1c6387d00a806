"""The paper's protocol as an experiment, with our choice for everything that the paper leaves open."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

from bartizan.lab.config.choices import CHOICES as SECTIONS
from bartizan.lab.config.experiment import Experiment
from bartizan.lab.config.keys import ConfigError, shown
from bartizan.studies.paper.cells import ABLATION, PaperCell, cells

ROUNDS = 100
MODELS = {"cifar10": "resnet18", "cifar100": "vgg16", "tiny-imagenet": "mobilenet-v3-large"}

# Section 4 and appendix B.
STATED: dict[str, Any] = {
    "clients.count": 50,
    "clients.participation": 1.0,
    "clients.batch": 32,
}
# What the paper does not say, as settings; CHOICES describes them.
SILENT: dict[str, Any] = {
    "data.augment": False,
    "model.norm": "group",
    "model.fitted": False,
    "clients.work": "steps",
    "clients.local": 10,
    "clients.sends": "weights",
    "clients.step_size": 0.01,
    "clients.momentum": 0.9,
    "server.optimiser": "momentum",
    "server.step_size": 0.3,
    "server.momentum": 0.9,
    "server.schedule": "constant",
    "evaluation.every": 1,
}


# Questions that the paper leaves open, and our choices; docs/guides/paper.md has the reasons.
CHOICES = {
    "which model on which data": "ResNet18 on CIFAR-10, VGG16 on CIFAR-100, MobileNetV3-large on TinyImageNet",
    "first layers on small images": "as published for 224 pixels (model.fitted=false)",
    "normalisation, augmentation": "GroupNorm in all three models; no augmentation",
    "local work": "10 steps of SGD on batches of 32",
    "what is sent, and so what attackers falsify": "the client's new weights; "
    "the rule sees their differences to the model, where distances are the same",
    "step sizes": "0.01 at the clients with momentum 0.9; the server moves by 0.3 of the aggregate, with momentum 0.9",
    "what b counts": "round(b M) clients, drawn by the seed: 5 or 15 of 50",
    "Bulyan at b=0.3": "f = 11, the most that M >= 4f + 3 allows with 50 clients; 15 attack",
    "the projection": "Rotated(k=4096); the k/s table takes the paper's matrix, Achlioptas(k, s)",
    "beta of the k/s table": "0.6",
    "wall time": "the median round's sketch, weighing and combination; "
    "a speed-up is the ratio of two such on one machine",
    'when a run is "-"': "it diverged, or its best accuracy is below 20% on CIFAR-10 (twice guessing), "
    "below 10% on CIFAR-100 and TinyImageNet",
    "two values for one cell": "both are shown",
}
# The sections of a configuration that a cell sets; the rest is the protocol, the same for all cells of a table.
CELL_SECTIONS = ("attack", "rule", "sketch", "split")
# Keys that are part of neither: a seed is one sample of its cell, the others change no result.
IGNORED = ("name", "seed", "device", "grid")


def sketches_of(cell: PaperCell) -> tuple[str, ...]:
    """Return the sketches that a cell can be run with, the default first."""
    if not cell.pdr:
        return ("exact",)
    return ("achlioptas",) if cell.table == ABLATION else ("rotated", "achlioptas")


def cell_sections(cell: PaperCell, sketch: str | None = None) -> dict[str, dict[str, Any]]:
    """Return the sections of an experiment that a cell sets."""
    known = sketches_of(cell)
    kind = sketch or known[0]
    if kind not in known:
        why = f" {ABLATION} varies s, which only achlioptas has." if cell.table == ABLATION else ""
        raise ValueError(f"A sketch for {cell.table} is {' or '.join(known)}; got {kind!r}.{why}")
    size = {"k": cell.k} if cell.pdr else {}
    return {
        "split": {"kind": "dirichlet", "beta": cell.beta},
        "attack": {"name": cell.attack},
        "rule": {"name": cell.rule},
        "sketch": {"name": kind, **size, **({"s": cell.s} if kind == "achlioptas" else {})},
    }


def experiment(
    cell: PaperCell,
    *,
    seed: int = 0,
    rounds: int = ROUNDS,
    sketch: str | None = None,
    data: Path | None = None,
    device: str = "auto",
    changes: Sequence[str] = (),
) -> Experiment:
    """Return the experiment of a cell; `changes` are settings such as `clients.local=2`, applied last."""
    own = {
        "name": cell.table,
        "seed": seed,
        "rounds": rounds,
        "device": device,
        "data.name": cell.data,
        "data.folder": str(data or ""),
        "model.name": MODELS[cell.data],
        "clients.byzantine": cell.b,
    }
    one = Experiment().changed({**STATED, **SILENT, **own, **cell_sections(cell, sketch)})
    return one.with_settings(changes) if changes else one


def completed(config: Any) -> dict[str, Any]:
    """Return a configuration, checked, with the defaults of missing keys and without the data folder."""
    if not isinstance(config, Mapping):
        raise ConfigError(f"A configuration must be a table of sections; got {shown(config)}.")
    whole = Experiment.read_back(config).as_dict()
    whole["data"].pop("folder")
    return whole


def split_config(config: Mapping[str, Any], images: int | None = None) -> tuple[str, str]:
    """Split a configuration into the cell's settings and the protocol, both as text that can be compared.

    The number of images is part of the protocol where it is known: a sample is not the whole data set.
    """
    rest = completed(config)
    setting: dict[str, Any] = {name: rest.pop(name) for name in CELL_SECTIONS}
    setting |= {"data": rest["data"].pop("name"), "byzantine": rest["clients"].pop("byzantine")}
    if images is not None:
        rest["data"]["images"] = images
    for key in IGNORED:
        rest.pop(key, None)
    return json.dumps(setting, sort_keys=True), json.dumps(rest, sort_keys=True)


@cache
def setting_of(cell: PaperCell, sketch: str) -> str:
    """Return the settings of a cell as `split_config` writes them."""
    sections = {name: SECTIONS[name].as_dict(SECTIONS[name].of(of)) for name, of in cell_sections(cell, sketch).items()}
    return json.dumps({**sections, "data": cell.data, "byzantine": cell.b}, sort_keys=True)


@cache
def positions() -> dict[str, int]:
    """Return the position of every setting that the paper has a cell for, in the order of `cells`."""
    out: dict[str, int] = {}
    for position, cell in enumerate(cells()):
        for kind in sketches_of(cell):
            out.setdefault(setting_of(cell, kind), position)
    return out
