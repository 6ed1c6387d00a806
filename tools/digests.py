"""Digests of weights and results over rules, sketches, containers and engines, to compare two versions on one machine.

    PYTHONPATH=OLD/src python tools/digests.py write before.json
    PYTHONPATH=src python tools/digests.py write after.json
    python tools/digests.py compare before.json after.json

Bits depend on the CPU and its libraries, so both files must come from the same machine.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import sys
import tempfile
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

M, F, SEED = 13, 2, 12345
SHAPES = {"a.weight": (40, 33), "b": (7,), "c.weight": (3, 5, 41)}


def rules(bz: Any) -> list[Any]:
    """Rules of every kind, for 13 clients of which 2 are Byzantine."""
    return [
        *(bz.Mean(), bz.Krum(F), bz.MultiKrum(F), bz.Bulyan(F), bz.GeometricMedian(), bz.MCA(), bz.MCA(start="mean")),
        *(bz.CenteredClipping(), bz.CenteredClipping(radius=1.0, steps=5), bz.MDA(F), bz.SMEA(F), bz.MoNNA(F)),
        *(bz.FLTrust(), bz.CAF(F), bz.CGE(F), bz.SpectralDnC(F), bz.ClippedClustering(), bz.FLAME()),
        *(bz.Median(), bz.TrimmedMean(F), bz.MeaMed(F), bz.NNM(F) >> bz.GeometricMedian(), bz.NNM(F) >> bz.Median()),
        *(bz.ARC(F) >> bz.CAF(F), bz.Bucketing(2) >> bz.Krum(1), bz.NormFilter() >> bz.Mean()),
        *(bz.Clipping(9.0) >> bz.NNM(F) >> bz.MultiKrum(F),),
    ]


def sketches(bz: Any) -> list[Any]:
    return [bz.Exact(), bz.Rotated(k=256), bz.Rotated(k=4096), bz.Achlioptas(k=64), bz.Gaussian(k=64)]


def made(rng: np.random.Generator) -> np.ndarray:
    """Updates of 13 clients with a common part, two attackers and one client that holds NaN."""
    p = sum(int(np.prod(shape)) for shape in SHAPES.values())
    x = rng.normal(size=p) + 0.3 * rng.normal(size=(M + 1, p))
    x[:F] = -x[2] * 3
    return x


def as_dict(row: np.ndarray, dtype: str) -> dict[str, np.ndarray]:
    parts, low = {}, 0
    for name, shape in SHAPES.items():
        n = int(np.prod(shape))
        parts[name] = row[low : low + n].reshape(shape).astype(dtype)
        low += n
    return parts


def containers(x: np.ndarray, folder: Path) -> Iterator[tuple[str, Any, Callable[[Any], Any]]]:
    """Name, the clients' updates, and a function that makes a server's own update of the same form."""
    import torch

    for dtype in ("float16", "float32", "float64"):
        yield f"matrix {dtype}", x[:M].astype(dtype), lambda row, dtype=dtype: row.astype(dtype)
    bad = [as_dict(row, "float32") | {"n": np.array([i, 3])} for i, row in enumerate(x)]
    bad[5]["b"][3] = np.nan
    yield "dicts", bad, lambda row: as_dict(row, "float32") | {"n": np.array([0, 3])}
    yield (
        "layers",
        [list(as_dict(row, "float32").values()) for row in x[:M]],
        lambda row: list(as_dict(row, "float32").values()),
    )

    def tensors(row: np.ndarray) -> dict[str, Any]:
        return {name: torch.from_numpy(array).to(torch.bfloat16) for name, array in as_dict(row, "float32").items()}

    yield "bfloat16 tensors", [tensors(row) for row in x[:M]], tensors
    paths = []
    for i, row in enumerate(x[:M]):
        paths.append(folder / f"{i}.npy")
        np.save(paths[-1], row.astype("float32"))
    yield "files", paths, lambda row: row.astype("float32")


def flat(update: Any) -> bytes:
    if isinstance(update, dict):
        return b"".join(name.encode() + flat(one) for name, one in update.items())
    if isinstance(update, list):
        return b"".join(map(flat, update))
    if hasattr(update, "detach"):
        update = update.float().numpy()
    return np.ascontiguousarray(update).tobytes()


def digest(out: Any) -> dict[str, Any]:
    weights = None if out.weights is None else np.asarray(out.weights).tobytes().hex()
    quarantined = sorted(map(str, out.quarantined))
    update = hashlib.sha256(flat(out.update)).hexdigest()[:16]
    return {"weights": weights, "update": update, "quarantined": quarantined, "f": out.n_byzantine}


def cases(bz: Any, folder: Path) -> Iterator[tuple[str, Callable[[], Any]]]:
    import bartizan.partitioned as partitioned
    from bartizan.rules.coordinatewise import CoordinateWise

    x = made(np.random.default_rng(7))
    sizes = np.arange(1.0, M + 2)
    for name, updates, form in containers(x, folder):
        reference, trusted = form(0.5 * x[M]), form(x[M])
        for rule in rules(bz):
            coordinatewise = isinstance(rule, CoordinateWise)
            by_coordinate = isinstance(getattr(rule, "rule", rule), CoordinateWise)  # refused by `partitioned`
            for sketch in sketches(bz) if not coordinatewise else [bz.Exact()]:
                projected = sketch != bz.Exact()
                if name not in ("matrix float32", "dicts") and repr(sketch) not in ("Exact()", "Rotated(k=256)"):
                    continue
                mark = f"{name} / {rule!r} / {sketch!r}"
                options: dict[str, Any] = {"seed": SEED, "reference": reference}
                if rule.needs_trusted:
                    options["trusted"] = trusted

                def flat_call(options=options, rule=rule, sketch=sketch, updates=updates):
                    return bz.aggregate(updates, rule, sketch=sketch, sizes=sizes[: len(updates)], **options)

                def round_call(options=options, rule=rule, sketch=sketch, updates=updates):
                    own = {key: value for key, value in options.items() if key != "seed"}
                    with bz.Aggregator(rule, sketch).round(SEED, recheck=False, **own) as opened:
                        for client, update in enumerate(updates):
                            opened.add(update, client, size=sizes[client])
                        return opened.close()

                def partitioned_call(options=options, rule=rule, sketch=sketch, updates=updates):
                    parts = [list(updates[:6]), list(updates[6:])]
                    return partitioned.aggregate(parts, rule, sketch=sketch, sizes=sizes[: len(updates)], **options)

                yield f"aggregate / {mark}", flat_call
                yield f"Round / {mark}", round_call
                if (projected or not rule.needs_distances) and not by_coordinate:
                    yield f"partitioned / {mark}", partitioned_call
    yield from hard_cases(bz, x)
    yield from sharded_cases(bz, x)
    yield from adapter_cases(bz)


def hard_cases(bz: Any, x: np.ndarray) -> Iterator[tuple[str, Callable[[], Any]]]:
    """Updates that are read again: their common part takes the digits, or their squares underflow."""
    giant = np.vstack([x[: M - 1], 1e12 * x[:1]])
    for name, updates in {
        "offset": 1e7 + x[:M],
        "offset float32": (3e4 + x[:M]).astype("float32"),
        "tiny": 1e-170 * x[:M],
        "tiny float32": (1e-30 * x[:M]).astype("float32"),
        "giant": giant,
        "giant with an offset": 1e7 + giant,
        "NaN with an offset": np.where(np.arange(M)[:, None] == 4, np.nan, 1e7 + x[:M]),
    }.items():
        for rule in (bz.Krum(F), bz.GeometricMedian(), bz.CGE(F), bz.NNM(F) >> bz.Median(), bz.FLTrust()):
            for sketch in (bz.Exact(), bz.Rotated(k=256)):
                options: dict[str, Any] = {"seed": SEED}
                if rule.needs_trusted:
                    options["trusted"] = updates[3] + updates[6] / 7

                def flat_call(options=options, rule=rule, sketch=sketch, updates=updates):
                    return bz.aggregate(updates, rule, sketch=sketch, **options)

                def round_call(options=options, rule=rule, sketch=sketch, updates=updates):
                    own = {key: value for key, value in options.items() if key != "seed"}
                    with bz.Aggregator(rule, sketch).round(SEED, recheck=False, **own) as opened:
                        for client, update in enumerate(updates):
                            opened.add(update, client)
                        return opened.close()

                yield f"aggregate / {name} / {rule!r} / {sketch!r}", flat_call
                yield f"Round / {name} / {rule!r} / {sketch!r}", round_call


def sharded_cases(bz: Any, x: np.ndarray) -> Iterator[tuple[str, Callable[[], Any]]]:
    """One rank that holds all columns."""
    import torch.distributed as dist

    from bartizan.distributed import ShardedAggregator

    if not dist.is_initialized():
        dist.init_process_group("gloo", rank=0, world_size=1, store=dist.HashStore())
    for name, updates in {"plain": x[:M].astype("float32"), "offset": 1e7 + x[:M]}.items():
        for rule in rules(bz):
            for sketch in (bz.Exact(), bz.Rotated(k=256)):
                options = {"trusted": x[M].astype(updates.dtype)} if rule.needs_trusted else {}
                yield (
                    f"sharded / {name} / {rule!r} / {sketch!r}",
                    lambda rule=rule, sketch=sketch, updates=updates, options=options: ShardedAggregator(rule, sketch)(
                        updates, seed=SEED, **options
                    ),
                )


def adapter_cases(bz: Any) -> Iterator[tuple[str, Callable[[], Any]]]:
    import bartizan.lora as lora

    rng = np.random.default_rng(3)
    shapes = {"m.lora_A.weight": (4, 50), "m.lora_B.weight": (70, 4)}
    start = {name: rng.normal(size=shape) for name, shape in shapes.items()}
    honest = [
        {name: (array + 0.2 * rng.normal(size=array.shape)).astype("float32") for name, array in start.items()}
        for _ in range(M)
    ]
    for rule in (bz.Krum(F), bz.GeometricMedian(), bz.NNM(F) >> bz.GeometricMedian(), bz.CAF(F)):
        for sketch in (bz.Exact(), lora.TwoSided()):
            for name, reference in {"": None, " about a reference": honest[3]}.items():
                yield (
                    f"lora{name} / {rule!r} / {sketch!r}",
                    lambda rule=rule, sketch=sketch, reference=reference: lora.aggregate(
                        honest, rule, lora.LoRA(alpha=4), sketch=sketch, reference=reference, seed=SEED
                    ),
                )


def write(path: Path) -> None:
    import bartizan as bz

    found: dict[str, Any] = {}
    with tempfile.TemporaryDirectory() as folder, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for name, call in cases(bz, Path(folder)):
            try:
                found[name] = digest(call())
            except (ValueError, TypeError) as refused:
                found[name] = {"refused": type(refused).__name__}
    path.write_text(json.dumps(found, indent=0) + "\n")
    print(f"{len(found)} cases, {sum('refused' in one for one in found.values())} refused, of {bz.__file__}")


def compare(before: Path, after: Path) -> int:
    old, new = (json.loads(path.read_text()) for path in (before, after))
    differing = [name for name in old if old[name] != new.get(name)]
    for name in differing:
        keys = [key for key in old[name] if old[name][key] != new.get(name, {}).get(key)]
        print(f"{name}: {', '.join(keys)} differ: {new.get(name, {}).get('refused', '')}")
    print(f"{len(differing)} of {len(old)} differ")
    return 1 if differing else 0


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    commands = parser.add_subparsers(required=True, dest="command")
    commands.add_parser("write").add_argument("file", type=Path)
    compared = commands.add_parser("compare")
    compared.add_argument("before", type=Path)
    compared.add_argument("after", type=Path)
    options = parser.parse_args()
    if options.command == "compare":
        return compare(options.before, options.after)
    write(options.file)
    return 0


if __name__ == "__main__":
    sys.exit(main())
