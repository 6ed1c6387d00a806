"""Measure the cost model on this machine in a few seconds, and keep it for the next time."""

from __future__ import annotations

import hashlib
import json
import os
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field, fields, replace
from functools import lru_cache, partial
from pathlib import Path
from typing import Any

import numpy as np

from bartizan._util import machine
from bartizan._util.atomic import write_whole
from bartizan._util.types import Array, Floats
from bartizan.geometry import Geometry
from bartizan.rules import GeometricMedian, Krum, Rule
from bartizan.sketch import Exact, Rotated
from bartizan.sketch.norms_only import Norms
from bartizan.sketch.planner.costs import Costs
from bartizan.updates.layout import FLOATS
from bartizan.updates.updates import Updates

CLIENTS = (4, 32, 128)  # the same memory, cut into few long rows and into many short ones
DIMENSIONS = (4096, 65536)
FEW, SEVERAL = (4, 64), (16, 64, 256)
NUMBERS = {"cpu": 2**25, "cuda": 2**28}  # more than any cache holds
REPEATS = 4


def calibrate(device: str = "cpu", dtype: str = "float32", *, numbers: int | None = None) -> Costs:
    """Measure all costs and store them; progress is shown on stderr from the third second on.

    `numbers` is how many the updates hold in all; if not said, an eighth of the free memory, up to 2^25 (2^28 on
    a GPU).
    """
    machine.checked_device(device)
    bench = _Bench(device, checked_dtype(dtype), numbers)
    costs = bench.costs()
    with suppress(OSError):  # a folder that can't be written to means only that the next one measures again
        write_whole(_path(device, dtype), json.dumps({"key": _key(device, dtype), "costs": asdict(costs)}, indent=1))
    stored.cache_clear()
    return costs


@lru_cache
def stored(device: str = "cpu", dtype: str = "float32") -> Costs | None:
    """What was measured here before with this version, if anything; a file that is not ours or is broken is nothing."""
    try:
        kept = json.loads(_path(device, dtype).read_text())
        if kept["key"] != _key(device, dtype):
            return None
        costs = Costs(**kept["costs"])
    except (OSError, ValueError, TypeError, KeyError, ModuleNotFoundError):
        return None
    numbers = [getattr(costs, cost.name) for cost in fields(Costs) if cost.type == "float"]
    sound = all(isinstance(value, float) and 0 <= value < 1 for value in numbers)
    return costs if sound and costs.read > 0 else None


def checked_dtype(dtype: str) -> str:
    if dtype not in FLOATS:
        raise ValueError(f"dtype must be one of {', '.join(FLOATS)}; got {dtype!r}.")
    return dtype


def _key(device: str, dtype: str) -> dict[str, str]:
    from bartizan import __version__

    return {"version": __version__, "device": device, "dtype": dtype, "machine": machine.name_of(device)}


def _path(device: str, dtype: str) -> Path:
    digest = hashlib.sha256(json.dumps(_key(device, dtype), sort_keys=True).encode()).hexdigest()[:16]
    home = os.environ.get("XDG_CACHE_HOME", "")
    return (Path(home) if os.path.isabs(home) else Path.home() / ".cache") / "bartizan" / f"costs-{digest}.json"


@dataclass
class _Bench:
    device: str
    dtype: str
    numbers: int | None
    started: float = field(default_factory=time.monotonic)
    shown: bool = False

    def costs(self) -> Costs:
        try:
            return self._measured()
        finally:
            if self.shown:
                print("\r\033[K", end="", file=sys.stderr, flush=True)

    def _measured(self) -> Costs:
        size = 8 if self.dtype == "float64" else 4
        room = self.numbers or min(NUMBERS[self.device], machine.free_memory(self.device) // 8 // size)
        most = max(CLIENTS)
        flat = _filled(max(room // most, 1) * most, self.dtype, self.device)
        call, client, choose, choose_pair = self._calls(flat)
        iterate, iterate_pair = self._weighing(GeometricMedian(), SEVERAL)
        reads, rotations, grams, sums = [], [], [], []
        for M in FEW:  # of tiny updates only the sketches themselves cost anything
            tiny = Updates.of(flat[: 64 * M].reshape(M, 64))
            look = self._best("projecting tiny updates", partial(Rotated().gram_stats, tiny, 0), repeats=5 * REPEATS)
            rotations.append(((64, 64 * M, M * Rotated().k, M * M * Rotated().k), look))
        for M in CLIENTS:
            clients = Updates.of(flat.reshape(M, -1))
            p, fixed = clients.layout.dim, call + client * M
            look = self._best(f"one read, {M} clients", partial(Norms().gram_stats, clients, 0))
            reads.append(((M * p,), look - fixed))
            for k in DIMENSIONS:
                look = self._best(f"projecting {M} clients to {k}", partial(Rotated(k).gram_stats, clients, 0))
                rotations.append(((p, M * p, M * k, M * M * k), look - fixed))
            look = self._best(f"the exact Gram matrix of {M} clients", partial(Exact().gram_stats, clients, 0))
            grams.append(((M * p, M * M * p), look - fixed))
            for chosen in (1, M):
                weights = np.zeros(M)
                weights[:chosen] = 1 / chosen
                seconds = self._best(f"adding {chosen} clients up", partial(clients.combine, weights))
                sums.append(((p, chosen * p), seconds))
        (read,) = fitted(reads)
        draw, rotate, cell, sketch_pair = fitted(rotations)
        gram, gram_pair = fitted(grams)
        write, combine = fitted(sums)
        return Costs(
            device=self.device,
            dtype=self.dtype,
            machine=machine.name_of(self.device),
            call=call,
            client=client,
            read=max(read, 1e-15),
            draw=draw,
            rotate=rotate,
            cell=cell,
            sketch_pair=sketch_pair,
            gram=gram,
            gram_pair=gram_pair,
            write=write,
            combine=combine,
            choose=choose,
            choose_pair=choose_pair,
            iterate=iterate,
            iterate_pair=iterate_pair,
        )

    def _calls(self, flat: Any) -> tuple[float, float, float, float]:
        """What is left of a whole call on tiny updates when its weighing is taken off."""
        from bartizan.aggregate import Aggregator

        choose, choose_pair = self._weighing(Krum(n_byzantine=0), SEVERAL)
        rest = []
        for M in FEW:
            tiny = flat[: 64 * M].reshape(M, 64)
            krum = Aggregator(Krum(n_byzantine=0))
            seconds = self._best("a call on tiny updates", partial(krum, tiny, seed=0), repeats=5 * REPEATS)
            rest.append(((1.0, M), max(seconds - choose - choose_pair * M * M, 1e-6)))
        call, client = fitted(rest)
        return call, client, choose, choose_pair

    def _weighing(self, rule: Rule, several: Sequence[int]) -> tuple[float, float]:
        rng = np.random.default_rng(0)
        times = []
        for M in several:
            inner = Geometry.of(rng.normal(size=(M, 1024)))
            seconds = self._best(f"{type(rule).__name__} on {M} clients", partial(_weighed, rule, inner))
            times.append(((1.0, M * M), seconds))
        fixed, pair = fitted(times)
        return fixed, pair

    def _best(self, what: str, call: Callable[[], Any], repeats: int = REPEATS) -> float:
        """The least of several: whatever else runs here can only add. The first may compile, and does not count."""
        self._show(what)
        call()
        return min(machine.timed(call, self.device)[1] for _ in range(repeats))

    def _show(self, what: str) -> None:
        if time.monotonic() - self.started > 2:
            self.shown = True
            print(f"\r\033[KMeasuring this machine: {what} ...", end="", file=sys.stderr, flush=True)


def fitted(measured: Sequence[tuple[tuple[float, ...], float]]) -> list[float]:
    """Costs, none negative, whose products with the amounts come closest to the seconds, in relative terms.

    >>> fitted([((1, 2), 5.0), ((1, 4), 9.0), ((1, 8), 17.0)])
    [1.0, 2.0]
    """
    amounts = np.array([row for row, _ in measured], dtype=np.float64)
    seconds = np.maximum([time for _, time in measured], 1e-9)
    relative = amounts / seconds[:, None]
    best: tuple[float, Floats] | None = None
    for kept in _subsets(amounts.shape[1]):
        costs = np.zeros(amounts.shape[1])
        scale = np.abs(relative[:, kept]).max(axis=0)
        costs[kept] = np.linalg.lstsq(relative[:, kept] / scale, np.ones(len(seconds)), rcond=None)[0] / scale
        if (costs < 0).any():
            continue
        error = float(np.square(relative @ costs - 1).sum())
        if best is None or error < best[0] * (1 - 1e-9):
            best = error, costs
    assert best is not None  # one term alone is never negative: amounts and seconds are positive
    return [float(f"{cost:.6g}") for cost in best[1]]


def _subsets(n: int) -> Iterator[list[int]]:
    """The largest first."""
    for bits in sorted(range(1, 2**n), key=lambda bits: -bits.bit_count()):
        yield [i for i in range(n) if bits >> i & 1]


def _filled(numbers: int, dtype: str, device: str) -> Any:
    """Numbers that are really in memory: untouched pages would read faster than any other."""
    some: Array = np.random.default_rng(0).standard_normal(min(numbers, 2**20), dtype=np.float32)
    if device == "cpu" and dtype != "bfloat16":
        return np.resize(some.astype(dtype), numbers)
    torch = machine.torch_for(f"dtype={dtype!r} on {device!r}")
    part = torch.from_numpy(some).to(device=device, dtype=getattr(torch, dtype))
    return part.repeat(-(-numbers // len(part)))[:numbers]


def _weighed(rule: Rule, geometry: Geometry) -> Floats:
    """Without the distances that an earlier call has left behind in the geometry."""
    return rule(replace(geometry))
