"""Aggregate adapters robustly: in one call, or as a round for the strategies of Flower and NVFlare."""

from __future__ import annotations

from collections.abc import Hashable, Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Self

import numpy as np
import numpy.typing as npt

from bartizan._util.seeds import checked_seed
from bartizan._util.stopwatch import Stopwatch
from bartizan._util.text import quoted, short
from bartizan.aggregate import Aggregator, run
from bartizan.errors import NamedErrors, ServerResourceError, TooFewClientsError
from bartizan.measure import Exact, Sketch
from bartizan.measure.client_sizes import client_sizes
from bartizan.round import in_order
from bartizan.rules.base import Rule
from bartizan.source import Aggregation
from bartizan.sources.adapters.adapter_updates import AdapterUpdates
from bartizan.sources.adapters.adapters import Form, LoRA, parse_adapter, parse_adapters, refusal_of
from bartizan.sources.adapters.peft_folders import open_adapter
from bartizan.sources.adapters.two_sided import TwoSided
from bartizan.updates.layout import Unreadable
from bartizan.updates.parse import REASON_CHARACTERS, as_list, reason_of


@dataclass(frozen=True, eq=False, repr=False)
class AdapterAggregation(Aggregation[dict[str, Any]]):
    """The robust adapter of one round.

    `update` has the names, rank and dtypes of the reference. Without one, names are those of most weight, and ranks,
    dtypes and alpha weighted medians: a client without weight has no influence on them.
    """

    truncation: float = 0.0
    """Norm of what the wanted rank leaves out of the average of the products, over the norm of that average."""
    alpha: float = 0.0
    """The `lora_alpha` that the factors of `update` are made for: `save_adapter` takes it."""


def aggregate(
    updates: Iterable[Any],
    rule: Rule | str | None = None,
    settings: LoRA | None = None,
    *,
    n_byzantine: int | None = None,
    sketch: Sketch | str = "auto",
    sizes: npt.ArrayLike | None = None,
    reference: Any = None,
    trusted: Any = None,
    seed: int | None = None,
    history: tuple[float, ...] = (),
    strict: bool = False,
) -> AdapterAggregation:
    """One robust adapter from those of M clients, of which some may be Byzantine.

    Two adapters are compared by their products s B A, over all modules: their ranks may differ, and no rotation of the
    factors hides anything.

    Args:
        updates: One adapter per client: a dict from peft's names of the factors to arrays (NumPy, or torch on the CPU
            or a GPU), or the `pathlib.Path` of a peft folder.
        rule: Turns distances into weights; rules that judge single coordinates are refused.
        n_byzantine: As in `bartizan.aggregate`: without a rule it takes the default rule.
        settings: The server's alpha, the rank of the result, and limits; by default each folder's own alpha.
        sketch: `Exact()`, `TwoSided()`, or "auto", which projects many clients in host memory.
        sizes: The clients' data sizes.
        reference: The global adapter that the clients started from: the origin of distances and norms.
        trusted: An adapter of the server's own, for the rules that need one.
        seed: Seed of this round's randomness; fresh secret entropy if not given.
        history: The `history` of the last round's result, for the rules that have a memory.
        strict: Raise on the first client that can't take part, instead of quarantining it.

    >>> from bartizan import Krum
    >>> rng = np.random.default_rng(0)
    >>> A, B = rng.normal(size=(2, 9)), rng.normal(size=(6, 2))
    >>> honest = [{"m.lora_A.weight": q * A, "m.lora_B.weight": B / q} for q in (1, 2, -3, 0.1)]
    >>> out = aggregate([*honest, {"m.lora_A.weight": A, "m.lora_B.weight": -9 * B}], Krum(1), LoRA(alpha=2))
    >>> bool(np.allclose(out.update["m.lora_B.weight"] @ out.update["m.lora_A.weight"], B @ A)), out.weights[-1]
    (True, np.float64(0.0))
    """
    sent = as_list(updates)
    S = client_sizes(sizes, len(sent))
    aggregator = Aggregator(rule, sketch, n_byzantine=n_byzantine)
    opened = AdapterRound(aggregator, settings or LoRA(), seed, reference=reference, trusted=trusted, history=history)
    for client, update in enumerate(sent):
        opened.add(update, client, S[client])
    return opened.close(strict=strict)


class AdapterRound:
    """Adapters of one round, added as they arrive, as updates are to a `Round`.

    They are read at `close`. The seed is drawn there, after the last arrival, so that no second sketch is needed.
    """

    def __init__(
        self,
        aggregator: Aggregator,
        settings: LoRA,
        seed: int | None = None,
        *,
        reference: Any = None,
        trusted: Any = None,
        history: tuple[float, ...] = (),
    ) -> None:
        check_adapters(aggregator, settings)
        assert isinstance(aggregator.rule, Rule)
        aggregator.rule.check_trusted(trusted is not None)
        self._aggregator, self._settings = aggregator, settings
        self._seed = None if seed is None else checked_seed(seed)
        self._points = {"reference": _opened(reference), "trusted": _opened(trusted)}
        self._history = history
        self._forms: dict[Any, Form] = {}
        self._stored: dict[Any, tuple[Any, float, bool]] = {}
        self.quarantined: dict[Any, str] = {}
        """Clients whose adapter can't take part, as far as it shows by itself."""
        self.failed: dict[Any, str] = {}
        """Clients that sent no adapter and why, as told by `fail`."""

    @property
    def clients(self) -> tuple[Any, ...]:
        """The clients that were added, in order of arrival."""
        return tuple(self._stored)

    def __len__(self) -> int:
        return len(self._stored)

    def add(self, update: Any, client: Hashable, size: float = 1) -> str | None:
        """Add one client's adapter; return the reason if a fault of its own excludes it."""
        if client in self._stored or client in self.failed:
            raise ValueError(f"client {quoted(client, 60)} was added to this round already; each counts once.")
        in_file, folder = issubclass(type(update), Path), None  # not isinstance, which a class can override
        try:
            folder = Path(update) if in_file else None  # a plain one, so that no class of a client poses as the server
            parsed: Any = parse_adapter(_opened(folder or update), self._settings, self._forms)
        except Exception as error:  # a client's container may raise anything
            if folder is not None and isinstance(error, ServerResourceError):
                raise
            reason = reason_of(error) if folder is None else short(error, REASON_CHARACTERS)
            self.quarantined[client] = reason
            parsed = Unreadable(reason)
        self._stored[client] = parsed, size, in_file
        return self.quarantined.get(client)

    def fail(self, client: Hashable, reason: str) -> None:
        """Record that a client was asked and sent no adapter."""
        self.failed[client] = short(reason)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *raised: object) -> None:
        self._stored = {}

    def close(self, *, strict: bool = False) -> AdapterAggregation:
        """Weigh and combine the adapters added so far."""
        watch = Stopwatch()
        if not self._stored:
            raise TooFewClientsError("No client's adapter was added to this round.", failed=self.failed)
        ids = in_order(list(self._stored))
        settings = self._settings
        updates, sizes, in_files = zip(*[self._stored[one] for one in ids], strict=True)
        with NamedErrors(ids, self.failed):
            clients = parse_adapters(updates, settings, strict=strict, **self._points)
            # Files may be rewritten while they are read several times: adapters are small, and are copied once.
            pairs = zip(clients.clients, clients.adapters, strict=True)
            adapters = tuple(one.copied() if in_files[client] else one for client, one in pairs)
            clients = replace(clients, adapters=adapters)
            more = {"ids": ids, "sizes": np.array(sizes, dtype=np.float64), "failed": dict(self.failed)}
            source = AdapterUpdates(clients, settings, strict=strict, **more)
            own, kind = self._aggregator, AdapterAggregation
            result = run(source, own, self._seed, history=self._history, watch=watch, result=kind)
        assert isinstance(result, kind)
        return result


def check_adapters(aggregator: Aggregator, settings: LoRA, **unused: Any) -> None:
    """Raise ValueError on a rule, a sketch or an option of a strategy that adapters do not admit."""
    if why := refusal_of(aggregator.rule):
        example = "NNM(2) >> GeometricMedian()"
        raise ValueError(f"{aggregator.rule!r} {why}. Use a rule that only weighs the clients, such as {example}.")
    if not (aggregator.sketch == "auto" or isinstance(aggregator.sketch, (Exact, TwoSided))):
        raise ValueError(f"Adapters are compared by Exact() or TwoSided(), or 'auto'; got {aggregator.sketch!r}.")
    for name, value in unused.items():
        if value is not None:
            raise ValueError(f"{name} is not used for adapters, which are small: leave it out.")
    if unused and settings.rank is not None:
        raise ValueError("The global adapter keeps its rank: leave LoRA's rank out.")


def _opened(update: Any) -> Any:
    return open_adapter(update) if issubclass(type(update), Path) else update
