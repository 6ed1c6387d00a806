"""The plug-in of `examples/plugin`, installed beside the package and used without a changed line in it."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from bartizan import records
from bartizan.lab.config.experiment import Experiment
from bartizan.lab.config.keys import ConfigError
from bartizan.lab.data import load
from bartizan.lab.models import build

nn = pytest.importorskip("torch").nn

ROOT = Path(__file__).parents[1]
EXAMPLE = ROOT / "examples" / "plugin"


@pytest.fixture(scope="module")
def installed(tmp_path_factory):
    """The environment of a process that has the plug-in installed; nothing is fetched."""
    folder = tmp_path_factory.mktemp("plugin")
    source, target = folder / "source", folder / "installed"
    shutil.copytree(EXAMPLE, source)  # building leaves files beside the sources
    options = ["--quiet", "--no-deps", "--no-index", "--no-build-isolation", "--target", str(target)]
    subprocess.run([sys.executable, "-m", "pip", "install", *options, str(source)], check=True)
    return os.environ | {"PYTHONPATH": os.pathsep.join([str(ROOT / "src"), str(target)])}


def python(installed, *arguments, cwd=None):
    done = subprocess.run([sys.executable, *arguments], env=installed, cwd=cwd, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_list_shows_where_plug_ins_come_from(installed):
    shown = python(installed, "-m", "bartizan", "list")
    for name in ("nearest-to-median(n_selected=3)", "scaled-noise(scale=10.0)", "stripes", "two-layers"):
        assert f"  {name}  [plug-in of bartizan-plugin-example 1.0]" in shown


@pytest.fixture(scope="module")
def ran(installed, tmp_path_factory):
    """The folder of a run of the example."""
    out = tmp_path_factory.mktemp("ran") / "run"
    python(installed, "-m", "bartizan", "run", str(EXAMPLE / "experiment.toml"), "--out", str(out), cwd=out.parent)
    return out


def test_an_experiment_of_plug_ins_runs_and_is_recorded_by_name(ran):
    run = records.read(ran)
    config = run.run["config"]
    names = {section: config[section]["name"] for section in ("data", "model", "attack", "rule")}
    rule = "nnm >> nearest-to-median"
    assert names == {"data": "stripes", "model": "two-layers", "attack": "scaled-noise", "rule": rule}
    assert config["attack"]["scale"] == 5.0
    assert run.end["status"] == "finished"


def test_a_sweep_takes_plug_ins_in_its_grid(installed, tmp_path):
    arguments = ["sweep", str(EXAMPLE / "experiment.toml"), "--workers", "1", "--set", "rounds=1"]
    python(installed, "-m", "bartizan", *arguments, "--out", str(tmp_path / "sweep"), cwd=tmp_path)
    rules = {records.read(folder).run["config"]["rule"]["name"] for folder in records.find(tmp_path / "sweep")}
    assert rules == {"mean", "nearest-to-median", "bartizan_plugin_example.rule:NearestToMedian"}


def test_the_command_finds_modules_in_the_current_folder(installed, tmp_path):
    (tmp_path / "mine.py").write_text("def still(honest, count, rng):\n    return 0 * honest[[0] * count]\n")
    settings = ["data.name=stripes", "model.name=two-layers", "clients.count=8", "clients.batch=8", "rounds=1"]
    arguments = [word for setting in [*settings, "attack.name=mine:still"] for word in ("--set", setting)]
    start = ["-c", "from bartizan_start import main; raise SystemExit(main())", "run", "--out", "out", *arguments]
    env = installed | {"PYTHONSAFEPATH": "1"}  # as the console script: Python itself does not add the folder
    python(env, *start, cwd=tmp_path)
    assert records.read(tmp_path / "out").run["config"]["attack"]["name"] == "mine:still"


EVIL = "raise SystemExit('imported')"


def test_what_a_run_folder_names_is_never_imported(installed, ran, tmp_path):
    """A recorded run whose names point to code is reported, compared and read back without importing that code."""
    foreign = tmp_path / "foreign"
    config = records.read(ran).run["config"]
    named = dict.fromkeys(("rule", "attack", "sketch", "data", "model"), "evil.module:Thing")
    with records.Writer(foreign) as lines:
        for line in records.read(ran).lines():
            fields = {key: value for key, value in line.items() if key != "kind"}
            if line["kind"] == "run":
                fields["config"] = config | {section: {"name": name} for section, name in named.items()}
            lines.write(line["kind"], **fields)
    (tmp_path / "evil").mkdir()
    (tmp_path / "evil" / "__init__.py").write_text(EVIL)
    (tmp_path / "evil" / "module.py").write_text(EVIL)
    watch = "import sys; from bartizan.cli import main; status = main(sys.argv[1:]); "
    check = (
        "assert 'evil' not in sys.modules and 'bartizan_plugin_example' not in sys.modules; raise SystemExit(status)"
    )
    for folder in (foreign, ran):
        command = [sys.executable, "-c", watch + check, "report", str(folder)]
        done = subprocess.run(command, env=installed, cwd=tmp_path, capture_output=True, text=True)
        assert "Error" not in done.stderr, done.stderr
        assert "imported" not in done.stderr
    assert (tmp_path / "foreign" / "report.html").exists()


@pytest.mark.parametrize(
    "given",
    [
        {"rule": {"name": "evil.module:Thing"}},
        {"rule": {"name": "nnm >> evil.module:Thing"}},
        {"attack": {"name": "evil.module:thing"}},
        {"sketch": {"name": "evil.module:Thing"}},
        {"data": {"name": "evil.module:load"}},
        {"model": {"name": "evil.module:Net"}},
        {"split": {"kind": "evil.module:Split"}},
        {"rule": {"name": "some-plug-in"}},
        {"grid": {"rule.name": ["evil.module:Thing"]}},
    ],
    ids=str,
)
def test_a_recorded_experiment_with_foreign_parts_is_refused(given):
    with pytest.raises(ConfigError, match=r"is not of this package, and not imported|has no grid"):
        Experiment.read_back(given)
    assert Experiment.read_back({"rule": {"name": "NNM >> Spectral_DnC"}}).rule.name == "nnm >> spectral-dnc"


def no_module(n_classes, image, norm):
    return "a network"


def no_scores(n_classes, image, norm):
    return nn.Flatten()


def no_dataset(name, folder=None):
    return [1, 2, 3]


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: build(f"{__name__}:no_module", 4, (1, 8, 8)), "must return a torch.nn.Module, got str"),
        (lambda: build(f"{__name__}:no_scores", 4, (1, 8, 8)), r"into scores of shape \(2, 4\), got \(2, 64\)"),
        (lambda: load(f"{__name__}:no_dataset"), "must return a bartizan.lab.data.Dataset, got list"),
    ],
)
def test_a_model_or_data_set_that_does_not_fit_says_what_is_wanted(call, message):
    with pytest.raises(ValueError, match=message):
        call()
