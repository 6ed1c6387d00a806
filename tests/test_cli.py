"""The command line: wrong options, plain terminals, bare environments, Ctrl-C."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

from bartizan import __version__, cli

SOURCE = str(Path(__file__).parents[1] / "src")
EXTRAS = ("torch", "rich", "matplotlib", "PIL", "prodigyopt", "flwr", "tomli_w", "filelock", "safetensors", "triton")
BARE = f"import sys; sys.modules.update(dict.fromkeys({EXTRAS}))\nfrom bartizan.cli import main; sys.exit(main())"
ASCII = ({"PYTHONIOENCODING": "ascii"}, {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"})


def command(*arguments, code="from bartizan_start import main; raise SystemExit(main())", **settings):
    environment = os.environ | {"PYTHONPATH": SOURCE} | settings.pop("env", {})
    options = {"capture_output": True, "env": environment, "timeout": 300} | settings
    return subprocess.run([sys.executable, "-c", code, *arguments], **options)


@pytest.mark.parametrize(
    ("arguments", "usage", "message"),
    [
        (["warmup", "--devcie", "cpu"], "usage: bartizan warmup", "arguments: --devcie cpu. Did you mean --device?"),
        (["run", "--fersh"], "usage: bartizan run", "Did you mean --fresh?"),
        (["demo", "--worker=2", "--ruls=mean"], "usage: bartizan demo", "Did you mean --rules?"),
        (["demo", "aggregation", "--cliens", "3"], "usage: bartizan demo aggregation", "Did you mean --clients?"),
        (["warmup", "--device", "cpu", "more"], "usage: bartizan warmup", "unrecognized arguments: more"),
        (["lsit"], "usage: bartizan [-h]", "invalid choice: 'lsit'. Did you mean 'list'?"),
        (["demo", "aggregation", "--dim", "many"], "usage: bartizan demo aggregation", "wanted a number from 1 to"),
        (["demo", "aggregation", "--clients", "-3"], "usage: bartizan demo aggregation", "wanted a number from 1"),
        ([], "usage: bartizan [-h]", "train a model under attack"),
    ],
)
def test_a_wrong_option_shows_the_commands_usage_and_the_nearest_option(arguments, usage, message, capsys):
    with pytest.raises(SystemExit) as stop:
        cli.main(arguments)
    assert stop.value.code == 2
    shown = capsys.readouterr().err
    assert shown.startswith(usage)
    assert message in shown


def test_every_command_shows_its_help(capsys):
    for name, (module, about) in cli.COMMANDS.items():
        with pytest.raises(SystemExit) as stop:
            cli.main([name, "--help"])
        assert stop.value.code == 0, module
        assert capsys.readouterr().out.startswith(f"usage: bartizan {name}")
        assert about


def test_options_may_still_be_shortened(capsys):
    assert cli.main(["demo", "aggregation", "--cl", "9", "--byz", "1", "--di", "9k"]) == 0
    assert "9 clients, 1 of them attackers, 9,000 coordinates each" in capsys.readouterr().out


def test_list_init_and_warmup_need_numpy_and_numba_only(tmp_path):
    for arguments in (["list"], ["init"], ["--version"]):
        done = command(*arguments, code=BARE, cwd=tmp_path)
        assert done.returncode == 0, done.stderr
    assert (tmp_path / "experiment.toml").exists()


def test_warmup_says_how_long_it_compiled(monkeypatch, capsys):
    monkeypatch.setattr("bartizan.warmup.warm_up", lambda device: 3.2)
    assert cli.main(["warmup"]) == 0
    assert capsys.readouterr().out.endswith("\nThe kernels are compiled (3 s).\n")
    assert command(code=BARE.partition("\n")[0] + "; import bartizan.warmup").returncode == 0


def test_a_command_that_needs_an_extra_names_it(tmp_path):
    done = command("run", code=BARE, cwd=tmp_path, text=True)
    assert done.returncode == 2
    assert "pip install '.[lab]' in a checkout" in done.stderr
    assert f"pip install 'bartizan-{__version__}-py3-none-any.whl[lab]'" in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize(("arguments", "status"), [(["list"], 0), (["--help"], 0), (["run", "vergeßlich.toml"], 2)])
@pytest.mark.parametrize("env", ASCII)
def test_ascii_terminals_work(arguments, status, env, tmp_path):
    done = command(*arguments, env=env, cwd=tmp_path)
    assert done.returncode == status, done.stderr
    said = (done.stdout + done.stderr).decode("ascii")
    assert "\x1b" not in said
    assert "Traceback" not in said


@pytest.mark.parametrize("delay", [0.1, 0.2, 0.4, 0.8, 1.6])
def test_ctrl_c_while_it_starts_shows_no_traceback(delay, tmp_path):
    """Whenever it comes: before, while or after the package is imported; the command may also be done by then."""
    code = "import signal; signal.signal(signal.SIGINT, signal.default_int_handler)\n"
    code += "from bartizan_start import main\nprint('begun', flush=True)\nraise SystemExit(main())"
    process = subprocess.Popen(
        [sys.executable, "-c", code, "demo", "--rounds", "3", "--out", str(tmp_path)],
        env=os.environ | {"PYTHONPATH": SOURCE},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        cwd=tmp_path,
    )
    assert process.stdout.readline() == "begun\n"
    time.sleep(delay)
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=120)
    assert process.returncode != 0
    assert "Traceback" not in err


def test_a_command_imports_only_its_own_code():
    code = "import sys; from bartizan.cli import main; main(['warmup', '--device', 'cpu']); "
    code += "print([name for name in sys.modules if name.startswith(('bartizan.lab', 'torch.', 'rich'))])"
    assert command(code=code, text=True).stdout.splitlines()[-1] == "[]"


def test_ctrl_c_that_a_library_turns_into_another_error_is_no_traceback(monkeypatch, capsys):
    def interrupted(options):
        try:
            raise KeyboardInterrupt
        finally:
            raise AttributeError("half imported")

    monkeypatch.setattr(cli, "_list", interrupted)
    assert cli.main(["list"]) == 130
    assert capsys.readouterr().err == "interrupted\n"


def test_a_file_that_can_not_be_written_is_named_without_a_number(tmp_path, capsys):
    (tmp_path / "file").touch()
    assert cli.main(["init", str(tmp_path / "file" / "experiment.toml")]) == 2
    assert "Errno" not in (shown := capsys.readouterr().err)
    assert "experiment.toml: " in shown


def test_a_missing_folder_is_named_and_not_the_part_file_in_it(tmp_path, capsys):
    np.save(tmp_path / "a.npy", np.ones(3))
    out = tmp_path / "missing" / "new.npy"
    assert cli.main(["aggregate", str(tmp_path / "a.npy"), "--rule", "mean", "--out", str(out)]) == 2
    assert f"{out.parent}: there is no such folder." in capsys.readouterr().err


def test_run_sets_keys_that_the_grid_of_its_file_would_not_fit(tmp_path, capsys):
    file = tmp_path / "experiment.toml"
    file.write_text('rounds = 1\n[attack]\nname = "sign-flip"\n[grid]\n"attack.factor" = [-1.0, -2.0]\n')
    nowhere = str(file / "out")
    assert cli.main(["run", str(file), "--set", "attack.name=none", "--out", nowhere]) == 2
    assert nowhere in capsys.readouterr().err
