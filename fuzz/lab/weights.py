"""Surface: files of first weights."""

from __future__ import annotations

from pathlib import Path

import torch
from safetensors.torch import save

from bartizan.lab.models.weights import FirstWeights, WeightsError
from fuzz.draw import Draw
from fuzz.lab.runs import TENSORS, saved
from fuzz.mutate import mutated_bytes
from fuzz.surfaces import COMPARED, Surface, documented, require


def _model() -> torch.nn.Module:
    return torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.BatchNorm1d(4), torch.nn.Linear(4, 3))


STATE = {name: tensor.clone() for name, tensor in _model().state_dict().items()}
OTHERS = [saved(STATE), save(STATE), saved({"state_dict": STATE}), b""]


def surface(folder: Path) -> Surface:
    folder.mkdir(parents=True, exist_ok=True)

    def case(data: bytes) -> str:
        draw = Draw(data)
        kind, suffix = draw.below(4), draw.pick([".pt", ".pth", ".safetensors"])
        if kind == 0:
            body = draw.rest()
        elif kind == 1:
            body = mutated_bytes(draw.pick(OTHERS), draw)
        elif kind == 2:
            body, suffix = saved({**STATE, draw.pick(list(STATE)): draw.pick(TENSORS)}), ".pt"
        else:
            body = save(STATE) if suffix == ".safetensors" else saved(STATE)
        path, model = folder / f"first{suffix}", _model()
        path.write_bytes(body)
        with documented(WeightsError, sound=kind == 3):
            FirstWeights.read(str(path)).load_into(model)
        loaded = model.state_dict()
        require(all(bool(tensor.isfinite().all()) for tensor in loaded.values()), "the model has NaN or infinity")
        require(kind < 3 or all(torch.equal(loaded[name], STATE[name]) for name in STATE), "other weights were loaded")
        return COMPARED

    seeds = [bytes([kind, suffix, n]) for kind in range(4) for suffix in range(3) for n in range(4)]
    return Surface(case, [*seeds, b"\0\0" + OTHERS[0], b"\0\2" + OTHERS[1]], length=3000)
