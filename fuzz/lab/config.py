"""Surface: experiments from TOML files and from settings on the command line."""

import tomllib
from functools import partial

from hypothesis import strategies as st

from bartizan import registry
from bartizan.lab.config import toml
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
RENAMED = st.builds(lambda key, name: {key[0]: {key[1]: name}}, NAMED, NAMES)
CONTENTS = st.builds(lambda content, more: content | more if isinstance(content, dict) else content,
                     changed(WHOLE), st.just({}) | RENAMED)  # fmt: skip
KEYS = ["rounds", "seed", "clients.count", "clients.byzantine", "rule.name", "grid.seed", "data.folder", "x"]
SETTINGS = st.one_of(
    st.builds("{}={}".format, st.sampled_from(KEYS), st.one_of(JUNK, NAMES, st.integers(), st.floats())),
    st.sampled_from(["rounds=7", "rule.name=nnm >> krum", "grid.seed=[0, 1]", "data.folder=/tmp"]),
    st.text(max_size=40),
)
VALID = st.fixed_dictionaries(
    {"rounds": st.integers(1, 9000), "seed": st.integers(0, 9000), "clients.count": st.integers(30, 130)},
    optional={"rule.name": st.sampled_from(["krum", "mean", "mca"]), "clients.byzantine": st.floats(0, 0.4)},
)


def _file(path, content):
    path.write_bytes(content)
    with documented(ConfigError):
        found = Experiment.from_toml(path)
    return _round_trip(found)


def _table(path, content):
    try:
        text = toml.document(content).encode("utf-8", "surrogatepass")
    except (TypeError, AttributeError, RecursionError):  # TOML has no None, and no experiment nests so deeply
        raise RefusedError from None
    return _file(path, text)


def _setting(text):
    with documented(ConfigError):
        found = Experiment().with_settings([text])
    return _round_trip(found)


def _valid(given):
    """Require that valid settings are what the experiment has afterwards."""
    found = Experiment().with_settings([f"{key}={value}" for key, value in given.items()])
    for key, value in given.items():
        has = found.as_dict()
        for part in key.split("."):
            has = has[part]
        require(has == value, f"{key} is {has!r} after it was set to {value!r}")
    return _round_trip(found)


def _round_trip(one):
    """Require that an accepted experiment is the same after writing and reading it."""
    again = Experiment.of(tomllib.loads(toml.document(one.as_dict())))
    require(again.as_dict() == one.as_dict(), "the experiment changed when it was written and read")
    require([run.id for run in again.runs()] == [run.id for run in one.runs()], "the ids of its runs changed")
    return COMPARED


def surface(folder):
    path, calls = folder / "case.toml", partial(st.builds, partial)
    texts = files(toml.document(WHOLE).encode(), b'rounds = 3\n[rule]\nname = "mean"')
    return surface_of_calls(
        calls(st.just(_file), st.just(path), texts)
        | calls(st.just(_table), st.just(path), CONTENTS)
        | calls(st.just(_setting), SETTINGS)
        | calls(st.just(_valid), VALID)
    )
