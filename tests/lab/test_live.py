"""`bartizan report --watch`: a page that follows the runs of a folder."""

from __future__ import annotations

import http.client
import os
import re
import shutil
import signal
import subprocess
import sys
import threading
import time
import urllib.request
from contextlib import contextmanager

from bartizan.lab.report.live import LivePage, LiveServer
from report_runs import write_brief


@contextmanager
def served(folder):
    with LiveServer(LivePage(folder)) as server:
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        try:
            yield server
        finally:
            server.shutdown()
            thread.join()


def get(url):
    with urllib.request.urlopen(url, timeout=10) as answer:
        return answer.read().decode()


def until(reached, seconds=60):
    end = time.monotonic() + seconds
    while not reached():
        assert time.monotonic() < end
        time.sleep(0.05)


def test_the_page_waits_for_a_first_run_and_changes_with_the_files(tmp_path):
    with served(tmp_path) as server:
        assert "holds no run" in get(server.url)
        first = get(server.url + "version")
        write_brief(tmp_path / "one", "krum", "lie", accuracy=0.8125, ends=False)
        until(lambda: get(server.url + "version") != first)
        page = get(server.url)
        assert "81.3%" in page
        assert re.search(r'data-version="-?\d+"', page)[0] == f'data-version="{get(server.url + "version")}"'


def test_only_this_machine_under_its_own_name_is_answered(tmp_path):
    with served(tmp_path) as server:
        assert server.server_address[0] == "127.0.0.1"
        for host, path, status in (
            ("evil.example", "/", 404),
            (f"localhost:{server.server_port}", "/", 200),
            (f"127.0.0.1:{server.server_port}", "/../etc/passwd", 404),
        ):
            asked = http.client.HTTPConnection("127.0.0.1", server.server_port, timeout=10)
            asked.putrequest("GET", path, skip_host=True)
            asked.putheader("Host", host)
            asked.endheaders()
            assert asked.getresponse().status == status
            asked.close()


def test_a_browser_shows_the_new_round_without_a_hand(tmp_path, browser):
    shutil.copytree(write_brief(tmp_path / "made", "krum", "lie", accuracy=0.25, ends=False), tmp_path / "runs" / "one")
    with served(tmp_path / "runs") as server:
        page = browser.new_page()
        errors = []
        page.on("pageerror", lambda error: errors.append(str(error)))
        page.on("console", lambda message: errors.append(message.text))
        page.goto(server.url)
        assert "25" in page.inner_text("header")
        write_brief(tmp_path / "made", "krum", "lie", accuracy=0.875, rounds=4, ends=False)
        os.replace(tmp_path / "made" / "results.jsonl", tmp_path / "runs" / "one" / "results.jsonl")
        page.locator("header", has_text="87.5").wait_for(timeout=60_000)
        page.close()
    assert not [error for error in errors if "favicon" not in error and "404" not in error]


def test_the_command_says_where_it_serves_and_ends_by_ctrl_c(tmp_path):
    write_brief(tmp_path / "one")
    command = [sys.executable, "-m", "bartizan", "report", str(tmp_path), "--watch"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        url = process.stdout.readline().split()[0]
        assert "bartizan report" in get(url)
        process.send_signal(signal.SIGINT)
        assert process.wait(30) == 0, process.stderr.read()
