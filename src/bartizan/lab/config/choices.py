"""The sections that choose a thing and give it settings: split, attack, rule, sketch."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import MISSING, dataclass, field
from typing import Any

from bartizan.attacks.by_name import ATTACKS, POISONS
from bartizan.lab.config.keys import ConfigError, full, number_like, refuse_unknown, shown
from bartizan.lab.data.partition import SPLITS
from bartizan.registry import COORDINATEWISE, PRE_AGGREGATORS, RULES, SKETCHES, Registry


@dataclass(frozen=True)
class Chosen:
    """A thing by its name, and its settings with their defaults filled in."""

    name: str
    settings: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Choice:
    """What a section may choose."""

    section: str
    about: str
    default: str
    known: Registry
    word: str = "name"
    """The key that chooses."""
    kept: tuple[str, ...] = ()
    """Settings that mean the same for all, so that they stay when another is chosen."""
    fallback: Mapping[str, Any] = field(default_factory=dict)
    """Defaults for what has none."""
    chained: bool = False
    """Whether several can stand in a row, `one >> other`."""

    def of(self, given: Mapping[str, Any]) -> Chosen:
        """What a section of a file says, checked; the thing itself checks its settings when it is built."""
        asked = given.get(self.word, self.default)
        if not isinstance(asked, str):
            raise ConfigError(f"{full(self.section, self.word)} must be a text; got {shown(asked)}.")
        name = self.found(asked)
        takes = self.takes(name)
        settings = {key: default for key, default in takes.items() if default not in (MISSING, None)}
        for key, value in given.items():
            if key == self.word:
                continue
            refuse_unknown(key, takes, self.section, of=f"{self.section} {name!r}", also=self.word)
            if not isinstance(value, (bool, int, float, str)):
                wanted = "a number, a text, true or false"
                raise ConfigError(f"{full(self.section, key)} must be {wanted}; got {shown(value)}.")
            settings[key] = number_like(full(self.section, key), takes[key], value)
        return Chosen(name, settings)

    def found(self, asked: str) -> str:
        """What is meant, as the tables spell it."""
        return " >> ".join(map(self._found, asked.split(">>") if self.chained else [asked]))

    def _found(self, name: str) -> str:
        name = name.strip()
        try:
            return self.known.spelling(name)
        except ValueError as unknown:
            raise ConfigError(f"{full(self.section, self.word)}: {unknown}") from None

    def takes(self, name: str) -> dict[str, Any]:
        """The settings of a thing, with their defaults; MISSING or None where there is none."""
        own: dict[str, Any] = {}
        for part in name.split(">>"):
            own |= self.known.settings(part)
        return {key: self.fallback.get(key, value) if value is MISSING else value for key, value in own.items()}

    def as_dict(self, chosen: Chosen) -> dict[str, Any]:
        return {self.word: chosen.name, **chosen.settings}

    def changed(self, before: Mapping[str, Any], changes: Mapping[str, Any]) -> dict[str, Any]:
        """Settings belong to what was chosen: another choice keeps only those that mean the same for all."""
        after = changes.get(self.word, before[self.word])
        if similar(str(after), before[self.word]):
            return {**before, **changes}
        try:
            takes = self.takes(self.found(str(after)))
        except ConfigError:
            takes = {}  # `of` refuses it, and says why
        return {key: value for key, value in before.items() if key in self.kept and key in takes} | dict(changes)


def similar(one: str, other: str) -> bool:
    return one.strip().lower().replace("_", "-") == other.strip().lower().replace("_", "-")


CHOICES = {
    "split": Choice(
        "split",
        "Who holds which images.",
        "dirichlet",
        SPLITS,
        word="kind",
        fallback={"beta": 0.6, "gamma": 0.5},
    ),
    "attack": Choice("attack", "What the Byzantine clients do.", "none", ATTACKS | POISONS),
    "rule": Choice(
        "rule",
        "Whom the server trusts. n_byzantine is the true number if not given, or the most that the rule can take.",
        "krum",
        RULES | COORDINATEWISE | PRE_AGGREGATORS,
        kept=("n_byzantine",),
        chained=True,
    ),
    "sketch": Choice(
        "sketch",
        "How the server looks at the updates; exact projects nothing.",
        "rotated",
        SKETCHES,
        kept=("k",),
        fallback={"k": 4096},
    ),
}
