"""Rules, sketches and other parts by name: those of the package, and plug-ins that are installed beside it."""

from __future__ import annotations

import importlib
import inspect
import sys
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import MISSING, dataclass, fields, is_dataclass
from functools import lru_cache, reduce
from importlib import metadata
from operator import rshift
from typing import Any

from bartizan import measure as sketches
from bartizan import rules
from bartizan._util.text import did_you_mean, quoted
from bartizan.measure import Sketch
from bartizan.measure.sketches import USUAL_K
from bartizan.rules import Rule, coordinatewise, preaggregators
from bartizan.rules.coordinatewise import CoordinateWise
from bartizan.rules.preaggregators import PreAggregator


@dataclass(frozen=True)
class Plugin:
    """An entry point of an installed package: its name, what it points to, and the package."""

    name: str
    target: str
    source: str


class Registry(Mapping[str, Any]):
    """The parts of one kind by name; iterating, `in` and `len` import nothing.

    Args:
        kind: What the parts are called in messages, such as "rule".
        built_in: The package's own parts, each an object or a text "module:Name" that is imported when asked for.
        group: The group of entry points that plug-ins of this kind are registered under; none if empty.
        check: Raises TypeError with the reason where an object can't be used as such a part.
        context: Keyword arguments that the caller of such a part provides, and that are no settings.
    """

    def __init__(
        self,
        kind: str,
        built_in: Mapping[str, Any],
        group: str = "",
        *,
        check: Callable[[Any], None] = lambda part: None,
        context: Collection[str] = (),
    ) -> None:
        self.kind, self.built_in, self.group, self.check = kind, dict(built_in), group, check
        self.context = tuple(context)

    def __or__(self, other: Registry) -> Registry:
        """Join the parts of both; plug-ins, check and messages are those of the first."""
        return Registry(self.kind, self.built_in | other.built_in, self.group, check=self.check, context=self.context)

    def plugins(self) -> list[Plugin]:
        """Return the entry points of installed packages, unusable ones included; nothing is imported."""
        return list(_installed(self.group, tuple(sys.path))) if self.group else []

    def spelling(self, name: str) -> str:
        """Return a name as it is recorded: lower case with dashes, or "package.module:Name"; nothing is imported."""
        if ":" in name:
            return name.strip()
        key = _spelt(name)
        if key in self:
            return key
        meant = did_you_mean(key, self)
        raise ValueError(f"Unknown {self.kind} {quoted(key)}.{meant} Known: {', '.join(sorted(self))}.")

    def is_built_in(self, name: str) -> bool:
        """Return whether a name is the package's own."""
        return _spelt(name) in self.built_in

    def find(self, name: str) -> Any:
        """Return the part with this name: the package's, a plug-in's or "package.module:Name"; else raise ValueError.

        >>> RULES.find("Multi_Krum").__name__, RULES.find("bartizan.rules:MultiKrum").__name__
        ('MultiKrum', 'MultiKrum')
        """
        key = self.spelling(name)
        if key in self.built_in:
            part = self.built_in[key]
            return imported(part) if isinstance(part, str) else part
        if ":" in key:
            return self._loaded(key, f"{self.kind} {quoted(key)}")
        plugins = [plugin for plugin in self.plugins() if plugin.name == key]
        if len(plugins) > 1:
            several = " and ".join(f"{plugin.source} ({plugin.target})" for plugin in plugins)
            raise ValueError(f"{self.kind} {key!r} is registered by {several}. Name one as package.module:Name.")
        return self._loaded(plugins[0].target, f"{self.kind} {key!r} of the plug-in {plugins[0].source}")

    def problem(self, plugin: Plugin) -> str:
        """Import a plug-in and return why it can't be used; empty if it can."""
        if self.is_built_in(plugin.name):
            return f"the name {plugin.name!r} belongs to bartizan; {plugin.target!r} still finds it"
        try:
            self.find(plugin.name)
        except ValueError as wrong:
            return str(wrong)
        return ""

    def name_of(self, part: Any) -> str:
        """Return the name by which `find` returns this function or class: the package's own, or "module:qualname"."""
        path = f"{getattr(part, '__module__', None)}:{getattr(part, '__qualname__', None)}"
        own = [name for name, known in self.built_in.items() if known is part or known == path]
        if own:
            return own[0]
        try:
            found = "<" not in path and not path.startswith("__main__:") and imported(path) is part
        except (ImportError, AttributeError, ValueError):
            found = False
        if not found:
            raise ValueError(
                f"{self.kind} {part!r} can't be recorded by name: wanted a function or class at the top of a module "
                "that can be imported, not a lambda, not inside a function and not in a script's __main__."
            )
        return path

    def settings(self, name: str) -> dict[str, Any]:
        """Return the settings of a part with their defaults, MISSING where one must be given."""
        return {key: value for key, value in settings_of(self.find(name)).items() if key not in self.context}

    def _loaded(self, target: str, what: str) -> Any:
        try:
            part = imported(target)
        except (Exception, SystemExit) as wrong:  # a plug-in's module may do anything when it is imported
            raise ValueError(f"{what} can't be imported: {type(wrong).__name__}: {wrong}") from wrong
        try:
            self.check(part)
        except TypeError as wrong:
            raise ValueError(f"{what} does not fit: {wrong}") from None
        return part

    def __getitem__(self, name: str) -> Any:
        if name not in self:
            raise KeyError(name)
        return self.find(name)

    def __contains__(self, name: object) -> bool:
        return isinstance(name, str) and (self.is_built_in(name) or any(one.name == name for one in self.plugins()))

    def __iter__(self) -> Iterator[str]:
        return iter(dict.fromkeys([*self.built_in, *(plugin.name for plugin in self.plugins())]))

    def __len__(self) -> int:
        return sum(1 for _ in self)


def imported(target: str) -> Any:
    """Import the object that "package.module:Name" names."""
    module, _, path = target.partition(":")
    if not all(part.isidentifier() for part in (*module.split("."), *path.split("."))):
        raise ValueError(f"wanted package.module:Name, got {quoted(target)}")
    return reduce(getattr, path.split("."), importlib.import_module(module))


def settings_of(part: Any) -> dict[str, Any]:
    """Return the fields of a dataclass, or keyword-only arguments of a function, with defaults; MISSING if none."""
    if is_dataclass(part):
        return {field.name: field.default for field in fields(part) if field.init}
    arguments = inspect.signature(part).parameters.values()
    empty = inspect.Parameter.empty
    return {a.name: MISSING if a.default is empty else a.default for a in arguments if a.kind is a.KEYWORD_ONLY}


def only_known(name: str, settings: Iterable[str], known: Collection[str]) -> None:
    """Raise TypeError on the first setting that a part does not have."""
    for setting in settings:
        if setting not in known:
            takes = ", ".join(sorted(known)) or "no settings"
            raise TypeError(f"{name!r} has no setting {setting!r}; it takes {takes}.")


def build(kind: type[Any], settings: Mapping[str, Any]) -> Any:
    """Make a dataclass from those of the settings that it has."""
    own = settings_of(kind)
    needed = [name for name, default in own.items() if default is MISSING and name not in settings]
    if needed:
        raise TypeError(f"{kind.__name__} needs {', '.join(needed)}: pass {needed[0]}.")
    return kind(**{name: value for name, value in settings.items() if name in own})


def frozen_dataclass(*bases: type[Any]) -> Callable[[Any], None]:
    """Return a check for `Registry`: a frozen dataclass that derives from one of these classes and is complete."""
    wanted = " or ".join(f"{base.__module__}.{base.__qualname__}" for base in bases)

    def check(part: Any) -> None:
        if not (isinstance(part, type) and issubclass(part, bases)):
            raise TypeError(f"wanted a class that derives from {wanted}, got {part!r}.")
        if "__dataclass_params__" not in vars(part) or not vars(part)["__dataclass_params__"].frozen:
            raise TypeError(f"{part.__name__} must be a frozen dataclass: put @dataclass(frozen=True) above it.")
        if missing := sorted(getattr(part, "__abstractmethods__", ())):
            raise TypeError(f"{part.__name__} must define {', '.join(missing)}.")

    return check


def callable_with(*arguments: Any, wanted: str) -> Callable[[Any], None]:
    """Return a check for `Registry`: a function or class that can be called with such positional arguments."""

    def check(part: Any) -> None:
        try:
            if not callable(part):
                raise TypeError(f"got {part!r}")
            inspect.signature(part).bind(*arguments)
        except TypeError as wrong:
            raise TypeError(f"wanted {wanted}: {wrong}.") from None

    return check


RULES = Registry(
    "rule",
    {
        "mean": rules.Mean,
        "krum": rules.Krum,
        "multi-krum": rules.MultiKrum,
        "bulyan": rules.Bulyan,
        "geometric-median": rules.GeometricMedian,
        "mca": rules.MCA,
        "centered-clipping": rules.CenteredClipping,
        "mda": rules.MDA,
        "smea": rules.SMEA,
        "monna": rules.MoNNA,
        "fltrust": rules.FLTrust,
        "caf": rules.CAF,
        "cge": rules.CGE,
        "spectral-dnc": rules.SpectralDnC,
        "clipped-clustering": rules.ClippedClustering,
        "flame": rules.FLAME,
    },
    "bartizan.rules",
    check=frozen_dataclass(Rule, CoordinateWise),
)
COORDINATEWISE = Registry(
    "coordinate-wise rule",
    {"median": coordinatewise.Median, "trimmed-mean": coordinatewise.TrimmedMean, "meamed": coordinatewise.MeaMed},
)
PRE_AGGREGATORS = Registry(
    "pre-aggregator",
    {
        "nnm": preaggregators.NNM,
        "bucketing": preaggregators.Bucketing,
        "clipping": preaggregators.Clipping,
        "arc": preaggregators.ARC,
        "norm-filter": preaggregators.NormFilter,
    },
    "bartizan.preaggregators",
    check=frozen_dataclass(PreAggregator),
)
SKETCHES = Registry(
    "sketch",
    {
        "exact": sketches.Exact,
        "rotated": sketches.Rotated,
        "achlioptas": sketches.Achlioptas,
        "gaussian": sketches.Gaussian,
    },
    "bartizan.sketches",
    check=frozen_dataclass(Sketch),
)

DEFAULT_RULE = "arc >> caf"


def rule(name: str, **settings: Any) -> Rule | CoordinateWise:
    """Make a rule by its name, `pre >> rule` included; each part takes the settings that it has.

    A name is one of `bartizan list`, a plug-in's, or "package.module:Name".

    >>> rule("multi-krum", n_byzantine=5)
    MultiKrum(n_byzantine=5, n_selected=None)
    >>> rule("nnm >> trimmed-mean", n_byzantine=2)
    NNM(n_byzantine=2) >> TrimmedMean(n_byzantine=2)
    """
    only_known(name, settings, settings_of_rule(name))
    return reduce(rshift, (build(kind, settings) for kind in rule_classes(name)))


def settings_of_rule(name: str) -> set[str]:
    """Return the settings that the parts of `pre >> ... >> rule` have."""
    return {setting for kind in rule_classes(name) for setting in settings_of(kind)}


def default_rule(n_byzantine: int) -> Rule | CoordinateWise:
    """Make the rule that is taken where only the number of Byzantine clients is given.

    >>> default_rule(3)
    ARC(n_byzantine=3) >> CAF(n_byzantine=3)
    """
    return rule(DEFAULT_RULE, n_byzantine=n_byzantine)


def rule_classes(name: str) -> list[type[Any]]:
    """Return the classes that `pre >> ... >> rule` names, in this order."""
    *pres, last = map(str.strip, str(name).split(">>"))
    if last not in RULES | COORDINATEWISE and PRE_AGGREGATORS.is_built_in(last):
        raise ValueError(f"{quoted(last)} is a pre-aggregator: put a rule behind it, as in '{name} >> mean'.")
    return [*map(PRE_AGGREGATORS.find, pres), (RULES | COORDINATEWISE).find(last)]


def sketch(name: str, **settings: Any) -> Sketch:
    """Make a sketch by its name, with k = 4096 where it needs one and none is given.

    >>> sketch("rotated", k=1024), sketch("gaussian")
    (Rotated(k=1024, mixing=32), Gaussian(k=4096))
    """
    kind = SKETCHES.find(name)
    takes = settings_of(kind)
    only_known(name, settings, takes)
    usual = {"k": USUAL_K} if takes.get("k") is MISSING else {}
    made: Sketch = build(kind, usual | settings)
    return made


def _spelt(name: str) -> str:
    return name.strip().lower().replace("_", "-")


@lru_cache(maxsize=16)
def _installed(group: str, path: tuple[str, ...]) -> tuple[Plugin, ...]:
    """Return the plug-ins of a group; `path` is sys.path, which decides what is installed."""
    found = {
        Plugin(_spelt(one.name), one.value, f"{one.dist.name} {one.dist.version}" if one.dist else "an unknown package")
        for one in metadata.entry_points(group=group)
    }
    return tuple(sorted(found, key=lambda plugin: (plugin.name, plugin.source)))
