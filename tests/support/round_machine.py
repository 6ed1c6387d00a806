"""`Round` as a Hypothesis state machine: adds, repeated adds, wrong arguments and closes in any order."""

from __future__ import annotations

import tempfile
from pathlib import Path

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from fuzz.draw import Draw
from fuzz.round import Model
from fuzz.surfaces import require

CHOICES = st.binary(max_size=40)


class RoundMachine(RuleBasedStateMachine):
    """Each step is one of the model's, which applies it to a real round and compares."""

    @initialize(choices=CHOICES)
    def open(self, choices: bytes) -> None:
        self.folder = tempfile.TemporaryDirectory()
        self.model = Model(Draw(choices), Path(self.folder.name))

    @rule(choices=CHOICES, client=st.integers(0, 15), flawed=st.booleans())
    def add(self, choices: bytes, client: int, flawed: bool) -> None:
        self.model.draw = Draw(choices)
        self.model.add(client, flawed)

    @precondition(lambda self: self.model.came)
    @rule(choices=CHOICES, which=st.integers(0, 99))
    def add_again(self, choices: bytes, which: int) -> None:
        self.model.draw = Draw(choices)
        self.model.add(sorted(self.model.came)[which % len(self.model.came)])

    @rule(choices=CHOICES)
    def add_wrong_argument(self, choices: bytes) -> None:
        self.model.draw = Draw(choices)
        self.model.add_wrong_argument()

    @rule()
    def close(self) -> None:
        self.model.close()

    @precondition(lambda self: len(self.model.came) > 6)
    @rule()
    def abandon(self) -> None:
        self.model.abandon()

    @invariant()
    def the_round_has_the_clients_that_came(self) -> None:
        if hasattr(self, "model"):
            require(set(self.model.round.clients) == set(self.model.came), "the round has other clients than came")

    def teardown(self) -> None:
        if hasattr(self, "model"):
            self.model.close()
            self.model.done()
            self.folder.cleanup()
