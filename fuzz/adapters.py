"""Surface: LoRA adapters in dicts and peft folders, compared with their dense products."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.numpy import save as save_safetensors

import bartizan as bz
from bartizan import lora
from bartizan.sources.adapters.peft_folders import CONFIG, TENSORS
from fuzz.draw import Draw
from fuzz.mutate import mutated_bytes, mutated_json
from fuzz.surfaces import COMPARED, RefusedError, Surface, documented, fair, require

MODULES = {"q": (5, 6), "v": (3, 4)}
SETTINGS = lora.LoRA(alpha=4.0, rank=6, max_rank=8)
PEFT = {
    **{"peft_type": "LORA", "r": 2, "lora_alpha": 4, "use_rslora": False, "bias": "none", "rank_pattern": {}},
    **{"alpha_pattern": {}, "modules_to_save": None, "use_dora": False, "target_modules": ["q", "v"]},
}
NUMBERS = (0.0, 1.0, -3.0, 1e-30, 1e20, 3e38, 1e-45, np.nan, np.inf)
RULES = (bz.Mean(), bz.GeometricMedian(), bz.NNM(1) >> bz.CGE(1), bz.MultiKrum(1))


def _adapter(rank: int, seed: int) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(seed)
    shapes = {f"{name}.lora_{side}.weight": (d, rank)[:: 1 if side == "B" else -1]
              for name, dims in MODULES.items() for side, d in zip("BA", dims, strict=True)}  # fmt: skip
    return {name: rng.normal(size=shape).astype(np.float32) for name, shape in shapes.items()}


HONEST = [_adapter(rank, rank) for rank in (1, 2, 2, 3)]


def _dense(update: Any) -> np.ndarray:
    """The definition: s B A of all modules in one vector."""
    found = []
    for module in MODULES:
        A, B = (
            np.asarray(next(array for name, array in update.items() if name.startswith(f"{module}.lora_{side}")), "f8")
            for side in "AB"
        )
        found.append((4.0 / len(A) * B @ A).ravel())
    return np.concatenate(found)


def _changed(update: dict[str, np.ndarray], draw: Draw) -> Any:
    made: dict[Any, Any] = dict(update)
    for _ in range(1 + draw.below(3)):
        if not made:
            break
        name, how = draw.pick(list(made)), draw.below(6)
        if how == 0:
            del made[name]
        elif how == 1:
            made[draw.pick(["x.lora_A.weight", "", "q.lora_A.default.weight", 7, "q.weight"])] = made.pop(name)
        elif how == 2:
            made[name] = np.full(draw.pick([(2, 6), (5, 2), (0, 6), (3,), (1, 1, 1), (9, 9)]), draw.pick(NUMBERS))
        elif how == 3:
            made[name] = draw.pick([None, "text", 3, [1.0], np.ones((2, 6), int), np.ones((2, 6), complex)])
        elif isinstance(made[name], np.ndarray) and made[name].size and made[name].dtype.kind == "f":
            made[name] = made[name].copy()
            made[name].flat[draw.below(made[name].size)] = draw.pick(NUMBERS)
    return made


class Adapters:
    """Four honest adapters, and one that each case makes: a dict, or a peft folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        folder.mkdir(parents=True, exist_ok=True)

    def case(self, data: bytes) -> str:
        draw = Draw(data)
        kind, rule = draw.below(4), draw.pick(RULES)
        sketch = draw.pick([bz.Exact(), lora.TwoSided(k=64, rows=16)])
        reference = draw.pick([None, HONEST[1]])
        rank = 1 + draw.below(9)
        given: Any = _adapter(rank, draw.byte())
        if kind < 3:
            given = self._folder(given, draw) if kind < 2 else _changed(given, draw)
        with documented(bz.TooFewClientsError):
            out = lora.aggregate([given, *HONEST], rule, SETTINGS, sketch=sketch, reference=reference, seed=draw.byte())
        require(set(out.quarantined) <= {0}, f"honest adapters were quarantined: {out.quarantined}")
        require(all(map(fair, out.quarantined.values())), f"not a fair reason: {out.quarantined}")
        require(all(np.isfinite(array).all() for array in out.update.values()), "the result is not finite")
        if kind == 3:
            require(bool(out.quarantined) == (rank > SETTINGS.max_rank), f"rank {rank}: {out.quarantined}")
        own = HONEST[0] if out.quarantined else lora.open_adapter(given).arrays if kind < 2 else given
        parts = [(w, _dense(one)) for w, one in zip(out.weights, [own, *HONEST], strict=True) if w]
        if reference is not None:
            parts.append((1 - out.weights.sum(), _dense(reference)))
        # Rank 6 holds every product here; factors are float32.
        gap = np.abs(_dense(out.update) - sum(w * x for w, x in parts)).max()
        largest = max((np.abs(x).max() for _, x in parts), default=0.0)
        require(gap <= 1e-4 * largest + 1e-30, f"the result is not the weighted sum of products: {gap} of {largest}")
        if out.quarantined:
            raise RefusedError
        return COMPARED

    def _folder(self, update: dict[str, np.ndarray], draw: Draw) -> Path:
        path = self.folder / "case"
        path.mkdir(exist_ok=True)
        config = {**PEFT, "r": len(update["q.lora_A.weight"])}
        text = mutated_json(config, draw) if draw.chance(2) else json.dumps(config).encode()
        tensors = save_safetensors(update)
        (path / CONFIG).write_bytes(mutated_bytes(text, draw) if draw.chance(4) else text)
        (path / TENSORS).write_bytes(mutated_bytes(tensors, draw) if draw.chance(3) else tensors)
        return path


def surface(folder: Path) -> Surface:
    starts = [(kind, rule, at) for kind in range(4) for rule in range(len(RULES)) for at in (0, 1)]
    seeds = [bytes([kind, rule, at, at, 1 + at, 7, *range(20)]) for kind, rule, at in starts]
    return Surface(Adapters(folder).case, seeds)
