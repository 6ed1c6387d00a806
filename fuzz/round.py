"""Surface: `Round` beside a model of it; updates added in any order give the result of one call."""

from __future__ import annotations

import shutil
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

import bartizan as bz
from fuzz import compare
from fuzz.aggregate import flat, rolls, server_update
from fuzz.aggregate import warm as warm_aggregate
from fuzz.draw import Draw
from fuzz.rules import enough, lowered, rule_of
from fuzz.surfaces import ACCEPTED, COMPARED, RefusedError, Surface, fair, on_purpose, require
from fuzz.updates.clients import (
    CLEAN,
    DTYPES,
    FORMS,
    POOL,
    Clients,
    clean_update,
    hostile_update,
    leaf,
    numbers,
    stored,
    widened,
)
from fuzz.updates.malformed import BAD, EITHER

SKETCHES = (bz.Rotated(k=64), bz.Exact(), bz.Gaussian(k=16))
WRONG_IDS = ([], float("nan"), {}, [1], np.zeros(2))
WRONG_SIZES = (0, -1, float("nan"), float("inf"), True)


class Model:
    """The expected state of a round: the updates that came, and whether it is still open."""

    def __init__(self, draw: Draw, folder: Path) -> None:
        self.draw, self.folder = draw, Path(tempfile.mkdtemp(dir=folder))
        self.form, self.dtype, self.p = draw.pick(FORMS), draw.pick(DTYPES), 1 + draw.below(300)
        self.rule = rule_of(draw, 9)
        coordinatewise = isinstance(self.rule, bz.coordinatewise.CoordinateWise)
        self.sketch = bz.Exact() if coordinatewise else draw.pick(SKETCHES)
        self.strict, spilled, copied = draw.chance(6), draw.chance(3), draw.chance(3)
        self.recheck = not draw.chance(2)
        self.x = stored(numbers(draw, 16, self.p), self.dtype)
        self.came: dict[Any, tuple[Any, float, str, np.ndarray]] = {}
        self.state = "open"
        self.result: bz.Aggregation | None = None
        self.compared = False
        like = Clients(self.form, self.dtype, self.x)
        self.trusted, trusted = server_update(like, POOL[7 : 7 + self.p]) if self.rule.needs_trusted else (None, None)
        self.reference, reference = server_update(like, numbers(draw, 1, self.p)[0]) if draw.chance(4) else (None, None)
        self.seen = compare.TookPart(self.x, np.ones(16), self.dtype, self.sketch, 5, reference, trusted)
        self.round = bz.Aggregator(self.rule, self.sketch).round(
            seed=5,
            strict=self.strict,
            copy=copied,
            spill=self.folder / "spill" if spilled else None,
            reference=self.reference,
            trusted=self.trusted,
            recheck=self.recheck,
        )

    def add(self, client: Any = None, flawed: bool | None = None) -> None:
        """Add an update, perhaps of a client that was added before, perhaps after the round was closed."""
        draw = self.draw
        client = draw.below(16) if client is None else client
        row, size = self.x[hash(client) % 16], 1.0 + draw.below(3)
        if draw.chance(4) if flawed is None else flawed:
            update, known = hostile_update(draw, row, self.form, self.dtype)
        else:
            update, known = clean_update(draw, row, self.form, self.dtype), CLEAN
        fresh = client not in self.came and self.state == "open"
        try:
            reason = self.round.add(update, client, size)
        except bz.BadClientError as bad:
            require(self.strict and fresh and known != CLEAN, f"refused by strict: {bad}")
            return
        except (ValueError, RuntimeError) as refused:
            if not on_purpose(refused):
                raise
            require(not fresh, f"a new client was refused: {refused}")
            return
        require(fresh, "a client was added twice, or too late")
        require(reason is None or known != CLEAN, f"a clean update was refused: {reason}")
        require(reason is None or fair(reason), f"the reason is {reason!r}")
        self.came[client] = (update, size, known, row)

    def add_wrong_argument(self) -> None:
        """Wrong arguments of the caller raise, and change nothing."""
        ids = self.draw.chance(2)
        client, size = (self.draw.pick(WRONG_IDS), 1.0) if ids else ("amy", self.draw.pick(WRONG_SIZES))
        try:
            self.round.add([1.0], client, size)
        except (TypeError, ValueError, RuntimeError) as refused:
            if not on_purpose(refused):
                raise
            return
        raise AssertionError("a wrong argument was accepted")

    def close(self) -> None:
        clients, known = self.clients()
        try:
            out = self.round.close()
        except (bz.TooFewClientsError, bz.BadClientError) as refused:
            require(self.state == "open" and on_purpose(refused), f"a {self.state} round: {refused}")
            if isinstance(refused, bz.TooFewClientsError) and self.came and known:
                M = len(self.came)
                require(not enough(self.rule, M, len(refused.quarantined)), f"{self.rule!r} refused: {refused}")
            return
        except (ValueError, RuntimeError) as refused:
            if not on_purpose(refused) or (self.state == "open" and known):
                raise
            return
        require(self.state != "abandoned", "an abandoned round gave a result")
        require(self.result is None or out is self.result, "the second close gave another result")
        if self.result is None:
            self.state, self.result = "closed", out
            self._check(out, clients, known)

    def clients(self) -> tuple[Clients, bool]:
        """Return the clients that came, in the order of their ids, and whether it is known who is quarantined."""
        made = [self.came[client] for client in sorted(self.came)]
        x = np.array([widened(row, self.dtype) for *_, row in made]).reshape(len(made), self.p)
        found = Clients(self.form, self.dtype, x, [one[0] for one in made], [one[2] for one in made])
        return found, found.majority

    def _check(self, out: bz.Aggregation, clients: Clients, known: bool) -> None:
        ids = sorted(self.came)
        require(list(out.clients) == ids, f"the result names {out.clients}, and {ids} came")
        gone = {ids.index(client) for client in out.quarantined}
        if not known:
            return
        require(
            clients.indices(BAD) <= gone <= clients.indices(BAD) | clients.indices(EITHER),
            f"quarantined: {out.quarantined}",
        )
        kept = [m for m in range(len(ids)) if m not in gone]
        sizes = np.array([self.came[client][1] for client in ids])
        rule = lowered(self.rule, len(ids), len(gone))
        weights = None if out.weights is None else out.weights[kept]
        update = flat(out.update, self.form)
        seen = replace(self.seen, x=clients.x[kept], sizes=sizes[kept], sketch=out.sketch, seed=out.seed)
        seen = replace(seen, rolls=rolls(out.update, self.form))
        compare.check(rule, seen, update, weights)
        self.compared = True
        if not clients.indices(EITHER):
            own = {"reference": self.reference, "trusted": self.trusted, "sizes": sizes}
            one = bz.aggregate(clients.sent, self.rule, sketch=out.sketch, seed=out.seed, **own)
            require(np.array_equal(flat(one.update, self.form), update), "not the result of one call")
            require(np.array_equal(one.weights, out.weights), "not the weights of one call")

    def abandon(self) -> None:
        self.round.__exit__(None, None, None)
        if self.state == "open":
            self.state, self.came = "abandoned", {}

    def done(self) -> None:
        """Require that no file is left on the disk."""
        self.abandon()
        left = list(self.folder.glob("spill/*"))
        shutil.rmtree(self.folder)
        require(not left, f"files are left: {left[:3]}")


def case_in(folder: Path) -> Any:
    def case(data: bytes) -> str:
        model = Model(Draw(data), folder)
        try:
            for _ in range(3 + model.draw.below(12)):
                step = model.draw.below(16)
                if step < 11:
                    model.add()
                elif step < 13:
                    model.close()
                elif step < 15:
                    model.add_wrong_argument()
                else:
                    model.abandon()
            model.close()
        finally:
            model.done()
        if model.result is None:
            raise RefusedError
        return COMPARED if model.compared else ACCEPTED

    return case


def surface(folder: Path) -> Surface:
    seeds = [bytes([n]) * 60 for n in range(0, 256, 5)]

    def warm() -> None:
        warm_aggregate()
        for dtype in DTYPES:
            with bz.Aggregator(bz.Krum(1), bz.Rotated(k=64)).round(spill=folder / "warm") as r:
                for m, row in enumerate(stored(POOL[:900].reshape(9, 100), dtype)):
                    r.add(leaf(row, "array", dtype), m)
                r.close()

    return Surface(case_in(folder), seeds, warm=warm)
