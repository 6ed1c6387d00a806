"""The example in NVFlare's simulator: a process for the server, and one for each of nine sites."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLE = Path(__file__).parents[2] / "examples" / "nvflare" / "job.py"


def run(folder, *options):
    """Run the example; return its accuracy and the suspects that it names."""
    command = [sys.executable, str(EXAMPLE), "--workspace", str(folder / "_".join(options)), *options]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=400)
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
    accuracy = re.search(r"^Accuracy: (.*)$", done.stdout, re.MULTILINE)
    return float(accuracy[1]), re.findall(r"^node (\S+):", done.stdout, re.MULTILINE)


@pytest.mark.slow
def test_three_hostile_sites_of_nine_cost_two_points_at_most_where_fedavg_fails(tmp_path):
    clean, _ = run(tmp_path, "--rule", "fedavg", "--hostile", "0", "--rounds", "4")
    robust, suspects = run(tmp_path, "--rule", "multi-krum", "--rounds", "4")
    fedavg, _ = run(tmp_path, "--rule", "fedavg", "--rounds", "1")
    assert clean > 0.7
    assert robust > clean - 0.02
    assert sorted(suspects) == ["site-1", "site-2", "site-3"]
    assert fedavg < 0.2  # ten classes: NaN is guessing
