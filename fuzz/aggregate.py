"""Surface: `bartizan.aggregate` on hostile clients, compared with the definitions on the clean ones."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import torch

import bartizan as bz
from bartizan.updates.layout import leaves_of
from fuzz import compare
from fuzz.draw import Draw
from fuzz.rules import RULES, enough, lowered, rule_of
from fuzz.surfaces import ACCEPTED, COMPARED, RefusedError, Surface, WrongError, documented, fair, on_purpose, require
from fuzz.updates.clients import CLEAN, DTYPES, POOL, Clients, draw_clients, leaf, numbers, pack, stored, widened
from fuzz.updates.malformed import BAD, EITHER, VALUES

SKETCHES = (bz.Exact(), bz.Exact(), bz.Rotated(k=64), bz.Gaussian(k=16))
JUNK: list[Any] = [None, -1, 0, "x", 1.5, [], [1, 2], float("nan"), {}, object(), True, 2**200, b"", np.zeros(3), len]


def case(data: bytes) -> str:
    draw = Draw(data)
    if draw.chance(24):
        return wrong_argument(draw)
    clients = draw_matrix(draw) if draw.chance(6) else draw_clients(draw)
    M, p = len(clients.known), clients.x.shape[1]
    rule, sketch = rule_of(draw, M), draw.pick(SKETCHES)
    if isinstance(rule, bz.coordinatewise.CoordinateWise):
        sketch = bz.Exact()
    sizes = 1.0 + np.arange(M) % 3 if draw.chance(4) else np.ones(M)
    settings: dict[str, Any] = {"sizes": sizes, "sketch": sketch, "seed": draw.below(1000)}
    if draw.chance(256):  # slow: it reads the memory map of the process
        settings["memory"] = "64 MiB"
    seen = compare.TookPart(clients.x, sizes, clients.dtype, sketch, settings["seed"])
    if rule.needs_trusted:
        settings["trusted"], trusted = server_update(clients, POOL[7 : 7 + p])
        seen = replace(seen, trusted=trusted)
    if draw.chance(4):
        settings["reference"], reference = server_update(clients, numbers(draw, 1, p)[0])
        seen = replace(seen, reference=reference)
    sent = clients.sent[0] if clients.form == "matrix" else clients.sent
    outcome = compared(clients, rule, seen, lambda: bz.aggregate(sent, rule, **settings))
    if clients.form != "matrix" and draw.chance(8):
        for m in clients.indices(CLEAN):
            require(np.array_equal(flat(clients.sent[m], clients.form), clients.x[m]), "an update was changed")
    return outcome


def server_update(clients: Clients, row: np.ndarray) -> tuple[Any, np.ndarray]:
    """Return an update of the server in the clients' form, and its numbers in float64."""
    own = stored(row, clients.dtype)
    return pack(leaf(own, clients.form, clients.dtype), clients.form), widened(own, clients.dtype)


def compared(clients: Clients, rule: Any, seen: compare.TookPart, aggregate: Any) -> str:
    """Aggregate and compare; with a majority of clean clients it is known who must be quarantined."""
    known = clients.majority
    try:
        out = aggregate()
    except bz.TooFewClientsError as error:
        if known:
            _check_quarantined(clients, set(error.quarantined))
            require(not enough(rule, len(clients.known), len(error.quarantined)), f"{rule!r} refused: {error}")
        require(on_purpose(error), f"a message of {len(str(error))} letters")
        raise RefusedError from error
    except ValueError as error:
        if known or not on_purpose(error):
            raise
        raise RefusedError from error
    require(all(map(fair, out.quarantined.values())), f"reasons: {out.quarantined}")
    gone = set(out.quarantined)
    kept = [m for m in range(len(clients.known)) if m not in gone]
    if out.weights is not None:
        require(not out.weights[list(gone)].any(), "a quarantined client has weight")
    if not known:
        for one in leaves_of(out.update).values():
            require(np.isfinite(_array(one)).all(), "the result is not finite")
        return ACCEPTED
    _check_quarantined(clients, gone)
    require(enough(rule, len(clients.known), len(gone)), f"{rule!r} answered with {len(kept)} of {len(clients.known)}")
    rule = lowered(rule, len(clients.known), len(gone))
    weights = None if out.weights is None else out.weights[kept]
    update = flat(out.update, clients.form)
    require(update.shape == clients.x.shape[1:], f"the result has shape {update.shape}")
    seen = replace(seen, x=seen.x[kept], sizes=seen.sizes[kept], rolls=rolls(out.update, clients.form))
    compare.check(rule, seen, update, weights)
    return COMPARED


def _check_quarantined(clients: Clients, gone: set[int]) -> None:
    bad, either = clients.indices(BAD), clients.indices(EITHER)
    require(bad <= gone, f"bad clients took part: {len(bad - gone)} of {len(bad)}")
    require(gone <= bad | either, "clean clients were quarantined")


def rolls(update: Any, form: str) -> tuple[int, ...]:
    """Return how many columns may be read first: none, or those of the entry "b", which may come before "w"."""
    return (0, _array(update["b"]).size) if form in ("dict", "state dict") else (0,)


def flat(update: Any, form: str) -> np.ndarray:
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


def _array(one: Any) -> np.ndarray:
    if isinstance(one, torch.Tensor):
        one = one.detach().resolve_neg()
        one = one.double().numpy() if one.dtype is torch.bfloat16 else one.numpy()
    return np.asarray(one).astype(np.float64)


def draw_matrix(draw: Draw) -> Clients:
    """Draw one array with a row for each client: only its numbers can be bad."""
    made = draw_clients(Draw(draw.data[: draw.at] + draw.data[draw.at :][:7]))
    x = made.x.copy()
    dtype = made.dtype if made.dtype != "bfloat16" else "float32"
    draw.below(256)
    x, known = stored(x, dtype), [CLEAN] * len(x)
    for m in range(len(x)):
        if draw.chance(6) and (value := draw.pick(VALUES)(dtype)) is not None:
            x[m, draw.below(x.shape[1])], known[m] = value, BAD
    plain = x.astype(np.float64)
    laid_out: Any = draw.pick(
        [
            lambda a: a,
            np.asfortranarray,
            lambda a: np.repeat(a, 2, axis=1)[:, ::2],
            lambda a: a[::-1, ::-1].copy()[::-1, ::-1],
            torch.from_numpy,
            lambda a: a.astype(a.dtype.newbyteorder()),
        ]
    )(x)
    return Clients("matrix", dtype, plain, [laid_out], known)


def wrong_argument(draw: Draw) -> str:
    """A wrong argument of the caller raises TypeError or ValueError, or is accepted."""
    clients = draw_clients(draw, most=4)
    settings: dict[str, Any] = {"sizes": None, "seed": 1}
    name = draw.pick(["sizes", "seed", "reference", "trusted", "history", "out", "memory", "updates", "rule", "sketch"])
    # Objects that the caller passes may raise any error: only clients are untrusted.
    junk = draw.pick([*JUNK, clients.sent if set(clients.known) == {CLEAN} else "array"])
    with documented(TypeError, ValueError):
        if name == "updates":
            bz.aggregate(junk, bz.Mean(), **settings)
        elif name == "rule":
            bz.aggregate(clients.sent, junk, **settings)
        else:
            bz.aggregate(clients.sent, draw.pick([bz.Mean(), bz.MoNNA(0), bz.Krum(0)]), **{**settings, name: junk})
    return ACCEPTED


def warm() -> None:
    """Compile every rule with every sketch on rows of every dtype."""
    x = POOL[:1100].reshape(11, 100)
    for dtype in DTYPES:
        own = [leaf(row, "array", dtype) for row in stored(x, dtype)]
        for sketch in set(SKETCHES):
            for rule in [make(2) for make in RULES.values()]:
                if isinstance(rule, bz.coordinatewise.CoordinateWise) and sketch != bz.Exact():
                    continue
                trusted = own[1] if rule.needs_trusted else None
                for reference in (None, own[0]):
                    bz.aggregate(own, rule, sketch=sketch, trusted=trusted, reference=reference)


def surface(folder: Any) -> Surface:
    seeds = [bytes([n]) * 40 for n in range(0, 256, 5)]
    return Surface(case, seeds, warm=warm)
