"""Surface: `bartizan.aggregate` on hostile clients, compared with the definitions on the clean ones."""

from dataclasses import replace
from functools import partial
from itertools import product
from typing import Any

import numpy as np
import torch
from hypothesis import strategies as st

import bartizan as bz
from bartizan.updates.layout import leaves_of
from fuzz import compare
from fuzz.rules import RULES, enough, lowered, rules
from fuzz.surfaces import ACCEPTED, COMPARED, RefusedError, WrongError, documented, fair, require, surface_of_calls
from fuzz.updates.clients import CLEAN, DTYPES, POOL, clients, leaf, matrix, numbers, pack, stored, widened
from fuzz.updates.malformed import BAD, EITHER
from fuzz.values import pick, rarely

SKETCHES = (bz.Exact(), bz.Exact(), bz.Rotated(k=64), bz.Gaussian(k=16))


@st.composite
def calls(draw):
    """Draw a call with its comparison."""
    sent = draw(matrix() if draw(rarely(6)) else clients())
    sizes = 1.0 + np.arange(len(sent.x)) % 3 if draw(rarely(4)) else np.ones(len(sent.x))
    rule, seen, settings = judged(draw, sent, sizes, SKETCHES)
    settings |= {"seed": seen.seed, "sizes": sizes, "sketch": seen.sketch}
    if draw(rarely(256)):  # slow: it reads the memory map of the process
        settings["memory"] = "64 MiB"
    return partial(right, sent, rule, seen, settings)


def judged(draw, sent, sizes, sketches):
    """Draw a rule and a sketch, and the server's own updates as arguments for the library and for the oracle."""
    rule, p, settings = draw(rules(len(sent.x))), sent.x.shape[1], dict[str, Any]()
    sketch = bz.Exact() if isinstance(rule, bz.coordinatewise.CoordinateWise) else pick(draw, sketches)
    seen = compare.TookPart(sent.x, sizes, sent.dtype, sketch, draw(st.integers(0, 999)))
    own = {"trusted": POOL[7 : 7 + p]} if rule.needs_trusted else {}
    own |= {"reference": numbers(draw, 1, p)[0]} if draw(rarely(4)) else {}
    for name, row in own.items():
        kept = stored(row, sent.dtype)
        settings[name] = pack(leaf(kept, sent.form, sent.dtype), sent.form)
        seen = replace(seen, **{name: widened(kept, sent.dtype)})
    return rule, seen, settings


def right(sent, rule, seen, settings):
    """Aggregate and compare; with a majority of clean clients it is known who must be quarantined."""
    known, M = sent.majority, len(sent.known)
    try:
        with documented(ValueError):
            out = bz.aggregate(sent.sent[0] if sent.form == "matrix" else sent.sent, rule, **settings)
    except RefusedError as refused:
        if known:
            few = refused.__cause__
            require(isinstance(few, bz.TooFewClientsError), f"a call with a clean majority was refused: {few}")
            check_quarantined(sent, set(few.quarantined))
            require(not enough(rule, M, len(few.quarantined)), f"{rule!r} refused: {few}")
        raise
    gone = set(out.quarantined)
    require(all(map(fair, out.quarantined.values())), f"reasons: {out.quarantined}")
    require(out.weights is None or not out.weights[list(gone)].any(), "a quarantined client has weight")
    if not known:
        arrays = map(_array, leaves_of(out.update).values())
        require(all(np.isfinite(one).all() for one in arrays), "the result is not finite")
        return ACCEPTED
    require(enough(rule, M, len(gone)), f"{rule!r} answered with {M - len(gone)} of {M}")
    checked(sent, out, gone, rule, seen)
    if sent.form != "matrix":
        same = all(np.array_equal(flat(sent.sent[m], sent.form), sent.x[m]) for m in sent.indices(CLEAN))
        require(same, "an update was changed")
    return COMPARED


def checked(sent, out, gone, rule, seen):
    """Compare a result with the oracle's for the clients that took part."""
    check_quarantined(sent, gone)
    kept = [m for m in range(len(sent.known)) if m not in gone]
    update = flat(out.update, sent.form)
    require(update.shape == sent.x.shape[1:], f"the result has shape {update.shape}")
    # Entries have the order that most clients sent: "b" may come before "w".
    rolls = (0, _array(out.update["b"]).size) if sent.form in ("dict", "state dict") else (0,)
    seen = replace(seen, x=sent.x[kept], sizes=seen.sizes[kept], rolls=rolls)
    weights = None if out.weights is None else out.weights[kept]
    compare.check(lowered(rule, len(sent.known), len(gone)), seen, update, weights)


def check_quarantined(sent, gone):
    bad, either = sent.indices(BAD), sent.indices(EITHER)
    require(bad <= gone, f"bad clients took part: {len(bad - gone)} of {len(bad)}")
    require(gone <= bad | either, "clean clients were quarantined")


def flat(update, form):
    """Return the result's numbers in float64; raise if it is in another container than the clients' updates."""
    try:
        if form == "layers":
            parts = update
        elif form in ("dict", "state dict"):
            parts = [update["w"], update["b"]]
        elif form == "nested":
            parts = [update["body"][0], update["body"][1]["head"][0]]
        else:
            parts = [update]
        return np.concatenate([_array(one).reshape(-1) for one in parts])
    except (KeyError, TypeError, IndexError, AttributeError) as error:
        raise WrongError("the result is in another container than the updates") from error


def _array(one):
    if isinstance(one, torch.Tensor):
        one = one.detach().resolve_neg()
        one = one.double().numpy() if one.dtype is torch.bfloat16 else one.numpy()
    return np.asarray(one).astype(np.float64)


def entered(entry, updates, aggregator, spill=None, sizes=None, **server):
    """Aggregate by one call, of a list or by ids, or by a round that may spill."""
    if entry in ("call", "by id"):
        if entry == "by id":
            updates, sizes = dict(enumerate(updates)), None if sizes is None else dict(enumerate(sizes))
        return aggregator(updates, seed=1, sizes=sizes, **server)
    with aggregator.round(1, spill=spill if entry == "spill" else None, recheck=False, **server) as opened:
        for client, update in enumerate(updates):
            opened.add(update, client, 1.0 if sizes is None else sizes[client])
        return opened.close()


def warm():
    """Compile every rule with every sketch on rows of every dtype, so that no case is timed with compilation.

    Numba keeps the kernels on disk: once is enough for all processes.
    """
    x = POOL[:1100].reshape(11, 100)
    for dtype, sketch in product(DTYPES, set(SKETCHES)):
        own = [leaf(row, "array", dtype) for row in stored(x, dtype)]
        entered("round", own, bz.Aggregator(bz.Krum(1), sketch))
        for rule in [make(2) for make in RULES.values()]:
            if isinstance(rule, bz.coordinatewise.CoordinateWise) and sketch != bz.Exact():
                continue
            trusted = own[1] if rule.needs_trusted else None
            for reference in (None, own[0]):
                bz.aggregate(own, rule, sketch=sketch, trusted=trusted, reference=reference)


def surface(folder):
    return surface_of_calls(calls())
