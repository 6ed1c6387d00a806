"""Made-up runs that look like real ones, written with the writer that real runs use."""

from __future__ import annotations

import zlib
from pathlib import Path
from typing import Any

import numpy as np

from bartizan.records import Writer

CLASSES = ["T-shirt", "trouser", "pullover", "dress", "coat", "sandal", "shirt", "sneaker", "bag", "boot"]
LEVEL = {"mean": 0.83, "krum": 0.71, "geometric-median": 0.81, "mca": 0.82}
HARM = {"none": 0.0, "gaussian": 0.01, "sign-flip": 0.02, "lie": 0.05, "foe": 0.03}
READS = {"mean": 1.0, "krum": 12.0, "geometric-median": 12.4, "mca": 13.1}


def write_run(
    folder: Path,
    rule: str = "mca",
    attack: str = "gaussian",
    sketch: str = "rotated",
    seed: int = 0,
    *,
    rounds: int = 30,
    clients: int = 50,
    attackers: float = 0.3,
    classes: list[str] = CLASSES,
    every: int = 2,
    ends: bool = True,
    known: bool = True,
    weighs: bool = True,
    participation: float = 1.0,
    backdoor: bool = False,
    ids: list[Any] | None = None,
    name: str = "four attacks",
    **config: Any,
) -> Path:
    """One run's folder."""
    rng = np.random.default_rng([seed, zlib.crc32(f"{rule} {attack}".encode()), sketch != "exact"])
    cohort = np.random.default_rng(seed)
    M, f = clients, round(attackers * clients)
    ids = list(range(M)) if ids is None else ids
    bad = np.sort(cohort.permutation(M)[:f])
    is_bad = np.isin(np.arange(M), bad)
    split = np.stack([cohort.multinomial(220, cohort.dirichlet(np.full(len(classes), 0.6))) for _ in range(M)])
    sizes = split.sum(axis=1)
    dies = rule == "mean" and attack in ("gaussian", "sign-flip", "foe")
    guess = 1 / len(classes)
    with Writer(folder) as out:
        out.write(
            "run",
            version=1,
            id=folder.name,
            name=name,
            config={
                "name": name,
                "seed": seed,
                "rounds": rounds,
                "data": {"name": "fashion-mnist-mini", "augment": False},
                "split": {"kind": "dirichlet", "beta": 0.6},
                "model": {"name": "cnn", "norm": "group"},
                "clients": {"count": M, "byzantine": attackers, "batch": 32, "work": "gradient"},
                "attack": {"name": attack},
                "rule": {"name": rule},
                "sketch": {"name": sketch, **({"k": 4096} if sketch != "exact" else {})},
                "server": {"optimiser": "momentum", "step_size": 0.1, "momentum": 0.9},
                **config,
            },
            clients=ids,
            byzantine=[ids[i] for i in bad] if known else None,
            ratio={"count": f / M, "data": sizes[bad].sum() / sizes.sum()} if known else None,
            sizes=sizes,
            split=split,
            classes=classes,
            dim=1_663_370,
            bartizan="0.1.0",
            torch="2.13.0",
            machine="AMD EPYC 9554, 2 threads",
        )
        accuracies = []
        for t in range(1, rounds + 1):
            took = np.arange(M) if participation == 1 else np.sort(rng.permutation(M)[: max(1, int(participation * M))])
            weights = _weights(rule, attack, is_bad[took], rng)
            line: dict[str, Any] = {}
            if t % every == 0 or t == rounds:
                level = guess if dies else LEVEL.get(rule, 0.78) - HARM.get(attack, 0.02)
                rise = 1 - np.exp(-4.2 * t / rounds)
                accuracies.append(float(np.clip(guess + (level - guess) * rise + rng.normal(0, 0.012), 0, 1)))
                line |= {"accuracy": accuracies[-1], "test_loss": 2.3 * (1 - accuracies[-1]), "read": 2.1e-2}
                if weighs:
                    other = np.clip(weights + rng.normal(0, 0.12, len(took)) * weights, 0, None)
                    line["exact_weights"] = other / other.sum() if sketch != "exact" else weights
                if backdoor:
                    line["backdoor"] = float(
                        np.clip((0.9 if rule == "mean" else 0.12) * rise + rng.normal(0, 0.02), 0, 1)
                    )
            reads = READS.get(rule, 9.0) if sketch == "exact" else min(READS.get(rule, 9.0), 2.1)
            spent = 2.1e-2 * reads * rng.uniform(0.95, 1.05)
            out.write(
                "round",
                round=t,
                clients=[ids[i] for i in took],
                weights=weights if weighs else None,
                quarantined={str(ids[bad[0]]): "NaN at coordinate 17"} if f and t % 9 == 4 and bad[0] in took else {},
                seed="1234567890123456789",
                sketch="Exact()" if sketch == "exact" else "Rotated(k=4096, mixing=32)",
                seconds={"train": 0.8, "sketch": 0.6 * spent, "weigh": 0.1 * spent, "combine": 0.3 * spent},
                loss=2.3 * np.exp(-2 * t / rounds),
                norm=float("inf") if dies and t > rounds / 2 else 1.0,
                step=0.1,
                **line,
            )
        if ends:
            best, last = max(accuracies), accuracies[-1]
            out.write("end", status="finished", converged=not dies, best=best, last=last, seconds=rounds * 0.9)
    return folder


def write_brief(
    folder: Path,
    rule: str = "krum",
    attack: str = "lie",
    sketch: str = "exact",
    *,
    accuracy: float | None = 0.8,
    perplexity: float | None = None,
    converged: bool = True,
    on_attacker: float | None = None,
    server: float | list[float] | None = 0.3,
    read: float | None = None,
    rounds: int = 2,
    ids: list[Any] | None = None,
    known: bool = True,
    weighs: bool = True,
    ends: bool = True,
    machine: str = "a laptop",
    status: str = "finished",
    **config: Any,
) -> Path:
    """A run as short as it may be, with the numbers that a test asks for; a server without a time refused the round.

    The last client is the attacker. `server` may be a list, with a time for each round.
    """
    ids = [0, 1, 2, 3] if ids is None else ids
    weights = np.linspace(1, 0, len(ids))
    if on_attacker is not None:
        weights = np.r_[np.full(len(ids) - 1, (1 - on_attacker) / (len(ids) - 1)), on_attacker]
    config = {"seed": 0, "rule": {"name": rule}, "attack": {"name": attack}, "sketch": {"name": sketch}, **config}
    metric, end = ("accuracy", accuracy) if perplexity is None else ("perplexity", perplexity)
    measured = {name: value for name, value in ((metric, end), ("read", read)) if value is not None}
    times = server if isinstance(server, list) else [server] * rounds
    with Writer(folder) as out:
        about = {"id": folder.name, "config": config, "machine": machine, "metric": metric}
        out.write("run", version=1, clients=ids, byzantine=ids[-1:] if known else None, **about)
        for t, took in enumerate(times, start=1):
            spent = {} if took is None else {"sketch": took / 2, "weigh": took / 4, "combine": took / 4}
            line = {"weights": weights if weighs else None, "quarantined": {}, "seconds": {"train": 1.0, **spent}}
            out.write("round", round=t, clients=ids, **line, **measured)
        if ends:
            out.write("end", status=status, converged=converged, best=end, last=end, seconds=1.0)
    return folder


def write_sweep(folder: Path, seeds: int = 1, rules: tuple[str, ...] = tuple(LEVEL), **settings: Any) -> Path:
    """Four rules, four attacks and none, two sketches."""
    for rule in rules:
        for attack in HARM:
            for sketch in ("exact", "rotated"):
                for seed in range(seeds):
                    write_run(folder / f"{rule}-{attack}-{sketch}-{seed}", rule, attack, sketch, seed, **settings)
    return folder


def _weights(rule: str, attack: str, is_bad: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    m = len(is_bad)
    if rule == "mean":
        return np.full(m, 1 / m)
    trust = np.where(is_bad, 0.3 if attack == "lie" else 0.02, 1.0) * rng.gamma(9.0, 1 / 9, m)
    if rule == "krum":
        weights = np.zeros(m)
        weights[np.argmax(trust)] = 1
        return weights
    trust[trust < 0.05] = 0
    return trust / trust.sum() if trust.sum() else np.full(m, 1 / m)
