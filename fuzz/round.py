"""Surface: `Round` beside a model of it; updates added in any order give the result of one call."""

import shutil
from dataclasses import replace

import numpy as np
from hypothesis import strategies as st

import bartizan as bz
from fuzz.aggregate import checked, flat, judged
from fuzz.rules import enough
from fuzz.surfaces import ACCEPTED, COMPARED, RefusedError, Surface, documented, fair, require
from fuzz.updates.clients import CLEAN, clients
from fuzz.updates.malformed import EITHER
from fuzz.values import rarely

SKETCHES = (bz.Rotated(k=64), bz.Exact(), bz.Gaussian(k=16))


@st.composite
def rounds(draw):
    """Draw the clients, how the round is opened, and its steps: each client's update, and others, in any order."""
    sent = draw(clients(most=16))
    adds = st.tuples(st.just("add"), st.integers(0, len(sent.x) - 1), st.sampled_from([1.0, 2.0, 3.0]))
    others = draw(st.lists(adds | st.sampled_from([("close",), ("abandon",)]), max_size=5))
    steps = draw(st.permutations([*(("add", m, 1.0 + m % 3) for m in range(len(sent.x))), *others]))
    rule, seen, own = judged(draw, sent, np.ones(len(sent.x)), SKETCHES)
    flags = {name: draw(rarely(one_in)) for name, one_in in {"strict": 6, "copy": 3, "spill": 3, "recheck": 2}.items()}
    return {"sent": sent, "rule": rule, "seen": seen, "own": own, "flags": flags, "steps": steps}


class Model:
    """A round, and its expected state: the updates that came with their sizes, and whether it is still open."""

    def __init__(self, folder, sent, rule, seen, own, flags, steps):
        self.sent, self.rule, self.seen, self.own, self.folder, self.steps = sent, rule, seen, own, folder, steps
        self.came = {}
        self.state, self.compared = "open", False
        self.result = None
        spill = folder / "spill" if flags["spill"] else None
        self.strict = flags["strict"]
        self.round = bz.Aggregator(rule, seen.sketch).round(seed=5, **own, **flags | {"spill": spill})

    def run(self):
        try:
            for name, *arguments in self.steps:
                getattr(self, name)(*arguments)
                require(set(self.round.clients) == set(self.came), "the round has other clients than came")
            self.close()
        finally:
            self.abandon()
            left = list(self.folder.glob("spill/*"))
            shutil.rmtree(self.folder / "spill", ignore_errors=True)
        require(not left, f"files are left: {left[:3]}")
        if self.result is None:
            raise RefusedError
        return COMPARED if self.compared else ACCEPTED

    def add(self, client, size):
        """Add an update, perhaps of a client that was added before, perhaps after the round was closed."""
        known, fresh = self.sent.known[client], client not in self.came and self.state == "open"
        try:
            with documented(ValueError, RuntimeError, sound=fresh and (known == CLEAN or not self.strict)):
                reason = self.round.add(self.sent.sent[client], client, size)
        except RefusedError:
            return
        require(fresh, "a client was added twice, or too late")
        require(reason is None or known != CLEAN, f"a clean update was refused: {reason}")
        require(reason is None or fair(reason), f"the reason is {reason!r}")
        self.came[client] = size

    def close(self):
        ids = sorted(self.came)
        came = replace(self.sent, x=self.sent.x[ids])
        came.sent, came.known = ([of[m] for m in ids] for of in (self.sent.sent, self.sent.known))
        try:
            with documented(ValueError, RuntimeError):
                out = self.round.close()
        except RefusedError as refused:
            few = refused.__cause__
            if not isinstance(few, (bz.TooFewClientsError, bz.BadClientError)):
                require(self.state != "open" or not came.majority, f"an open round refused: {few}")
            elif isinstance(few, bz.TooFewClientsError) and ids and came.majority:
                require(not enough(self.rule, len(ids), len(few.quarantined)), f"{self.rule!r} refused: {few}")
            return
        require(self.state != "abandoned", "an abandoned round gave a result")
        require(self.result is None or out is self.result, "the second close gave another result")
        if self.result is None:
            self.state, self.result = "closed", out
            require(list(out.clients) == ids, f"the result names {out.clients}, and {ids} came")
            if came.majority:
                self._check(out, came, np.array([self.came[m] for m in ids]))

    def _check(self, out, came, sizes):
        seen = replace(self.seen, sizes=sizes, sketch=out.sketch, seed=out.seed)
        checked(came, out, {sorted(self.came).index(client) for client in out.quarantined}, self.rule, seen)
        self.compared = True
        if not came.indices(EITHER):
            one = bz.aggregate(came.sent, self.rule, sketch=out.sketch, seed=out.seed, sizes=sizes, **self.own)
            same = np.array_equal(flat(one.update, came.form), flat(out.update, came.form))
            require(same, "not the result of one call")
            require(np.array_equal(one.weights, out.weights), "not the weights of one call")

    def abandon(self):
        self.round.__exit__(None, None, None)
        if self.state == "open":
            self.state, self.came = "abandoned", {}


def surface(folder):
    return Surface(lambda case: Model(folder, **case).run(), {"case": rounds()})
