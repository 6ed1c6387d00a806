"""An experiment's file: what is said comes back, what is wrong names its key."""

from __future__ import annotations

import json
import tomllib
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import pytest

import bartizan as bz
from bartizan import attacks, cli
from bartizan import registry as names
from bartizan.lab import Experiment
from bartizan.lab.config.build_parts import rule_for
from bartizan.lab.config.keys import ConfigError
from bartizan.lab.config.template import commented
from bartizan.lab.data import partition
from bartizan.rules import Rule

WHOLE = {
    "name": 'ein "Versuch"\n\x7f ü',
    "seed": 3,
    "rounds": 7,
    "split": {"kind": "shards", "per_client": 3},
    "clients": {"count": 20, "byzantine": 4},
    "attack": {"name": "lie", "z": 1},
    "rule": {"name": "nnm >> trimmed-mean"},
    "sketch": {"name": "achlioptas", "k": 128},
    "grid": {"seed": [0, 1], "rule": [{"name": "krum"}, {"name": "multi-krum", "n_selected": 5}]},
}


def test_an_experiment_comes_back_from_its_file(tmp_path):
    experiment = Experiment.of(WHOLE)
    (tmp_path / "e.toml").write_text(experiment.to_toml())
    assert Experiment.from_toml(tmp_path / "e.toml") == experiment


def test_an_empty_file_is_the_defaults_and_defaults_are_filled_in(tmp_path):
    (tmp_path / "e.toml").touch()
    experiment = Experiment.from_toml(tmp_path / "e.toml")
    assert experiment == Experiment()
    assert experiment.as_dict()["split"] == {"kind": "dirichlet", "beta": 0.6}
    assert experiment.as_dict()["sketch"] == {"name": "rotated", "k": 4096, "mixing": 32}


def test_the_template_says_the_defaults_and_names_every_choice():
    text = commented()
    written = Experiment.of(tomllib.loads(text))
    assert written.rule.name == repr(names.default_rule(1)).replace("(n_byzantine=1)", "").lower()
    assert written.changed({"attack.name": "none", "rule.name": "krum"}).without_grid() == Experiment()
    rules = (names.RULES, names.COORDINATEWISE, names.PRE_AGGREGATORS)
    for table in (*rules, names.SKETCHES, attacks.ATTACKS, attacks.POISONS):
        assert all(f"#   {name}" in text for name in table.built_in)


def test_the_documentation_has_every_key_with_its_default():
    page = (Path(__file__).parents[2] / "docs" / "reference" / "experiment-files.md").read_text()
    for section, content in Experiment().as_dict().items():
        keys = content if isinstance(content, dict) else {"": content}
        for key, value in keys.items():
            assert f"`{section}.{key}`".replace(".`", "`") in page or (section, key) in SETTINGS
            assert f"`{json.dumps(value)}`" in page or (section, key) in SETTINGS


# Told beside the choice that they belong to.
SETTINGS = [("split", "beta"), ("sketch", "k"), ("sketch", "mixing")]


def test_the_grid_that_the_template_shows_works():
    text = commented()
    assert len(Experiment.of(tomllib.loads(text)).runs()) == 2 * 3
    whole = text.replace('# "sketch', '"sketch').replace("# seed = [", "seed = [")
    assert len(Experiment.of(tomllib.loads(whole)).runs()) == 2 * 3 * 2 * 3


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"round": 3}, r"Unknown key round. Did you mean rounds\?"),
        ({"momentum": 0.9}, r"Did you mean clients.momentum or server.momentum\?"),
        ({"attack": {"name": "lie"}, "z": 1.0}, r"Unknown key z. Did you mean attack.z\?"),
        ({"rule": {"name": "krumm"}}, r"rule.name: Unknown rule 'krumm'. Did you mean 'krum'\?"),
        ({"rule": {"name": "mean", "n_byzantine": 3}}, "rule 'mean' takes no settings"),
        ({"rule": {"n_byzantine": 30}}, r"\[rule\] Krum with n_byzantine=30 needs at least 63 clients, got 50"),
        ({"rule": {"name": "smea"}}, r"\[rule\] SMEA with 50 clients and n_byzantine=15 has more sets to try than"),
        ({"rule": {"n_byzantine": [3]}}, r"rule.n_byzantine must be a number, a text, true or false; got \[3\]"),
        ({"rule": {"n_byzantine": "x"}}, r"\[rule\] Krum needs n_byzantine, a whole number"),
        ({"rule": {"name": "krum >> mean"}}, "rule.name: Unknown pre-aggregator 'krum'"),
        ({"rule": {"name": "median"}}, "'median' judges each coordinate by itself.* needs sketch.name = 'exact'"),
        ({"rule": {"name": 3}}, "rule.name must be a text; got 3"),
        ({"rule": "krum"}, r"rule must be a section, \[rule\]; got 'krum'"),
        ({"sketch": {"k": 1000}}, r"\[sketch\] Rotated needs k, a power of two"),
        ({"sketch": {"name": "exact", "k": 64}}, "Unknown key sketch.k. sketch 'exact' takes no settings"),
        ({"attack": {"name": "lie", "z": "much"}}, "attack.z must be a number, such as 0.7; got 'much'"),
        ({"attack": {"name": "lie", "z": float("nan")}}, "attack.z must be a finite number"),
        ({"split": {"beta": -1}}, r"\[split\] beta must lie from"),
        ({"clients": {"byzantine": 1.5}}, "clients.byzantine must be a fraction from 0 up to below 1.*; got 1.5"),
        ({"clients": {"byzantine": 50}}, "whole number of clients below clients.count = 50; got 50"),
        ({"clients": {"byzantine": "many"}}, "clients.byzantine must be .*; got 'many'"),
        ({"clients": {"count": 50.0}}, "clients.count must be a whole number, such as 50; got 50.0"),
        ({"clients": {"participation": 0}}, "clients.participation must be from .* to 1.0; got 0.0"),
        ({"clients": {"sends": "weights"}}, "clients.sends = 'weights' needs clients.work"),
        ({"data": {"augment": 1}}, "data.augment must be true or false, such as false; got 1"),
        ({"name": "../elsewhere"}, "name must be fit for a folder, without slashes; got '../elsewhere'"),
        ({"seed": -1}, "seed must be from 0 to"),
        ({"grid": {"seed": 3}}, 'grid."seed" must be a list of values'),
        ({"grid": {"rule": ["krum"]}}, r"rule must be a section, \[rule\]; got 'krum'"),
        ({"grid": {key: list(range(99)) for key in ("seed", "rounds", "clients.batch")}}, "The grid has 970,299 runs"),
        ({"sketch": {"name": "exact >> rotated"}}, "sketch.name: Unknown sketch 'exact >> rotated'"),
        ({"server": {"step_size": 10**400}}, "server.step_size must be a finite number"),
        ({"attack": {"name": "mimic", "client": 35}}, "attack.client is a row of the honest .*, 0 to 34, .*got 35"),
        ({"attack": {"name": "mimic", "client": 3}, "clients": {"participation": 0.5}}, "only if all take part; got 3"),
        ({"grid": {"sead": [1]}}, r"Unknown key sead. Did you mean seed\?"),
        ({"grid": {"rule.name": ["krum", "kru"]}}, "rule.name: Unknown rule 'kru'"),
        ({"grid": {"device": ["cpu"]}}, 'grid."device" can\'t be varied'),
        ({"server": {"optimiser": "d-adaptation"}}, "server.optimiser must be one of .*; got 'd-adaptation'"),
    ],
    ids=str,
)
def test_what_is_wrong_names_its_key(given, message):
    with pytest.raises(ConfigError, match=message):
        Experiment.of(given)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"rounds = \n", r"e\.toml is not valid TOML: .*line 1"),
        (b"name = '\xff'", r"e\.toml is not valid TOML: 'utf-8' codec"),
        (b"rounds = 'many'", r"e\.toml: rounds must be a whole number"),
    ],
)
def test_a_wrong_file_is_named(tmp_path, content, message):
    (tmp_path / "e.toml").write_bytes(content)
    with pytest.raises(ConfigError, match=message):
        Experiment.from_toml(tmp_path / "e.toml")
    with pytest.raises(FileNotFoundError, match=r"`bartizan init .*` writes one"):
        Experiment.from_toml(tmp_path / "none.toml")


def test_settings_are_toml_or_bare_words():
    changed = Experiment().with_settings(
        ["rounds = 7", "attack.name=lie", "attack.z=2", "data.augment=true", "name=a b"]
    )
    assert (changed.rounds, changed.attack.settings, changed.data.augment, changed.name) == (7, {"z": 2.0}, True, "a b")
    with pytest.raises(ConfigError, match="A setting is key=value"):
        changed.with_settings(["rounds"])


def test_another_choice_does_not_inherit_settings_of_another_meaning():
    base = Experiment.of({"attack": {"name": "sign-flip", "factor": -9.0}, "sketch": {"k": 128}})
    assert base.with_settings(["attack.name=foe"]).attack.settings == {"factor": -0.1}
    assert base.with_settings(["attack.name=sign_flip"]).attack.settings == {"factor": -9.0}
    assert base.with_settings(["sketch.name=achlioptas"]).sketch.settings == {"k": 128, "s": 8}
    assert base.with_settings(["sketch.name=exact"]).sketch.settings == {}
    assert Experiment.of({"rule": {"n_byzantine": 3}}).with_settings(["rule.name=mean"]).rule.settings == {}


def test_the_id_is_of_what_the_numbers_depend_on():
    one = Experiment()
    same = one.with_settings(["name=other", "device=cpu", "data.folder=elsewhere", "grid.seed=[1, 2]"])
    assert one.id == same.id
    others = ["seed=1", "rounds=9", "rule.name=mean", "sketch.k=128", "evaluation.every=1", "clients.byzantine=0.2"]
    assert len({one.id, *(one.with_settings([other]).id for other in others)}) == 1 + len(others)
    assert Experiment.of({"sketch": {"k": 4096, "mixing": 32}}).id == one.id, "defaults may be said"
    assert len({Experiment.of({"clients": {"byzantine": nobody}}).id for nobody in (0, 0.0)}) == 1


def test_a_grid_is_every_combination_once():
    runs = Experiment.of(WHOLE).runs()
    assert [(run.seed, run.rule.name) for run in runs] == [(n, name) for n in (0, 1) for name in ("krum", "multi-krum")]
    assert runs[1].rule.settings == {"n_selected": 5}
    assert all(not run.grid for run in runs)
    assert len({run.slug for run in runs}) == 4


def test_in_a_grid_a_coordinatewise_rule_is_run_once_and_exact():
    grid = {"rule.name": ["krum", "median"], "sketch.name": ["exact", "rotated", "gaussian"]}
    runs = Experiment.of({"grid": grid}).runs()
    sketches = [("krum", name) for name in grid["sketch.name"]]
    assert [(run.rule.name, run.sketch.name) for run in runs] == [*sketches, ("median", "exact")]


def test_a_rule_is_told_the_truth_or_the_most_it_can_take():
    rule, note = rule_for(Experiment.of({"rule": {"name": "krum"}}).rule, 50, 15)
    assert (rule.n_byzantine, note) == (15, "")
    bulyan = Experiment.of({"rule": {"name": "bulyan"}}).rule
    rule, note = rule_for(bulyan, 50, 15)
    assert rule.n_byzantine == 11
    assert note == "bulyan has n_byzantine=11, not 15: with 50 clients it can take no more."
    rule, _ = rule_for(Experiment.of({"rule": {"name": "bucketing >> krum"}}).rule, 50, 15)
    assert rule.then.n_byzantine == 11, "25 buckets are left, and krum needs 2f + 3"


def test_a_rule_is_checked_for_many_clients_without_weighing_any():
    chosen = Experiment.of({"rule": bz.NNM(5) >> MyRule(5)}).rule
    assert rule_for(chosen, 20_000, 5) == (bz.NNM(5) >> MyRule(5), "")


def test_init_writes_a_file_once(tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert cli.main(["init"]) == 0
    written = Experiment.from_toml("experiment.toml")
    assert written.attack.name != "none"
    assert len(written.runs()) > 1
    (tmp_path / "experiment.toml").write_text("rounds = 3")
    assert cli.main(["init"]) == 2
    assert "experiment.toml is there already. Pass --force" in capsys.readouterr().err
    assert cli.main(["init", "--force"]) == 0
    assert Experiment.from_toml("experiment.toml") == written


def test_a_grid_may_vary_what_its_base_could_not_run():
    sketches = {"sketch.name": ["exact", "rotated"]}
    assert [one.sketch.name for one in Experiment.of({"rule": {"name": "median"}, "grid": sketches}).runs()] == [
        "exact"
    ]
    few = Experiment.of({"clients": {"count": 2, "byzantine": 0}, "grid": {"rule.name": ["mean"]}})
    assert [one.rule.name for one in few.runs()] == ["mean"]
    with pytest.raises(ConfigError, match="needs at least 3 clients"):
        few.without_grid()


def test_values_nested_without_end_are_refused():
    with pytest.raises(ConfigError, match="rounds must be a whole number"):
        Experiment().with_settings(["rounds=" + "[" * 5000])


def my_attack(honest, count, rng, *, strength=2.0):
    return -strength * honest[[0] * count]


def my_data(name, folder=None):
    raise NotImplementedError


class MyModel:
    def __init__(self, n_classes, image, norm):
        raise NotImplementedError


@dataclass(frozen=True)
class MyRule(Rule):
    n_byzantine: int
    width: float = 1.0
    inner: object = None

    def weigh(self, geometry):
        raise NotImplementedError


def test_objects_are_recorded_by_their_names_and_settings():
    here = __name__
    given = {
        "rule": bz.NNM(3) >> MyRule(3, width=2.0),
        "sketch": bz.Rotated(k=128),
        "attack": partial(my_attack, strength=4.0),
        "split": partition.Shards(3),
        "data": my_data,
        "model": {"name": MyModel, "norm": "none"},
    }
    whole = Experiment.of(given).as_dict()
    assert whole["rule"] == {"name": f"nnm >> {here}:MyRule", "n_byzantine": 3, "width": 2.0}
    assert whole["sketch"] == {"name": "rotated", "k": 128, "mixing": 32}
    assert whole["attack"] == {"name": f"{here}:my_attack", "strength": 4.0}
    assert whole["split"] == {"kind": "shards", "per_client": 3}
    assert whole["data"]["name"] == f"{here}:my_data"
    assert whole["model"]["name"] == f"{here}:MyModel"
    assert Experiment.of(tomllib.loads(Experiment.of(given).to_toml())) == Experiment.of(given)
    assert Experiment.of({"rule": bz.Krum(5)}) == Experiment.of({"rule": {"name": "krum", "n_byzantine": 5}})
    assert Experiment.of({"attack": attacks.Backdoor(target=3)}).attack.settings["target"] == 3
    assert Experiment.of({"attack": attacks.min_max}).attack.settings == {"deviation": "std"}
    runs = Experiment.of({"grid": {"rule": [bz.Mean(), bz.Krum(2)]}}).runs()
    assert [run.rule.name for run in runs] == ["mean", "krum"]


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"attack": lambda honest, count, rng: honest}, "attack.name: attack .*lambda.* can't be recorded by name"),
        ({"rule": MyRule(3, inner=[1])}, r"rule.inner must be a number, a text, true or false; got \[1\]"),
        ({"rule": bz.NNM(2) >> bz.Krum(3)}, "can't be recorded: its parts have n_byzantine = 2 and 3"),
        ({"rule": object()}, "expected a dataclass, got object"),
        ({"attack": partial(my_attack, 1)}, "bind settings by keyword only"),
        ({"attack": partial(attacks.optimised_ipm, aggregator=print)}, "Unknown key attack.aggregator"),
        ({"model": object()}, "model must be a section, .*, or the function that makes it; got <object"),
        ({"data": {"name": 3}}, "data.name must be a text; got 3"),
        ({"model": {"name": "no_such_module_at_all:Net"}}, r"\[model\] model 'no_such.*' can't be imported"),
        ({"data": {"name": "os:system"}}, r"\[data\] data set 'os:system' does not fit: wanted a function"),
    ],
    ids=lambda value: value if isinstance(value, str) else next(iter(value)),
)
def test_what_can_not_be_recorded_or_does_not_fit_is_refused(given, message):
    with pytest.raises(ConfigError, match=message):
        Experiment.of(given)
