"""Surface: experiments from TOML files and from settings on the command line."""

import tomllib
from functools import partial, reduce

import tomli_w
from hypothesis import strategies as st

from bartizan import registry
from bartizan.lab.config.experiment import Experiment
from bartizan.lab.config.keys import ConfigError
from fuzz.surfaces import COMPARED, RefusedError, documented, require, surface_of_calls
from fuzz.values import JUNK, changed, files

WHOLE = Experiment().as_dict() | {
    "grid": {"seed": [0, 1], "rule.name": ["krum", "mean"], "clients.byzantine": [0, 0.2]}
}
NAMES = st.sampled_from(
    [*registry.RULES, "nnm >> krum", "rotated", "exact", "label-flip", "alie", "shards", "a >> b", ""]
)
NAMED = st.sampled_from([("rule", "name"), ("attack", "name"), ("sketch", "name"), ("split", "kind")])
RENAMED = st.builds(lambda key, name: WHOLE | {key[0]: {key[1]: name}}, NAMED, NAMES)
KEYS = ["rounds", "seed", "clients.count", "clients.byzantine", "rule.name", "grid.seed", "data.folder", "x"]
SETTINGS = st.one_of(
    st.builds("{}={}".format, st.sampled_from(KEYS), JUNK | NAMES | st.integers() | st.floats()),
    st.sampled_from(["rounds=7", "rule.name=nnm >> krum", "grid.seed=[0, 1]", "data.folder=/tmp"]),
    st.text(max_size=40),
)
VALID = st.fixed_dictionaries(
    {"rounds": st.integers(1, 9000), "seed": st.integers(0, 9000), "clients.count": st.integers(30, 130)},
    optional={"rule.name": st.sampled_from(["krum", "mean", "mca"]), "clients.byzantine": st.floats(0, 0.4)},
)


def _file(path, content):
    """Read an experiment from a file of these bytes, or of a table with these values."""
    try:
        text = content if isinstance(content, bytes) else tomli_w.dumps(content).encode("utf-8", "surrogatepass")
    except (TypeError, AttributeError, RecursionError):  # TOML has no None, and no experiment nests so deeply
        raise RefusedError from None
    path.write_bytes(text)
    with documented(ConfigError):
        found = Experiment.from_toml(path)
    return _round_trip(found)


def _setting(text):
    with documented(ConfigError):
        found = Experiment().with_settings([text])
    return _round_trip(found)


def _valid(given):
    """Require that valid settings are what the experiment has afterwards."""
    found = Experiment().with_settings([f"{key}={value}" for key, value in given.items()])
    for key, value in given.items():
        has = reduce(dict.__getitem__, key.split("."), found.as_dict())
        require(has == value, f"{key} is {has!r} after it was set to {value!r}")
    return _round_trip(found)


def _round_trip(one):
    """Require that an accepted experiment is the same after writing and reading it."""
    again = Experiment.of(tomllib.loads(one.to_toml()))
    require(again.as_dict() == one.as_dict(), "the experiment changed when it was written and read")
    require([run.id for run in again.runs()] == [run.id for run in one.runs()], "the ids of its runs changed")
    return COMPARED


def surface(folder):
    contents = files(tomli_w.dumps(WHOLE).encode(), b'rounds = 3\n[rule]\nname = "mean"') | changed(WHOLE) | RENAMED
    calls = {partial(_file, folder / "case.toml"): contents, _setting: SETTINGS, _valid: VALID}
    return surface_of_calls(st.one_of([drawn.map(partial(partial, call)) for call, drawn in calls.items()]))
