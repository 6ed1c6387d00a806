"""The sections that choose a part by name and give its settings: split, attack, rule, sketch."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import MISSING, dataclass, field
from functools import partial
from typing import Any

from bartizan.attacks.by_name import ATTACKS, POISONS
from bartizan.lab.config.keys import ConfigError, full, name_in, number_like, refuse_unknown, shown
from bartizan.lab.data.partition import SPLITS
from bartizan.registry import COORDINATEWISE, PRE_AGGREGATORS, RULES, SKETCHES, Registry, settings_of
from bartizan.rules.preaggregators import Composed


@dataclass(frozen=True)
class ChosenPart:
    """The name of a part, and its settings with their defaults filled in."""

    name: str
    settings: Mapping[str, Any] = field(default_factory=dict, hash=False)


@dataclass(frozen=True)
class Choice:
    """A section that chooses a part of one kind."""

    section: str
    about: str
    default: str
    registry: Registry
    key: str = "name"
    """The key with the name of the part."""
    shared: tuple[str, ...] = ()
    """Settings with the same meaning for all parts, which stay when another part is chosen."""
    defaults: Mapping[str, Any] = field(default_factory=dict)
    """Defaults of settings that have none of their own."""
    in_front: Registry | None = None
    """Parts that can stand in front, `one >> other`."""

    def of(self, given: Any) -> ChosenPart:
        """Return the choice of a section of a file, or of a Python object; the part itself checks its settings."""
        if not isinstance(given, Mapping):
            given = self.section_of(given)
        name = self.spelling(given.get(self.key, self.default))
        takes = self.settings(name)
        settings = {key: default for key, default in takes.items() if default not in (MISSING, None)}
        for key, value in given.items():
            if key == self.key:
                continue
            chooses = {self.key: full(self.section, self.key)}
            refuse_unknown(key, takes, self.section, of=f"{self.section} {name!r}", also=chooses)
            if not isinstance(value, (bool, int, float, str)):
                wanted = "a number, a text, true or false"
                raise ConfigError(f"{full(self.section, key)} must be {wanted}; got {shown(value)}.")
            settings[key] = number_like(full(self.section, key), takes[key], value)
        return ChosenPart(name, settings)

    def spelling(self, given: Any) -> str:
        """Return the name of a part, or of the parts of a chain, as the registry spells it."""
        if isinstance(given, str) and self.in_front is not None:
            given = given.split(">>")
        key, parts = full(self.section, self.key), given if isinstance(given, list) else [given]
        return " >> ".join(name_in(known, key, part) for known, part in self._each(parts))

    def _each(self, parts: Sequence[Any]) -> Iterator[tuple[Registry, Any]]:
        """Yield each part of a chain, with its registry."""
        for n, part in enumerate(parts, start=1):
            yield self.registries[-1] if n < len(parts) else self.registry, part

    @property
    def registries(self) -> list[Registry]:
        return [self.registry] if self.in_front is None else [self.registry, self.in_front]

    def settings(self, name: str) -> dict[str, Any]:
        """Return the settings of a part and their defaults; MISSING or None if there is none."""
        own: dict[str, Any] = {}
        for known, part in self._each(name.split(">>")):
            try:
                own |= known.settings(part)
            except ValueError as wrong:
                raise ConfigError(f"{full(self.section, self.key)}: {wrong}") from None
        return {key: self.defaults.get(key, value) if value is MISSING else value for key, value in own.items()}

    def section_of(self, part: Any) -> dict[str, Any]:
        """Return the section for an object such as `Krum(5)` or `NNM(2) >> Mean()`; ConfigError if there is none.

        >>> from bartizan import NNM, Krum
        >>> CHOICES["rule"].section_of(NNM(2) >> Krum(2))
        {'name': 'nnm >> krum', 'n_byzantine': 2}
        """
        if isinstance(part, (str, int, float, list, tuple)) or part is None:
            raise ConfigError(f"{self.section} must be a section, [{self.section}]; got {shown(part)}.")
        settings: dict[str, Any] = {}
        links = [_class_and_settings(link) for link in _links(part)]
        for _, own in links:
            for key, value in own.items():
                if settings.setdefault(key, value) != value:
                    differ = f"{key} = {settings[key]!r} and {value!r}"
                    raise ConfigError(f"{self.section} {part!r} can't be recorded: its parts have {differ}.")
        return {self.key: self.spelling([kind for kind, _ in links]), **settings}

    def as_dict(self, chosen: ChosenPart) -> dict[str, Any]:
        return {self.key: chosen.name, **chosen.settings}

    def changed(self, before: Mapping[str, Any], changes: Mapping[str, Any]) -> dict[str, Any]:
        """Return a section with changes; if they choose another part, only settings in `shared` stay."""
        try:
            after = self.spelling(changes.get(self.key, before[self.key]))
            if after == before[self.key]:
                return {**before, **changes}
            takes = self.settings(after)
        except ConfigError:
            takes = {}  # `of` refuses it, and says why
        return {key: value for key, value in before.items() if key in self.shared and key in takes} | dict(changes)


def _links(part: Any) -> list[Any]:
    """Return the parts that `>>` has combined."""
    return [*_links(part.first), *_links(part.then)] if isinstance(part, Composed) else [part]


def _class_and_settings(part: Any) -> tuple[Any, dict[str, Any]]:
    """Return the class or function of an object, and its settings without those that are None."""
    if isinstance(part, partial):
        if part.args:
            raise ConfigError(f"{part!r} can't be recorded: bind settings by keyword only.")
        return part.func, part.keywords
    if isinstance(part, type) or hasattr(part, "__qualname__"):
        return part, {}
    kind = type(part)
    if not hasattr(kind, "__dataclass_fields__"):
        raise ConfigError(f"{part!r} can't be recorded: expected a dataclass, got {kind.__name__}.")
    every = {name: getattr(part, name) for name in settings_of(kind)}
    if kind(**every) != part:
        raise ConfigError(f"{part!r} can't be recorded: its settings do not make an equal {kind.__name__}.")
    return kind, {name: value for name, value in every.items() if value is not None}


BAD_SKETCHES = Registry("sketch", {"bad-unsigned-sum": "bartizan.lab.bad_sketch:UnsignedSum"})
"""Sketches for experiments only: a comparison with one of these must fail."""
CHOICES = {
    "split": Choice(
        "split",
        "How the images are divided among the clients.",
        "dirichlet",
        SPLITS,
        key="kind",
        defaults={"beta": 0.6, "gamma": 0.5},
    ),
    "attack": Choice("attack", "What the Byzantine clients send, or train on.", "none", ATTACKS | POISONS),
    "rule": Choice(
        "rule",
        "How the server weighs the clients. If not given, n_byzantine is the true number or the most it can take.",
        "krum",
        RULES | COORDINATEWISE,
        shared=("n_byzantine",),
        in_front=PRE_AGGREGATORS,
    ),
    "sketch": Choice(
        "sketch",
        "How the server projects the updates; exact projects nothing.",
        "rotated",
        SKETCHES | BAD_SKETCHES,
        shared=("k",),
        defaults={"k": 4096},
    ),
}
