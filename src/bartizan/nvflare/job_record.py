"""Write the decisions of all rounds and the sites' reputation into the job's results on the server."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from bartizan import records
from bartizan._util.atomic import write_whole
from bartizan._util.jsonl import CorruptFileError
from bartizan._util.regular_files import read_regular
from bartizan._util.text import short
from bartizan.judge.reputation import Reputation

NAME = "bartizan.json"


def write_record(folder: Path, settings: dict[str, Any], rounds: list[dict[str, Any]], reputation: Reputation) -> None:
    """Write the record of a job into a folder, all or nothing."""
    suspects = {suspect.node: suspect.record for suspect in reputation.suspects()}
    record = {**settings, "suspects": suspects, "reputation": reputation.as_dict(), "rounds": rounds}
    write_whole(folder / NAME, json.dumps(record, indent=1))


def write_lines(folder: Path, lines: list[dict[str, Any]]) -> None:
    """Write the lines of a job as a results.jsonl for `bartizan report`; the first names all sites that took part."""
    first, *others = lines
    sites = dict.fromkeys(site for line in others for site in (*line.get("clients", ()), *line.get("failed", ())))
    write_whole(folder / records.NAME, b"".join(map(records.encode, [{**first, "clients": [*sites]}, *others])))


def load_reputation(folder: str | Path) -> Reputation:
    """Return the sites' reputation after a job, from its result folder (such as `run.get_result()`)."""
    found = sorted(Path(folder).rglob(NAME))
    if len(found) != 1:
        raise FileNotFoundError(f"{folder} should hold one {NAME}, the record of a job; it holds {len(found)}.")
    try:
        return Reputation.from_dict(json.loads(read_regular(found[0]))["reputation"], node=str)
    except (ValueError, LookupError, TypeError, AttributeError, RecursionError) as wrong:
        raise CorruptFileError(
            f"{found[0]} is not the record of a job ({type(wrong).__name__}: {short(wrong)})."
        ) from None
