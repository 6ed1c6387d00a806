"""The import rule: rings import inwards only, and importing the package imports only what a server needs."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections import Counter
from graphlib import TopologicalSorter
from pathlib import Path

import pytest

SOURCE = Path(__file__).parents[1] / "src"
BASE = {"_util", "errors"}
MEASURES = BASE | {"kernels", "updates"}
DECISION = MEASURES | {"rules", "measure"}
CALLS = DECISION | {"judge", "registry", "records"}
LIBRARY = CALLS | {"source", "aggregate", "round", "buffer", "sources", "sketch"}
# What the modules of each folder, or file, at the top of the package may import from the rest of it.
MAY_IMPORT = {
    "_util": set(),
    "errors": {"_util"},
    "result_lines": BASE,
    "records": BASE | {"result_lines"},
    "kernels": BASE,
    "updates": BASE | {"kernels"},
    "measure": MEASURES,
    "rules": BASE | {"kernels", "measure"},
    "registry": DECISION,
    "source": DECISION,
    "judge": DECISION | {"source"},
    "sources": LIBRARY,
    "aggregate": LIBRARY,
    "round": LIBRARY,
    "buffer": LIBRARY,
    "warmup": LIBRARY,
    "aggregate_command": LIBRARY | {"aggregate_places"},
    "aggregate_places": LIBRARY,
    "attacks": LIBRARY,
    "watch": BASE | {"judge"},
    "flower": LIBRARY | {"client", "watch"},
    "nvflare": LIBRARY | {"watch"},
    "lab": LIBRARY | {"attacks", "lora", "watch"},
    "cli": LIBRARY | {"attacks", "lab", "warmup"},
    "sketch": {"measure"},
    "verify_command": LIBRARY,
    "client": DECISION | {"sources"},
    "distributed": {"sources"},
    "lora": {"sources"},
    "partitioned": {"sources"},
    "__main__": {"cli"},
    "__init__": LIBRARY | {"attacks"},
}
# The same for the sub-packages and files of the laboratory: data, models <- training <- runs <- report, config beside.
LAB_MAY_IMPORT = {
    "torch_import": set(),
    "metrics": set(),
    "bad_sketch": set(),
    "data": {"torch_import"},
    "models": {"torch_import"},
    "config": {"data", "models"},
    "training": {"config", "data", "metrics", "models", "torch_import"},
    "runs": {"config", "metrics", "models", "torch_import", "training"},
    "report": {"metrics"},
    "demo": {"config", "report", "runs"},
    "__init__": {"config", "runs"},
}
FOREIGN = {"torch", "numba", "rich", "triton", "matplotlib", "flwr", "peft", "transformers", "jax"}
SHARED_NAMES = {"__init__", "base", "command", "partitioned"}
MODULES = {path: path.relative_to(SOURCE / "bartizan") for path in sorted((SOURCE / "bartizan").rglob("*.py"))}


def top(path: Path) -> str:
    return path.parts[0].removesuffix(".py")


def imported(path: Path, package: str = "bartizan") -> set[str]:
    """The folders and files at the top of a package that a module imports from, also inside its functions."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
        names = []
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            assert not node.level, f"{path}: imports are absolute"
            names = [f"{node.module}.{alias.name}" for alias in node.names]
        outside = [name for name in names if name.split(".")[0] in ("studies", "fuzz", "tests")]
        assert not outside, f"{path}: {outside} are no part of the package"
        found |= {name.removeprefix(package).split(".")[1] for name in names if name.startswith(f"{package}.")}
    return found - {"__version__"}


@pytest.mark.parametrize("path", MODULES, ids=[str(name) for name in MODULES.values()])
def test_a_module_imports_from_inner_rings_only(path):
    own = top(MODULES[path])
    assert own in MAY_IMPORT, f"say in MAY_IMPORT from where {own} may import"
    assert imported(path) - {own} <= MAY_IMPORT[own]


@pytest.mark.parametrize(
    "path", [path for path, name in MODULES.items() if top(name) == "lab"], ids=lambda path: str(MODULES[path])
)
def test_a_room_of_the_laboratory_imports_from_inner_ones_only(path):
    own = top(MODULES[path].relative_to("lab"))
    assert imported(path, "bartizan.lab") - {own} <= LAB_MAY_IMPORT[own]


def test_the_rooms_of_the_laboratory_form_no_cycle():
    TopologicalSorter(LAB_MAY_IMPORT).prepare()


def test_a_class_has_a_name_of_its_own():
    classes = [
        (node.name, top(name))
        for path, name in MODULES.items()
        for node in ast.parse(path.read_text()).body
        if isinstance(node, ast.ClassDef)
    ]
    count = Counter(name for name, _ in classes)
    assert not {name for name, room in classes if room != "sources" and count[name] > 1}


def test_no_two_modules_share_a_name():
    names = Counter(name.stem for name in MODULES.values())
    assert {name for name, count in names.items() if count > 1} <= SHARED_NAMES


@pytest.mark.parametrize("more", [set(), {"lora"}], ids=["the package", "with lora"])
def test_importing_the_package_imports_only_the_library(more):
    code = f"import sys, bartizan{''.join(f', bartizan.{name}' for name in more)}; print(*sys.modules)"
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split()
    foreign = {name for name in out if name.split(".")[0] in FOREIGN}
    assert not foreign
    own = {name.split(".")[1] for name in out if name.startswith("bartizan.")}
    assert own <= LIBRARY | {"attacks"} | more
