"""Surface: LoRA adapters in dicts and peft folders, compared with their dense products."""

import json
import re
from functools import lru_cache, partial

import numpy as np
from hypothesis import strategies as st
from safetensors.numpy import save as save_safetensors

import bartizan as bz
from bartizan import lora
from bartizan.sources.adapters.peft_folders import CONFIG, TENSORS
from fuzz.surfaces import COMPARED, RefusedError, Surface, documented, fair, require
from fuzz.values import changed_json, edited, files, pick
from tests.support.made_adapters import adapter, dense

MODULES = {"q": (5, 6), "v": (3, 4)}
SETTINGS = lora.LoRA(alpha=4.0, rank=6, max_rank=8)
PEFT = {
    **{"peft_type": "LORA", "r": 2, "lora_alpha": 4, "use_rslora": False, "bias": "none", "rank_pattern": {}},
    **{"alpha_pattern": {}, "modules_to_save": None, "use_dora": False, "target_modules": ["q", "v"]},
}
NUMBERS = (0.0, 1.0, -3.0, 1e-30, 1e20, 3e38, 1e-45, np.nan, np.inf)
RULES = (bz.Mean(), bz.GeometricMedian(), bz.NNM(1) >> bz.CGE(1), bz.MultiKrum(1))


def small_adapter(rank, seed):
    return adapter(np.random.default_rng(seed), rank, modules=MODULES)


HONEST = [small_adapter(rank, rank) for rank in (1, 2, 2, 3)]


def _dense(update):
    """Return the products of all modules, whatever follows "lora_A" and "lora_B" in the names."""
    return dense({re.sub("(lora_[AB]).*", r"\1", name): array for name, array in update.items()}, 4.0)


@st.composite
def _changed(draw, rank):
    """Draw an adapter with a few entries removed, renamed, replaced or of a special number."""
    made = dict(small_adapter(rank, draw(st.integers(0, 255))))
    for name in draw(st.lists(st.sampled_from(list(made)), min_size=1, max_size=3, unique=True)):
        how = draw(st.integers(0, 5))
        if how == 0:
            del made[name]
        elif how == 1:
            made[pick(draw, ["x.lora_A.weight", "", "q.lora_A.default.weight", 7, "q.weight"])] = made.pop(name)
        elif how == 2:
            made[name] = np.full(pick(draw, [(2, 6), (5, 2), (0, 6), (3,), (1, 1, 1), (9, 9)]), pick(draw, NUMBERS))
        elif how == 3:
            made[name] = pick(draw, [None, "text", 3, [1.0], np.ones((2, 6), int), np.ones((2, 6), complex)])
        else:
            made[name].flat[draw(st.integers(0, made[name].size - 1))] = pick(draw, NUMBERS)
    return made


@lru_cache
def _peft_folder(rank):
    """Return a strategy of the two files of a peft folder, of which one may be damaged."""
    config, tensors = PEFT | {"r": rank}, save_safetensors(small_adapter(rank, rank))
    text = json.dumps(config).encode()
    configs = st.one_of(st.just(text), st.just(text), changed_json(config), edited(text))
    return st.fixed_dictionaries({CONFIG: configs, TENSORS: st.one_of(st.just(tensors), files(tensors))})


RANKS = st.integers(1, 9)
OTHERS = st.one_of(RANKS.flatmap(_changed), RANKS.flatmap(_peft_folder))
GIVEN = st.one_of(
    st.builds(small_adapter, RANKS, st.integers(0, 255)).map(lambda one: (one, True)),
    OTHERS.map(lambda one: (one, False)),
)


def check(folder, given, rule, sketch, refer, seed):
    """Aggregate four honest adapters and the given one, a dict or the files of a peft folder."""
    content, sound = given
    one = content
    if CONFIG in content:
        one = folder
        for name, data in content.items():
            (folder / name).write_bytes(data)
    reference = HONEST[1] if refer else None
    with documented(bz.TooFewClientsError):
        out = lora.aggregate([one, *HONEST], rule, SETTINGS, sketch=sketch, reference=reference, seed=seed)
    require(set(out.quarantined) <= {0}, f"honest adapters were quarantined: {out.quarantined}")
    require(all(map(fair, out.quarantined.values())), f"not a fair reason: {out.quarantined}")
    require(all(np.isfinite(array).all() for array in out.update.values()), "the result is not finite")
    if sound:
        rank = len(content["q.lora_A.weight"])
        require(bool(out.quarantined) == (rank > SETTINGS.max_rank), f"rank {rank}: {out.quarantined}")
    own = HONEST[0] if out.quarantined else lora.open_adapter(one).arrays if one is folder else one
    parts = [(w, _dense(update)) for w, update in zip(out.weights, [own, *HONEST], strict=True) if w]
    if reference is not None:
        parts.append((1 - out.weights.sum(), _dense(reference)))
    # Rank 6 holds every product here; factors are float32.
    gap = np.abs(_dense(out.update) - sum(w * x for w, x in parts)).max()
    largest = max((np.abs(x).max() for _, x in parts), default=0.0)
    require(gap <= 1e-4 * largest + 1e-30, f"the result is not the weighted sum of products: {gap} of {largest}")
    if out.quarantined:
        raise RefusedError
    return COMPARED


def surface(folder):
    sketches = st.sampled_from([bz.Exact(), lora.TwoSided(k=64, rows=16)])
    cases = {"given": GIVEN, "rule": st.sampled_from(RULES), "sketch": sketches, "refer": st.booleans()}
    return Surface(partial(check, folder), {**cases, "seed": st.integers(0, 255)})
