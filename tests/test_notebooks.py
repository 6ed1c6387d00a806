"""The notebooks are made of the pages, and every cell runs."""

from __future__ import annotations

import importlib
import os
import re
from pathlib import Path

import pytest

DOCS = Path(__file__).parents[1] / "docs"


def printed(notebook, kind="stream"):
    """The texts that cells printed, or the last values that they showed."""
    outputs = [one for cell in notebook.cells if cell.cell_type == "code" for one in cell.outputs]
    out = [one for one in outputs if one.output_type == kind]
    return "\n".join(one["text"] if kind == "stream" else one["data"]["text/plain"] for one in out)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_the_notebooks_run_and_show_what_the_pages_say(tmp_path, monkeypatch):
    for package in ("torch", "pandas", "jupytext", "ipykernel"):
        pytest.importorskip(package)
    nbformat, preprocessors = pytest.importorskip("nbformat"), pytest.importorskip("nbconvert.preprocessors")
    monkeypatch.syspath_prepend(DOCS)
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(DOCS.parent / "src"), os.environ.get("PYTHONPATH", "")]))
    done = {}
    for path in importlib.import_module("notebooks").write(tmp_path):
        notebook = nbformat.read(path, as_version=4)
        preprocessors.ExecutePreprocessor(timeout=300).preprocess(notebook, {"metadata": {"path": str(tmp_path)}})
        done[path.stem] = notebook
    plain, robust = map(float, re.findall(r"averaging: accuracy ([\d.]+)", printed(done["torch-loop"])))
    assert plain < 0.5 < 0.85 < robust
    share = re.search(r"on attackers: ([\d.]+)% of the weight; they are 30%", printed(done["pandas"]))
    assert float(share[1]) < 5
    assert "accuracy" in printed(done["pandas"], "execute_result")
