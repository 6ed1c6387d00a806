"""Start a Flower deployment on loopback: one SuperLink and some SuperNodes, all stopped by their pids."""

from __future__ import annotations

import os
import re
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from importlib.util import find_spec
from pathlib import Path
from typing import Any

BIN = Path(sys.executable).parent
ONE_PORT = find_spec("flwr.supernode.fleet_http_client") is not None
"""From Flower 1.41 on nodes and users reach a SuperLink at one address, by HTTP."""
SOURCE = Path(__file__).parents[2] / "src"


class Processes:
    """Processes with their own FLWR_HOME and temporary folder; none, nor their children, outlives the `with`."""

    def __init__(self, folder: Path, **environment: str) -> None:
        self.folder = folder
        self.processes: list[subprocess.Popen[bytes]] = []
        self.home, self.temporary = folder / "home", folder / "tmp"
        self.environment = {
            **os.environ,
            "PATH": f"{BIN}{os.pathsep}{os.environ['PATH']}",
            "PYTHONPATH": str(SOURCE),
            "TMPDIR": str(self.temporary),
            "FLWR_HOME": str(self.home),
            "FLWR_TELEMETRY_ENABLED": "0",
            "FLWR_DISABLE_UPDATE_CHECK": "1",
            "FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION": "1",
            "FLWR_SUPEREXEC_TASK_POLL_INTERVAL": "0.3",  # a second otherwise
            "RAY_USAGE_STATS_ENABLED": "0",
            **environment,
        }

    def __enter__(self) -> Processes:
        self.home.mkdir(parents=True)
        self.temporary.mkdir()
        return self

    def begin(self, name: str, *command: str, **environment: str) -> subprocess.Popen[bytes]:
        with open(self.log(name), "ab") as log:
            process = subprocess.Popen(
                [str(BIN / command[0]), *command[1:]],
                stdout=log,
                stderr=subprocess.STDOUT,
                env={**self.environment, **environment},
                cwd=self.folder,
                start_new_session=True,
            )
        self.processes.append(process)
        return process

    def log(self, name: str) -> Path:
        return self.folder / f"{name}.log"

    def logs(self, most: int = 3000) -> str:
        return "\n".join(f"== {log.name}\n{log.read_text()[-most:]}" for log in sorted(self.folder.glob("*.log")))

    def __exit__(self, *gone: object) -> None:
        stop(self.processes)
        end = time.monotonic() + 30  # on a busy machine
        while (left := self.alive()) and time.monotonic() < end:
            time.sleep(0.05)  # a killed child needs a moment
        for pid in left:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        if gone[:1] in ((), (None,)):
            assert not left, f"{len(left)} processes outlived those that started them"

    def alive(self) -> list[int]:
        """Return the processes that have our FLWR_HOME in their environment."""
        mark = f"FLWR_HOME={self.home}".encode()
        found = []
        for entry in Path("/proc").glob("[0-9]*"):
            with suppress(OSError):  # it ended meanwhile, or is not ours
                if mark in (entry / "environ").read_bytes().split(b"\0"):
                    found.append(int(entry.name))
        return found


def simulate(folder: Path, code: str, *paths: Path, timeout: float, **environment: str) -> str:
    """Run code that starts Flower's simulation, with these folders to import from; return what it said."""
    path = os.pathsep.join(map(str, [*paths, SOURCE]))
    # Sockets of ray lie in its folder, and a socket's path has at most 107 characters.
    with (
        tempfile.TemporaryDirectory(prefix="ray") as short,
        Processes(folder, RAY_TMPDIR=short, PYTHONPATH=path, **environment) as simulation,
    ):
        simulation.begin("simulation", sys.executable, "-c", code).wait(timeout)
        return simulation.logs()


class Deployment(Processes):
    """A SuperLink on a port that was free a moment ago, and what is started beside it."""

    def __init__(self, folder: Path, secured: Sequence[str] = (), root: Sequence[str] = ("--insecure",)) -> None:
        super().__init__(folder)
        self.root, self.secured = list(root), list(secured) or ["--insecure"]
        self.address = f"127.0.0.1:{free_port()}"
        self.for_nodes = self.address if ONE_PORT else f"127.0.0.1:{free_port()}"

    def __enter__(self) -> Deployment:
        super().__enter__()
        trust = "insecure = true" if self.root == ["--insecure"] else f'root-certificates = "{self.root[-1]}"'
        (self.home / "config.toml").write_text(f'[superlink.loop]\naddress = "{self.address}"\n{trust}\n')
        host, port = self.address.split(":")
        where = ["--host", host, "--port", port, "--disable-runtime-dependency-installation"]
        where += [] if ONE_PORT else ["--fleet-api-address", self.for_nodes]
        try:
            self.begin("superlink", "flower-superlink", *self.secured, *where)
            wait_for(lambda: listens(int(port)), 60, f"a SuperLink on port {port}")
        except BaseException:
            stop(self.processes)
            raise
        return self

    def supernode(self, *options: str, program: Sequence[str] = (), **config: Any) -> subprocess.Popen[bytes]:
        """Start one; `program` takes the place of `flower-supernode` where a SuperNode itself is hostile."""
        text = " ".join(f"{key}={toml(value)}" for key, value in config.items())
        port = ["--host", "127.0.0.1", "--port", str(free_port())]
        command = [*(program or ["flower-supernode"]), *self.root, "--superlink", self.for_nodes, *port, *options]
        # Not all at once: a ClientApp that does not run after 30 seconds is started again, beside the first.
        apart = {"FLWR_SUPEREXEC_TASK_POLL_INTERVAL": str(0.3 + 0.5 * config["number"])}
        return self.begin(f"supernode-{config['number']}", *command, "--node-config", text, **apart)

    def node_ids(self, number: int) -> list[int]:
        """The ids that a SuperNode was given, one each time it connected."""
        return [int(found) for found in re.findall(r"SuperNode ID: (\d+)", self.log(f"supernode-{number}").read_text())]

    def register(self, public_key: Path) -> None:
        """Register a SuperNode by its public key."""
        known = self.begin(f"register-{public_key.stem}", "flwr", "supernode", "register", str(public_key), "loop")
        assert known.wait(60) == 0, self.logs()

    def start_run(self, app: Path, **config: Any) -> subprocess.Popen[bytes]:
        text = " ".join(f"{key.replace('_', '-')}={toml(value)}" for key, value in config.items())
        return self.begin("run", "flwr", "run", str(app), "loop", "--stream", "--run-config", text)

    def run(self, app: Path, timeout: float, **config: Any) -> str:
        """Run `flwr run` to its end and return its output."""
        try:
            self.start_run(app, **config).wait(timeout)
        except subprocess.TimeoutExpired:
            raise AssertionError(f"the run took more than {timeout} s:\n{self.logs()}") from None
        return self.log("run").read_text()


def stop(processes: Sequence[subprocess.Popen[bytes]], patience: float = 3) -> None:
    """End processes of ours with all that they started; a SuperLink may hang on the polite way."""
    for how in (signal.SIGTERM, signal.SIGKILL):
        for process in processes:
            signal_all(process, how)
        end = time.monotonic() + patience
        for process in processes:
            with suppress(subprocess.TimeoutExpired):
                process.wait(max(0.01, end - time.monotonic()))


def signal_all(process: subprocess.Popen[bytes], how: int) -> None:
    """To a process and its children, which share its group."""
    with suppress(ProcessLookupError):
        os.killpg(process.pid, how)


def certificate(folder: Path) -> tuple[Path, Path, Path]:
    """A certificate for 127.0.0.1, its key, and the authority that signed it; as the example's README has it."""
    curve = "-newkey ec -pkeyopt ec_paramgen_curve:P-384 -nodes"
    (folder / "san.txt").write_text("subjectAltName=IP:127.0.0.1")
    for command in (
        f"openssl req -x509 {curve} -keyout ca.key -out ca.pem -subj /CN=authority",
        f"openssl req {curve} -keyout server.key -out server.csr -subj /CN=127.0.0.1",
        "openssl x509 -req -in server.csr -CA ca.pem -CAkey ca.key -CAcreateserial -extfile san.txt -out server.pem",
    ):
        subprocess.run(command.split(), cwd=folder, check=True, capture_output=True)
    return folder / "server.pem", folder / "server.key", folder / "ca.pem"


def secured(folder: Path) -> Deployment:
    """A deployment with TLS that admits only nodes with registered keys."""
    server, key, authority = map(str, certificate(folder))
    files = ["--ssl-ca-certfile", authority, "--ssl-certfile", server, "--ssl-keyfile", key]
    return Deployment(folder, [*files, "--enable-supernode-auth"], ["--root-certificates", authority])


def node_keys(folder: Path, name: str) -> tuple[Path, Path]:
    """Return a node's private key, and the public one that is registered."""
    command = ["ssh-keygen", "-q", "-t", "ecdsa", "-b", "384", "-N", "", "-f", name]
    subprocess.run(command, cwd=folder, check=True, capture_output=True)
    return folder / name, folder / f"{name}.pub"


def free_port() -> int:
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return int(one.getsockname()[1])


def listens(port: int) -> bool:
    with socket.socket() as one:
        return one.connect_ex(("127.0.0.1", port)) == 0


def wait_for(happened: Callable[[], Any], patience: float, what: str) -> None:
    end = time.monotonic() + patience
    while not happened():
        assert time.monotonic() < end, f"waited {patience} s in vain for {what}"
        time.sleep(0.1)


def toml(value: Any) -> str:
    return f'"{value}"' if isinstance(value, (str, Path)) else str(value)
