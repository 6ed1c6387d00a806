"""Surfaces: replace a client without weight; if no weight changes, the result is the same to the byte."""

from __future__ import annotations

import tempfile
from collections import OrderedDict, UserDict
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from hypothesis import strategies as st

import bartizan as bz
from bartizan import lora
from bartizan.sources.adapters.adapters import Configured
from fuzz.adapters import _adapter
from fuzz.strategies import surface_of
from fuzz.surfaces import ACCEPTED, COMPARED, RefusedError, Surface, WrongError, require
from fuzz.updates.clients import LAYOUTS, POOL, leaf, pack, stored

RULES = (
    bz.Krum(1), bz.MultiKrum(2), bz.NNM(1) >> bz.Krum(1), bz.MDA(2), bz.CGE(1), bz.Bulyan(1), bz.Bulyan(1, trim=True),
    bz.FLAME(noise=0.01), bz.SpectralDnC(2), bz.CenteredClipping(steps=2),
)  # fmt: skip
FORMS = ("array", "layers", "dict", "nested", "tensor", "state dict", "mixed", "scalars", "numbers", "matrix")
DTYPES = ("float32", "float64", "float16", "bfloat16")


@dataclass(frozen=True)
class Case:
    """Clients around a common point, and what one without weight becomes."""

    form: str
    dtype: str
    rule: Any
    sketch: Any
    entry: str
    reference: bool
    which: int
    moved: float
    """Factor of the replaced client's distance from the common point."""
    layout: Any
    container: Any
    seed: int
    p: int
    n_clients: int
    first_of_another: int
    """The clients from this one on send another container or memory layout, so that one client may tip the balance."""
    theirs: tuple[Any, Any]


def _other_containers(update: Any) -> Any:
    if isinstance(update, list):
        return tuple(map(_other_containers, update))
    if isinstance(update, tuple):
        return list(map(_other_containers, update))
    if isinstance(update, dict):
        other = OrderedDict if type(update) is dict else dict
        return other((key, _other_containers(child)) for key, child in update.items())
    return update


def _in_reverse(update: Any) -> Any:
    if isinstance(update, dict):
        return type(update)((key, _in_reverse(child)) for key, child in reversed(update.items()))
    return type(update)(map(_in_reverse, update)) if isinstance(update, (list, tuple)) else update


def _custom(update: Any) -> Any:
    return UserDict(update) if isinstance(update, dict) else update


CONTAINERS: tuple[Callable[[Any], Any], ...] = (lambda update: update, _other_containers, _in_reverse, _custom)
CASES = st.builds(
    Case,
    form=st.sampled_from(FORMS),
    dtype=st.sampled_from(DTYPES),
    rule=st.sampled_from(RULES),
    sketch=st.sampled_from([bz.Exact(), bz.Exact(), bz.Rotated(k=64)]),
    entry=st.sampled_from(["aggregate", "round", "spilled"]),
    reference=st.booleans(),
    which=st.integers(0, 20),
    moved=st.sampled_from([1.0, 1.01, 2.0, 1e3, 0.0, -1.0]),
    layout=st.sampled_from([None, *LAYOUTS]),
    container=st.sampled_from(CONTAINERS),
    seed=st.integers(0, 255),
    p=st.integers(3, 200),
    n_clients=st.integers(7, 9),
    first_of_another=st.integers(3, 6),
    theirs=st.tuples(st.sampled_from([None, *LAYOUTS]), st.sampled_from(CONTAINERS)),
)


def check(case: Case) -> str:
    rng = np.random.default_rng(case.seed)
    point = POOL[case.seed : case.seed + case.p]
    spread = rng.normal(size=(case.n_clients, case.p)) * np.where(np.arange(case.n_clients) < 2, 3.0, 0.3)[:, None]
    dtype = "float64" if case.form in ("numbers", "scalars") else case.dtype
    dtype = "float32" if case.form in ("matrix", "mixed") and dtype == "bfloat16" else dtype

    def update(m: int, moved: float, layout: Any, container: Any) -> Any:
        row = stored((point + moved * spread[m])[None], dtype)[0]
        made = leaf(row, "array" if case.form == "matrix" else case.form, dtype)
        laid_out = made if layout is None or case.form in ("matrix", "numbers") else layout(made)
        return container(packed(laid_out, case.form, counter=m))

    ours, theirs = (None, CONTAINERS[0]), case.theirs
    sent = [update(m, 1.0, *(ours if m < case.first_of_another else theirs)) for m in range(case.n_clients)]
    reference = sent[-1] if case.reference else None
    before = _aggregated(case, sent, reference)
    idle = _idle(before)
    if not idle:
        return ACCEPTED
    m = idle[case.which % len(idle)]
    other = update(m, case.moved, case.layout, case.container)
    after = _aggregated(case, [*sent[:m], other, *sent[m + 1 :]], reference)
    return _compared(before, after)


def packed(leaf: Any, form: str, counter: int) -> Any:
    """Return one flat array as an update of this form; counters differ between clients."""
    if form == "mixed":
        two = np.asarray(leaf)[:2]
        return {"t": torch.from_numpy(two.astype(two.dtype.name)), "a": leaf[2:], "n": [np.array(counter)]}
    if form == "scalars":
        flat = np.asarray(leaf)
        return {"zero": flat[0, ...], "scalar": np.float64(flat[1]), "rest": flat[2:], "n": np.int64(counter)}
    return leaf.tolist() if form == "numbers" else pack(leaf, form)


def _aggregated(case: Case, sent: list[Any], reference: Any) -> Any:
    aggregator = bz.Aggregator(case.rule, case.sketch)
    if case.form == "matrix" or case.entry == "aggregate":
        updates = np.stack(sent) if case.form == "matrix" else sent
        return _answered(lambda: aggregator(updates, seed=1, reference=reference))
    spill = tempfile.TemporaryDirectory() if case.entry == "spilled" else None
    try:
        with aggregator.round(1, reference=reference, recheck=False, spill=spill and spill.name) as opened:
            for m, one in enumerate(sent):
                opened.add(one, m)
            return _answered(opened.close)
    finally:
        if spill is not None:
            spill.cleanup()


def _answered(aggregate: Callable[[], Any]) -> Any:
    try:
        return aggregate()
    except bz.TooFewClientsError:
        raise RefusedError from None


def _idle(out: Any) -> list[int]:
    return [m for m in np.flatnonzero(out.weights == 0).tolist() if m not in out.quarantined]


def _compared(before: Any, after: Any) -> str:
    if not np.array_equal(before.weights, after.weights) or set(before.quarantined) != set(after.quarantined):
        return ACCEPTED
    one, other = fingerprint(before.update), fingerprint(after.update)
    if one != other:
        pairs = zip([*one, *[()] * len(other)], [*other, *[()] * len(one)], strict=True)
        first = next(f"{a} and {b}" for a, b in pairs if a != b)
        raise WrongError(f"a client without weight changed the result: {first[:300]}")
    return COMPARED


def fingerprint(update: Any) -> list[tuple[Any, ...]]:
    """Return all that there is to see of an update: its containers, keys, arrays and bytes."""
    if isinstance(update, dict):
        parts = [item for key, child in update.items() for item in [(type(key), key), *fingerprint(child)]]
        return [(type(update), len(update)), *parts]
    if isinstance(update, (list, tuple)):
        return [(type(update), len(update)), *(item for child in update for item in fingerprint(child))]
    if isinstance(update, torch.Tensor):
        octets = update.detach().reshape(-1).contiguous().view(torch.uint8).numpy().tobytes()
        told = (update.dtype, tuple(update.shape), update.stride(), update.requires_grad, str(update.device))
        return [(type(update), *told, octets)]
    flags = update.flags.writeable, update.flags.aligned
    return [(type(update), update.dtype.str, update.shape, update.strides, *flags, update.tobytes())]


@dataclass(frozen=True)
class AdapterCase:
    """Adapters around a common one, and what one without weight becomes."""

    rule: Any
    sketch: Any
    named_alpha: bool
    reference: bool
    which: int
    seed: int
    ranks: tuple[int, ...]
    rank: int
    alpha: float
    dtype: str
    library: str
    names: str
    in_reverse: bool


ADAPTER_CASES = st.builds(
    AdapterCase,
    rule=st.sampled_from([bz.Krum(1), bz.MultiKrum(2), bz.CGE(1), bz.NNM(1) >> bz.Krum(1), bz.MDA(2)]),
    sketch=st.sampled_from([bz.Exact(), lora.TwoSided(k=64, rows=16)]),
    named_alpha=st.booleans(),
    reference=st.booleans(),
    which=st.integers(0, 20),
    seed=st.integers(0, 255),
    ranks=st.tuples(*[st.integers(1, 3)] * 8),
    rank=st.integers(1, 4),
    alpha=st.sampled_from([4.0, 8.0, 0.008, 1e-300, 5e-324, 1e300, 200.0]),
    dtype=st.sampled_from(["float32", "float16", "float64"]),
    library=st.sampled_from(["numpy", "torch"]),
    names=st.sampled_from([".weight", ".default.weight", "", ".other.weight"]),
    in_reverse=st.booleans(),
)


def check_adapters(case: AdapterCase) -> str:
    def made(m: int, rank: int) -> dict[str, np.ndarray]:
        # The rows of a common adapter first: clients of other ranks are near it too.
        common, own = _adapter(rank, 1), _adapter(rank, 2 + m + case.seed)
        return {name: common[name] + (2.0 if m < 2 else 0.1) * own[name] for name in common}

    sent: list[Any] = [Configured(made(m, rank), 4.0, None, False) for m, rank in enumerate(case.ranks)]
    settings = lora.LoRA(alpha=4.0 if case.named_alpha else None, max_rank=8)

    reference = sent[-1] if case.reference else None

    def aggregated(updates: list[Any]) -> Any:
        options = {"sketch": case.sketch, "seed": 1, "reference": reference}
        return _answered(lambda: lora.aggregate(updates, case.rule, settings, **options))

    before = aggregated(sent)
    idle = _idle(before)
    if not idle:
        return ACCEPTED
    m = idle[case.which % len(idle)]
    other: Any = {name.replace(".weight", case.names): a.astype(case.dtype) for name, a in made(m, case.rank).items()}
    other = dict(reversed(other.items())) if case.in_reverse else other
    other = {name: torch.from_numpy(a) for name, a in other.items()} if case.library == "torch" else other
    after = aggregated([*sent[:m], Configured(other, case.alpha, None, False), *sent[m + 1 :]])
    require(set(after.quarantined) <= {m}, f"others were quarantined: {after.quarantined}")
    require(all(np.isfinite(np.asarray(a)).all() for a in after.update.values()), "the result is not finite")
    return _compared(before, after)


def warm() -> None:
    """Compile what the cases need."""
    for form in FORMS:
        for dtype in DTYPES:
            for rule in RULES:
                for sketch in (bz.Exact(), bz.Rotated(k=64)):
                    plain = None, CONTAINERS[0]
                    check(Case(form, dtype, rule, sketch, "aggregate", True, 0, 1.0, *plain, 1, 30, 9, 9, plain))


def containers(folder: Any) -> Surface:
    return surface_of(CASES, check, warm)


def adapters(folder: Any) -> Surface:
    return surface_of(ADAPTER_CASES, check_adapters, lambda: None)
