"""Build sdist and wheel, install the wheel bare and with [lab] in empty environments, and run the README there.

Run it as `make release`, or as `make release PYTHONS="python3.12 python3.13"` to try the bare wheel with these too.
What it built is in build/release/dist, the environments beside it. The build uses the installed setuptools (no
isolation), and installations are held to constraints.txt.
"""

from __future__ import annotations

import argparse
import doctest
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PLACE = ROOT / "build" / "release"
BLOCK = re.compile(r"^```python\n(.*?)^```$", re.DOTALL | re.MULTILINE)
# An extra, and what the README may not need without it.
ENVIRONMENTS = {"": "torch", "[lab]": None}


def release(pythons: Sequence[str]) -> None:
    """Build, install and try, the bare wheel with each of some Pythons too; raises where anything fails."""
    shutil.rmtree(PLACE, ignore_errors=True)
    dist = PLACE / "dist"
    print("Building sdist and wheel ...", flush=True)
    _call(sys.executable, "-m", "build", "--no-isolation", "--outdir", dist, ROOT, quiet=True)
    built = sorted(dist.iterdir())
    for path in built:
        print(f"  {path.relative_to(ROOT)}, {path.stat().st_size / 1e6:.2f} MB")
    wheel = next(path for path in built if path.suffix == ".whl")
    for extra, without in ENVIRONMENTS.items():
        _try(wheel, extra, without, sys.executable)
    for python in pythons:
        _try(wheel, "", ENVIRONMENTS[""], python)
    print(f"Released: {', '.join(path.name for path in built)} in {dist.relative_to(ROOT)}")


def _try(wheel: Path, extra: str, without: str | None, base: str) -> None:
    where = PLACE / f"env-{extra.strip('[]') or 'bare'}-{Path(base).name}"
    print(f"Installing {wheel.name}{extra} in an empty environment of {base} ...", flush=True)
    _call(base, "-m", "venv", where)
    python = where / ("Scripts" if os.name == "nt" else "bin") / "python"
    options = ("--disable-pip-version-check", "--quiet", "--constraint", ROOT / "constraints.txt")
    _call(python, "-m", "pip", "install", *options, f"{wheel}{extra}")
    empty = where / "empty"
    empty.mkdir()
    _call(python.with_name("bartizan"), "--version", cwd=empty)
    _call(python.with_name("bartizan"), "list", cwd=empty, quiet=True)
    without_it = ("--without", without) if without else ()
    _call(python, "-I", __file__, "--readme", ROOT / "README.md", *without_it, cwd=empty)


def _call(*command: object, cwd: Path = ROOT, quiet: bool = False) -> None:
    """Run a command; the output of a quiet one is shown only if it fails."""
    words = [str(word) for word in command]
    done = subprocess.run(
        words, cwd=cwd, text=True, stdout=subprocess.PIPE if quiet else None, stderr=subprocess.STDOUT
    )
    if done.returncode:
        raise SystemExit(f"{done.stdout or ''}{' '.join(words)} failed with status {done.returncode}.")


def run_readme(page: Path, without: str | None) -> None:
    """Run the examples of a page with the installed package, but for blocks that need a module that is not there."""
    import bartizan

    blocks = BLOCK.findall(page.read_text(encoding="utf-8"))
    wanted = [block for block in blocks if without is None or f"import {without}" not in block]
    test = doctest.DocTestParser().get_doctest("\n".join(wanted), {}, page.name, str(page), 0)
    runner = doctest.DocTestRunner(optionflags=doctest.NORMALIZE_WHITESPACE | doctest.ELLIPSIS)
    runner.run(test)
    if runner.failures or not runner.tries:
        raise SystemExit(f"{runner.failures} of {runner.tries} examples of {page.name} failed.")
    print(f"  {page.name}: {runner.tries} examples in {len(wanted)} blocks ran with {Path(bartizan.__file__).parent}")


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--readme", type=Path, help="run the examples of this page and do nothing else")
    parser.add_argument("--without", help="leave out blocks that import this module")
    parser.add_argument("--pythons", nargs="*", default=(), help="other Pythons that the bare wheel is tried with")
    options = parser.parse_args()
    if options.readme:
        run_readme(options.readme, options.without)
    else:
        release(options.pythons)
    return 0


if __name__ == "__main__":
    sys.exit(main())
