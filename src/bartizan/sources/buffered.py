"""A buffer's entries as a source: they were measured when they arrived, and age lowers their weights."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from numbers import Real
from typing import Any, Self, TypeVar

import numpy as np

from bartizan._util.text import quoted
from bartizan._util.types import Array, Floats
from bartizan.errors import TooFewClientsError
from bartizan.source import Aggregation, AnyRule, Combined, Judgement, Roster
from bartizan.sources.arriving import ArrivedUpdates, StoredUpdate
from bartizan.updates.layout import Path as Place
from bartizan.updates.layout import Unreadable, flat_of, is_tensor, on_host, plain_and_leaves, rebuild, shown_path
from bartizan.updates.parse import reason_of

U = TypeVar("U")


@dataclass(frozen=True)
class VersionedUpdate:
    """One client's entry in a buffer or its memory, and the model version that it was trained from."""

    stored: StoredUpdate
    version: int
    row: Mapping[str, Any] = field(default_factory=dict)
    """Its line, where the buffer keeps a folder."""


@dataclass(frozen=True, eq=False, repr=False)
class BufferedAggregation(Aggregation[U]):
    """The robust update of one judgement of a buffer; `seed` is None until the seed's epoch has ended."""

    version: int = 0
    """The model version that the update is for: the number of judgements before this one."""
    ages: tuple[int, ...] = ()
    """Age of each client's update, in versions."""
    remembered: frozenset[Any] = frozenset()
    """Clients that sent nothing since the last judgement, and took part with their last update."""
    rejected: dict[Any, str] = field(default_factory=dict)
    """Reasons by client: an update since the last judgement was too old, sent before or of another form."""

    @classmethod
    def of(cls, combined: Combined, judgement: Judgement, roster: Roster, seconds: dict[str, float]) -> Self:
        extras = dict(combined.extras)
        return super().of(replace(combined, extras=extras), extras.pop("lowered"), roster, seconds)


class BufferedUpdates(ArrivedUpdates):
    """Entries of a buffer, fresh and remembered, of which old ones weigh less in the sum but not in the judgement."""

    def __init__(
        self,
        arrived: ArrivedUpdates,
        ages: Sequence[int],
        factors: Sequence[float],
        remembered: Sequence[bool],
        version: int,
        *,
        sum_remembered: bool,
    ) -> None:
        super().__init__(arrived.updates, arrived.roster, arrived.arrivals, arrived.stored)
        self.version, self.sum_remembered = version, sum_remembered
        self.ages = tuple(ages)
        self.factors = np.array([factors[age] for age in self.ages])
        self.remembered = np.array(remembered)

    def combine(self, judgement: Judgement) -> Combined:
        """Combine by the judgement's weights times the factors of age; which only lower them."""
        decision = judgement.decision
        if decision.coordinate_stage is None:
            decision = replace(decision, weights=self._lowered(decision.weights, list(judgement.clients)))
        lowered = replace(judgement, decision=decision)
        # The seed of an epoch draws other noise in each judgement.
        combined = super().combine(replace(lowered, seed=judgement.seed ^ self.version << 128))
        assert self.roster.ids is not None
        names = frozenset(self.roster.ids[client] for client in np.flatnonzero(self.remembered).tolist())
        extras = {"version": self.version, "ages": self.ages, "remembered": names, "lowered": lowered}
        return replace(combined, extras={**combined.extras, **extras})

    def _lowered(self, weights: Floats, clients: list[int]) -> Floats:
        absent = self.remembered[clients]
        if absent.any() and not self.sum_remembered:
            # A fresh client's share of all clients becomes the same share of the fresh ones. Scaling to the old total
            # instead would give all of it to an attacker who is the only fresh client with any weight.
            fresh = np.where(absent, 0.0, weights) * (len(clients) / max(1, len(clients) - absent.sum()))
            weights = fresh / max(1.0, fresh.sum())
        lowered: Floats = weights * self.factors[clients]
        return lowered


def check_whole(**settings: tuple[Any, int]) -> None:
    """Raise ValueError unless these settings are whole numbers from the least on."""
    for name, (value, least) in settings.items():
        if not is_whole(value, least):
            raise ValueError(f"{name} must be a whole number from {least} up, got {quoted(value)}.")


def is_whole(value: Any, least: int) -> bool:
    """Return whether this is a whole number of at least `least`."""
    return isinstance(value, (int, np.integer)) and not isinstance(value, bool) and bool(value >= least)


def check_rule(rule: AnyRule, size: int, *, remember: Any, without_weights: bool) -> None:
    """Raise ValueError unless a rule can judge a buffer; `without_weights` says that no weight is to be lowered."""
    if not (isinstance(remember, bool) or is_whole(remember, 1)):
        raise ValueError(f"remember must be True, False or the most clients to remember, got {quoted(remember)}.")
    if rule.needs_trusted:
        raise ValueError(f"{rule!r} needs an update that the server trusts; a buffer has none. Take another rule.")
    if rule.ends_coordinate_wise() and not without_weights:
        raise ValueError(
            f"{rule!r} weighs no clients, so age can't lower their weights: pass staleness=None, and with remember "
            "sum_remembered=True."
        )
    if not remember and not rule.admits(size):
        try:
            rule.check(size)
        except TooFewClientsError as few:
            raise ValueError(
                f"size={size} is too small: {few.problem} n_byzantine counts all attackers of the federation, who may "
                "all be in one buffer. Take a larger size, or remember=True."
            ) from None


def factors_of(staleness: str | Callable[[int], float] | None, oldest: int) -> list[float]:
    """Return the factor of each age from 0 to `oldest`; ValueError unless all are from 0 to 1 and none rises."""
    if staleness is None:
        return [1.0] * (oldest + 1)
    if staleness == "polynomial":
        staleness = _polynomial
    if not callable(staleness):
        raise ValueError(f"staleness must be 'polynomial', a function of the age or None, got {quoted(staleness)}.")
    factors = [staleness(age) for age in range(oldest + 1)]
    for age, factor in enumerate(factors):
        before = factors[age - 1] if age else 1.0
        if not (isinstance(factor, Real) and 0 <= factor <= before):
            raise ValueError(
                f"staleness must only lower: from 1 at most, never rising with age, to 0 at least; got "
                f"{quoted(factor)} at age {age} after {before}."
            )
    return [float(factor) for factor in factors]


def _polynomial(age: int) -> float:
    """The factor of FedBuff (Nguyen et al., 2022)."""
    return float((1 + age) ** -0.5)


def change_from(model: dict[Place, Any], update: Any) -> tuple[Any, str | None]:
    """Return whole weights minus the model that they were trained from, and their fingerprint.

    The change is `Unreadable` where they do not fit.
    """
    try:
        plain, leaves = plain_and_leaves(update)
        if leaves.keys() != model.keys():
            raise TypeError("its names are not those of the model")
        return rebuild(plain, lambda path, leaf: _difference(leaf, model[path], path)), fingerprint(leaves)
    except Exception as error:  # a client's container may raise anything
        return Unreadable(reason_of(error)), None


def _difference(leaf: Any, own: Any, path: Place) -> Any:
    if tuple(leaf.shape) != tuple(own.shape) or is_tensor(leaf) != is_tensor(own) or leaf.dtype != own.dtype:
        wanted = f"{own.dtype} of shape {tuple(own.shape)}"
        raise TypeError(f"wanted {shown_path(path)!r} as in the model, {wanted}; got {leaf.dtype}, {tuple(leaf.shape)}")
    if is_tensor(leaf):
        if leaf.dtype.is_complex or str(leaf.dtype) == "torch.bool":
            return leaf
        return leaf.detach().short() - own if str(leaf.dtype) == "torch.uint8" else leaf.detach() - own
    with np.errstate(over="ignore", invalid="ignore"):
        # A change of unsigned integers has a sign.
        dtype = f"i{min(8, 2 * leaf.dtype.itemsize)}" if leaf.dtype.kind == "u" else leaf.dtype
        return leaf if leaf.dtype.kind == "b" else np.subtract(leaf, own, dtype=dtype, casting="unsafe")


def fingerprint(leaves: dict[Place, Any]) -> str:
    """Return a digest of an update's numbers, to detect an update that is sent again.

    Whoever changes a bit on purpose has another update.
    """
    digest = hashlib.blake2b(digest_size=16)
    for leaf in leaves.values():
        numbers: Array = np.ascontiguousarray(on_host(flat_of(leaf)))
        digest.update(numbers.reshape(-1).view(np.uint8).data)
    return digest.hexdigest()


def has_numbers(leaves: dict[Place, Any]) -> bool:
    """Return whether any number of an update is not zero."""
    return any(bool(np.any(on_host(flat_of(leaf)))) for leaf in leaves.values())
