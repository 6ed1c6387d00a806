"""What users see: the names, the weight of the import, the names in config files, the command line."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

import bartizan as bz
from bartizan import attacks, cli
from bartizan import registry as names

# Adding a name is a promise; taking one away breaks somebody's code.
PUBLIC = {
    *("Achlioptas", "Aggregation", "Aggregator", "ARC", "BadClientError", "Bucketing", "Buffer", "Bulyan", "CAF"),
    *("CenteredClipping", "CGE", "ClippedClustering", "Clipping", "Exact", "FLAME", "FLTrust", "Gaussian"),
    *("GeometricMedian", "Geometry", "Krum", "MCA", "MDA", "MeaMed", "Mean", "Median", "MoNNA", "MultiKrum"),
    *("NNM", "NormFilter", "Reputation", "Rotated", "Round", "SMEA", "SpectralDnC", "Suspect"),
    *("TooFewClientsError", "TrimmedMean", "aggregate", "attacks", "coordinatewise", "files", "rule", "sketch"),
}


def test_the_public_names_are_these():
    assert set(bz.__all__) == PUBLIC
    assert all(hasattr(bz, name) for name in PUBLIC)


def python(code: str) -> str:
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return run.stdout.strip()


def test_importing_is_light():
    assert python("import sys, bartizan; print({'torch', 'numba', 'rich'} & set(sys.modules))") == "set()"


def test_reputation_needs_no_flower():
    blocked = "import sys; sys.modules['flwr'] = sys.modules['nvflare'] = None; import bartizan as bz; "
    assert python(blocked + "print(bz.Reputation().suspects())") == "[]"


def test_everything_works_without_torch():
    blocked = "import sys; sys.modules['torch'] = None; import bartizan as bz, numpy as np; "
    call = "print(bz.aggregate(np.eye(9), bz.Krum(1), sketch=bz.Rotated(k=64)).weights.sum())"
    assert python(blocked + call) == "1.0"


@pytest.mark.parametrize("name", [*names.RULES, *names.COORDINATEWISE])
def test_every_rule_has_a_name(name):
    kind = (names.RULES | names.COORDINATEWISE)[name]
    needed = {"n_byzantine": 3} if "n_byzantine" in kind.__dataclass_fields__ else {}
    assert bz.rule(name, **needed) == kind(**needed)


def test_a_name_may_be_written_as_one_likes():
    assert bz.rule("Multi_Krum", n_byzantine=2) == bz.MultiKrum(2)


def test_a_named_rule_may_have_pre_aggregators_in_front():
    assert bz.rule("clipping >> nnm >> krum", n_byzantine=2, radius=4.0) == bz.Clipping(4.0) >> bz.NNM(2) >> bz.Krum(2)


@pytest.mark.parametrize(
    ("name", "settings", "error", "message"),
    [
        ("krumm", {}, ValueError, r"Unknown rule 'krumm'. Did you mean 'krum'\? Known: bulyan, caf"),
        ("krum", {}, TypeError, "Krum needs n_byzantine: pass n_byzantine."),
        ("krum", {"f": 3}, TypeError, "'krum' has no setting 'f'; it takes n_byzantine"),
        ("krum >> mean", {}, ValueError, "Unknown pre-aggregator 'krum'"),
    ],
)
def test_a_wrong_name_or_setting_says_what_is_known(name, settings, error, message):
    with pytest.raises(error, match=message):
        bz.rule(name, **settings)


def test_the_command_line_lists_everything_with_a_line_each(capsys):
    assert cli.main(["list"]) == 0
    shown = capsys.readouterr().out
    tables = (names.SKETCHES, names.RULES, names.COORDINATEWISE, names.PRE_AGGREGATORS)
    for table in (*tables, attacks.ATTACKS, attacks.POISONS):
        for name, kind in table.items():
            assert f"  {name}" in shown
            assert kind.__doc__.splitlines()[0] in " ".join(shown.split())
    for line in ("gaussian(variance=90.0)", "optimised-ipm(tries=16)", "backdoor(target=0, fraction=0.5,"):
        assert f"  {line}" in shown


def test_what_can_not_be_run_is_one_line_and_status_2(capsys):
    assert cli.main(["demo", "aggregation", "--clients", "10", "--byzantine", "5", "--dim", "1k"]) == 2
    assert "n_byzantine can be at most" in capsys.readouterr().err


def test_the_citation_names_this_version():
    citation = (Path(__file__).parents[1] / "CITATION.cff").read_text()
    assert f"\nversion: {bz.__version__}\n" in citation


def test_a_system_without_posix_locks_is_named():
    code = "import sys; sys.modules['fcntl'] = None; import bartizan"
    told = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False).stderr
    assert "bartizan needs Linux or macOS" in told
