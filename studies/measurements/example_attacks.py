"""The accuracy of the examples under attack: a Flower app of ten nodes and an NVFlare job of nine sites, as processes.

    python -m studies example-attacks flower --out studies/results/example-attacks-flower.json  # needs ray
    python -m studies example-attacks nvflare --out studies/results/example-attacks-nvflare.json

Each runs the example of its platform as its README says, with the mean and with the default rule, with three hostile
clients and without.
"""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from bartizan.registry import DEFAULT_RULE
from studies.options import add_parts
from studies.rows import write_json
from studies.tables import markdown_table

ROOT = Path(__file__).parents[2]
sys.path.append(str(ROOT / "tests" / "support"))
from deployment import Processes, toml  # noqa: E402

HOSTILE = 3


def add_to(commands: Any) -> None:
    add_parts(
        commands, "example-attacks", "accuracy of the Flower and NVFlare examples under attack", [flower, nvflare]
    )


def flower(*, rounds: int = 5, repeats: int = 2, out: Path | None = None) -> None:
    """Run examples/flower in Flower's simulation, where three nodes send their step reversed, four times as long."""
    measure(lambda rule, hostile: simulated(rule, hostile, rounds), ["mean", DEFAULT_RULE], rounds, repeats, out)


def nvflare(*, rounds: int = 5, repeats: int = 1, out: Path | None = None) -> None:
    """Run examples/nvflare in NVFlare's simulator, where one site sends NaN and two their step reversed.

    NVFlare's own mean is "mean"; "mean without NaN" is this package's, which quarantines the first of them.
    """
    rules = ["mean", "mean without NaN", DEFAULT_RULE]
    measure(lambda rule, hostile: job(rule, hostile, rounds), rules, rounds, repeats, out)


def measure(
    run: Callable[[str, int], float], rules: list[str], rounds: int, repeats: int, out: Path | None = None
) -> None:
    """Print and keep the last accuracies by rule and number of hostile clients."""
    rows = []
    for rule in rules:
        for hostile in (0, HOSTILE):
            ends = [run(rule, hostile) for _ in range(repeats)]
            rows.append({"rule": rule, "hostile": hostile, "rounds": rounds, "ends": ends})
            print(f"{rule:18s} {hostile} hostile  {', '.join(f'{end:.3f}' for end in ends)}", flush=True)
            write_json(out, rows)


def table(rows: Sequence[dict[str, Any]]) -> str:
    """Return the accuracies of each repetition by rule, without hostile clients and with them."""
    ends = {(row["rule"], row["hostile"] > 0): row["ends"] for row in rows}
    shown = {key: ", ".join(f"{end:.3f}" for end in some) for key, some in ends.items()}
    body = [[f"`{rule}`", shown.get((rule, False), ""), shown[rule, True]] for rule, attacked in ends if attacked]
    return markdown_table(["rule", "nobody attacks", f"{HOSTILE} attack"], body)


def simulated(rule: str, hostile: int, rounds: int) -> float:
    """Return the last accuracy of the Flower app, on ten simulated nodes."""
    settings = {"rule": rule, "hostile": hostile, "n-byzantine": HOSTILE, "rounds": rounds}
    config = " ".join(f"{key}={toml(value)}" for key, value in settings.items())
    nodes = "num-supernodes=10 client-resources-num-cpus=1"
    # Sockets of ray lie in its folder, and a socket's path has at most 107 characters.
    with (
        tempfile.TemporaryDirectory() as folder,
        tempfile.TemporaryDirectory(prefix="ray") as short,
        Processes(Path(folder), RAY_TMPDIR=short, PYTHONPATH=path()) as started,
    ):
        app = str(ROOT / "examples" / "flower")
        command = ["flwr", "run", app, "local", "--stream", "--federation-config", nodes, "--run-config", config]
        started.begin("run", *command).wait()
        said = started.log("run").read_text()
        for left in started.alive():  # the SuperLink that `flwr run` leaves behind
            os.kill(left, signal.SIGKILL)
    return accuracy(said, r"^Accuracy by round: .*?([\d.]+)$")


def job(rule: str, hostile: int, rounds: int) -> float:
    """Return the accuracy of the NVFlare job after its last round."""
    name = {"mean": "fedavg", "mean without NaN": "mean"}.get(rule, rule)
    script = str(ROOT / "examples" / "nvflare" / "job.py")
    with tempfile.TemporaryDirectory() as workspace:
        options = ["--rule", name, "--hostile", str(hostile), "--rounds", str(rounds), "--workspace", workspace]
        environment = {**os.environ, "PYTHONPATH": path()}
        command = [sys.executable, script, *options]
        done = subprocess.run(command, cwd=workspace, env=environment, capture_output=True, text=True)
    return accuracy(done.stdout + done.stderr, r"^Accuracy: ([\d.]+)$")


def path() -> str:
    """Return where the processes import from: this checkout comes first."""
    return os.pathsep.join([str(ROOT / "src"), os.environ.get("PYTHONPATH", "")])


def accuracy(said: str, pattern: str) -> float:
    """Return the accuracy that a program printed."""
    found = re.findall(pattern, said, re.MULTILINE)
    if not found:
        raise RuntimeError(f"The example printed no accuracy; its last words:\n{said[-2000:]}")
    return float(found[-1])
