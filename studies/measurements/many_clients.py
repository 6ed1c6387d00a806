"""Whole calls on many clients: time, and memory beside the updates, by rule and number of clients."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np

import bartizan as bz
from bartizan import registry
from bartizan._util import machine
from bartizan.measure.measurements import ROWS_FROM_CLIENTS
from bartizan.measure.sketches import Norms
from bartizan.updates import parse_updates
from studies.options import command
from studies.rows import keep
from studies.speed.peak_memory import of_process
from studies.tables import table_of

SHARE = 0.1  # of the clients that send the negative of an honest update
CLIENTS = (1_000, 3_000, 10_000, 20_000, 50_000, 100_000)
PAIRS_UP_TO = 20_000  # clients of rules that read the distances of all pairs
CAF_UP_TO = 5_000  # clients of CAF, which computes an eigenvector in each of its rounds
LINEAR = ("geometric-median", "mca", "centered-clipping")
BY_PAIRS = ("krum", "multi-krum", "nnm >> geometric-median")


def many_clients(
    *, dim: int = 10_000, counts: Sequence[int] = CLIENTS, repeats: int = 3, out: Path | None = None
) -> None:
    """Time whole calls with sketch="auto", the fastest of some; up to 4 GB of updates and a quarter of an hour."""
    rows, small = [], updates(ROWS_FROM_CLIENTS, 2000)
    for name in rules_for(ROWS_FROM_CLIENTS):  # kernels are compiled and loaded before they are timed
        bz.aggregate(small, rule_of(name, len(small)), seed=1)
    for M in counts:
        x = updates(M, dim)
        parsed = parse_updates(x)
        read = min(machine.timed(lambda of=parsed: Norms().measure(of, 0))[1] for _ in range(5))
        for name in rules_for(M):
            rows.append(measured(name, x, repeats) | {"read": round(read, 4)})
            print(rows[-1], flush=True)
            keep(out, rows)
    print(table_of(rows))


add_to = command(many_clients)


def updates(M, p):
    """Return updates around 0.1 with noise of variance 1; the first tenth is negated."""
    rng, x = np.random.default_rng(7), np.empty((M, p), np.float32)
    for low in range(0, M, 1000):
        rng.standard_normal(dtype=np.float32, out=x[low : low + 1000])
        x[low : low + 1000] += 0.1
    x[: int(SHARE * M)] *= -1
    return x


def rules_for(M):
    return *LINEAR, *(BY_PAIRS if M <= PAIRS_UP_TO else ()), *(("arc >> caf",) if M <= CAF_UP_TO else ())


def rule_of(name, M):
    known = {"n_byzantine": int(SHARE * M)}
    return registry.rule(name, **(known if "n_byzantine" in registry.settings_of_rule(name) else {}))


def measured(name, x, repeats):
    """Return a row of the table: the fastest call, and the most memory that any took beside the updates."""
    rule, seconds, most = rule_of(name, len(x)), [], 0
    for _ in range(repeats):
        before = of_process("VmRSS:")
        Path("/proc/self/clear_refs").write_text("5")  # the peak begins anew
        out, spent = machine.timed(lambda: bz.aggregate(x, rule, seed=1))
        seconds.append(spent)
        most = max(most, of_process("VmHWM:") - before)
    return {
        "rule": name,
        "clients": len(x),
        "sketch": repr(out.sketch),
        "seconds": round(min(seconds), 3),
        "GB beside the updates": round(most / 1e9, 2),
    }
