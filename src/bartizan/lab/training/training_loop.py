"""The rounds of one run: clients train, attackers send their updates, the server aggregates and moves the model."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np

from bartizan import __version__
from bartizan._util import machine
from bartizan._util.types import Array
from bartizan.aggregate import Aggregator
from bartizan.attacks import Poison, Triggered, needs, parameters
from bartizan.errors import TooFewClientsError
from bartizan.lab.config import build_parts
from bartizan.lab.config.experiment import Experiment
from bartizan.lab.config.sections import UNTUNED_OPTIMISERS
from bartizan.lab.data.addresses import Texts
from bartizan.lab.data.base import Images
from bartizan.lab.data.device_images import OnDevice, moments_for
from bartizan.lab.data.device_text import TextOnDevice
from bartizan.lab.data.partition import counts
from bartizan.lab.metrics import ACCURACY, PERPLEXITY, Metric
from bartizan.lab.models import build
from bartizan.lab.models.trained_adapters import lowered_ranks, with_adapters
from bartizan.lab.models.weights import FirstWeights
from bartizan.lab.torch_import import Tensor, torch
from bartizan.lab.training import reproducible
from bartizan.lab.training.clients import Clients
from bartizan.lab.training.evaluation import backdoor_rate, evaluate
from bartizan.lab.training.flat_adapters import FlatAdapters
from bartizan.lab.training.population import Population
from bartizan.lab.training.reproducible import round_seed
from bartizan.lab.training.server import Server
from bartizan.measure import Exact, Projection
from bartizan.measure.geometry import Geometry
from bartizan.measure.sketches import Norms, named
from bartizan.rules import Rule
from bartizan.source import Aggregation
from bartizan.sources.committed.transcript import bytes_sent
from bartizan.updates import parse_updates

MAX_EARLIER = 100  # rounds whose honest means an attack may send again


class _RoundInput(NamedTuple):
    """The input of the server in a round; no updates if no honest client takes part."""

    aggregator: Aggregator
    note: str
    updates: Sequence[Tensor] = ()
    trusted: Tensor | None = None
    """The server's own update, for rules that need one."""
    loss: float | None = None
    """Mean training loss of the honest clients."""


class Training:
    """One experiment in memory; the rounds change the state of server and clients, and a rule's history."""

    def __init__(self, experiment: Experiment, device: str) -> None:
        self.experiment, self.device = experiment, device
        self.population = population = Population.of(experiment)
        attack = build_parts.attack_of(experiment.attack)
        self.poison: Poison | None = attack if isinstance(attack, Poison) else None
        self.attack: Callable[..., Tensor] | None = None if self.poison else attack
        self.sketch = build_parts.sketch_of(experiment)
        dataset, seed = population.dataset, experiment.seed
        if dataset.vocabulary and self.poison and not self.poison.of_text:
            raise ValueError(f"attack.name = {experiment.attack.name!r} changes images, and {dataset.name} is text.")
        train, parts = population.poisoned(self.poison) if self.poison else (dataset.train, population.parts)
        images, self.test = self._on_device(train), self._on_device(dataset.test)
        self.backdoor = attack if isinstance(attack, Triggered) else None
        if self.backdoor:
            triggered = type(dataset.test)(*self.backdoor.test(dataset.test.pixels, dataset.test.labels))
            if not len(triggered):
                raise ValueError(f"{self.backdoor!r}: there is no such image to test with. Take other settings.")
            self.triggered = self._on_device(triggered)
        network = experiment.model
        model = build(
            network.name,
            dataset.n_outputs,
            images.shape,
            network.norm,
            fitted=network.fitted,
            norm_momentum=network.norm_momentum,
            seed=seed,
        )
        self.first = FirstWeights.read(network.weights) if network.weights else None
        self.first_notes = [population.note, self.first.load_into(model) if self.first else ""]
        self.model = (with_adapters(model, network.adapters, seed) if network.adapters else model).to(device)
        self.first_notes.append(lowered_ranks(self.model, network.adapters))
        held = [torch.from_numpy(part) for part in (*parts, population.trusted())]
        self.clients = Clients(self.model, images, held, experiment.clients, seed=seed, augment=experiment.data.augment)
        flat = self.clients.flat
        self.server = Server(
            flat.read(self.model),
            flat.n_parameters,
            experiment.server,
            step_size=step_size_of(experiment),
            rounds=experiment.rounds,
            keep_last=experiment.rule.name == "centered-clipping",
        )
        step = self.server.step_size if experiment.clients.work == "gradient" else 1.0
        self.aggregate: Callable[..., Aggregation[Tensor]]
        self.aggregate = FlatAdapters(self.server, flat, step) if network.adapters else Aggregator.__call__
        published = self.attack is not None and "published" in needs(self.attack)
        self.initial = self.server.weights.clone() if published else None
        self.history: tuple[float, ...] = ()
        self.earlier: list[Tensor] = []
        """The honest means of the last rounds with attackers, if the attack needs them."""
        self.diverged = False
        self._warm_up()

    def _on_device(self, data: Images) -> OnDevice | TextOnDevice:
        given, dataset = self.experiment.data, self.population.dataset
        if isinstance(data, Texts):
            return TextOnDevice(data, self.device)
        moments = moments_for(given.scaling, dataset.train)
        return OnDevice(data, self.device, moments, flip=dataset.flip, resize=given.resize)

    @property
    def metric(self) -> Metric:
        return PERPLEXITY if self.population.dataset.vocabulary else ACCURACY

    @staticmethod
    def device_of(experiment: Experiment) -> str:
        if experiment.device == "auto":
            return "cuda" if torch.cuda.is_available() else "cpu"
        return machine.checked_device(experiment.device)

    @property
    def converged_at(self) -> float:
        """Return the metric from which on a model counts as converged.

        An accuracy of 10%, and twice that of guessing the commonest class; or three quarters of the perplexity of
        guessing characters by how often they come.
        """
        test = self.population.dataset.test
        if isinstance(test, Texts):
            shares = np.bincount(test.tokens[:, 1:].ravel()) / test.tokens[:, 1:].size
            return 0.75 * float(np.exp(-np.sum(shares * np.log(np.where(shares > 0, shares, 1)))))
        guessing = float(np.bincount(test.labels).max() / len(test.labels))
        return max(0.1, min(2 * guessing, (1 + guessing) / 2))

    def opening(self) -> dict[str, Any]:
        """Return the fields of the run's first line."""
        population, dataset = self.population, self.population.dataset
        return {
            "config": self.experiment.as_dict(),
            "clients": list(range(len(population.parts))),
            "byzantine": sorted(population.byzantine),
            "ratio": population.ratio(),
            "sizes": population.sizes,
            "split": counts(population.parts, dataset.train.labels, dataset.n_classes),
            "classes": dataset.classes,
            "data": dataset.digest,
            **({"metric": self.metric.name} if self.metric != ACCURACY else {}),
            **({"first_weights": self.first.digest} if self.first else {}),
            "dim": self.clients.flat.size,
            "bartizan": __version__,
            "torch": str(torch.__version__),
            "machine": machine.name_of(self.device),
            "threads": torch.get_num_threads(),
        }

    def state(self) -> tuple[dict[str, Any], tuple[float, ...], bool, dict[str, Any]]:
        clients = self.clients.state_dict() | ({"earlier": self.earlier} if self.earlier else {})
        return self.server.state_dict(), self.history, self.diverged, clients

    def restore(
        self, server: dict[str, Any], history: tuple[float, ...], diverged: bool, clients: dict[str, Any]
    ) -> None:
        self.server.load_state_dict(server)
        self.clients.load_state_dict(clients)
        self.earlier = list(clients.get("earlier", ()))
        self.history, self.diverged = history, diverged

    def round(self, t: int) -> dict[str, Any]:
        """Train one round; return the fields of the round's line."""
        who = self.population.taking_part(t)
        evaluated = t % self.experiment.evaluation.every == 0 or t == self.experiment.rounds
        seed = round_seed(self.experiment.seed, "projection", t)
        line: dict[str, Any] = {"round": t, "clients": who, "seed": str(seed), **named(self.sketch)}
        (aggregator, note, rows, trusted, loss), train = machine.timed(
            lambda: self._client_updates(who, t), self.device
        )
        notes = [*(self.first_notes if t == 1 else ()), note]
        line |= {"weights": None, "quarantined": {}, "seconds": {"train": train}, "loss": loss}
        line |= {"norm": None, "step": 0.0}
        if self.experiment.clients.speed:  # the slowest client of each round sets its time
            slowest = [self.population.durations[self.population.taking_part(u)].max() for u in range(1, t + 1)]
            line["time"] = float(np.sum(slowest))
        given: dict[str, Any] = {"seed": seed, "trusted": trusted, "history": self.history, "sizes": self._sizes(who)}
        if self.server.last is not None:
            given["reference"] = self.server.last
        try:
            if not rows:
                raise TooFewClientsError("No honest client took part.")
            if trusted is not None and not (bool(trusted.isfinite().all()) and bool(trusted.any())):
                raise TooFewClientsError("The server's own update is zero or not finite.")
            result, spent = machine.timed(lambda: self.aggregate(aggregator, rows, **given), self.device)
        except TooFewClientsError as refused:
            self.server.skip()
            line["quarantined"] = {str(who[row]): why for row, why in refused.quarantined.items()}
            notes.append(f"The round was refused and the model kept: {refused.problem}")
        else:
            if evaluated:
                line |= self._compare(aggregator, rows, given)
            # A GPU is still combining when the aggregator returns.
            others = sum(seconds for stage, seconds in result.seconds.items() if stage != "combine")
            stages = result.seconds | {"combine": spent - others}
            line["seconds"] |= stages
            line |= self._move(result, who)
            if result.weights is not None and isinstance(result.sketch, Projection):
                n_bytes = result.update.numel() * result.update.element_size()
                line["committed_bytes"] = bytes_sent(result.weights, n_bytes, result.sketch.k)
        # No honest client has a finite loss if the model itself has diverged.
        no_loss = loss is not None and not math.isfinite(loss)
        self.diverged = no_loss or not bool(self.server.weights.isfinite().all())
        if evaluated:
            line |= self._evaluate()
        text = " ".join(note for note in notes if note)
        return line | ({"note": text} if text else {})

    def _client_updates(self, who: list[int], t: int) -> _RoundInput:
        """Let the clients that take part train and attack."""
        attackers = [client for client in who if client in self.population.byzantine]
        training = who if self.poison else [client for client in who if client not in attackers]
        known_attackers = sum(client in self.population.chosen for client in who)
        rule, note = build_parts.rule_for(self.experiment.rule, len(who), known_attackers)
        aggregator = Aggregator(rule, self.sketch)
        honest = [row for row, client in enumerate(training) if client not in attackers]
        if not honest:
            return _RoundInput(aggregator, note)
        server = [len(self.population.parts)] if rule.needs_trusted else []
        computed = self.clients.updates(self.server.weights, [*training, *server], t)
        rows = dict(zip(training, computed.updates, strict=False))
        if len(training) < len(who):
            sent = self._attack(computed.updates[: len(training)], training, attackers, aggregator, t)
            rows |= zip(attackers, sent, strict=True)
        if self.poison is not None and self.poison.boost != 1:
            for client in attackers:
                rows[client] *= self.poison.boost
        losses = computed.losses[honest].double()
        loss = float(losses[losses.isfinite()].mean())
        trusted = computed.updates[-1] if server else None
        return _RoundInput(aggregator, note, [rows[client] for client in who], trusted, loss)

    def _attack(
        self, honest: Tensor, training: list[int], attackers: list[int], aggregator: Aggregator, t: int
    ) -> Tensor:
        """Return the updates of the attackers, one per row."""
        assert self.attack is not None
        # An attacker knows the rule and the sketch, but neither the round's seed nor the server's own update.
        rule, wanted, seed = aggregator.rule, needs(self.attack), self.experiment.seed
        seeds = [round_seed(seed, "projection", u) for u in range(max(1, t - 4), t + 1)]
        given: dict[str, Any] = {"seed": round_seed(seed, "attacker", t), "history": self.history}
        given["sizes"] = self._sizes([*training, *attackers])
        mean = honest.mean(dim=0)

        def aggregate(sent: Tensor) -> Tensor:
            server = {"trusted": mean if rule.needs_trusted else None, "reference": self.server.last}
            try:
                update = self.aggregate(aggregator, self._weights_or_changes(sent), **given, **server).update
            except TooFewClientsError:
                update = mean  # a round that is refused does no harm
            return self._weights_or_changes(update)

        def exact_weights(points: Array) -> Array:
            assert isinstance(rule, Rule)
            return rule(Geometry.of(points, **given))

        known = {
            "aggregator": aggregate,
            "exact_weights": exact_weights,
            "sketch": self.sketch,
            "leaked_seed": seeds[-1],
            "past_seeds": tuple(seeds[:-1]),
            "published": None if self.initial is None else self.initial - self.server.weights,
            "now": t,
            "earlier": tuple(self._weights_or_changes(mean) for mean in self.earlier),
        }
        rng = reproducible.generator(seed, "attack", t)
        known = {name: one for name, one in known.items() if name in wanted}
        if "earlier" in wanted:
            self.earlier = [*self.earlier, mean][-MAX_EARLIER:]
        sent: Tensor = self.attack(self._weights_or_changes(honest), len(attackers), rng, **known)
        return self._weights_or_changes(sent)

    def _weights_or_changes(self, changes: Tensor) -> Tensor:
        """Convert changes of the model to changes or new weights, as attackers see them; it is its own inverse.

        Some attacks always see changes, since these are what the server sketches and publishes.
        """
        on_changes = self.attack is not None and parameters.sees_changes(self.attack)
        return changes if self.experiment.clients.sends == "changes" or on_changes else self.server.weights - changes

    def _sizes(self, who: list[int]) -> Array | None:
        return self.population.sizes[who] if self.experiment.server.by_size else None

    def _move(self, result: Aggregation[Any], who: list[int]) -> dict[str, Any]:
        """Move the model by the aggregate; return the fields of the line about it."""
        self.history = result.history
        norm = float(torch.linalg.vector_norm(result.update, dtype=torch.float64))
        return {
            "weights": result.weights,
            "quarantined": {str(who[row]): why for row, why in result.quarantined.items()},
            **named(result.sketch),
            "norm": norm,
            "step": self.server.step(result.update),
        }

    def _compare(self, aggregator: Aggregator, rows: Sequence[Tensor], given: dict[str, Any]) -> dict[str, Any]:
        """Return the time of one read of the updates, and the rule's weights by exact distances."""
        updates = parse_updates(rows)
        found: dict[str, Any] = {"read": machine.timed(lambda: Norms().measure(updates, 0), self.device)[1]}
        rule = aggregator.rule
        projected = isinstance(rule, Rule) and rule.needs_distances and not isinstance(self.sketch, Exact)
        if projected and self.experiment.evaluation.exact_weights:
            found["exact_weights"] = self.aggregate(Aggregator(rule), rows, **given).weights
        return found

    def _evaluate(self) -> dict[str, float]:
        by_batch = self.experiment.evaluation.statistics == "batch"
        accuracy, loss = evaluate(self.model, self.server.weights, self.test, batch_statistics=by_batch, half=True)
        found = {"accuracy": accuracy, "test_loss": loss}
        if self.metric == PERPLEXITY:  # `exp` of a diverged model's loss may overflow
            found = {"perplexity": math.exp(loss) if loss < 700 else math.inf, "test_loss": loss}
        if self.backdoor:
            found["backdoor"] = backdoor_rate(self.model, self.server.weights, self.triggered, self.backdoor.target)
        return found

    def _warm_up(self) -> None:
        """Load or compile the kernels, so that the first round's times do not contain it."""
        who = self.population.taking_part(1)
        rule, _ = build_parts.rule_for(self.experiment.rule, len(who), 0)
        size = self.clients.flat.size
        # A GPU's kernels are compiled for the alignment of the rows.
        size = size if self.experiment.model.adapters else 2**13 + size % 16
        rows = list(1 + torch.eye(len(who), size, device=self.device))
        given: dict[str, Any] = {"seed": 0, "trusted": rows[0] if rule.needs_trusted else None}
        for sketch in {self.sketch, Exact()} if isinstance(rule, Rule) else {Exact()}:
            self.aggregate(Aggregator(rule, sketch), rows, **given)
        Norms().measure(parse_updates(rows), 0)


def step_size_of(experiment: Experiment) -> float:
    """Return the server's step size: 0.1 for gradients, 1 for changes of local steps and as factor of a tuned one."""
    plain = experiment.server.optimiser in UNTUNED_OPTIMISERS and experiment.clients.work == "gradient"
    return experiment.server.step_size or (0.1 if plain else 1.0)
