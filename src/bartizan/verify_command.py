"""`bartizan verify`: replay the record of committed rounds, and compare files with it."""

from __future__ import annotations

import argparse
import sys
from typing import Any

from bartizan._util.regular_files import open_regular
from bartizan._util.text import quoted, short, visible
from bartizan.sources.committed.record import RecordError
from bartizan.sources.committed.replay import ReplayedRound, replayed
from bartizan.sources.committed.round_messages import Result
from bartizan.updates.files import open_update

FOUND = 1  # exit status if the record or a file is not what it should be
EPILOG = """exit status: 0 all that was given agrees; 1 the record contradicts itself, the head or a file;
2 a wrong argument, or a file that can't be read"""


def add_to(commands: Any) -> None:
    about = "recompute seeds and weights of committed rounds from their record"
    parser = commands.add_parser("verify", help=about, description=f"{about.capitalize()}.", epilog=EPILOG)
    option = parser.add_argument
    option("record", help="the file that the rounds were recorded in")
    option("--head", metavar="HASH", help="the head that was pinned after a round, 64 hexadecimal digits")
    option("--round", type=int, metavar="N", help="the round that the files are of (default: the last with a result)")
    option("--result", metavar="FILE", help="the result of that round")
    option("--update", action="append", default=[], metavar="CLIENT=FILE", help="the update of a client (repeatable)")
    option("--reference", metavar="FILE", help="the model that updates of that round were measured from")
    parser.set_defaults(run=_run)


def _run(options: argparse.Namespace) -> int:
    updates = [text.partition("=") for text in options.update]
    if wrong := [client for client, _, path in updates if not (client and path)]:
        raise ValueError(f"--update must be CLIENT=FILE, got {quoted(wrong[0])}.")
    chosen: ReplayedRound | None = None
    heads = []
    try:
        with open_regular(options.record) as file:
            for one in replayed(file):
                heads.append(one.head.hex())
                _print(one)
                if not one.problem and options.round in (None, one.number):
                    chosen = one
        if options.head is not None and options.head.lower() not in heads:
            raise RecordError("no round ends with the head that was pinned: this is another record")
        if options.result or updates:
            if chosen is None:
                raise RecordError("it has no such round with a result")
            reference = None if options.reference is None else open_update(options.reference)
            if options.result:
                chosen.check_result(open_update(options.result), reference)
                print(f"{short(options.result)}: the result of round {chosen.number}")
            for client, _, path in updates:
                chosen.check_update(client, open_update(path), reference)
                print(f"{short(path)}: what {visible(client)} committed to in round {chosen.number}")
    except RecordError as wrong_record:
        print(f"bartizan verify: {short(options.record)}: {wrong_record}.", file=sys.stderr)
        return FOUND
    return 0


def _print(one: ReplayedRound) -> None:
    state, result = one.transcript, one.transcript.stages.get(Result)
    weighted = 0 if result is None else sum(weight > 0 for _, weight in result.weights)
    counts = f"{weighted} of {len(state.opening.clients)} clients have weight by {short(state.opening.rule)}"
    print(f"round {one.number}: {f'no result: {short(one.problem)}' if one.problem else counts}")
    if result is not None and (audited := state.audited(result.nonce)):
        print(f"  drawn for an audit: {', '.join(map(visible, audited))}")
    out = {**state.failed(), **(dict(result.quarantined) if result is not None else {}), **state.lost()}
    for client, reason in sorted(out.items()):
        print(f"  {visible(client)} is out: {short(reason)}")
    print(f"  head {one.head.hex()}")
