"""The files that keep what was measured: rows as JSON lines, and single JSON documents."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, TypeVar

from bartizan import __version__
from bartizan._util import jsonl, machine, schema
from bartizan._util.atomic import write_whole

T = TypeVar("T")
RESULTS = Path(__file__).parent / "results"


def read_rows(path: Path, kind: type[T], advice: str) -> list[T]:
    """Return the rows of a file, each a `kind`; lines of earlier versions have no checksum."""
    convert = lambda row: schema.parse(kind, row)  # noqa: E731
    return jsonl.read(path, convert, advice=advice, checksum_required=False, appended=False).rows


def keep(path: Path | None, rows: Iterable[Mapping[str, Any]]) -> None:
    """Write the rows of a table behind a line about their origin, if there is a path for them."""
    if path is not None:
        jsonl.rewrite(path, [{"bartizan": __version__, "machine": machine.name_of("cpu")}, *rows])


def kept(name: str) -> list[dict[str, Any]]:
    """Return the rows of a table in the results, without the line about their origin."""
    advice = "Measure them again: the page of the table names the command."
    return jsonl.read(RESULTS / f"{name}.jsonl", dict, advice=advice, appended=False).rows[1:]


def write_json(path: Path | None, content: Any) -> None:
    """Write a document, if there is a path for it."""
    if path is not None:
        write_whole(path, json.dumps(content, indent=1) + "\n")
