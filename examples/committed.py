"""A committed round of nine processes on loopback sockets: a server and eight clients, of whom some cheat.

    python examples/committed.py                     # two clients cheat, and then the server
    python examples/committed.py --clients 50 --dim 11_200_000 --rule krum --honest

Each client is a process with an update of its own. Round 1 is honest; in round 2 the last two clients cheat: one sends
other bytes than it committed to, one the sketch of another update; in round 3 the server adds a vector to the result
that the first sketch does not show. Every client then verifies the record and the result, as anybody can.
"""

import argparse
import io
import socket
import struct
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from multiprocessing import get_context

import numpy as np

import bartizan as bz
from bartizan.attacks.nullspace import hidden_part
from bartizan.client import Client
from bartizan.sources.committed import committed_round
from bartizan.sources.committed.record import Record, RecordError
from bartizan.sources.committed.replay import replayed

MOST_REQUEST = 2**26


def send(connection, data):
    connection.sendall(struct.pack("<I", len(data)) + data)


def receive(connection, most):
    """Return a message of at most so many bytes; OSError if it is longer, or the connection is closed."""
    (size,) = struct.unpack("<I", exactly(connection, 4))
    if size > most:
        raise OSError(f"a message of {size:,} bytes where at most {most:,} are admitted")
    return exactly(connection, size)


def exactly(connection, size):
    data = bytearray(size)
    view, got = memoryview(data), 0
    while got < size:
        count = connection.recv_into(view[got:], min(size - got, 2**20))
        if not count:
            raise OSError("the connection was closed")
        got += count
    return bytes(data)


def update_of(name, number, dim):
    """What a client has trained, here from a seed."""
    seed = int.from_bytes(f"{name}{number}".encode(), "little")
    return np.random.Generator(np.random.SFC64(seed)).standard_normal(dim, dtype=np.float32) + 1


def client(name, address, dim, cheat):
    """Answer the server until it hangs up; then verify what it did."""
    own = Client(name, lambda opening: (update_of(name, opening.round, dim), 1.0))
    kinds = {"bytes": 8, "sketch": 6}  # of the messages that are changed in round 2
    with suppress(OSError), socket.create_connection(address) as connection:  # the server may hang up
        send(connection, name.encode())
        while request := receive(connection, MOST_REQUEST):
            reply = own.answer(request)
            opened = own.commitment is not None and own.commitment.stages
            number = next(iter(opened.values())).round if opened else 0
            if cheat and number == 2 and reply[4] == kinds[cheat]:
                reply = reply[:-8] + np.float64(0.5).tobytes()
            send(connection, reply)
        # The server sends the record and its result; anybody can do what follows with `bartizan verify`.
        record, result = receive(connection, 2**32 - 1), receive(connection, 2**32 - 1)
        try:
            *_, last = replayed(io.BytesIO(record))
            assert last.head == own.head, "the server closed the round with another head"
            last.check_result(np.frombuffer(result, np.float32))
            last.check_update(name, update_of(name, last.number, dim))
            verdict = "the result is what was committed to"
        except RecordError as wrong:
            verdict = str(wrong)
        send(connection, verdict.encode())


class Sockets:
    """The exchange of a server with one connection to each client; counts the bytes of both directions."""

    def __init__(self, connections):
        self.connections, self.n_bytes = connections, 0
        self.pool = ThreadPoolExecutor(min(16, len(connections)))

    def __call__(self, requests, timeout, most):
        deadline = time.monotonic() + timeout

        def asked(item):
            name, request = item
            try:
                connection = self.connections[name]
                connection.settimeout(max(deadline - time.monotonic(), 1e-3))
                send(connection, request)
                reply = receive(connection, most)
            except OSError:  # too slow, too long or gone: what comes later would answer another request
                self.connections[name].close()
                return name, None, 0
            return name, reply, len(request) + len(reply) + 8

        answered = list(self.pool.map(asked, requests.items()))
        self.n_bytes += sum(count for _, _, count in answered)
        return {name: reply for name, reply, _ in answered if reply is not None}


def add_hidden_vector(aggregator, opened):
    """The server's attack: a vector from the null space of the first seed, which it knows by then."""

    def combine(updates, weights):
        result = honest(updates, weights)
        sketch, seed = committed_round.SECOND, opened.transcript.seed
        return result + hidden_part(np.ones(len(result)), sketch, [seed]).astype(np.float32)

    honest = committed_round.combine
    committed_round.combine = combine
    return honest


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--clients", type=int, default=8)
    parser.add_argument("--dim", type=int, default=100_000)
    parser.add_argument("--rule", default="multi-krum", help="krum, multi-krum or geometric-median")
    parser.add_argument("--honest", action="store_true", help="one round, in which nobody cheats")
    parser.add_argument("--spill", help="a folder for the updates that are fetched")
    options = parser.parse_args()
    M, names = options.clients, [f"client-{m:02}" for m in range(options.clients)]
    f = max(1, M // 4 - 1) if options.honest else 2
    rule = bz.GeometricMedian() if options.rule.startswith("geo") else bz.rule(options.rule, n_byzantine=f)
    aggregator = bz.Aggregator(rule)
    processes, server = [], socket.create_server(("127.0.0.1", 0), backlog=M)
    for m, name in enumerate(names):
        cheat = {M - 1: "bytes", M - 2: "sketch"}.get(m)
        arguments = (name, server.getsockname(), options.dim, None if options.honest else cheat)
        processes.append(get_context("spawn").Process(target=client, args=arguments))
        processes[-1].start()
    connections = {}
    for _ in names:
        connection, _ = server.accept()
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        connections[receive(connection, 200).decode()] = connection
    exchange, record, like = Sockets(connections), Record(), np.zeros(options.dim, np.float32)
    for number in (1,) if options.honest else (1, 2, 3):
        before, begun = exchange.n_bytes, time.perf_counter()
        audit = 0 if options.honest else 1
        opened = aggregator.committed_round(
            like, expected=names, deadline=120, audit=audit, record=record, spill=options.spill
        )
        honest = add_hidden_vector(aggregator, opened) if number == 3 else committed_round.combine
        out = opened.run(exchange)
        committed_round.combine = honest
        moved, plain = exchange.n_bytes - before, 4 * options.dim * M
        share = f"{moved / 1e6:,.1f} MB, {moved / plain:.4f} of a plain upload"
        print(f"round {number}: {out}, {share}, {time.perf_counter() - begun:.2f} s")
        for name, reason in {**out.failed, **out.quarantined}.items():
            print(f"  {name} is out: {reason}")
    if not options.honest or M * options.dim < 10**8:
        verdicts = set()
        for connection in connections.values():
            connection.settimeout(120)
            for data in (b"", record.read(), out.update.tobytes()):
                send(connection, data)
            verdicts.add(receive(connection, 10_000).decode())
        print("\n".join(f"clients found: {verdict}" for verdict in sorted(verdicts)))
    for connection in connections.values():
        connection.close()
    for process in processes:
        process.join(10)
        process.kill()


if __name__ == "__main__":
    main()
