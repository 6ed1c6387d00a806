"""One round of the paper's rules at the sizes of its models, by ours and by what the paper's times stand for.

    python benchmarks/speedups.py --out benchmarks/results/speedups-cpu.json
    python benchmarks/speedups.py --device cuda --repeats 3 --limit 2 --out benchmarks/results/speedups-h200.json

Engines: a Python loop over pairs of whole updates (for the geometric median and MCA the plain iteration over them),
ours on all coordinates, ByzFL, ours projected by `Rotated` and by the paper's own matrix. They are checked and timed as
in `bartizan bench` (docs/guides/benchmark.md): answers first, then by turns, each after one read. A model that does not
fit into memory, or a library that is not there, is left out with a line that says so; `make speedups` has ByzFL. The
paper's matrix takes minutes on a CPU, hardly any of them the rule's: there it is timed with Krum alone.
What is not measured now (`--models`, `--rules`, `--engines`) keeps the rows that it has in the file.
`python benchmarks/results_page.py` makes the tables of docs/results.md of the rows.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from bartizan._util import machine
from bartizan.studies.bench import measure
from bartizan.studies.bench.bench_rows import Row, added, load, plain, save, seconds
from bartizan.studies.bench.benchmark import PEERS
from bartizan.studies.bench.engines import ours
from bartizan.studies.bench.problem import Problem

CLIENTS, ATTACKERS = 50, 10
MODELS = {"mobilenet-v3-large": 5_483_032, "resnet18": 11_689_512, "vgg16": 138_357_544}  # as published, 1000 classes
RULES = ("krum", "bulyan", "geometric-median", "mca")
SKETCHES = ("rotated", "exact", "achlioptas")
RIVALS = ("byzfl", "pair-loop")
ENGINES = (*SKETCHES, *RIVALS)


def present(rivals: list[str]) -> list[str]:
    """Those that can be called here."""
    tiny, out = Problem.draw(11, 2, 8, "float32", "cpu"), []
    for name in rivals:
        try:
            PEERS[name]().job("krum", tiny)
            out.append(name)
        except ModuleNotFoundError as missing:
            say(f"without {name}: {missing}")
    return out


def show(row: Row) -> None:
    if row.seconds is None or row.reads is None:
        return say(f"{row.rule:<17} {row.label:<20} {row.judged}")
    took = f"{seconds(row.seconds):>9} {plain(row.reads):>6} reads, {row.repeats} timed"
    return say(f"{row.rule:<17} {row.label:<20} {took}, {'' if row.ok else 'WRONG, '}{row.judged}")


def notice(text: str) -> None:
    if "timing" not in text:
        say(f"  {text} ...")


def say(text: str) -> None:
    print(text, flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--models", nargs="+", choices=tuple(MODELS), default=list(MODELS), metavar="MODEL")
    parser.add_argument("--rules", nargs="+", choices=RULES, default=list(RULES), metavar="RULE")
    parser.add_argument("--engines", nargs="+", choices=ENGINES, default=list(ENGINES), metavar="ENGINE")
    parser.add_argument("--repeats", type=int, default=5, metavar="N", help="timed calls of each (default 5)")
    parser.add_argument("--limit", type=float, default=30.0, metavar="S", help="seconds for the repeats of each")
    parser.add_argument("--out", type=Path, required=True, metavar="FILE", help="JSON lines, whole after every rule")
    options = parser.parse_args()
    machine.checked_device(options.device)
    kept = load(options.out) if options.out.exists() else []
    rivals = [PEERS[name]() for name in present([name for name in RIVALS if name in options.engines])]
    sketches = [name for name in SKETCHES if name in options.engines]
    for model in options.models:
        say(f"{model}, {CLIENTS} x {MODELS[model]:,} on {options.device}")
        try:
            problem = Problem.draw(CLIENTS, ATTACKERS, MODELS[model], "float32", options.device)
        except MemoryError as small:
            say(f"without {model}: {small}")
            continue
        for rule in options.rules:
            slow = options.device == "cpu" and rule != RULES[0]
            own = [ours(sketch) for sketch in sketches if not (slow and sketch == "achlioptas")]
            for row in measure.rows(problem, rule, [*own, *rivals], options.repeats, options.limit, notice):
                show(row)
                kept = added(kept, [row])
                save(options.out, kept)
        del problem  # before the next is drawn


if __name__ == "__main__":
    main()
