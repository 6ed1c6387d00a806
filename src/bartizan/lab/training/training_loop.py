"""A run in memory: clients train, attackers lie, the server judges and moves the model."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from bartizan import __version__
from bartizan._util import machine
from bartizan.aggregate import Aggregator
from bartizan.attacks import needs
from bartizan.errors import TooFewClientsError
from bartizan.lab.config.experiment import Experiment
from bartizan.lab.data.device_images import OnDevice
from bartizan.lab.data.population import Population
from bartizan.lab.models import build
from bartizan.lab.training import defence, reproducible
from bartizan.lab.training.clients import Clients, LocalWork
from bartizan.lab.training.evaluation import backdoor_rate, evaluate
from bartizan.lab.training.reproducible import round_seed
from bartizan.lab.training.server import Server
from bartizan.lab.training.torch_import import Tensor, torch
from bartizan.result import Aggregation
from bartizan.rules import Rule
from bartizan.sketch import Exact
from bartizan.sketch.norms_only import Norms
from bartizan.updates import parse_updates


class Training:
    """All that changes from round to round is the server's state and a rule's history."""

    def __init__(self, experiment: Experiment, device: str) -> None:
        self.experiment, self.device = experiment, device
        self.population = population = Population.of(experiment)
        self.attack = defence.attack_of(experiment.attack)
        self.sketch = defence.sketch_of(experiment.sketch)
        self.poisons = hasattr(self.attack, "poison")
        dataset, seed = population.dataset, experiment.seed
        train, parts = population.poisoned(self.attack) if self.poisons else (dataset.train, population.parts)
        mean, std = dataset.train.moments()
        images = OnDevice(train, device, mean, std, flip=dataset.flip)
        self.test = OnDevice(dataset.test, device, mean, std)
        self.triggered: OnDevice | None = None
        if hasattr(self.attack, "trigger"):
            self.triggered = OnDevice(_with_trigger(dataset.test, self.attack), device, mean, std)
        network, asked = experiment.model, experiment.clients
        self.model = build(
            network.name, population.n_classes, dataset.train.shape, network.norm, fitted=network.fitted, seed=seed
        ).to(device)
        self.clients = Clients(
            self.model,
            images,
            [torch.from_numpy(part) for part in (*parts, population.trusted())],
            batch=asked.batch,
            work=LocalWork(asked.work, asked.local, asked.step_size, asked.momentum),
            seed=seed,
            augment=experiment.data.augment,
            compiled=asked.compiled,
            precision=asked.precision,
        )
        flat = self.clients.flat
        self.server = Server(
            flat.read(self.model),
            flat.n_parameters,
            experiment.server.optimiser,
            step_size=step_size_of(experiment),
            momentum=experiment.server.momentum,
            schedule=experiment.server.schedule,
            rounds=experiment.rounds,
        )
        watched = callable(self.attack) and "published" in needs(self.attack)
        self.initial = self.server.weights.clone() if watched else None
        self.history: tuple[float, ...] = ()
        self.diverged = False
        self._warm_up()

    @staticmethod
    def device_of(experiment: Experiment) -> str:
        if experiment.device == "auto":
            return "cuda" if torch.cuda.is_available() else "cpu"
        return machine.checked_device(experiment.device)

    @property
    def converged_accuracy(self) -> float:
        """The accuracy from which a model counts as converged: 10%, and twice that of guessing the commonest class."""
        labels = self.population.dataset.test.labels
        guessing = float(np.bincount(labels).max() / len(labels))
        return max(0.1, min(2 * guessing, (1 + guessing) / 2))

    def opening(self) -> dict[str, Any]:
        """The fields of the run's first line."""
        population = self.population
        return {
            "config": self.experiment.as_dict(),
            "clients": list(range(len(population.parts))),
            "byzantine": sorted(population.byzantine),
            "ratio": population.ratio(),
            "sizes": population.sizes,
            "split": population.counts(),
            "classes": population.dataset.classes,
            "data": population.dataset.digest,
            "dim": self.clients.flat.size,
            "bartizan": __version__,
            "torch": str(torch.__version__),
            "machine": machine.name_of(self.device),
            "threads": torch.get_num_threads(),
        }

    def state(self) -> tuple[dict[str, Any], tuple[float, ...], bool]:
        return self.server.state_dict(), self.history, self.diverged

    def restore(self, server: dict[str, Any], history: tuple[float, ...], diverged: bool) -> None:
        self.server.load_state_dict(server)
        self.history, self.diverged = history, diverged

    def round(self, t: int) -> dict[str, Any]:
        """Train, judge, move; the fields of the round's line."""
        who = self.population.taking_part(t)
        evaluated = t % self.experiment.evaluation.every == 0 or t == self.experiment.rounds
        seed = round_seed(self.experiment.seed, "projection", t)
        line: dict[str, Any] = {"round": t, "clients": who, "seed": str(seed), "sketch": repr(self.sketch)}
        (rows, trusted, loss, aggregator, note), train = machine.timed(lambda: self._sent(who, t), self.device)
        notes = [note]
        line |= {"weights": None, "quarantined": {}, "seconds": {"train": train}, "loss": loss}
        line |= {"norm": None, "step": 0.0}
        given = {"seed": seed, "trusted": trusted, "history": self.history, "sizes": self._sizes(who)}
        try:
            if not rows:
                raise TooFewClientsError("No honest client took part.")
            if trusted is not None and not (bool(trusted.isfinite().all()) and bool(trusted.any())):
                raise TooFewClientsError("The server's own update is zero or not finite.")
            result, spent = machine.timed(lambda: aggregator(rows, **given), self.device)
        except TooFewClientsError as refused:
            self.server.skip()
            line["quarantined"] = {str(who[row]): why for row, why in refused.quarantined.items()}
            notes.append(f"The round was refused and the model kept: {refused.problem}")
        else:
            if evaluated:
                line |= self._compared(aggregator, rows, given)
            # A GPU is still combining when the aggregator returns.
            stages = result.seconds | {"combine": spent - result.seconds["sketch"] - result.seconds["weigh"]}
            line["seconds"] |= stages
            line |= self._moved(result, who)
        # Honest clients whose every loss is not finite have been given a model that is none.
        sick = loss is not None and not math.isfinite(loss)
        self.diverged = sick or not bool(self.server.weights.isfinite().all())
        if evaluated:
            line |= self._evaluated()
        said = " ".join(note for note in notes if note)
        return line | ({"note": said} if said else {})

    def _sent(self, who: list[int], t: int) -> tuple[list[Tensor], Tensor | None, float | None, Aggregator, str]:
        """What each sends, what the server trusts, the honest loss, and who is to judge."""
        attackers = [client for client in who if client in self.population.byzantine]
        working = who if self.poisons else [client for client in who if client not in attackers]
        told = sum(client in self.population.chosen for client in who)
        rule, note = defence.rule_for(self.experiment.rule, len(who), told)
        aggregator = Aggregator(rule, self.sketch)
        honest = [row for row, client in enumerate(working) if client not in attackers]
        if not honest:
            return [], None, None, aggregator, note
        own = [len(self.population.parts)] if rule.needs_trusted else []
        sent = self.clients.updates(self.server.weights, [*working, *own], t)
        rows = dict(zip(working, sent.updates, strict=False))
        if len(working) < len(who):
            rows |= zip(
                attackers, self._lies(sent.updates[: len(working)], working, attackers, aggregator, t), strict=True
            )
        losses = sent.losses[honest].double()
        loss = float(losses[losses.isfinite()].mean())
        return [rows[client] for client in who], sent.updates[-1] if own else None, loss, aggregator, note

    def _lies(
        self, honest: Tensor, truthful: list[int], attackers: list[int], aggregator: Aggregator, t: int
    ) -> Tensor:
        rng = reproducible.generator(self.experiment.seed, "attack", t)
        known = {name: self._known(name, t) for name in needs(self.attack) - {"aggregator"}}
        if "aggregator" in needs(self.attack):
            # An attacker knows the rule and the sketch, never the round's seed, and not what the server trusts.
            mean = honest.mean(dim=0)
            given: dict[str, Any] = {"seed": round_seed(self.experiment.seed, "attacker", t), "history": self.history}
            given |= {"trusted": mean if aggregator.rule.needs_trusted else None}
            given |= {"sizes": self._sizes([*truthful, *attackers])}

            def judged(sent: Tensor) -> Tensor:
                try:
                    update: Tensor = aggregator(self._as_sent(sent), **given).update
                except TooFewClientsError:
                    update = mean  # a round that is refused does no harm
                return self._as_sent(update)

            known["aggregator"] = judged
        return self._as_sent(self.attack(self._as_sent(honest), len(attackers), rng, **known))

    def _as_sent(self, changes: Tensor) -> Tensor:
        """What attackers see and falsify: changes, or the weights behind them. Its own inverse, up to rounding.

        Who aims at the sketch knows that the server judges changes, and sees these whatever is sent.
        """
        aims = "sketch" in needs(self.attack)
        return self.server.weights - changes if self.experiment.clients.sends == "weights" and not aims else changes

    def _known(self, name: str, t: int) -> Any:
        """What an attack is told that asks for it; it follows from the seed and the server's state, resumed or not."""
        seeds = tuple(round_seed(self.experiment.seed, "projection", u) for u in range(max(1, t - 4), t + 1))
        if name == "published":
            assert self.initial is not None
            return self.initial - self.server.weights
        return {"sketch": self.sketch, "leaked_seed": seeds[-1], "past_seeds": seeds[:-1]}[name]

    def _sizes(self, who: list[int]) -> Any:
        return self.population.sizes[who] if self.experiment.server.by_size else None

    def _moved(self, result: Aggregation[Any], who: list[int]) -> dict[str, Any]:
        self.history = result.history
        norm = float(torch.linalg.vector_norm(result.update, dtype=torch.float64))
        return {
            "weights": result.weights,
            "quarantined": {str(who[row]): why for row, why in result.quarantined.items()},
            "sketch": repr(result.sketch),
            "norm": norm,
            "step": self.server.step(result.update),
        }

    def _compared(self, aggregator: Aggregator, rows: list[Tensor], given: dict[str, Any]) -> dict[str, Any]:
        """One read, timed, and what the rule gives on exact distances."""
        updates = parse_updates(rows)
        found: dict[str, Any] = {"read": machine.timed(lambda: Norms().gram_stats(updates, 0), self.device)[1]}
        rule = aggregator.rule
        projected = isinstance(rule, Rule) and rule.needs_distances and not isinstance(self.sketch, Exact)
        if projected and self.experiment.evaluation.exact_weights:
            found["exact_weights"] = Aggregator(rule)(rows, **given).weights
        return found

    def _evaluated(self) -> dict[str, float]:
        accuracy, loss = evaluate(self.model, self.server.weights, self.test)
        found = {"accuracy": accuracy, "test_loss": loss}
        if self.triggered is not None:
            found["backdoor"] = backdoor_rate(self.model, self.server.weights, self.triggered, self.attack.target)
        return found

    def _warm_up(self) -> None:
        """Load or compile the kernels, so that the first round's times are like the others'."""
        who = self.population.taking_part(1)
        rule, _ = defence.rule_for(self.experiment.rule, len(who), 0)
        # A GPU's kernels are compiled for how rows are aligned.
        rows = list(torch.eye(len(who), 2**13 + self.clients.flat.size % 16, device=self.device))
        given: dict[str, Any] = {"seed": 0, "trusted": rows[0] if rule.needs_trusted else None}
        for sketch in {self.sketch, Exact()} if isinstance(rule, Rule) else {Exact()}:
            Aggregator(rule, sketch)(rows, **given)
        Norms().gram_stats(parse_updates(rows), 0)


def step_size_of(experiment: Experiment) -> float:
    """The server's: a gradient is scaled, the way of local steps is gone in full, Prodigy finds its own."""
    plain = experiment.server.optimiser != "prodigy" and experiment.clients.work == "gradient"
    return experiment.server.step_size or (0.1 if plain else 1.0)


def _with_trigger(images: Any, backdoor: Any) -> Any:
    return type(images)(backdoor.trigger(images.pixels), images.labels)
