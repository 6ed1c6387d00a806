"""The examples that need nothing but the core run, and check themselves."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path


def test_edges_that_sketch_and_a_root_that_weighs_give_the_answer_of_one_server():
    example = Path(__file__).parent.parent / "examples" / "edges.py"
    run = subprocess.run([sys.executable, str(example)], capture_output=True, text=True, timeout=200)
    assert run.returncode == 0, run.stderr
    assert run.stdout == "weight of the liars 0.0000; mean of the answer 1.001, as from one server\n"
