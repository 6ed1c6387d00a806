"""Surface: a server that runs out of descriptors or disk; nobody is quarantined for it, and nothing else changes."""

import os
import resource
import shutil
from contextlib import contextmanager
from functools import partial

import numpy as np
from hypothesis import strategies as st
from safetensors.numpy import save_file

import bartizan as bz
from bartizan.errors import ServerResourceError
from fuzz.aggregate import entered
from fuzz.surfaces import COMPARED, RefusedError, Surface, require

P = 7
RULES = {"mean": bz.Mean(), "geometric median": bz.GeometricMedian(), "median": bz.Median()}
KINDS = ["npy", "npy", "safetensors", "shards", "junk", "missing"]
CASES = {
    "rule": st.sampled_from(sorted(RULES)), "kinds": st.lists(st.sampled_from(KINDS), min_size=1, max_size=12),
    "entry": st.sampled_from(["call", "by id", "round", "spill"]), "descriptors": st.integers(0, 8),
    "file_size": st.sampled_from([0, 20, 4096, 2**20]),
}  # fmt: skip
"""Clients' files, some malformed, what is done with them, and how many may be opened and how large they may grow."""


@contextmanager
def limited(descriptors, file_size):
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


def _highest():
    return max(map(int, os.listdir("/proc/self/fd")))


def written(folder, kinds):
    """Write the clients' files, in names and shapes of their kind, and return their paths."""
    shutil.rmtree(folder, ignore_errors=True)
    for client, kind in enumerate(kinds):
        row, path = np.arange(P, dtype=np.float32) + client, folder / f"{client:02}"
        path.mkdir(parents=True)
        if kind == "shards":
            for part, numbers in enumerate((row[:3], row[3:])):
                save_file({f"w{part}": numbers}, path / f"model-{part + 1:05}-of-00002.safetensors")
            yield path
        elif kind == "safetensors":
            save_file({"w0": row[:3], "w1": row[3:]}, path / "a.safetensors")
            yield path / "a.safetensors"
        else:
            if kind != "missing":
                np.save(path / "a.npy", row if kind == "npy" else np.array("no update"))
            yield path / "a.npy"


def answer(rule, entry, paths, folder):
    """Return the result and who is quarantined, or why there is no result."""
    rows = [np.arange(P, dtype=np.float32) + client for client in range(len(paths))]
    try:
        out = entered(entry, rows if entry == "spill" else paths, bz.Aggregator(rule, "auto"), folder / "spill")
    except bz.TooFewClientsError as few:
        return few.problem
    arrays = out.update.values() if isinstance(out.update, dict) else [out.update]
    return b"".join(array.tobytes() for array in arrays), out.quarantined


def check(folder, rule, kinds, entry, descriptors, file_size):
    paths = list(written(folder / "clients", kinds))
    wanted = answer(RULES[rule], entry, paths, folder)
    try:
        with limited(descriptors, file_size):
            got = answer(RULES[rule], entry, paths, folder)
    except ServerResourceError:
        raise RefusedError from None
    require(got == wanted, f"a server's fault changed {wanted!r} to {got!r}")
    return COMPARED


def surface(folder):
    return Surface(partial(check, folder), CASES)
