"""Serve the report of a folder on loopback, made anew when its runs have new lines."""

from __future__ import annotations

import html
import threading
import time
from collections.abc import Callable
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from bartizan import records
from bartizan._util.text import short
from bartizan.lab.report.content import content, page
from bartizan.lab.report.load import load

IDLE_PER_BUILD = 5.0  # seconds without a new page per second that the last one took
WAITING = """<!doctype html><html lang="en"><meta charset="utf-8"><meta http-equiv="refresh" content="2">
<title>{title}</title><p>{why}</p><p>This page looks again every two seconds.</p></html>"""


class LivePage:
    """The page of a folder, and a version that changes when its runs have changed."""

    def __init__(self, folder: Path, title: str | None = None) -> None:
        self.folder, self.title = folder, title
        self._lock = threading.Lock()
        self._page, self._seen = b"", ""
        self._idle_until = 0.0

    def version(self) -> str:
        """Return names, sizes and times of the runs' files as text; the last one while a new page would come early."""
        if time.monotonic() < self._idle_until:
            return self._seen
        found = []
        for folder in records.find(self.folder):
            try:
                stat = (folder / records.NAME).stat()
            except OSError:  # it is being replaced
                continue
            found.append(f"{folder}:{stat.st_size}:{stat.st_mtime_ns}")
        return str(hash("\n".join(found)))

    def current(self) -> bytes:
        """Return the page, made anew if the runs have changed."""
        with self._lock:
            version = self.version()
            if version != self._seen or not self._page:
                begin = time.monotonic()
                self._page, self._seen = self._made(version), version
                self._idle_until = time.monotonic() + IDLE_PER_BUILD * (time.monotonic() - begin)
            return self._page

    def _made(self, version: str) -> bytes:
        try:
            return page(content(load(self.folder), self.title), follow=version).encode()
        except FileNotFoundError as nothing:
            return WAITING.format(title="bartizan report", why=html.escape(short(nothing))).encode()


class LiveServer(ThreadingHTTPServer):
    """Serves a `LivePage` at `/` and its version at `/version`, to this machine only."""

    daemon_threads = True

    def __init__(self, shown: LivePage, port: int = 0) -> None:
        super().__init__(("127.0.0.1", port), _Handler)
        self.shown = shown
        self.names = {f"{host}:{self.server_port}" for host in ("127.0.0.1", "localhost")}

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}/"


class _Handler(BaseHTTPRequestHandler):
    server: LiveServer

    def do_GET(self) -> None:
        answers: dict[str, tuple[str, Callable[[], bytes]]] = {
            "/": ("text/html; charset=utf-8", self.server.shown.current),
            "/version": ("text/plain", lambda: self.server.shown.version().encode()),
            "/favicon.ico": ("image/x-icon", bytes),
        }
        # A page of another site could make a browser ask under a name of its own that leads here.
        if self.headers.get("Host") not in self.server.names or self.path not in answers:
            self.send_error(HTTPStatus.NOT_FOUND)
            return
        kind, answer = answers[self.path]
        body = answer()
        self.send_response(HTTPStatus.OK)
        for name, value in (("Content-Type", kind), ("Content-Length", str(len(body))), ("Cache-Control", "no-store")):
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: Any) -> None:
        """Log nothing."""
