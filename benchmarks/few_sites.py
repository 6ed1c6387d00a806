"""Seven hospitals, one with half of the data: accuracy by rule, by the use of sizes, and by attackers.

Run:  python benchmarks/few_sites.py
Fashion-MNIST of the package, divided at random; each site takes 60 steps of SGD a round. An attacker sends its step
reversed, four times as long, or trains on false labels (three of the ten classes are called by another's name).
Accuracy on the test set after five rounds, the mean over the seeds.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

import numpy as np
import torch
from torch import nn
from torch.nn.functional import cross_entropy

import bartizan as bz
from bartizan.lab.data import load

SITES, F = 7, 2
RULES = {
    "Mean": bz.Mean(),
    "GeometricMedian": bz.GeometricMedian(),
    "NNM(2) >> GeometricMedian": bz.NNM(F) >> bz.GeometricMedian(),
    "MultiKrum(2)": bz.MultiKrum(F),
    "TrimmedMean(2)": bz.TrimmedMean(F),
    "Median": bz.Median(),
}
# who attacks -> (sites that reverse their step, sites with false labels)
ATTACKERS = {
    "nobody": ((), ()),
    "two small sites": ((1, 2), ()),
    "the large site": ((0,), ()),
    "the large site, by false labels": ((), (0,)),
}
FALSE = torch.tensor([0, 1, 2, 3, 4, 5, 0, 5, 8, 8])  # shirts, sneakers and boots are called something else


def examples(images):
    pixels = torch.from_numpy(images.pixels).float() / 255
    return (pixels.flatten(1) - 0.286) / 0.353, torch.from_numpy(images.labels)


def divided(data, rng):
    """Give half of the data to the large site and equal parts of the rest to the others."""
    images, labels = data
    order = rng.permutation(len(labels))
    parts = [order[: len(order) // 2], *np.array_split(order[len(order) // 2 :], SITES - 1)]
    return [(images[part], labels[part]) for part in parts]


def network():
    return nn.Sequential(nn.Linear(784, 64), nn.ReLU(), nn.Linear(64, 10))


def trained(state, data):
    model = network()
    model.load_state_dict(state)
    optimiser = torch.optim.SGD(model.parameters(), lr=0.02, momentum=0.9)
    images, labels = data
    for _ in range(60):
        batch = torch.randint(len(labels), (64,))
        loss = cross_entropy(model(images[batch]), labels[batch])
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
    return {name: tensor.detach() for name, tensor in model.state_dict().items()}


def accuracy(rule, weighted, attackers, parts, test, rounds, seed):
    torch.manual_seed(seed)
    reversed_steps, false_labels = attackers
    parts = [(images, FALSE[labels] if site in false_labels else labels) for site, (images, labels) in enumerate(parts)]
    state = network().state_dict()
    sizes = [len(labels) for _, labels in parts] if weighted else None
    for _ in range(rounds):
        sent = [trained(state, part) for part in parts]
        for attacker in reversed_steps:
            sent[attacker] = {name: state[name] - 4 * (new - state[name]) for name, new in sent[attacker].items()}
        state = bz.aggregate(sent, rule, sizes=sizes, reference=state, seed=seed).update
    model = network()
    model.load_state_dict(state)
    images, labels = test
    return (model(images).argmax(1) == labels).float().mean().item()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    torch.set_num_threads(1)
    data = load("fashion-mnist-mini")
    train, test = examples(data.train), examples(data.test)
    rows = []
    print("| rule | sizes |", " | ".join(ATTACKERS), "|")
    for name, rule in RULES.items():
        for weighted in (False, True):
            found = {}
            for who, attackers in ATTACKERS.items():
                parts = [divided(train, np.random.default_rng(seed)) for seed in range(options.seeds)]
                runs = [accuracy(rule, weighted, attackers, p, test, options.rounds, s) for s, p in enumerate(parts)]
                found[who] = runs
            rows.append({"rule": name, "sizes": weighted, **found})
            means = " | ".join(f"{np.mean(runs):.3f}" for runs in found.values())
            print(f"| {name} | {'yes' if weighted else 'no'} | {means} |", flush=True)
    if options.out:
        options.out.write_text(json.dumps(rows, indent=1) + "\n")


if __name__ == "__main__":
    main()
