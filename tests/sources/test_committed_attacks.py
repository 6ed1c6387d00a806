"""Clients that cheat in a committed round are named, and change nothing beyond what the rule allows."""

from __future__ import annotations

import re

import numpy as np
import pytest

import bartizan as bz
from bartizan.attacks.nullspace import hidden_part
from bartizan.errors import TooFewClientsError
from bartizan.sources.committed import committed_round, update_bytes
from bartizan.sources.committed.round_messages import (
    Closing,
    Committed,
    Draw,
    Fetch,
    Leaves,
    Listing,
    Nonce,
    Opening,
    Result,
    SecondDraw,
    SecondSketch,
    Sketched,
)
from bartizan.sources.committed.transcript import next_nonce
from bartizan.sources.committed.update_bytes import LEAF, leaf_hashes, root_of
from committed_clients import CHEAT, NAMES, F, Loopback, P, honest, reseal, with_fields

RULE = bz.MultiKrum(F)


def at(kind, cheat):
    """A client that cheats where it answers one kind of request."""
    return lambda client, request, reply: cheat(client, request, reply) if type(request) is kind else reply


def changed(kind, **fields):
    """A client whose reply has other fields, given as functions of the honest reply."""

    def cheat(client, request, reply):
        message = {Committed: Committed, Nonce: Nonce, Sketched: Sketched, Leaves: Leaves, SecondSketch: SecondSketch}[
            kind
        ].decode(reply)
        return with_fields(message, **{name: make(message) for name, make in fields.items()}).encoded

    return cheat


def another_update(client, request, reply):
    data = bytearray(Leaves.decode(reply).data)
    data[5] ^= 64
    return with_fields(Leaves.decode(reply), data=bytes(data)).encoded


def hidden_from(seed, sketch=bz.Rotated()):
    """A vector as long as an update that the projection with this seed maps to zero."""
    return hidden_part(np.ones(P), sketch, [seed]).astype(np.float32)


def null_space_bytes(client, request, reply):
    own = client.commitment
    seed = own.stages[Draw].seed
    moved = own._pieces[0].view(np.float32) + 100 * hidden_from(seed)
    return with_fields(Leaves.decode(reply), data=moved.tobytes()[request.first * LEAF :]).encoded


def null_space_root(client, request, reply):
    own = client.commitment
    pieces = [(own._pieces[0].view(np.float32) + 100 * hidden_from(request.seed)).view(np.uint8)]
    leaves = leaf_hashes(pieces, own._salt)
    return with_fields(Sketched.decode(reply), leaves=leaves, root=root_of(leaves, 4 * P)).encoded


def wrong_norm(client, request, reply):
    return reseal(client, squared_norm=1.02 * client.commitment.squared_norm)


def wrong_size(client, request, reply):
    return reseal(client, size=2.0**70)


def another_length(client, request, reply):
    own = client.commitment
    own._leaves = own._leaves[:-1]
    return reseal(client, _root=root_of(own._leaves, 4 * P))


CHEATS = {
    "another update than committed": (at(Fetch, another_update), "not those that it committed to"),
    "the sketch of another": (
        at(Draw, changed(Sketched, sketch=lambda m: -m.sketch)),
        "its sketch is not of its update",
    ),
    "null-space bytes after the seed": (at(Fetch, null_space_bytes), "not those that it committed to"),
    "a null-space root after the seed": (at(Draw, null_space_root), "did not commit to this update"),
    "no commitment in time": (at(Opening, lambda *_: None), "sent no Committed in time"),
    "a commitment after the list": (
        at(Listing, lambda client, request, reply: client.commitment.message.encoded),
        "a Nonce of version 1 was wanted",
    ),
    "a commitment to another round": (
        at(Opening, changed(Committed, after=lambda m: bytes(32))),
        "answers another Opening",
    ),
    "another's name": (at(Opening, changed(Committed, client=lambda m: "c0")), "a message of 'c0'"),
    "no nonce": (at(Listing, lambda *_: None), "sent no Nonce in time"),
    "another nonce": (at(Listing, changed(Nonce, nonce=lambda m: bytes(32))), "not the one that it committed to"),
    "no sketch": (at(Draw, lambda *_: None), "sent no Sketched in time"),
    "a sketch of another length": (
        at(Draw, changed(Sketched, sketch=lambda m: m.sketch[:-1])),
        "4095 numbers, not 4096",
    ),
    "a sketch of no number": (at(Draw, lambda c, q, reply: reply[:-8] + b"\xff" * 8), "not finite"),
    "a wrong norm that it committed to": (at(Opening, wrong_norm), "its squared norm is .*, and it committed to"),
    "a wrong norm": (at(Draw, changed(Sketched, squared_norm=lambda m: 2 * m.squared_norm)), "did not commit to this"),
    "a data size out of range": (at(Opening, wrong_size), "its data size is"),
    "an update of another length": (at(Opening, another_length), "of an update of another size"),
    "false leaves": (at(Draw, changed(Sketched, leaves=lambda m: m.leaves[::-1])), "leaves do not have the root"),
    "a root without bytes": (at(Fetch, lambda *_: None), "withheld its update"),
    "empty ranges": (at(Fetch, changed(Leaves, data=lambda m: b"")), "withheld its update"),
    "another range": (at(Fetch, changed(Leaves, first=lambda m: 1)), "another range than was asked for"),
    "another's range": (at(Fetch, changed(Leaves, root=lambda m: bytes(32))), "another range than was asked for"),
    "a cut range": (at(Fetch, changed(Leaves, data=lambda m: m.data[:-1])), "not those that it committed to"),
    "more than was asked for": (at(Fetch, changed(Leaves, data=lambda m: m.data + bytes(LEAF))), "bytes are admitted"),
    "an oversized range": (at(Fetch, lambda *_: bytes(2**26)), "at most 1,204,096 bytes are admitted"),
    "an oversized commitment": (at(Opening, lambda *_: bytes(5000)), "at most 4,096 bytes are admitted"),
    "no bytes": (at(Opening, lambda *_: b""), "a Committed of version 1 was wanted"),
    "a malformed message": (at(Opening, lambda c, q, reply: reply[:-1]), "it ends 1 bytes too early"),
    "a message and more": (at(Opening, lambda c, q, reply: reply + b"!"), "it has 1 bytes too many"),
    "a text": (at(Opening, lambda *_: "commit"), "a str where at most"),
    "another version": (at(Opening, lambda c, q, reply: reply[:3] + b"\x02" + reply[4:]), "of version 1 was wanted"),
}
"""What a client sends, and the reason by which it is named."""


@pytest.fixture(scope="module")
def updates():
    return honest()


def outcome(updates, cheats, rule=RULE, audit=1.0, **options):
    exchange = Loopback(updates, cheats)
    opened = bz.Aggregator(rule).committed_round(updates[NAMES[0]], expected=NAMES, audit=audit, **options)
    return opened, exchange, opened.run(exchange)


def same_without(updates, clients, out, rule=RULE):
    """The result of one call without these clients."""
    rest = [name for name in NAMES if name not in clients]
    same = bz.aggregate([updates[name] for name in rest], rule, sketch=bz.Rotated(), seed=out.seed)
    weights = dict(zip(out.clients, out.weights.tolist(), strict=True))
    assert [weights[name] for name in rest] == same.weights.tolist()
    np.testing.assert_array_equal(out.update, same.update)
    assert not any(weights.get(name) for name in clients)


@pytest.mark.parametrize(("cheat", "reason"), CHEATS.values(), ids=CHEATS)
def test_a_client_that_cheats_is_named_and_the_others_are_judged_as_without_it(updates, cheat, reason):
    _, _, out = outcome(updates, {CHEAT: cheat})
    named = {**out.failed, **out.quarantined}
    assert list(named) == [CHEAT]
    assert re.search(reason, named[CHEAT]), named
    same_without(updates, {CHEAT}, out)


SECOND = {
    "no second nonce": (at(Result, lambda *_: None), "sent no second sketch"),
    "another second nonce": (at(Result, changed(Nonce, nonce=lambda m: bytes(32))), "sent no second sketch"),
    "no second sketch": (at(SecondDraw, lambda *_: None), "sent no second sketch"),
    "a false second sketch": (
        at(SecondDraw, changed(SecondSketch, sketch=lambda m: -m.sketch)),
        "second sketch is not of the update",
    ),
}


@pytest.mark.parametrize(("cheat", "reason"), SECOND.values(), ids=SECOND)
def test_a_client_with_weight_that_does_not_show_it_a_second_time_loses_it(updates, cheat, reason):
    _, exchange, out = outcome(updates, {CHEAT: cheat}, bz.GeometricMedian())
    assert re.search(reason, out.quarantined[CHEAT])
    same_without(updates, {CHEAT}, out, bz.GeometricMedian())
    for name in NAMES[:-1]:  # who opened its second nonce for the first result is in the second draw too
        assert exchange.clients[name].head == out.head


def test_two_clients_with_one_root_are_both_out(updates):
    partner = NAMES[0]
    shared = {}

    def first(client, request, reply):
        shared.update(vars(client.commitment))
        return reply

    def second(client, request, reply):
        return reseal(client, **{key: shared[key] for key in ("_salt", "_root", "_leaves", "_pieces", "squared_norm")})

    _, _, out = outcome(updates, {partner: at(Opening, first), CHEAT: at(Opening, second)})
    assert out.quarantined.keys() == {partner, CHEAT}
    assert all("opened the same root" in reason for reason in out.quarantined.values())
    same_without(updates, {partner, CHEAT}, out)


def test_a_copied_seal_can_not_be_opened(updates):
    """The seal holds its client's id, and a copy of it is another client's."""
    seen = {}

    def copied(client, request, reply):
        return with_fields(Committed.decode(reply), seal=seen["seal"], anchor=seen["anchor"]).encoded

    def watched(client, request, reply):
        seen.update(vars(Committed.decode(reply)))
        return reply

    def replayed(client, request, reply):
        return with_fields(Nonce.decode(seen["nonce"]), client=CHEAT).encoded

    def nonce(client, request, reply):
        seen["nonce"] = reply
        return reply

    def sketch(client, request, reply):
        client.commitment.stages[Draw] = request
        return client.commitment._sketched(request.digest, np.zeros(4096)).encoded

    copier = {Opening: copied, Listing: replayed, Draw: sketch}
    owner = {Opening: watched, Listing: nonce}
    cheats = {
        NAMES[0]: lambda c, q, r: owner.get(type(q), lambda *_: r)(c, q, r),
        CHEAT: lambda c, q, r: copier[type(q)](c, q, r),
    }
    _, _, out = outcome(updates, cheats)
    assert "did not commit to this update" in out.failed[CHEAT]
    same_without(updates, {CHEAT}, out)


def test_messages_of_the_last_round_are_of_no_use(updates):
    _, exchange, _ = outcome(updates, {})
    kinds = (Committed, Nonce, Sketched, Leaves, Nonce, SecondSketch)
    old = [reply for name, reply in exchange.replies if name == CHEAT and reply]
    for nth, (kind, request) in enumerate(zip(kinds, (Opening, Listing, Draw, Fetch), strict=False)):
        assert kind.decode(old[nth])
        _, _, out = outcome(updates, {CHEAT: at(request, lambda c, q, r, nth=nth: old[nth])})
        named = {**out.failed, **out.quarantined}
        assert re.search("answers another|another range", named[CHEAT]), named
        same_without(updates, {CHEAT}, out)


def test_ranges_that_come_late_are_asked_for_again_and_resumed(updates):
    """A client that answers every other time delivers; what came is not fetched twice."""
    turns = []

    def flaky(client, request, reply):
        turns.append(request.first)
        if len(turns) % 2:
            return None
        return with_fields(Leaves.decode(reply), data=Leaves.decode(reply).data[:LEAF]).encoded

    _, _, out = outcome(updates, {CHEAT: at(Fetch, flaky)})
    assert not out.quarantined
    assert turns == [0, 0, 1, 1]
    assert out.fetched_bytes == 9 * 4 * P


def test_as_many_withholders_as_the_rule_withstands_gain_nothing_and_more_refuse_the_round(updates):
    gone = at(Fetch, lambda *_: None)
    _, _, out = outcome(updates, dict.fromkeys(NAMES[:2], gone))
    same_without(updates, set(NAMES[:2]), out)
    opened = bz.Aggregator(RULE).committed_round(updates["c0"], expected=NAMES, audit=1)
    with pytest.raises(TooFewClientsError, match=r"3 clients withheld or changed .* more than n_byzantine=2"):
        opened.run(Loopback(updates, dict.fromkeys(NAMES[:3], gone)))
    assert "more than n_byzantine=2" in opened.transcript.closing.problem


def test_clients_that_withhold_one_after_another_are_judged_each_time(updates):
    """Krum: each time that the chosen client does not deliver, another is chosen, f times at most."""

    def gone(client, request, reply):
        return None

    exchange = Loopback(updates, dict.fromkeys(NAMES, at(Fetch, gone)))
    opened = bz.Aggregator(bz.Krum(F)).committed_round(updates["c0"], expected=NAMES, audit=0)
    with pytest.raises(TooFewClientsError, match="3 clients withheld"):
        opened.run(exchange)


def test_a_spent_fetch_budget_refuses_the_round(updates):
    with pytest.raises(TooFewClientsError, match="fetch budget is spent"):
        outcome(updates, {}, fetch_budget=5 * P)


def test_an_attacker_without_weight_is_found_by_the_audit_and_not_without(updates):
    """It sends the negative of its sketch, which Krum gives no weight."""
    cheat = {CHEAT: at(Draw, changed(Sketched, sketch=lambda m: -m.sketch))}
    _, _, out = outcome(updates, cheat, audit=1)
    assert list(out.quarantined) == [CHEAT]
    _, _, out = outcome(updates, cheat, audit=0)
    assert not out.quarantined
    assert dict(zip(out.clients, out.weights, strict=True))[CHEAT] == 0


def test_a_sketch_that_shows_another_norm_is_quarantined_as_in_any_round(updates):
    cheat = {CHEAT: at(Draw, changed(Sketched, sketch=lambda m: m.sketch / 2))}
    for rule in (RULE, bz.CGE(F)):  # CGE takes norms alone
        _, _, out = outcome(updates, cheat, rule, audit=0)
        assert "the projection shows" in out.quarantined[CHEAT]


class Server(Loopback):
    """A server that changes what it asks some clients."""

    def __init__(self, updates, kind, change):
        super().__init__(updates)
        self.kind, self.change = kind, change

    def __call__(self, requests, timeout, most):
        changed = {}
        for name, request in requests.items():
            message = self.kind.decode(request) if request[4] == self.kind.KIND else None
            changed[name] = request if message is None else self.change(message, name).encoded
        return super().__call__(changed, timeout, most)


NOBODY = bytes(32)
SERVERS = {
    "drops a commitment": (Listing, lambda m, _: with_fields(m, rows=m.rows[1:]), "dropped or changed this client's"),
    "swaps a commitment": (
        Listing,
        lambda m, _: with_fields(m, rows=((m.rows[0][0], NOBODY, NOBODY), *m.rows[1:])),
        "dropped or changed this client's",
    ),
    "lists a client twice": (Listing, lambda m, _: with_fields(m, rows=m.rows + m.rows), "dropped or changed"),
    "opens another nonce": (Draw, lambda m, _: with_fields(m, nonce=NOBODY), "opened another nonce"),
    "puts nonces into another order": (Draw, lambda m, _: with_fields(m, rows=m.rows[::-1]), "an order of its choice"),
    "leaves a nonce out": (Draw, lambda m, _: with_fields(m, rows=m.rows[1:]), "left this client's nonce out"),
    "makes a nonce up": (
        Draw,
        lambda m, _: with_fields(m, rows=(*m.rows[:-1], (m.rows[-1][0], NOBODY))),
        "did not commit to",
    ),
    "draws for another list": (Draw, lambda m, _: with_fields(m, after=NOBODY), "Draw is not of this round"),
    "asks for another's update": (Fetch, lambda m, _: with_fields(m, root=NOBODY), "asked for another client's"),
    "opens another second nonce": (Result, lambda m, _: with_fields(m, nonce=NOBODY), "another second nonce"),
    "draws a second seed by a nonce of its choice": (
        SecondDraw,
        lambda m, _: with_fields(m, nonce=NOBODY),
        "opened another nonce",
    ),
    "leaves a second nonce out": (SecondDraw, lambda m, _: with_fields(m, rows=m.rows[1:]), "left this client's nonce"),
    "draws for another result": (SecondDraw, lambda m, _: with_fields(m, after=NOBODY), "is not of this round"),
}


@pytest.mark.parametrize(("kind", "change", "says"), SERVERS.values(), ids=SERVERS)
def test_an_honest_client_does_not_answer_a_server_that(updates, kind, change, says):
    server = Server(updates, kind, change)
    with pytest.raises(ValueError, match=says):
        bz.Aggregator(bz.GeometricMedian()).committed_round(updates["c0"], expected=NAMES).run(server)


def test_a_client_answers_one_list_and_one_seed_in_a_round_and_few_results(updates):
    opened = bz.Aggregator(RULE).committed_round(updates["c0"], expected=NAMES)
    exchange = Loopback(updates)
    opened.run(exchange)
    eve = Loopback(updates).clients["c0"]
    sent = [request for name, request in exchange.requests if name == "c0"]
    with pytest.raises(ValueError, match="before it opened a round"):
        eve.answer(sent[1])
    eve.answer(sent[0])
    own = eve.commitment
    row = ("c0", own.message.seal, own.message.anchor)
    listing = Listing(opened.opening.digest, (row,))
    eve.answer(listing.encoded)
    with pytest.raises(ValueError, match="a second Listing"):
        eve.answer(Listing(opened.opening.digest, (row, ("c1", NOBODY, NOBODY))).encoded)
    with pytest.raises(ValueError, match="before it drew a seed"):
        eve.answer(Fetch(own._root, 0, 1).encoded)
    draw = Draw(listing.digest, opened._nonces[0], (("c0", own._nonces[1]),))
    eve.answer(draw.encoded)
    results = [Result(draw.digest, opened._nonces[1], bytes([n]) * 32, (), ()) for n in range(11)]
    nonces = {Nonce.decode(eve.answer(result.encoded)).nonce for result in results[:-1] for _ in range(2)}
    assert len(nonces) == 10
    with pytest.raises(ValueError, match="more than 10 results"):
        eve.answer(results[-1].encoded)
    with pytest.raises(ValueError, match="a server sends no Committed"):
        eve.answer(own.message.encoded)
    with pytest.raises(ValueError, match="Closing is not of this round"):
        eve.answer(Closing(NOBODY, NOBODY, "").encoded)
    eve.answer(Closing(opened.opening.digest, NOBODY, "").encoded)
    assert eve.commitment is None


def test_a_sketch_that_no_update_of_that_norm_has_is_named(updates):
    """Beside a norm of 0 no ratio says anything, and the squares of such numbers overflow."""
    for norm, number in ((0.0, 1e160), (-0.0, 1e300), (5e-324, 1.0), (0.0, 1e20)):
        cheat = {
            CHEAT: lambda client, request, reply, norm=norm, number=number: (
                reseal(client, squared_norm=norm)
                if isinstance(request, Opening)
                else with_fields(Sketched.decode(reply), sketch=np.full(4096, number)).encoded
                if isinstance(request, Draw)
                else reply
            )
        }
        _, _, out = outcome(updates, cheat, bz.GeometricMedian(), audit=0)
        assert "longer than one of an update" in out.failed[CHEAT]
        same_without(updates, {CHEAT}, out, bz.GeometricMedian())


def test_bytes_that_nobody_asked_for_do_not_spend_the_fetch_budget():
    """The first two that Krum chooses send 4 MiB of garbage in place of 4 KB."""
    small, chosen = honest(1000), []

    def garbage(client, request, reply):
        if not isinstance(request, Fetch) or len(chosen) == F:
            return reply
        chosen.append(client.name)
        return with_fields(Leaves.decode(reply), data=bytes(4 * LEAF)).encoded

    exchange = Loopback(small, dict.fromkeys(NAMES, garbage))
    out = bz.Aggregator(bz.Krum(F)).committed_round(small["c0"], expected=NAMES, audit=0).run(exchange)
    assert out.quarantined.keys() == {*chosen}
    assert out.fetched_bytes == 4000


def test_a_client_that_sends_one_leaf_after_two_late_answers_is_out(updates):
    turns = []

    def slow(client, request, reply):
        turns.append(request.first)
        if len(turns) % 3:
            return None
        return with_fields(Leaves.decode(reply), data=Leaves.decode(reply).data[:LEAF]).encoded

    _, _, out = outcome(updates, {CHEAT: at(Fetch, slow)})
    assert "too slowly: 1 of 2 MiB are there" in out.quarantined[CHEAT]
    same_without(updates, {CHEAT}, out)


def test_requests_that_come_twice_are_answered_alike(updates):
    class Twice(Loopback):
        def __call__(self, requests, timeout, most):
            replies = super().__call__(requests, timeout, most)
            if requests and next(iter(requests.values()))[4] != Closing.KIND:
                assert super().__call__(requests, timeout, most) == replies
            return replies

    opened = bz.Aggregator(bz.GeometricMedian()).committed_round(updates["c0"], expected=NAMES)
    assert not opened.run(Twice(updates)).quarantined


def test_each_result_needs_other_nonces(updates):
    """Nonces that were opened for one result would tell the server the seed of the next one beforehand."""
    opened, exchange, _ = outcome(updates, {CHEAT: at(SecondDraw, lambda *_: None)}, bz.GeometricMedian())
    sent = [Nonce.decode(reply).nonce for name, reply in exchange.replies if name == "c0" and reply[4:5] == b"\4"]
    assert len({*sent}) == 3
    assert [next_nonce(one) for one in sent[1:]] == sent[:-1]
    assert opened.transcript.nonces["c0"] == sent[-1]


def test_two_rounds_of_the_same_updates_have_two_seeds(updates):
    assert len({outcome(updates, {})[2].seed for _ in range(2)}) == 2


def test_a_window_and_strikes_are_what_the_page_says():
    assert (update_bytes.WINDOW, update_bytes.MAX_STRIKES, committed_round.SLACK) == (4, 3, 2.0**-16)
