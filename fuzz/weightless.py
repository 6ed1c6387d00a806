"""Surfaces: replace a client without weight; if no weight changes, the result is the same to the byte."""

from collections import OrderedDict, UserDict
from functools import partial

import numpy as np
import torch
from hypothesis import strategies as st

import bartizan as bz
from bartizan import lora
from bartizan.sources.adapters.adapters import Configured
from fuzz.adapters import small_adapter
from fuzz.aggregate import entered
from fuzz.surfaces import ACCEPTED, COMPARED, RefusedError, Surface, require
from fuzz.updates.clients import LAYOUTS, POOL, leaf, pack, stored
from fuzz.values import rebuilt

RULES = (
    bz.Krum(1), bz.MultiKrum(2), bz.NNM(1) >> bz.Krum(1), bz.MDA(2), bz.CGE(1), bz.Bulyan(1), bz.Bulyan(1, trim=True),
    bz.FLAME(noise=0.01), bz.SpectralDnC(2), bz.CenteredClipping(steps=2),
)  # fmt: skip
FORMS = ("array", "layers", "dict", "nested", "tensor", "state dict", "mixed", "scalars", "numbers", "matrix")
DTYPES = ("float32", "float64", "float16", "bfloat16")


CONTAINERS = [
    *(rebuilt, partial(rebuilt, order=reversed)),
    partial(rebuilt, kinds={list: tuple, tuple: list, dict: OrderedDict, OrderedDict: dict}),
    lambda update: UserDict(update) if isinstance(update, dict) else update,
]
TWISTS = st.tuples(st.sampled_from([None, *LAYOUTS]), st.sampled_from(CONTAINERS))
"""Another memory layout and another container."""
SKETCHES = st.sampled_from([bz.Exact(), bz.Exact(), bz.Rotated(k=64)])
CASES = {
    "form": st.sampled_from(FORMS), "dtype": st.sampled_from(DTYPES), "seed": st.integers(0, 255),
    "aggregator": st.builds(bz.Aggregator, st.sampled_from(RULES), SKETCHES), "refer": st.booleans(),
    "entry": st.sampled_from(["call", "round", "spill"]), "p": st.integers(3, 200), "twist": TWISTS,
    "n_clients": st.integers(7, 9), "others": st.tuples(st.integers(3, 6), TWISTS), "which": st.integers(0, 20),
    "moved": st.sampled_from([1.0, 1.01, 2.0, 1e3, 0.0, -1.0]),
}  # fmt: skip


def check(folder, form, dtype, seed, aggregator, refer, entry, p, twist, n_clients, others, which, moved):
    """Aggregate clients around a common point, then with one of weight 0 `moved` from it, in another container.

    The clients from one on, of `others`, send another container, so that one client may tip the balance.
    """
    rng = np.random.default_rng(seed)
    point, nobody = POOL[seed : seed + p], (None, CONTAINERS[0])
    spread = rng.normal(size=(n_clients, p)) * np.where(np.arange(n_clients) < 2, 3.0, 0.3)[:, None]
    dtype = "float64" if form in ("numbers", "scalars") else dtype
    dtype = "float32" if form in ("matrix", "mixed") and dtype == "bfloat16" else dtype

    def update(m, moved, layout, container):
        row = stored((point + moved * spread[m])[None], dtype)[0]
        made = leaf(row, "array" if form == "matrix" else form, dtype)
        laid_out = made if layout is None or form in ("matrix", "numbers") else layout(made)
        return container(packed(laid_out, form, counter=m))

    sent = [update(m, 1.0, *(nobody if m < others[0] else others[1])) for m in range(n_clients)]
    reference = sent[-1] if refer else None

    def aggregate(updates):
        if form == "matrix":
            return aggregator(np.stack(updates), seed=1, reference=reference)
        return entered(entry, updates, aggregator, folder / "spill", reference=reference)

    return _replaced(sent, which, lambda m: update(m, moved, *twist), aggregate)


def _replaced(sent, which, other, aggregate):
    """Aggregate twice, the second time with another update of a client without weight, and compare."""
    try:
        before = aggregate(sent)
        idle = [m for m in np.flatnonzero(before.weights == 0).tolist() if m not in before.quarantined]
        if not idle:
            return ACCEPTED
        m = idle[which % len(idle)]
        after = aggregate([*sent[:m], other(m), *sent[m + 1 :]])
    except bz.TooFewClientsError:
        raise RefusedError from None
    require(set(before.quarantined) ^ set(after.quarantined) <= {m}, f"others were quarantined: {after.quarantined}")
    if not np.array_equal(before.weights, after.weights) or before.quarantined or after.quarantined:
        return ACCEPTED
    same = fingerprint(before.update) == fingerprint(after.update)
    require(same, "a client without weight changed the result")
    return COMPARED


def packed(leaf, form, counter):
    """Return one flat array as an update of this form; counters differ between clients."""
    if form == "mixed":
        two = np.asarray(leaf)[:2]
        return {"t": torch.from_numpy(two.astype(two.dtype.name)), "a": leaf[2:], "n": [np.array(counter)]}
    if form == "scalars":
        flat = np.asarray(leaf)
        return {"zero": flat[0, ...], "scalar": np.float64(flat[1]), "rest": flat[2:], "n": np.int64(counter)}
    return leaf.tolist() if form == "numbers" else pack(leaf, form)


def fingerprint(update):
    """Return all that there is to see of an update: its containers, keys, arrays and bytes."""
    if isinstance(update, dict):
        return type(update), [(type(key), key, fingerprint(child)) for key, child in update.items()]
    if isinstance(update, (list, tuple)):
        return type(update), [fingerprint(child) for child in update]
    if isinstance(update, torch.Tensor):
        octets = update.detach().reshape(-1).contiguous().view(torch.uint8).numpy().tobytes()
        about = update.dtype, tuple(update.shape), update.stride(), update.requires_grad, str(update.device)
        return type(update), about, octets
    about = update.dtype.str, update.shape, update.strides, update.flags.writeable, update.flags.aligned
    return type(update), about, update.tobytes()


ADAPTER_CASES = {
    "rule": st.sampled_from([bz.Krum(1), bz.MultiKrum(2), bz.CGE(1), bz.NNM(1) >> bz.Krum(1), bz.MDA(2)]),
    "sketch": st.sampled_from([bz.Exact(), lora.TwoSided(k=64, rows=16)]), "seed": st.integers(0, 255),
    "named_alpha": st.booleans(), "refer": st.booleans(), "which": st.integers(0, 20), "rank": st.integers(1, 4),
    "ranks": st.tuples(*[st.integers(1, 3)] * 8), "dtype": st.sampled_from(["float32", "float16", "float64"]),
    "alpha": st.sampled_from([4.0, 8.0, 0.008, 1e-300, 5e-324, 1e300, 200.0]),
    "library": st.sampled_from([np.asarray, torch.from_numpy, lambda a: a.astype(a.dtype.newbyteorder())]),
    "names": st.sampled_from([".weight", ".default.weight", "", ".other.weight"]),
    "order": st.sampled_from([list, reversed]),
}  # fmt: skip


def check_adapters(rule, sketch, seed, named_alpha, refer, which, rank, ranks, dtype, alpha, library, order, names):
    """Aggregate adapters around a common one, then with one of weight 0 replaced by another rank, alpha or format."""

    def made(m, rank):
        # The rows of a common adapter first: clients of other ranks are near it too.
        common, own = small_adapter(rank, 1), small_adapter(rank, 2 + m + seed)
        return {name: common[name] + (2.0 if m < 2 else 0.1) * own[name] for name in common}

    def other(m):
        arrays = {name.replace(".weight", names): library(a.astype(dtype)) for name, a in made(m, rank).items()}
        return Configured(dict(order(list(arrays.items()))), alpha, None, False)

    sent = [Configured(made(m, rank), 4.0, None, False) for m, rank in enumerate(ranks)]
    settings = lora.LoRA(alpha=4.0 if named_alpha else None, max_rank=8)
    options = {"sketch": sketch, "seed": 1, "reference": sent[-1] if refer else None}

    def aggregate(updates):
        out = lora.aggregate(updates, rule, settings, **options)
        require(all(np.isfinite(np.asarray(a)).all() for a in out.update.values()), "the result is not finite")
        return out

    return _replaced(sent, which, other, aggregate)


def containers(folder):
    return Surface(partial(check, folder), CASES)


def adapters(folder):
    return Surface(check_adapters, ADAPTER_CASES)
