"""The accuracy of seven hospitals, one with half of the data: by rule, by the use of sizes, and by attackers.

python -m studies few-sites --out studies/results/few-sites.json     # four minutes on one core
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.nn.functional import cross_entropy

import bartizan as bz
from bartizan.lab.data import load
from studies.options import command
from studies.rows import write_json
from studies.tables import markdown_table

SITES, F = 7, 2
RULES = {
    "Mean": bz.Mean(),
    "GeometricMedian": bz.GeometricMedian(),
    "NNM(2) >> GeometricMedian": bz.NNM(F) >> bz.GeometricMedian(),
    "MultiKrum(2)": bz.MultiKrum(F),
    "TrimmedMean(2)": bz.TrimmedMean(F),
    "Median": bz.Median(),
    "CenteredClipping": bz.CenteredClipping(),
    "ARC(2) >> Mean": bz.ARC(F) >> bz.Mean(),
    "ARC(2) >> CAF(2)": bz.ARC(F) >> bz.CAF(F),
}
# who attacks -> (sites that reverse their step, sites with false labels)
ATTACKERS = {
    "nobody": ((), ()),
    "two small sites": ((1, 2), ()),
    "the large site": ((0,), ()),
    "the large site, by false labels": ((), (0,)),
}
FALSE_LABELS = torch.tensor([0, 1, 2, 3, 4, 5, 0, 5, 8, 8])  # shirts, sneakers and boots are called something else


def few_sites(*, seeds: int = 3, rounds: int = 5, out: Path | None = None) -> None:
    """Train on the package's Fashion-MNIST, divided at random; each site takes 60 steps of SGD per round.

    An attacker sends its step reversed, four times as long, or trains on false labels (three of the ten classes are
    called by another's name). Printed is the accuracy on the test set after the last round, the mean over the seeds.
    """
    torch.set_num_threads(1)
    data = load("fashion-mnist-mini")
    train, test = examples(data.train), examples(data.test)
    rows = []
    for name, rule in RULES.items():
        for weighted in (False, True):
            found = {"rule": name, "sizes": weighted}
            for who, attackers in ATTACKERS.items():
                parts = [divided(train, np.random.default_rng(seed)) for seed in range(seeds)]
                found[who] = [accuracy(rule, weighted, attackers, p, test, rounds, s) for s, p in enumerate(parts)]
            rows.append(found)
    print(table(rows))
    write_json(out, rows)


add_to = command(few_sites)


def table(rows: Sequence[dict[str, Any]]) -> str:
    """Return mean and standard deviation of the accuracy by who attacks; of rules that end alike, one."""
    body = [
        [f"`{row['rule']}`", "yes" if row["sizes"] else "no"]
        + [f"{np.mean(row[who]):.3f} ± {np.std(row[who], ddof=1):.3f}" for who in ATTACKERS]
        for row in rows
        if row["rule"] not in ("Median", "ARC(2) >> Mean")
    ]
    return markdown_table(["rule", "sizes", *ATTACKERS], body)


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
    """Return the weights after 60 steps of SGD from `state`."""
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
    """Return the accuracy on the test set after some rounds."""
    torch.manual_seed(seed)
    reversing, lying = attackers
    parts = [(images, FALSE_LABELS[labels] if site in lying else labels) for site, (images, labels) in enumerate(parts)]
    state = network().state_dict()
    sizes = [len(labels) for _, labels in parts] if weighted else None
    for _ in range(rounds):
        sent = [trained(state, part) for part in parts]
        for attacker in reversing:
            sent[attacker] = {name: state[name] - 4 * (new - state[name]) for name, new in sent[attacker].items()}
        state = bz.aggregate(sent, rule, sizes=sizes, reference=state, seed=seed).update
    model = network()
    model.load_state_dict(state)
    images, labels = test
    return (model(images).argmax(1) == labels).float().mean().item()
