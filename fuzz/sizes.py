"""Surface: data sizes of any kind and ratio, given by the caller or reported by clients, with every rule."""

import math
import warnings
from contextlib import suppress
from fractions import Fraction

import numpy as np
from hypothesis import strategies as st

import bartizan as bz
from bartizan.judge.client_reports import SizePolicy
from fuzz.aggregate import entered
from fuzz.rules import MAKERS, enough
from fuzz.surfaces import COMPARED, RefusedError, Surface, documented, require

P = 4
LEAST, LARGEST = 2.0**-64, 2.0**64  # the stated range
TOLERANCE = 1e-6  # of sums of weights, and of results in float32
NUMBERS = [1, 1.0, 3, 600, 1e12, 0.5, 1e-9, np.int64(7), np.uint8(9), np.float16(0.1), LEAST, LARGEST, 2**64]
PLAIN = st.integers(-64, 64).map(lambda e: 2.0**e) | st.sampled_from(NUMBERS) | st.floats(LEAST, LARGEST)
ODD = st.floats(allow_nan=True) | st.sampled_from([
    5e-324, 1e-300, 1e308, 0, -1, -0.0, math.nan, math.inf, 2.0**-65, 2.0**65, 10**400, 2**64 + 2**12,
    True, np.False_, None, "7", b"7", [7], 1j, Fraction(1, 10**400), np.float16("inf"), np.nan,
])  # fmt: skip
SOME = {"min_size": 1, "max_size": 13}
WITH_ONE_ODD = st.builds(lambda sizes, odd: [*sizes, odd], st.lists(PLAIN, max_size=12), ODD)
CASES = {
    "rule": st.builds(lambda make, f: make(f), MAKERS, st.integers(0, 3)), "dtype": st.sampled_from(["f4", "f8"]),
    "sizes": st.lists(PLAIN, **SOME) | WITH_ONE_ODD | st.lists(PLAIN | ODD, **SOME), "seed": st.integers(0, 255),
    "scale": st.sampled_from([1.0, 1e-6, 1e6, 1e15]), "ties": st.booleans(),
    "how": st.sampled_from(["call", "array", "by id", "round", "reported"]),
}  # fmt: skip


def admitted(size):
    """The stated range, of numbers that are no truth values."""
    if isinstance(size, (bool, np.bool_, complex)) or not isinstance(size, (int, float, Fraction, np.number)):
        return False
    try:
        return LEAST <= float(size) <= LARGEST
    except OverflowError:
        return False


def check(rule, dtype, sizes, seed, scale, ties, how):
    x = np.random.default_rng(seed).normal(size=(len(sizes), P))
    x = (scale * (np.round(x) if ties else x)).astype(dtype)
    if how == "reported":
        sizes = _taken(sizes)
        x, sizes = x[list(sizes)], list(sizes.values())
    elif how == "array":
        try:
            sizes = np.asarray(sizes, dtype=np.float64)
        except (TypeError, ValueError, OverflowError):
            raise RefusedError from None  # NumPy makes no such array
    server = {"trusted": np.ones(P, dtype)} if rule.needs_trusted else {}
    sound = len(x) > 0 and all(map(admitted, sizes))
    with warnings.catch_warnings(), documented(ValueError, sound=sound and enough(rule, len(x), 0)):
        warnings.filterwarnings("ignore", message=".*did not reach its tolerance")
        entry = how if how in ("by id", "round") else "call"
        out = entered(entry, x, bz.Aggregator(rule), sizes=sizes, **server)
    require(sound, f"sizes {sizes!r} were taken")
    if out.weights is not None:
        parts = np.isfinite(out.weights).all() and (out.weights >= 0).all() and out.weights.sum() <= 1 + TOLERANCE
        require(parts, f"{rule!r} gave weights {out.weights}")
    # Convex combinations of the clients, and of the origin where a rule clips.
    inside = np.abs(out.update) <= np.abs(x).max() * (1 + TOLERANCE)
    require(inside.all(), f"{rule!r} gave {out.update}")
    return COMPARED


def _taken(claims):
    """Return the claims of clients that the policy takes, which must be those that are admitted."""
    policy, sizes = SizePolicy("reported", LARGEST), {}
    for client, claim in enumerate(claims):
        with suppress(ValueError):
            sizes[client] = policy.of(client, lambda claim=claim: claim)
        right = admitted(claim) == (client in sizes) or isinstance(claim, Fraction)
        require(right, f"the claim {claim!r} was {'taken' if client in sizes else 'refused'}")
    return sizes


def surface(folder):
    return Surface(check, CASES)
