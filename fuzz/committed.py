"""Surface: messages and records of committed rounds, as hostile clients, servers and strangers write them."""

import io

import numpy as np
from hypothesis import strategies as st

import bartizan as bz
from bartizan.client import Client
from bartizan.sources.committed.record import RecordError
from bartizan.sources.committed.replay import replayed
from bartizan.sources.committed.round_messages import decoded
from bartizan.sources.committed.wire import Message, WireError
from fuzz.surfaces import ACCEPTED, COMPARED, RefusedError, documented, fair, require, surface_of_calls
from fuzz.values import edited, files

KINDS, RULE, SKETCH, P = Message.KINDS, bz.MultiKrum(1), bz.Rotated(k=64), 200
SENT = dict(zip("abcdefg", np.random.default_rng(0).normal(1, 1, (7, P)).astype(np.float32), strict=True))
PUT = st.one_of(
    st.binary(min_size=1, max_size=9), st.sampled_from([b"", b"\xff" * 8, bytes(8), np.float64("nan").tobytes()])
)
EDITS = st.lists(st.tuples(st.integers(0, 5000), st.sampled_from([None, None, 0, 4, 32, 5000]), PUT), max_size=3)


def apply(data, edits):
    for at, length, put in edits:
        at %= len(data) + 1
        data = data[:at] + put + data[at + (len(put) if length is None else length) :]
    return data


def round_with(cheat):
    """Run a round in which `cheat` changes the replies of the last client; return its record and result too."""
    clients = {name: Client(name, lambda opening, name=name: (SENT[name], 1.0)) for name in SENT}
    opened = bz.Aggregator(RULE, SKETCH).committed_round(SENT["a"], expected=list(SENT), audit=1)
    requests = []

    def exchange(asked, seconds, most):
        requests.extend(request for name, request in asked.items() if name == "g")
        replies = {}
        for name, request in asked.items():
            try:
                replies[name] = clients[name].answer(request)
            except ValueError:
                require(name == "g", "an honest client refused an honest server")
        return replies | ({"g": cheat(len(requests), replies["g"])} if "g" in replies else {})

    return opened, opened.run(exchange), requests


def reply(step, edits):
    """A client that sends other bytes is named, or its bytes were those of an honest one; the others are judged."""
    opened, out, _ = round_with(lambda number, honest: apply(honest, edits) if number == step else honest)
    named = {**out.failed, **out.quarantined}
    require(named.keys() <= {"g"}, "an honest client was put out")
    require(all(map(fair, named.values())), "a reason is not fair")
    rest = [name for name in SENT if name not in named]
    same = bz.aggregate([SENT[name] for name in rest], RULE, sketch=SKETCH, seed=out.seed)
    require(np.array_equal(out.update, same.update), "the result is not that of the others")
    list(replayed(io.BytesIO(opened.record.read())))[-1].check_result(out.update)
    return COMPARED


OPENED, _, REQUESTS = round_with(lambda number, honest: honest)
RECORD = OPENED.record.read()


def request(number, data):
    """A client answers what an honest server sends, or says what is wrong."""
    client = Client("g", lambda opening: (SENT["g"], 1.0))
    if number:
        client.answer(REQUESTS[0])
    with documented(ValueError, sound=not number and data == REQUESTS[0]):
        client.answer(data)
    return ACCEPTED


def message(kind, data):
    """A message that decodes encodes to the same bytes."""
    with documented(WireError):
        found = KINDS[kind].decode(data)
        require(found.encoded == data, "two encodings are one message")
        require(type(decoded(data)) is KINDS[kind], "another kind was decoded")
    return COMPARED


def record(data):
    """A record that is not what was chained is named."""
    try:
        rounds = list(replayed(io.BytesIO(data)))
    except RecordError as wrong:
        require(10 < len(str(wrong)) < 1000, "a reason is not fair")
        raise RefusedError from wrong
    require(data == RECORD or not rounds, "a changed record was accepted")
    return ACCEPTED


def surface(folder):
    each = st.integers(0, len(REQUESTS) - 1)
    calls = st.one_of(
        st.builds(lambda *args: lambda: reply(*args), st.integers(1, len(REQUESTS)), EDITS),
        each.flatmap(lambda n: st.builds(lambda data: lambda: request(n, data), files(REQUESTS[n]))),
        st.builds(lambda data: lambda: record(data), st.one_of(edited(RECORD), st.just(RECORD))),
        st.builds(
            lambda data, kind: lambda: message(kind if len(data) < 5 else data[4] if data[4] in KINDS else kind, data),
            files(*REQUESTS),
            st.sampled_from(sorted(KINDS)),
        ),
    )
    return surface_of_calls(calls)
