"""`bartizan.aggregate` on hostile clients, against the definitions on the clean ones alone."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

import bartizan as bz
from bartizan.layout import leaves_of
from fuzz import oracle
from fuzz.clients import BAD, CLEAN, EITHER, Cast, cast, leaf, pack, stored
from fuzz.draw import Draw
from fuzz.flaws import VALUES
from fuzz.surface import ACCEPTED, RefusedError, Surface, WrongError, documented, fair, on_purpose, require

SKETCHES = (bz.Exact(), bz.Exact(), bz.Rotated(k=64), bz.Gaussian(k=16))
JUNK: list[Any] = [None, -1, 0, "x", 1.5, [], [1, 2], float("nan"), {}, object(), True, 2**200, b"", np.zeros(3), len]


def rule_of(draw: Draw, M: int) -> Any:
    f = draw.below(max(1, M // 2))
    median, trimmed = bz.coordinatewise.Median(), bz.coordinatewise.TrimmedMean(f)
    return draw.pick([bz.Mean(), bz.Krum(f), bz.GeometricMedian(), median, bz.MultiKrum(f), trimmed])


def case(data: bytes) -> str:
    draw = Draw(data)
    if draw.chance(24):
        return mistaken(draw)
    clients = matrix(draw) if draw.chance(6) else cast(draw)
    M = len(clients.known)
    rule, sketch = rule_of(draw, M), draw.pick(SKETCHES)
    if isinstance(rule, bz.coordinatewise.CoordinateWise):
        sketch = bz.Exact()
    sizes = 1.0 + np.arange(M) % 3 if draw.chance(4) and not hasattr(rule, "n_byzantine") else np.ones(M)
    settings: dict[str, Any] = {"sizes": sizes, "sketch": sketch, "seed": draw.below(1000)}
    if draw.chance(256):  # which reads the process's own map: slow
        settings["memory"] = "64 MiB"
    if draw.chance(8):
        zeros = stored(np.zeros(clients.x.shape[1]), clients.dtype)
        settings["reference"] = pack(leaf(zeros, clients.form, clients.dtype), clients.form)
    sent = clients.sent[0] if clients.form == "matrix" else clients.sent
    exact = isinstance(sketch, bz.Exact)
    told = judged(clients, rule, sizes, lambda: bz.aggregate(sent, rule, **settings), exact)
    if clients.form != "matrix" and draw.chance(8):
        for m in clients.who(CLEAN):
            require(np.array_equal(flat(clients.sent[m], clients.form), clients.x[m]), "an update was changed")
    return told


def judged(clients: Cast, rule: Any, sizes: np.ndarray, aggregate: Any, exact: bool) -> str:
    """Run it and compare: with more clean clients than others it is known who has to go."""
    certain = clients.majority
    try:
        out = aggregate()
    except bz.TooFewClientsError as error:
        if certain:
            _check_quarantined(clients, set(error.quarantined))
            require(not enough(rule, len(clients.known), len(error.quarantined)), f"{rule!r} refused: {error}")
        require(on_purpose(error), f"a message of {len(str(error))} letters")
        raise RefusedError from error
    except ValueError as error:
        if certain or not on_purpose(error):
            raise
        raise RefusedError from error
    require(all(map(fair, out.quarantined.values())), f"reasons: {out.quarantined}")
    gone = set(out.quarantined)
    kept = [m for m in range(len(clients.known)) if m not in gone]
    if out.weights is not None:
        require(not out.weights[list(gone)].any(), "a quarantined client has weight")
    if not certain:
        for one in leaves_of(out.update).values():
            require(np.isfinite(_plain(one)).all(), "the result is not finite")
        return ACCEPTED
    _check_quarantined(clients, gone)
    require(enough(rule, len(clients.known), len(gone)), f"{rule!r} answered with {len(kept)} of {len(clients.known)}")
    rule = rule.expecting_fewer(len(gone))
    weights = None if out.weights is None else out.weights[kept]
    update = flat(out.update, clients.form)
    require(update.shape == clients.x.shape[1:], f"the result has shape {update.shape}")
    oracle.check(rule, clients.x[kept], sizes[kept], update, weights, clients.dtype, exact)
    return ACCEPTED


def enough(rule: Any, M: int, gone: int) -> bool:
    """The breakdown condition as documented: the rule's own on those left, or a majority where it has none."""
    f = rule.withstands()
    if f is None:
        return 2 * gone < M
    return gone <= f and M - gone >= rule.least_clients(f - gone)


def _check_quarantined(clients: Cast, gone: set[int]) -> None:
    bad, either = clients.who(BAD), clients.who(EITHER)
    require(bad <= gone, f"bad clients took part: {len(bad - gone)} of {len(bad)}")
    require(gone <= bad | either, "clean clients were quarantined")


def flat(update: Any, form: str) -> np.ndarray:
    """The result's numbers in float64, if it has the container of the clients."""
    try:
        if form == "layers":
            parts = update
        elif form in ("dict", "state dict"):
            parts = [update["w"], update["b"]]
        elif form == "nested":
            parts = [update["body"][0], update["body"][1]["head"][0]]
        else:
            parts = [update]
        return np.concatenate([_plain(one).reshape(-1) for one in parts])
    except (KeyError, TypeError, IndexError, AttributeError) as unlike:
        raise WrongError("the result has not the clients' container") from unlike


def _plain(one: Any) -> np.ndarray:
    if isinstance(one, torch.Tensor):
        one = one.detach().resolve_neg()
        one = one.double().numpy() if one.dtype is torch.bfloat16 else one.numpy()
    return np.asarray(one).astype(np.float64)


def matrix(draw: Draw) -> Cast:
    """One array with a row a client: only its numbers can be bad."""
    made = cast(Draw(draw.data[: draw.at] + draw.data[draw.at :][:7]))
    x = made.x.copy()
    dtype = made.dtype if made.dtype != "bfloat16" else "float32"
    draw.below(256)
    x, known = stored(x, dtype), [CLEAN] * len(x)
    for m in range(len(x)):
        if draw.chance(6) and (value := draw.pick(VALUES)(dtype)) is not None:
            x[m, draw.below(x.shape[1])], known[m] = value, BAD
    plain = x.astype(np.float64)
    lying: Any = draw.pick(
        [
            lambda a: a,
            np.asfortranarray,
            lambda a: np.repeat(a, 2, axis=1)[:, ::2],
            lambda a: a[::-1, ::-1].copy()[::-1, ::-1],
            torch.from_numpy,
            lambda a: a.astype(a.dtype.newbyteorder()),
        ]
    )(x)
    return Cast("matrix", dtype, plain, [lying], known)


def mistaken(draw: Draw) -> str:
    """The caller's own mistakes: a TypeError or ValueError that says so, or no mistake at all."""
    clients = cast(draw, most=4)
    settings: dict[str, Any] = {"sizes": None, "seed": 1}
    name = draw.pick(["sizes", "seed", "reference", "trusted", "history", "out", "memory", "updates", "rule", "sketch"])
    # What the caller passes raises what it likes: only clients are not to be trusted.
    junk = draw.pick([*JUNK, clients.sent if set(clients.known) == {CLEAN} else "array"])
    with documented(TypeError, ValueError):
        if name == "updates":
            bz.aggregate(junk, bz.Mean(), **settings)
        elif name == "rule":
            bz.aggregate(clients.sent, junk, **settings)
        else:
            bz.aggregate(clients.sent, draw.pick([bz.Mean(), bz.MoNNA(0), bz.Krum(0)]), **{**settings, name: junk})
    return ACCEPTED


def surface(folder: Any) -> Surface:
    seeds = [bytes([n]) * 40 for n in range(0, 256, 5)]
    return Surface(case, seeds)
