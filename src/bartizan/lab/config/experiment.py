"""An experiment: the values of one TOML file, checked once; every key has a default."""

from __future__ import annotations

import hashlib
import itertools
import json
import math
import re
import tomllib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, fields, is_dataclass, replace
from pathlib import Path
from typing import Any

from bartizan._util.extras import missing_extra
from bartizan._util.regular_files import NotRegularError, read_regular
from bartizan._util.text import quoted, short
from bartizan.lab.config import build_parts
from bartizan.lab.config.choices import CHOICES, ChosenPart
from bartizan.lab.config.keys import ConfigError, checked, key, refuse_unknown, shown
from bartizan.lab.config.sections import (
    ClientsSettings,
    DataSettings,
    EvaluationSettings,
    ModelSettings,
    ServerSettings,
)
from bartizan.lab.data.loaders import DATASETS
from bartizan.lab.models.networks import MODELS

MAX_RUNS = 100_000
MAX_FILE_BYTES = 2**24  # bytes of TOML
# Its name, its device and the folders of its data and first weights change no number of it.
NOT_IN_ID = ("name", "device", "grid")
IN_ID_IF_SET = (
    *(("clients", "worker_momentum", ""), ("clients", "speed", ""), ("model", "adapters", "")),
    *(("server", "buffer", ""), ("server", "remember", "no"), ("server", "staleness", "polynomial")),
)
"""Keys that count in the id only if they are set, to neither nothing nor this, so that older runs keep their ids."""
NAMED_SECTIONS = {"data": DATASETS, "model": MODELS}
"""Sections that can be given by the function that loads the data or makes the network."""


def _default(section: str) -> Any:
    return field(default_factory=lambda: CHOICES[section].of({}))


@dataclass(frozen=True)
class Experiment:
    """One training run under attack, or with a grid several.

    >>> Experiment.of({"rounds": 20, "rule": {"name": "multi-krum", "n_selected": 5}}).rule.settings["n_selected"]
    5
    """

    name: str = key("experiment", "a name for the experiment; its results go to runs/NAME")
    seed: int = key(0, "the seed of everything random", least=0, most=2**63 - 1)
    rounds: int = key(100, "the number of rounds", least=1)
    device: str = key("auto", "auto takes a GPU where there is one", one_of=("auto", "cpu", "cuda"))
    data: DataSettings = DataSettings()
    split: ChosenPart = _default("split")
    model: ModelSettings = ModelSettings()
    clients: ClientsSettings = ClientsSettings()
    attack: ChosenPart = _default("attack")
    rule: ChosenPart = _default("rule")
    sketch: ChosenPart = _default("sketch")
    server: ServerSettings = ServerSettings()
    evaluation: EvaluationSettings = EvaluationSettings()
    grid: Mapping[str, list[Any]] = field(default_factory=dict)

    @classmethod
    def of(cls, given: Mapping[str, Any]) -> Experiment:
        """Return an experiment from nested mappings, as TOML has them; everything is checked here, and only here.

        From Python a section can also be the object itself, such as `{"rule": Krum(5), "attack": my_attack}`: it is
        recorded by its name or as "module:qualname" with its settings, or refused with a ConfigError.
        """
        values: dict[str, Any] = {}
        plain: dict[str, Any] = {}
        known = [one.name for one in fields(cls)]
        for name, content in given.items():
            if name not in known:
                refuse_unknown(name, known, "", also=_without_section(given))
            if name in CHOICES:
                values[name] = CHOICES[name].of(content)
            elif name in SECTIONS:
                values[name] = SECTIONS[name](**checked(name, SECTIONS[name], _section(name, content)))
            elif name == "grid":
                values[name] = dict(_section(name, content))
            else:
                plain[name] = content
        experiment = cls(**checked("", cls, plain), **values)
        if experiment.name in ("", ".", "..") or any(letter in experiment.name for letter in "/\\\0"):
            raise ConfigError(f"name must be fit for a folder, without slashes; got {quoted(experiment.name, 60)}.")
        if not experiment.grid:
            build_parts.check(experiment)
        experiment.runs()  # checks those of a grid
        return experiment

    @classmethod
    def read_back(cls, given: Mapping[str, Any]) -> Experiment:
        """Return an experiment that a run folder recorded; refuse one with parts from outside the package.

        A run folder may come from anyone, so no code that it names is imported.
        """
        named = [(section, "name", [registry]) for section, registry in NAMED_SECTIONS.items()]
        for section, word, registries in named + [(one.section, one.key, one.registries) for one in CHOICES.values()]:
            content = given.get(section, {})
            names = str(content.get(word, "")).split(">>") if isinstance(content, Mapping) else []
            if any(name.strip() and not any(one.is_built_in(name) for one in registries) for name in names):
                raise ConfigError(
                    f"{section}.{word} = {shown(content[word])} is not of this package, and not imported."
                )
        if given.get("grid"):
            raise ConfigError("A recorded run has no grid.")
        return cls.of(given)

    @classmethod
    def from_toml(cls, path: Path | str) -> Experiment:
        """Read an experiment from its file; an error names the file."""
        path = Path(path)
        try:
            given = tomllib.loads(read_regular(path, MAX_FILE_BYTES).decode())
        except FileNotFoundError:
            raise FileNotFoundError(f"There is no file {path}. `bartizan init {path}` writes one.") from None
        except NotRegularError as other:
            raise ConfigError(f"{path} can't be read: {other.strerror}; wanted an experiment's TOML file.") from None
        except (ValueError, RecursionError) as wrong:  # also a whole number of too many digits
            raise ConfigError(f"{path} is not valid TOML: {short(wrong)}.") from None
        try:
            return cls.of(given)
        except ConfigError as wrong:
            raise ConfigError(f"{path}: {wrong}") from None

    def with_settings(self, settings: Iterable[str]) -> Experiment:
        """Return the experiment with some keys changed, each written as on the command line.

        >>> Experiment().with_settings(["rounds=7", "rule.name=mean"]).rule
        ChosenPart(name='mean', settings={})
        """
        default = Experiment().as_dict()
        for section in SECTIONS.keys() | CHOICES:
            default |= {f"{section}.{key}": one for key, one in default[section].items()}
        changes: dict[str, Any] = {}
        for setting in settings:
            name, equals, text = setting.partition("=")
            if not equals:
                raise ConfigError(f"A setting is key=value, such as rule.name=krum; got {quoted(setting)}.")
            name, text = name.strip(), text.strip()
            value = _parsed(text)
            # An attack is called nan, and a name may be a number.
            is_text = isinstance(default.get(name), str) and not isinstance(value, str)
            changes[name] = text if is_text else value
        return self.changed(changes)

    def changed(self, changes: Mapping[str, Any]) -> Experiment:
        """Return the experiment with keys changed, given as `section.key`; a mapping changes a whole section."""
        return Experiment.of(self._changed(changes))

    def _changed(self, changes: Mapping[str, Any]) -> dict[str, Any]:
        nested: dict[str, Any] = {}
        for name, content in changes.items():
            section, dot, inner = name.partition(".")
            if not dot and not isinstance(content, Mapping):
                nested[section] = content
                continue
            already = nested.setdefault(section, {})
            if not isinstance(already, dict):
                raise ConfigError(f"{section} must be a section, [{section}]; got {shown(already)}.")
            already.update({inner: content} if dot else content)
        whole = self.as_dict() | {"grid": dict(self.grid)}
        for section, content in nested.items():
            before = whole.get(section)
            if isinstance(content, Mapping) and isinstance(before, Mapping):
                content = CHOICES[section].changed(before, content) if section in CHOICES else {**before, **content}
            whole[section] = content
        return whole

    def runs(self) -> list[Experiment]:
        """Return all experiments of the grid, each once; without a grid this one."""
        for name, choices in self.grid.items():
            if not isinstance(choices, list) or not choices:
                raise ConfigError(
                    f'grid."{short(name, 60)}" must be a list of values, such as [0, 1]; got {shown(choices)}.'
                )
            if name.partition(".")[0] in ("grid", "name", "device"):
                raise ConfigError(f'grid."{short(name, 60)}" can\'t be varied.')
        if (count := math.prod(map(len, self.grid.values()))) > MAX_RUNS:
            raise ConfigError(f"The grid has {count:,} runs; the most are {MAX_RUNS:,}. Vary fewer keys.")
        base = replace(self, grid={})
        cells = itertools.product(*self.grid.values())
        runs = [base._cell(dict(zip(self.grid, cell, strict=True))) if cell else base for cell in cells]
        return list({one.id: one for one in runs}.values())

    def _cell(self, changes: Mapping[str, Any]) -> Experiment:
        """Return one run of a grid; if rule or sketch are varied, a coordinate-wise rule gets no projection."""
        whole = self._changed(changes)
        varied = {key.partition(".")[0] for key in changes}
        if varied & {"rule", "sketch"} and build_parts.is_coordinatewise(whole["rule"]):
            whole["sketch"] = {"name": "exact"}
        return Experiment.of(whole)

    def without_grid(self) -> Experiment:
        """Return the experiment that the grid varies."""
        return Experiment.of(replace(self, grid={}).as_dict())

    def as_dict(self) -> dict[str, Any]:
        """Return all sections and keys with their defaults, and the grid if there is one."""
        whole: dict[str, Any] = {}
        for one in fields(self):
            content = getattr(self, one.name)
            if one.name in CHOICES:
                whole[one.name] = CHOICES[one.name].as_dict(content)
            elif one.name in SECTIONS:
                whole[one.name] = {inner.name: getattr(content, inner.name) for inner in fields(content)}
            elif one.name != "grid" or content:
                whole[one.name] = content
        return whole

    def to_toml(self) -> str:
        """Return the text of a file with all keys."""
        try:
            import tomli_w
        except ModuleNotFoundError as missing:
            raise missing_extra("The laboratory needs tomli-w", "lab") from missing
        return tomli_w.dumps(self.as_dict())

    @property
    def id(self) -> str:
        """Eight hexadecimal digits: a hash of all that its numbers depend on."""
        whole = {name: content for name, content in self.as_dict().items() if name not in NOT_IN_ID}
        whole["data"] = {name: content for name, content in whole["data"].items() if name != "folder"}
        whole["model"] = whole["model"] | {"weights": Path(self.model.weights).name}
        for section, later, usual in IN_ID_IF_SET:
            if whole[section][later] in (0, usual):
                whole[section] = {name: one for name, one in whole[section].items() if name != later}
        return hashlib.sha256(json.dumps(whole, sort_keys=True).encode()).hexdigest()[:8]

    @property
    def slug(self) -> str:
        """A name for its folder: attack, rule, sketch, seed and id.

        >>> Experiment.of({"rule": {"name": "nnm >> krum"}}).slug
        'none-nnm-krum-rotated-seed0-...'
        """
        words = re.sub(r"[^A-Za-z0-9]+", "-", f"{self.attack.name} {self.rule.name} {self.sketch.name}")
        return f"{words[:150].rstrip('-')}-seed{self.seed}-{self.id}"


SECTIONS: dict[str, type[Any]] = {
    one.name: type(one.default) for one in fields(Experiment) if is_dataclass(one.default)
}
"""The sections with fixed keys."""


def _section(name: str, content: Any) -> Mapping[str, Any]:
    """Return a section as a mapping, from a mapping or from the Python object that stands for it."""
    if isinstance(content, Mapping):
        return content
    if name in NAMED_SECTIONS and callable(content):
        return {"name": content}
    function = ", or the function that makes it" if name in NAMED_SECTIONS else ""
    raise ConfigError(f"{name} must be a section, [{name}]{function}; got {shown(content)}.")


def _without_section(given: Mapping[str, Any]) -> dict[str, str]:
    """Return the keys of all sections by their names alone; several with the same name are joined by "or"."""
    names = {section: [one.name for one in fields(kind)] for section, kind in SECTIONS.items()}
    for section, choice in CHOICES.items():
        names[section] = [choice.key, *choice.settings(choice.of(given.get(section, {})).name)]
    keys: dict[str, str] = {}
    for section, own in names.items():
        for name in own:
            keys[name] = f"{keys[name]} or {section}.{name}" if name in keys else f"{section}.{name}"
    return keys


def _parsed(text: str) -> Any:
    """Return the value of a text from the command line: TOML, or a word without quotes.

    >>> _parsed("0.3"), _parsed("nnm >> krum"), _parsed("[1, 2]")
    (0.3, 'nnm >> krum', [1, 2])
    """
    try:
        read = tomllib.loads(f"value = {text}")
    except (ValueError, RecursionError):  # no TOML, or a whole number of too many digits
        return text
    return read["value"] if len(read) == 1 else text
