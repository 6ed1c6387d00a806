"""`Round` as a state machine for Hypothesis: any order of adds, twins, mistakes, closes and goodbyes."""

from __future__ import annotations

import tempfile
from pathlib import Path

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from fuzz.draw import Draw
from fuzz.rounds import Model
from fuzz.surface import require

CHOICES = st.binary(max_size=40)


class RoundMachine(RuleBasedStateMachine):
    """Each step is one of the model's, which does it to a real round and compares."""

    runs = 0
    """Of all machines, for who counts them."""

    @initialize(choices=CHOICES)
    def open(self, choices: bytes) -> None:
        type(self).runs += 1
        self.folder = tempfile.TemporaryDirectory()
        self.model = Model(Draw(choices), Path(self.folder.name))

    @rule(choices=CHOICES, client=st.integers(0, 15), flawed=st.booleans())
    def somebody_comes(self, choices: bytes, client: int, flawed: bool) -> None:
        self.model.draw = Draw(choices)
        self.model.add(client, flawed)

    @precondition(lambda self: self.model.came)
    @rule(choices=CHOICES, which=st.integers(0, 99))
    def somebody_comes_again(self, choices: bytes, which: int) -> None:
        self.model.draw = Draw(choices)
        self.model.add(sorted(self.model.came)[which % len(self.model.came)])

    @rule(choices=CHOICES)
    def the_caller_errs(self, choices: bytes) -> None:
        self.model.draw = Draw(choices)
        self.model.add_nonsense()

    @rule()
    def it_is_closed(self) -> None:
        self.model.close()

    @precondition(lambda self: len(self.model.came) > 6)
    @rule()
    def it_is_left(self) -> None:
        self.model.leave()

    @invariant()
    def the_round_knows_who_came(self) -> None:
        if hasattr(self, "model"):
            require(set(self.model.round.clients) == set(self.model.came), "others came than were taken")

    def teardown(self) -> None:
        if hasattr(self, "model"):
            self.model.close()
            self.model.done()
            self.folder.cleanup()
