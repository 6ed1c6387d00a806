"""The bytes on loopback sockets of one committed round of honest clients, which are threads here."""

import socket
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np

import bartizan as bz
from studies.options import command
from studies.rows import keep
from studies.tables import table_of

CASES = [(50, p, rule) for p in (1_000_000, 11_200_000) for rule in (bz.Krum(11), bz.GeometricMedian())]


def committed_bytes(*, out: Path | None = None) -> None:
    """Print the table of docs/explanation/committed.md."""
    sys.path.insert(0, str(Path(__file__).parents[2] / "examples"))
    from committed import Sockets, client, receive

    rows = []
    for M, p, rule in CASES:
        with socket.create_server(("127.0.0.1", 0), backlog=M) as server, ThreadPoolExecutor(M) as pool:
            names = [f"client-{m:02}" for m in range(M)]
            for name in names:
                pool.submit(client, name, server.getsockname(), p, None)
            connections = [server.accept()[0] for _ in names]
            exchange = Sockets({receive(one, 200).decode(): one for one in connections})
            options = {"expected": names, "deadline": 600, "audit": 0}
            result = bz.Aggregator(rule).committed_round(np.zeros(p, np.float32), **options).run(exchange)
            for one in connections:
                one.close()
        assert not {**result.failed, **result.quarantined}, result
        moved, plain = exchange.n_bytes, 4 * M * p
        row = {"M": M, "p": p, "rule": f"`{type(rule).__name__}`", "with weight": int((result.weights > 0).sum())}
        rows.append(row | {"MB": f"{moved / 1e6:,.1f}", "of a plain upload": f"{moved / plain:.2%}"})
    print(table_of(rows), flush=True)
    keep(out, rows)


add_to = command(committed_bytes)
