"""Make notebooks of the torch tutorial and of the guide to pandas: `python docs/notebooks.py FOLDER`."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import jupytext

DOCS = Path(__file__).parent
LINK = re.compile(r"\[([^\]]+)\]\((?!https?:)[^)]+\)")
BLOCK = re.compile(r'^```python(?: title="[^"]*")?\n(.*?)^```$', re.DOTALL | re.MULTILINE)


def torch_loop(page: str) -> str:
    """The tutorial's program is run twice, with and without an argument: the notebook repeats its last two cells."""
    setup, _, loop, shown = BLOCK.findall(page)
    (model,) = re.findall(r"^model = .*$", setup, re.MULTILINE)
    page = page.replace('use_robust = "robust" in sys.argv', "use_robust = False").replace("import sys\n\n", "")
    before, rest = page.split("Run it twice:\n")
    after = rest.split("\n\n", 1)[1]
    again = f"The same from a new model, robustly:\n\n```python\nuse_robust = True\n{model}\n```\n\n"
    return f"{before}{again}```python\n{loop}```\n\n```python\n{shown}```\n\n{after}"


PAGES = {"torch-loop": ("tutorials/torch-loop.md", torch_loop), "pandas": ("guides/pandas.md", str)}


def write(folder: Path) -> list[Path]:
    """Write the notebooks, whose cells are not run; links to other pages become their texts."""
    folder.mkdir(parents=True, exist_ok=True)
    paths = []
    for name, (page, changed) in PAGES.items():
        text = changed((DOCS / page).read_text(encoding="utf-8"))
        notebook = jupytext.reads(LINK.sub(r"\1", BLOCK.sub(r"```python\n\1```", text)), fmt="md")
        notebook.metadata["kernelspec"] = {"name": "python3", "display_name": "Python 3", "language": "python"}
        paths.append(folder / f"{name}.ipynb")
        jupytext.write(notebook, paths[-1])
    return paths


if __name__ == "__main__":
    print(*write(Path(sys.argv[1] if len(sys.argv) > 1 else "build/notebooks")), sep="\n")
