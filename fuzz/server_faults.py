"""Surface: a server that runs out of descriptors or disk; nobody is quarantined for it, and nothing else changes."""

from __future__ import annotations

import os
import resource
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np
from hypothesis import strategies as st
from safetensors.numpy import save_file

import bartizan as bz
from bartizan.errors import ServerResourceError
from fuzz.aggregate import warm
from fuzz.strategies import surface_of
from fuzz.surfaces import COMPARED, RefusedError, Surface, require

P = 7
RULES = {"mean": bz.Mean(), "geometric median": bz.GeometricMedian(), "median": bz.Median()}
JUNK = b"no update"


@dataclass(frozen=True)
class Case:
    """Clients' files, of which some are malformed, what is done with them, and how little the server has."""

    rule: str
    kinds: list[str]
    entry: str
    descriptors: int
    """More that may be opened."""
    file_size: int
    """Bytes that a file may have."""


CASES = st.builds(
    Case,
    rule=st.sampled_from(sorted(RULES)),
    kinds=st.lists(
        st.sampled_from(["npy", "npy", "safetensors", "shards", "junk", "missing"]), min_size=1, max_size=12
    ),
    entry=st.sampled_from(["aggregate", "by id", "round", "spill"]),
    descriptors=st.integers(0, 8),
    file_size=st.sampled_from([0, 20, 4096, 2**20]),
)


@contextmanager
def limited(descriptors: int, file_size: int) -> Iterator[None]:
    """Let this process open so many files more, and write so many bytes to one."""
    limits = {resource.RLIMIT_NOFILE: _highest() + 1 + descriptors, resource.RLIMIT_FSIZE: file_size}
    before = {name: resource.getrlimit(name) for name in limits}
    held = []
    try:
        for name, most in limits.items():
            resource.setrlimit(name, (most, before[name][1]))
        held = [os.open(os.devnull, os.O_RDONLY) for _ in range(_highest() + 1 - len(os.listdir("/proc/self/fd")))]
        yield
    finally:
        for descriptor in held:
            os.close(descriptor)
        for name, limit in before.items():
            resource.setrlimit(name, limit)


def _highest() -> int:
    return max(map(int, os.listdir("/proc/self/fd")))


def written(folder: Path, kinds: list[str]) -> list[Path]:
    """The clients' files; names and shapes are those of their kind."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    paths = []
    for client, kind in enumerate(kinds):
        path, row = folder / f"{client:02}", np.arange(P, dtype=np.float32) + client
        if kind == "shards":
            path.mkdir()
            for part, numbers in enumerate((row[:3], row[3:])):
                save_file({f"w{part}": numbers}, path / f"model-{part + 1:05}-of-00002.safetensors")
        elif kind == "safetensors":
            path = path.with_suffix(".safetensors")
            save_file({"w0": row[:3], "w1": row[3:]}, path)
        else:
            path = path.with_suffix(".npy")
            if kind == "npy":
                np.save(path, row)
            elif kind == "junk":
                path.write_bytes(JUNK)
        paths.append(path)
    return paths


def answer(case: Case, paths: list[Path], folder: Path) -> tuple[bytes, dict[int, str]] | str:
    """The result and who is quarantined, or why there is no result."""
    rule = RULES[case.rule]
    try:
        if case.entry in ("round", "spill"):
            spill = folder / "spill" if case.entry == "spill" else None
            with bz.Aggregator(rule, "auto").round(1, spill=spill, recheck=False) as opened:
                for client, path in enumerate(paths):
                    opened.add(path if spill is None else np.arange(P, dtype=np.float32) + client, client)
                out = opened.close()
        else:
            updates = dict(enumerate(paths)) if case.entry == "by id" else paths
            out = bz.aggregate(updates, rule, seed=1)
    except bz.TooFewClientsError as few:
        return few.problem
    arrays = out.update.values() if isinstance(out.update, dict) else [out.update]
    return b"".join(array.tobytes() for array in arrays), out.quarantined


def check(folder: Path, case: Case) -> str:
    paths = written(folder / "clients", case.kinds)
    wanted = answer(case, paths, folder)
    try:
        with limited(case.descriptors, case.file_size):
            got = answer(case, paths, folder)
    except ServerResourceError:
        raise RefusedError from None
    require(got == wanted, f"a server's fault changed {wanted!r} to {got!r}")
    return COMPARED


def surface(folder: Path) -> Surface:
    return surface_of(CASES, partial(check, folder), warm)
