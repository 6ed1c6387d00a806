"""An HTTP server that misbehaves where a test says so, and objects for it."""

from __future__ import annotations

import json
import threading
import time
from collections import Counter
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import safetensors.torch
import torch

FAULTS = ("truncated", "slow", "endless", "unsized", "gone", "broken", "forbidden")


class ObjectServer:
    """Serves `objects`, each with the size that is stated; counts the bytes that it sends."""

    def __init__(self) -> None:
        self.objects: dict[str, tuple[int, bytes]] = {}
        self.faults: dict[str, tuple[str, int]] = {}  # path: a fault of FAULTS, from which request of it on
        self.requests: Counter[str] = Counter()
        self.sent: Counter[str] = Counter()
        self.most_in_flight = self._in_flight = 0
        self._lock = threading.Lock()
        server = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"
            disable_nagle_algorithm = True

            def do_GET(self) -> None:
                with server._lock:
                    server._in_flight += 1
                    server.most_in_flight = max(server.most_in_flight, server._in_flight)
                try:
                    server.answer(self, self.path.partition("?")[0])
                except (BrokenPipeError, ConnectionResetError):
                    self.close_connection = True
                finally:
                    with server._lock:
                        server._in_flight -= 1

            def log_message(self, *about: object) -> None: ...

        class Server(ThreadingHTTPServer):
            daemon_threads = True
            request_queue_size = 128

            def handle_error(self, *about: object) -> None:
                """A client that has left is none."""

        self.http = Server(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.http.server_address[1]}"

    def __enter__(self) -> ObjectServer:
        threading.Thread(target=self.http.serve_forever, args=(0.05,), daemon=True).start()
        return self

    def __exit__(self, *raised: object) -> None:
        self.http.shutdown()
        self.http.server_close()

    def put(self, path: str, content: bytes) -> str:
        self.objects[path] = len(content), content
        return self.url + path

    def answer(self, request: BaseHTTPRequestHandler, path: str) -> None:
        with self._lock:
            self.requests[path] += 1
            kind, begins = self.faults.get(path, ("", 0))
            fault = kind if self.requests[path] >= begins else ""
        if path not in self.objects or fault == "gone":
            return self._send(request, 404, b"", {})
        if fault == "broken":
            return self._send(request, 500, b"", {})
        if fault == "forbidden":
            return self._send(request, 403, b"", {})
        size, content = self.objects[path]
        if fault in ("endless", "unsized"):
            return self._chunked(request, content, endless=fault == "endless")
        if fault in ("truncated", "slow"):
            request.close_connection = True
            self._send(request, 200, content[: size // 2], {}, length=size)
            request.wfile.flush()
            if fault == "slow":
                time.sleep(3)
            return None
        with self._lock:
            self.sent[path] += size
        return self._send(request, 200, content, {}, length=size)

    @staticmethod
    def _send(
        request: BaseHTTPRequestHandler, status: int, body: bytes, headers: dict[str, str], length: int | None = None
    ) -> None:
        request.send_response(status)
        for name, value in {**headers, "Content-Length": str(len(body) if length is None else length)}.items():
            request.send_header(name, value)
        request.end_headers()
        request.wfile.write(body)

    @staticmethod
    def _chunked(request: BaseHTTPRequestHandler, body: bytes, *, endless: bool) -> None:
        """Send a body without saying how long it is, or zeros until the reader closes the connection."""
        request.send_response(200)
        request.send_header("Transfer-Encoding", "chunked")
        request.end_headers()
        while endless:
            request.wfile.write(b"10000\r\n" + bytes(2**16) + b"\r\n")
        request.wfile.write(f"{len(body):x}\r\n".encode() + body + b"\r\n0\r\n\r\n")


def made_shards(client: int, n_shards: int, numbers: int) -> dict[str, bytes]:
    """Return the files of one client's update in bfloat16, by their names: an index and shards."""
    made, places, generator = {}, {}, torch.Generator().manual_seed(client)
    for shard in range(n_shards):
        name, layer = f"model-{shard + 1:05}-of-{n_shards:05}.safetensors", f"layers.{shard}.weight"
        places[layer] = name
        made[name] = safetensors.torch.save({layer: torch.randn(numbers, generator=generator).bfloat16()})
    index = {"metadata": {"total_size": 2 * numbers * n_shards}, "weight_map": places}
    return made | {"model.safetensors.index.json": json.dumps(index).encode()}
