"""A Flower deployment on loopback: one SuperLink, some SuperNodes, all stopped by their pids."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

BIN = Path(sys.executable).parent
SOURCE = Path(__file__).parent.parent / "src"


class Deployment:
    """Processes of their own, a FLWR_HOME of its own, ports that were free a moment ago."""

    def __init__(self, folder: Path, secured: Sequence[str] = (), root: Sequence[str] = ("--insecure",)) -> None:
        self.folder, self.root = folder, list(root)
        self.secured = list(secured) or ["--insecure"]
        self.processes: list[subprocess.Popen[bytes]] = []
        self.address = f"127.0.0.1:{free_port()}"
        self.environment = {
            **os.environ,
            "PATH": f"{BIN}{os.pathsep}{os.environ['PATH']}",
            "PYTHONPATH": str(SOURCE),
            "FLWR_HOME": str(folder / "home"),
            "FLWR_TELEMETRY_ENABLED": "0",
            "FLWR_DISABLE_UPDATE_CHECK": "1",
            "FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION": "1",
            "RAY_USAGE_STATS_ENABLED": "0",
        }

    def __enter__(self) -> Deployment:
        home = self.folder / "home"
        home.mkdir(parents=True)
        (home / "config.toml").write_text(f'[superlink.loop]\naddress = "{self.address}"\n{self._trust()}\n')
        host, port = self.address.split(":")
        where = ["--host", host, "--port", port, "--disable-runtime-dependency-installation"]
        try:
            self.begin("superlink", "flower-superlink", *self.secured, *where)
            wait_for_port(int(port))
        except BaseException:
            self.__exit__()
            raise
        return self

    def _trust(self) -> str:
        return "insecure = true" if self.root == ["--insecure"] else f'root-certificates = "{self.root[-1]}"'

    def supernode(self, *options: str, **config: Any) -> subprocess.Popen[bytes]:
        text = " ".join(f"{key}={toml(value)}" for key, value in config.items())
        port = ["--host", "127.0.0.1", "--port", str(free_port())]
        name = f"supernode-{config.get('number', len(self.processes))}"
        return self.begin(
            name, "flower-supernode", *self.root, "--superlink", self.address, *port, *options, "--node-config", text
        )

    def register(self, public_key: Path) -> None:
        """Let a SuperNode in, by its public key."""
        known = self.begin(f"register-{public_key.stem}", "flwr", "supernode", "register", str(public_key), "loop")
        assert known.wait(60) == 0, self.logs()

    def begin(self, name: str, *command: str) -> subprocess.Popen[bytes]:
        with open(self.folder / f"{name}.log", "wb") as log:
            process = subprocess.Popen(
                [str(BIN / command[0]), *command[1:]],
                stdout=log,
                stderr=subprocess.STDOUT,
                env=self.environment,
                cwd=self.folder,
                start_new_session=True,
            )
        self.processes.append(process)
        return process

    def run(self, app: Path, timeout: float, **config: Any) -> str:
        """`flwr run`, to its end; what it said."""
        text = " ".join(f"{key.replace('_', '-')}={toml(value)}" for key, value in config.items())
        process = self.begin("run", "flwr", "run", str(app), "loop", "--stream", "--run-config", text)
        try:
            process.wait(timeout)
        except subprocess.TimeoutExpired:
            raise AssertionError(f"the run took more than {timeout} s:\n{self.logs()}") from None
        return (self.folder / "run.log").read_text()

    def logs(self, most: int = 3000) -> str:
        return "\n".join(f"== {log.name}\n{log.read_text()[-most:]}" for log in sorted(self.folder.glob("*.log")))

    def __exit__(self, *gone: object) -> None:
        stop(self.processes)


def stop(processes: Sequence[subprocess.Popen[bytes]], patience: float = 3) -> None:
    """End processes of ours with all that they started; a SuperLink may hang on the polite way."""
    for how in (signal.SIGTERM, signal.SIGKILL):
        for process in processes:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, how)
        end = time.monotonic() + patience
        for process in processes:
            with suppress(subprocess.TimeoutExpired):
                process.wait(max(0.01, end - time.monotonic()))


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


def node_keys(folder: Path, name: str) -> tuple[Path, Path]:
    """A node's private key, and the public one that the SuperLink is told."""
    command = ["ssh-keygen", "-q", "-t", "ecdsa", "-b", "384", "-N", "", "-f", name]
    subprocess.run(command, cwd=folder, check=True, capture_output=True)
    return folder / name, folder / f"{name}.pub"


def free_port() -> int:
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return int(one.getsockname()[1])


def wait_for_port(port: int, patience: float = 60) -> None:
    end = time.monotonic() + patience
    while time.monotonic() < end:
        with socket.socket() as one:
            if one.connect_ex(("127.0.0.1", port)) == 0:
                return
        time.sleep(0.1)
    raise AssertionError(f"nothing listens on port {port} after {patience} s")


def toml(value: Any) -> str:
    return f'"{value}"' if isinstance(value, (str, Path)) else str(value)
