"""Names: the package's own, plug-ins by entry point, "package.module:Name"; what does not fit says why."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from functools import partial

import numpy as np
import pytest

import bartizan as bz
from bartizan import attacks, cli, registry
from bartizan.registry import PRE_AGGREGATORS, RULES, SKETCHES
from bartizan.rules import Rule
from bartizan.rules.preaggregators import PreAggregator

MODULE = '''
from dataclasses import dataclass
import numpy as np
from bartizan.rules import Rule

@dataclass(frozen=True)
class First(Rule):
    """Take the first client."""

    share: float = 1.0

    def weigh(self, geometry):
        return self.share * np.eye(geometry.n_clients)[0]

@dataclass
class Thawed(Rule):
    def weigh(self, geometry):
        return np.ones(geometry.n_clients)

@dataclass(frozen=True)
class Unfinished(Rule):
    pass

@dataclass(frozen=True)
class Outside(Rule):
    weights: str = "negative"

    def weigh(self, geometry):
        M = geometry.n_clients
        return {"negative": -np.ones(M), "short": np.ones(M - 1) / M, "list": [1.0] * M, "large": np.ones(M),
                "text": np.array(["1"] * M)}[self.weights]

def halved(honest, count, rng, *, factor=0.5):
    """Send half of the first honest update."""
    return factor * honest[[0] * count]

def too_few_rows(honest, count, rng):
    return honest[:0]

def widened(honest, count, rng):
    return honest[[0] * count].astype("float64")

def lists(honest, count, rng):
    return [[0.0] * honest.shape[1]] * count

def no_generator(honest, count):
    return honest[:count]
'''
POINTS = """
[bartizan.rules]
first = bartizan_test_plugin:First
krum = bartizan_test_plugin:First
thawed = bartizan_test_plugin:Thawed
unfinished = bartizan_test_plugin:Unfinished
gone = bartizan_test_plugin:Gone
number = bartizan_test_plugin:np
no-module = bartizan_test_no_such_module:Rule
raises = bartizan_test_raises:Rule

[bartizan.attacks]
halved = bartizan_test_plugin:halved
no-generator = bartizan_test_plugin:no_generator
"""


@pytest.fixture
def plugin(tmp_path, monkeypatch):
    (tmp_path / "bartizan_test_plugin.py").write_text(MODULE)
    (tmp_path / "bartizan_test_raises.py").write_text("raise SystemExit('not today')")
    information = tmp_path / "bartizan_test_plugin-2.5.dist-info"
    information.mkdir()
    (information / "METADATA").write_text("Metadata-Version: 2.1\nName: bartizan-test-plugin\nVersion: 2.5\n")
    (information / "entry_points.txt").write_text(POINTS)
    monkeypatch.syspath_prepend(tmp_path)
    yield
    sys.modules.pop("bartizan_test_plugin", None)


@pytest.mark.usefixtures("plugin")
def test_a_plug_in_is_found_by_its_name_and_by_its_module():
    for name in ("first", "First", "bartizan_test_plugin:First"):
        rule = bz.rule(name, share=0.5)
        assert bz.aggregate(np.eye(3), rule).weights.tolist() == [0.5, 0, 0]
    mixed = bz.rule("nnm >> bartizan_test_plugin:First", n_byzantine=1)
    assert repr(mixed) == "NNM(n_byzantine=1) >> First(share=1.0)"
    sent = attacks.attack("halved", factor=2.0)(np.eye(2), 3, np.random.default_rng(0))
    assert sent.tolist() == [[2.0, 0.0]] * 3


@pytest.mark.usefixtures("plugin")
def test_looking_at_names_imports_nothing():
    assert "first" in RULES
    assert "first" in list(RULES)
    assert RULES.spelling("FIRST") == "first"
    assert RULES.spelling("no.such.module:Rule") == "no.such.module:Rule"
    with pytest.raises(ValueError, match="Did you mean 'first'"):
        RULES.spelling("fist")
    assert "bartizan_test_plugin" not in sys.modules


@pytest.mark.usefixtures("plugin")
@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("thawed", "plug-in bartizan-test-plugin 2.5 does not fit: Thawed must be a frozen dataclass"),
        ("unfinished", "does not fit: Unfinished must define weigh"),
        ("gone", "can't be imported: AttributeError: .* has no attribute 'Gone'"),
        ("number", "does not fit: wanted a class that derives from bartizan.rules"),
        ("no-module", "can't be imported: ModuleNotFoundError: No module named 'bartizan_test_no_such_module'"),
        ("raises", "can't be imported: SystemExit: not today"),
        ("bartizan_test_plugin:", "can't be imported: ValueError: wanted package.module:Name"),
        ("os:system", "does not fit: wanted a class that derives from"),
    ],
)
def test_a_rule_that_can_not_be_used_says_why(name, message):
    with pytest.raises(ValueError, match=message):
        bz.rule(name)


@pytest.mark.usefixtures("plugin")
def test_list_shows_plug_ins_with_their_package_and_broken_ones_with_the_reason(capsys):
    assert cli.main(["list"]) == 0
    shown = " ".join(capsys.readouterr().out.split())
    assert "first(share=1.0) [plug-in of bartizan-test-plugin 2.5] Take the first client." in shown
    assert "halved(factor=0.5) [plug-in of bartizan-test-plugin 2.5] Send half" in shown
    assert "raises [plug-in of bartizan-test-plugin 2.5: BROKEN]" in shown
    assert "krum [plug-in of bartizan-test-plugin 2.5: BROKEN] the name 'krum' belongs to bartizan" in shown
    assert bz.rule("krum", n_byzantine=1) == bz.Krum(1)


@pytest.mark.usefixtures("plugin")
def test_a_name_of_two_packages_is_refused(tmp_path):
    other = tmp_path / "bartizan_other-1.0.dist-info"
    other.mkdir()
    (other / "METADATA").write_text("Metadata-Version: 2.1\nName: bartizan-other\nVersion: 1.0\n")
    (other / "entry_points.txt").write_text("[bartizan.rules]\nfirst = elsewhere:First\n")
    registry._installed.cache_clear()
    with pytest.raises(ValueError, match=r"'first' is registered by bartizan-other 1.0 .* Name one as package.module"):
        bz.rule("first")
    assert bz.rule("bartizan_test_plugin:First").share == 1.0
    registry._installed.cache_clear()


@pytest.mark.usefixtures("plugin")
@pytest.mark.parametrize("weights", ["negative", "short", "list", "large", "text"])
def test_weights_outside_the_definition_are_an_error(weights):
    rule = bz.rule("bartizan_test_plugin:Outside", weights=weights)
    with pytest.raises(ValueError, match=r"must give 3 weights"):
        bz.aggregate(np.eye(3), rule)


@pytest.mark.usefixtures("plugin")
@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("too_few_rows", r"must return an array of float32 and shape \(2, 3\).*got ndarray of .* shape \(0, 3\)"),
        ("widened", "got ndarray of float64"),
        ("lists", "got <class 'list'>"),
        ("no_generator", r"does not fit: wanted a function \(honest, count, rng, \*, settings\)"),
    ],
)
def test_an_attack_that_does_not_fit_says_what_is_wanted(name, message):
    with pytest.raises(ValueError, match=message):
        attacks.attack(f"bartizan_test_plugin:{name}")(np.eye(3, dtype=np.float32), 2, np.random.default_rng(0))


@dataclass(frozen=True)
class Grown(PreAggregator):
    rows: int = 1

    def mixing(self, geometry):
        return -np.ones((self.rows, geometry.n_clients))


def test_a_mixing_matrix_outside_the_definition_is_an_error():
    with pytest.raises(ValueError, match="mixing matrix"):
        bz.aggregate(np.eye(3), Grown() >> bz.Mean())


@dataclass(frozen=True)
class Here(Rule):
    def weigh(self, geometry):
        return geometry.shares


def test_a_part_is_recorded_by_a_name_that_finds_it_again():
    assert RULES.name_of(bz.Krum) == "krum"
    assert RULES.find(RULES.name_of(Here)) is Here
    assert attacks.ATTACKS.name_of(attacks.sign_flip) == "sign-flip"

    @dataclass(frozen=True)
    class Local(Rule):
        def weigh(self, geometry):
            return geometry.shares

    for part in (Local, lambda honest, count, rng: honest, partial(print), 3):
        with pytest.raises(ValueError, match="can't be recorded by name"):
            RULES.name_of(part)


def test_sketches_have_names_and_a_usual_k():
    assert registry.sketch("rotated") == bz.Rotated(k=4096)
    assert registry.sketch("gaussian") == bz.Gaussian(k=4096)
    assert registry.sketch("bartizan.sketch:Achlioptas", k=64) == bz.Achlioptas(64)
    assert registry.sketch("exact") == bz.Exact()
    with pytest.raises(TypeError, match="'exact' has no setting 'k'; it takes no settings"):
        registry.sketch("exact", k=3)
    with pytest.raises(ValueError, match="Did you mean 'rotated'"):
        registry.sketch("rotate")


@pytest.mark.parametrize("known", [RULES, PRE_AGGREGATORS, SKETCHES, attacks.ATTACKS, attacks.POISONS])
def test_every_built_in_passes_the_check_for_plug_ins(known):
    for name in known.built_in:
        known.check(known.find(name))
