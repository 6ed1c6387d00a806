"""The tables of single studies, from the rows that these kept, and of what the library's own functions state."""

from __future__ import annotations

import json
import math
from typing import Any

from bartizan import sketch
from studies.measurements import adaptive, buffered, crossover, example_attacks, few_sites, scaling, tails
from studies.rows import RESULTS, kept
from studies.tables import table_of
from studies.theory.parts import PARTS

K, DELTA, ROUNDS = 4096, 0.05, 100


def parts() -> dict[str, str]:
    """Return the tables by the names of their markers."""
    sites, in_buffers, in_flower, in_nvflare = (
        json.loads((RESULTS / f"{name}.json").read_text(encoding="utf-8"))
        for name in ("few-sites", "buffered", "example-attacks-flower", "example-attacks-nvflare")
    )
    return {
        **{f"theory_{name}": part.table(kept(f"theory-{name}")) for name, part in PARTS.items()},
        "guarantees": guarantees(),
        "promises": promises(),
        "collisions": collisions(),
        "crossover": crossover.crossover_table(kept("crossover")),
        "spans": tails.spans_table(kept("tails-spans")),
        "lane_vectors": table_of(kept("tails-vectors")),
        "norm_ranges": adaptive.ranges_table(),
        "norm_exits": table_of(kept("adaptive-exits")),
        "harm": adaptive.harm_table(kept("adaptive-harm")),
        "scale_model": scaling.model_table(10_000, 10**9, K),
        "scale": table_of(kept("scaling")),
        "many_clients": table_of(kept("many-clients")),
        "traffic": table_of(kept("traffic")),
        "committed_bytes": table_of(kept("committed-bytes")),
        "adapter_errors": table_of(adapter_errors()),
        "buffered": buffered.table(in_buffers),
        "few_sites": few_sites.table(sites),
        "example_flower": example_attacks.table(in_flower),
        "example_nvflare": example_attacks.table(in_nvflare),
    }


def adapter_errors() -> list[dict[str, Any]]:
    """Return the measured errors of adapters' distances by the default sketch and by `Rotated`."""
    return [
        row
        for row in kept("adapter-errors")
        if row["sketch"].strip("`") in ("TwoSided(k=4096, rows=256)", "Rotated(k=4096, mixing=32)")
    ]


def guarantees() -> str:
    """Return what a Gaussian matrix keeps at k = 4096, and the k for a given error, by the number of clients."""
    rows: list[dict[str, Any]] = []
    for M in (50, 200, 1000):
        row: dict[str, Any] = {"M": M, "eps of the pairs": sketch.pairwise_distortion(K, M, DELTA, ROUNDS)}
        row["k for pairs to 0.2"] = sketch.pairwise_dimension(M, 0.2, DELTA, ROUNDS)
        try:
            row["eps of the span"] = sketch.distortion(K, M, DELTA, ROUNDS)
        except ValueError:
            row["eps of the span"] = "no guarantee"
        rows.append(row | {"k for the span to 0.5": sketch.embedding_dimension(M, 0.5, DELTA, ROUNDS)})
    return table_of(rows)


def promises() -> str:
    """Return the part of squared lengths that a sketch is proven to keep, by sketch and number of clients."""
    cases: list[tuple[sketch.Sketch, str, tuple[float, float] | None]] = [
        (sketch.Gaussian(K), "every span", None),
        (sketch.Achlioptas(K, 8), "every span", None),
        (sketch.Rotated(K), "every span", None),
        (sketch.Rotated(K), "if rho <= 1.2", (1.2, 1.05)),
        (sketch.Rotated(4 * K), "if rho <= 1.2", (1.2, 1.05)),
        (sketch.Rotated(4 * K, 512), "every span", None),
        (sketch.Rotated(4 * K, 4096), "every span", None),
    ]
    rows: list[dict[str, Any]] = []
    for one, supposing, spread in cases:
        row: dict[str, Any] = {"sketch": f"`{one}`", "for": supposing}
        for M in (10, 50, 200):
            found = sketch.guarantee(one, M, DELTA, ROUNDS, spread=spread)
            row[f"span, M = {M}"] = f"{found.span:.2f}" if found.promise == "span" else "-"
            row[f"pairs, M = {M}"] = f"{found.pairs:.2f}" if found.promise != "norms" else "-"
        rows.append(row)
    return table_of(rows)


def collisions() -> str:
    """Return the probabilities of exact collisions by `mixing`, and the rounds that 15 attackers wait for one."""
    rows: list[dict[str, Any]] = []
    for n in (1, 8, 16, 32, 64):
        known, bound = sketch.collision_odds(K, n), sketch.collision_bound(K, n)
        shown = {
            "best attack known": f"2^{math.log2(known):.1f}",
            "bound for every attack": f"2^{math.log2(bound):.1f}",
        }
        rows.append({"mixing": n, **shown, "rounds to wait, at least": f"{float(f'{1 / (15 * bound):.2g}'):,.0f}"})
    return table_of(rows)
