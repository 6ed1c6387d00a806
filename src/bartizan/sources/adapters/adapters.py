"""Parse untrusted LoRA adapters: names and shapes of their factors, ranks and scales."""

from __future__ import annotations

import math
import re
import sys
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np

from bartizan._util.text import quoted, short
from bartizan.errors import BadClientError, TooFewClientsError, nobody_left
from bartizan.rules.preaggregators import Composed
from bartizan.updates.layout import FLOATS, Entry, Layout, is_tensor, layout_key, plain_and_leaves
from bartizan.updates.parse import REASON_CHARACTERS, reason_of

# As peft names them, with or without the adapter's own name: "...q_proj.lora_A.weight", "...lora_A.default.weight".
NAME = re.compile(r"(.+)\.lora_(embedding_)?([AB])(?:\.\w+)?")
WEIGHT = ".weight"
MIN_SCALE = 2.0**-12  # of s where alpha is a client's own: alpha = 1 at rank 4096
ADDS_NOISE = "adds noise to every coordinate, which would give adapters full rank"


@dataclass(frozen=True)
class LoRA:
    """The settings of adapters, for `aggregate` and for the strategies of Flower and NVFlare.

    An adapter changes each of its modules by s B A, with s = alpha / r. The rank r is that of the factors which came,
    whatever a client says; alpha is the server's.

    Args:
        alpha: The server's `lora_alpha`, for all clients; one whose configuration has another is quarantined. None
            takes each client's own from its peft folder, if s is 2^-12 to `max_scale`. The result's is then that of the
            reference, or the weighted median of the clients' (`AdapterAggregation.alpha`).
        rank: The rank of the result; by default that of the reference, or the weighted median of the clients'.
        use_rslora: s = alpha / sqrt(r), as peft's option of that name.
        max_rank: The largest rank that a client's factors may have.
        max_scale: The largest s that a client may ask for, where alpha is its own.
    """

    alpha: float | None = None
    rank: int | None = None
    use_rslora: bool = False
    max_rank: int = 256
    max_scale: float = 64.0

    def __post_init__(self) -> None:
        for name, value in (("alpha", self.alpha), ("max_scale", self.max_scale)):
            if not (value is None or is_positive(value)):
                raise ValueError(f"LoRA needs {name}, a positive number; got {quoted(value)}.")
        for name, whole in (("rank", self.rank), ("max_rank", self.max_rank)):
            if whole is not None and (isinstance(whole, bool) or not isinstance(whole, int) or whole < 1):
                raise ValueError(f"LoRA needs {name}, a whole number from 1 up; got {quoted(whole)}.")

    def scale(self, rank: int, alpha: float | None) -> float:
        """The s of factors of this rank; TypeError if the client's own alpha is not admitted."""
        if alpha is None and self.alpha is None:
            raise TypeError("it does not say its alpha, and LoRA(alpha=...) gives none")
        if None not in (alpha, self.alpha) and alpha != self.alpha:
            raise TypeError(f"its lora_alpha is {quoted(alpha, 60)}, and the server's is {self.alpha}")
        wanted = float(self.alpha if alpha is None else alpha)  # type: ignore[arg-type]
        scale = wanted / (math.sqrt(rank) if self.use_rslora else rank)
        if self.alpha is None and not MIN_SCALE <= scale <= self.max_scale:
            bound = f"{self.max_scale:g} is the most" if scale > self.max_scale else f"{MIN_SCALE:.2g} is the least"
            raise TypeError(f"its alpha / r is {scale:.3g}, and {bound}")
        return scale

    def rescaled(self, scale: float, own: int, rank: int) -> float:
        """Return the scale of another rank under the alpha that gives rank `own` this scale."""
        return scale * (math.sqrt(own / rank) if self.use_rslora else own / rank)


def refusal_of(rule: Any) -> str:
    """Return why adapters do not admit a rule whose result is no weighted sum of the clients; empty if they do."""
    if rule.ends_coordinate_wise():
        return "judges single coordinates, and a client's products B A are never formed"
    while isinstance(rule, Composed):
        rule = rule.then
    return ADDS_NOISE if getattr(rule, "noise", False) else ""


def is_positive(number: Any) -> bool:
    """Return whether this is a finite number above 0."""
    try:
        return isinstance(number, (int, float)) and not isinstance(number, bool) and 0 < float(number) < math.inf
    except OverflowError:
        return False


class Configured(NamedTuple):
    """The arrays of an adapter, and what its configuration says."""

    arrays: Mapping[str, Any]
    alpha: float
    rank: int | None
    """None where modules have ranks of their own."""
    use_rslora: bool


@dataclass(frozen=True, eq=False)
class Form:
    """The layout of an adapter: its modules in alphabetical order, without their numbers."""

    shapes: tuple[tuple[str, int, int], ...]
    """The modules' names, with d_out and d_in."""
    ranks: tuple[int, ...]
    scales: tuple[float, ...]
    names: tuple[tuple[str, str], ...]
    """The names of the factors B and A."""
    order: tuple[str, ...]
    """The names in the order in which they came."""
    device: str
    dtypes: tuple[tuple[str, str], ...]
    """The dtypes of the factors B and A."""
    alpha: float = 1.0
    """The one that gives these scales."""


@dataclass(frozen=True)
class Adapter:
    """One client's adapter, which adds scale * B @ A to each module: factors of (d_out, r) and (r, d_in)."""

    form: Form
    B: tuple[Any, ...]
    A: tuple[Any, ...]

    def copied(self) -> Adapter:
        """Return the adapter with copies of its factors."""
        B, A = (tuple(x.clone() if is_tensor(x) else np.array(x) for x in factors) for factors in (self.B, self.A))
        return replace(self, B=B, A=A)

    def scaled(self, scale: float) -> Adapter:
        """The same with B in float64 and times `scale`."""
        return replace(self, B=tuple(scale * (x.double() if is_tensor(x) else x.astype(np.float64)) for x in self.B))


def shape_of_rank(name: str, shape: tuple[int, ...], came: tuple[int, ...]) -> tuple[int, ...]:
    """The shape of this factor with the rank of the one that came, where nothing but the rank differs."""
    found = NAME.fullmatch(name.removesuffix(WEIGHT))
    if found is None or len(came) != 2:
        return shape
    return (came[0], shape[1]) if found[3] == "A" else (shape[0], came[1])


def parse_adapter(update: Any, settings: LoRA, forms: dict[Any, Form] | None = None) -> Adapter:
    """The adapter in a client's dict of arrays; TypeError on what is none, or on a rank or alpha beyond the limits.

    `forms` holds what was found of a round's other adapters: names and shapes that came before are not parsed again.
    """
    if isinstance(update, Adapter):
        return update
    alpha = claimed = None
    if isinstance(update, Configured):
        if update.use_rslora != settings.use_rslora:
            raise TypeError(f"its use_rslora is {update.use_rslora}, and the server's is {settings.use_rslora}")
        update, alpha, claimed, _ = update
    _, leaves = plain_and_leaves(update)
    forms = {} if forms is None else forms
    key = alpha, claimed, layout_key(leaves)
    if (form := forms.get(key)) is None:
        form = forms[key] = form_of(Layout.of(leaves), settings, alpha, claimed)
    B, A = ([leaves[(pair[side],)] for pair in form.names] for side in (0, 1))
    return Adapter(form, tuple(B), tuple(A))


def form_of(layout: Layout, settings: LoRA, alpha: float | None = None, claimed: int | None = None) -> Form:
    """Pair the factors of an adapter; `alpha` and the rank `claimed` are its configuration's."""
    pairs: dict[str, dict[str, Entry]] = {}
    for entry in layout.entries:
        name = entry.path[0] if len(entry.path) == 1 and type(entry.path[0]) is str else ""
        found = NAME.fullmatch(name.removesuffix(WEIGHT))
        if found is None:
            raise TypeError(f"{entry} is no factor of an adapter, such as 'q_proj.lora_A.weight'")
        module, embedding, side = found.groups()
        module += " (an embedding)" if embedding else ""  # which peft applies in another way
        if entry.dtype not in FLOATS or len(entry.shape) != 2:
            raise TypeError(f"{entry} must be a matrix of floating-point numbers")
        if side in pairs.setdefault(module, {}):
            raise TypeError(f"{entry} is the second {side} of its module")
        pairs[module][side] = entry
    if not pairs:
        raise TypeError("the update is empty")
    rows = []
    for module, sides in sorted(pairs.items()):
        if len(sides) < 2:
            (alone,) = sides.values()
            raise TypeError(f"{quoted(alone.path[0])} has no partner: an adapter has A and B of each module")
        B, A = sides["B"], sides["A"]
        r = A.shape[0]
        if B.shape[1] != r or 0 in (*B.shape, *A.shape):
            raise TypeError(f"{quoted(module)}: B {B.shape} and A {A.shape} have no product of rank 1 up")
        if claimed not in (None, r):
            raise TypeError(f"{quoted(module)} has rank {r}, and its configuration says {claimed}")
        if r > settings.max_rank:
            raise TypeError(f"{quoted(module)} has rank {r}, and max_rank is {settings.max_rank}")
        shape, own_names, dtypes = (module, B.shape[0], A.shape[1]), (B.path[0], A.path[0]), (B.dtype, A.dtype)
        rows.append((shape, r, settings.scale(r, alpha), own_names, dtypes))
    order = tuple(entry.path[0] for entry in layout.entries)
    shapes, ranks, scales, names, kinds = zip(*rows, strict=True)
    wanted = settings.alpha if alpha is None else alpha
    assert wanted is not None  # else there were no scales
    return Form(shapes, ranks, scales, names, order, layout.entries[0].device, kinds, float(wanted))


@dataclass(frozen=True)
class Adapters:
    """The adapters of one round that take part, and the clients that are quarantined."""

    adapters: tuple[Adapter, ...]
    clients: tuple[int, ...]
    n_sent: int
    quarantined: dict[int, str]
    reference: Adapter | None = None
    trusted: Adapter | None = None

    def __len__(self) -> int:
        return len(self.clients)

    @property
    def dtype(self) -> np.dtype:
        """The widest precision of the clients' factors, which decides at which norm numbers overflow."""
        wide = any("float64" in pair for form in {one.form for one in self.adapters} for pair in form.dtypes)
        return np.dtype(np.float64 if wide else np.float32)

    @property
    def rows(self) -> list[Adapter]:
        """The clients' adapters, and after them the trusted one if there is one."""
        return [*self.adapters, *([] if self.trusted is None else [self.trusted])]

    def of(self, clients: Sequence[int]) -> Adapters:
        """The same with these clients only."""
        if len(clients) == len(self):
            return self
        kept = tuple(self.adapters[self.clients.index(client)] for client in clients)
        return replace(self, adapters=kept, clients=tuple(clients))

    def scaled(self, scale: float) -> Adapters:
        """Return the adapters with all products times `scale`, in float64."""
        reference, trusted = (one and one.scaled(scale) for one in (self.reference, self.trusted))
        adapters = tuple(one.scaled(scale) for one in self.adapters)
        return replace(self, adapters=adapters, reference=reference, trusted=trusted)

    def fault(self, row: int) -> str:
        """Return why the squared norm of a client is not finite: NaN or Inf in a factor, or overflow."""
        one = self.adapters[row]
        for names, *factors in zip(one.form.names, one.B, one.A, strict=True):
            for name, array in zip(names, factors, strict=True):
                if not is_finite([array]):
                    return f"{quoted(name)} holds NaN or Inf"
        return "its products B A are so large that their squares overflow"


def parse_adapters(
    sent: Sequence[Any], settings: LoRA, *, reference: Any = None, trusted: Any = None, strict: bool = False
) -> Adapters:
    """Inspect every client's adapter, without reading a number, and keep those of the common modules."""
    points = {
        name: server_adapter(name, one, settings) for name, one in (("reference", reference), ("trusted", trusted))
    }
    parsed: dict[int, Adapter] = {}
    forms: dict[Any, Form] = {}
    quarantined: dict[int, str] = {}
    for client, update in enumerate(sent):
        try:
            parsed[client] = parse_adapter(update, settings, forms)
        except Exception as error:  # a client's container may raise anything
            quarantined[client] = reason_of(error)
    if not parsed:
        raise TooFewClientsError(nobody_left(len(quarantined)), quarantined)
    (place, _), *_ = Counter(map(_place, parsed.values())).most_common(1)
    usual = points["reference"] or next(one for one in parsed.values() if _place(one) == place)
    if points["trusted"] is not None and _place(points["trusted"]) != _place(usual):
        raise ValueError(f"trusted does not fit the round: {_misfit(usual, points['trusted'])}.")
    for client, one in parsed.items():
        if _place(one) != _place(usual):
            quarantined[client] = short(_misfit(usual, one), REASON_CHARACTERS)
    if strict and quarantined:
        raise BadClientError(*min(quarantined.items()))
    kept = tuple(client for client in parsed if client not in quarantined)
    if not kept:
        raise TooFewClientsError(nobody_left(len(quarantined)), quarantined)
    adapters = tuple(parsed[client] for client in kept)
    return Adapters(adapters, kept, len(sent), dict(sorted(quarantined.items())), **points)


def _place(adapter: Adapter) -> tuple[Any, ...]:
    """The common part of all adapters of a round: the modules and their shapes, and the device if it is a GPU."""
    return adapter.form.shapes, adapter.form.device


def _misfit(usual: Adapter, one: Adapter) -> str:
    wanted, came = ({name: shape for name, *shape in adapter.form.shapes} for adapter in (usual, one))
    for name, shape in wanted.items():
        if came.get(name) != shape:
            got = "nothing" if name not in came else f"a product of shape {tuple(came[name])}"
            return f"module {quoted(name)}: wanted a product of shape {tuple(shape)}, got {got}"
    for name in came:
        if name not in wanted:
            return f"module {quoted(name)} is not part of this round's adapters"
    return f"it is on {one.form.device}, and the others are on {usual.form.device}"


def server_adapter(name: str, update: Any, settings: LoRA) -> Adapter | None:
    """The reference or the trusted adapter, which the server supplies; ValueError if it can't be used."""
    if update is None:
        return None
    try:
        adapter = parse_adapter(update, settings)
    except TypeError as unfit:
        raise ValueError(f"{name} must be like a client's adapter: {unfit}.") from None
    if not is_finite([*adapter.B, *adapter.A]):
        raise ValueError(f"{name} must be finite: it holds NaN or Inf.")
    return adapter


def is_finite(arrays: Sequence[Any]) -> bool:
    """Return whether no array holds NaN or Inf; a GPU is waited for once."""
    if all(map(is_tensor, arrays)):
        return bool(sys.modules["torch"].stack([one.isfinite().all() for one in arrays]).all())
    return all(bool(one.isfinite().all() if is_tensor(one) else np.isfinite(one).all()) for one in arrays)
