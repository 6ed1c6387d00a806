"""The files that keep what was measured: rows as JSON lines, and single JSON documents."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, TypeVar

from bartizan._util import jsonl, schema
from bartizan._util.atomic import write_whole

T = TypeVar("T")
RESULTS = Path(__file__).parent / "results"


def read_rows(path: Path, kind: type[T], advice: str) -> list[T]:
    """Return the rows of a file, each a `kind`; lines of earlier versions have no checksum."""
    convert = lambda row: schema.parse(kind, row)  # noqa: E731
    return jsonl.read(path, convert, advice=advice, checksum_required=False, appended=False).rows


def write_json(path: Path | None, content: Any) -> None:
    """Write a document, if there is a path for it."""
    if path is not None:
        write_whole(path, json.dumps(content, indent=1) + "\n")
