"""SketchGuard's screen (arXiv 2510.07922), whose seed is public and fixed, and ours under the same vector."""

from __future__ import annotations

import numpy as np

import bartizan as bz
from bartizan.attacks.nullspace import hidden_part
from committed_clients import CHEAT, NAMES, F, Loopback, honest

P, SEED, LENGTH = 100_000, 2510, 20.0
COUNT_SKETCH = bz.Rotated(k=1024, mixing=1)  # one entry of +1 or -1 per column, at a random place


def screened(own, models, seed):
    """Average one's own model and those whose count sketches lie within a threshold: only these are fetched."""
    shown = {name: COUNT_SKETCH(x[None], seed=seed)[0] for name, x in models.items()}
    mine = COUNT_SKETCH(own[None], seed=seed)[0]
    threshold = 2 * np.linalg.norm(mine)
    accepted = [name for name, sketch in shown.items() if np.linalg.norm(sketch - mine) <= threshold]
    return np.mean([own, *(models[name] for name in accepted)], axis=0), accepted


def test_a_vector_from_the_null_space_walks_through_a_public_seed_and_not_through_a_committed_round():
    models = honest(P)
    step = LENGTH * np.linalg.norm(models["c0"])
    true = np.mean([models[name] for name in NAMES if name != CHEAT], axis=0)

    def attack(sketch, seed):
        hidden = hidden_part(np.ones(P), sketch, [seed])
        return (models["c1"] + step * hidden / np.linalg.norm(hidden)).astype(np.float32)

    neighbours = {name: models[name] for name in NAMES[1:]}
    clear = neighbours | {CHEAT: models["c1"] + np.float32(step / np.sqrt(P))}
    assert CHEAT not in screened(models["c0"], clear, SEED)[1]  # the screen works against who does not hide
    mixed, accepted = screened(models["c0"], neighbours | {CHEAT: attack(COUNT_SKETCH, SEED)}, SEED)
    assert CHEAT in accepted
    assert np.linalg.norm(mixed - true) > LENGTH / 10 * np.linalg.norm(true)

    for sketch in (COUNT_SKETCH, bz.Rotated()):
        sent = models | {CHEAT: attack(sketch, SEED)}
        opened = bz.Aggregator(bz.MultiKrum(F), sketch).committed_round(models["c0"], expected=NAMES, audit=0)
        out = opened.run(Loopback(sent))
        assert out.seed != SEED
        assert dict(zip(out.clients, out.weights, strict=True))[CHEAT] == 0
        assert np.linalg.norm(out.update - true) < 0.5 * np.linalg.norm(true)
