"""The page: a template, its style, its script and its data in one file that asks nobody for anything."""

from __future__ import annotations

import base64
import hashlib
import html
import json
import re
from importlib.resources import files
from typing import Any

from bartizan.lab.report.content import Content, data

SCRIPTS = ("draw.js", "lines.js", "grids.js", "clients.js", "tables.js", "report.js")


def page(made: Content) -> str:
    """The whole page as text."""
    script = "(() => {\n'use strict';\n" + "\n".join(_asset(name) for name in SCRIPTS) + "\n})();\n"
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    lead, *more = made.findings
    parts = {
        # Only this very script may run, and nothing may be fetched, whatever a name in the data says.
        "policy": f"default-src 'none'; style-src 'unsafe-inline'; script-src 'sha256-{digest}'; base-uri 'none'",
        "title": html.escape(made.title),
        "lead": html.escape(lead),
        "more": "".join(f"<p>{html.escape(sentence)}</p>" for sentence in more),
        "style": _asset("report.css"),
        "data": embedded(data(made)),
        "script": script,
    }
    return re.sub(r"\{\{(\w+)\}\}", lambda found: parts[found[1]], _asset("template.html"))


def embedded(value: Any) -> str:
    """JSON that can stand in a script element: nothing in it can end that element.

    >>> embedded("</script>")
    '"\\\\u003c/script\\\\u003e"'
    """
    # ASCII only: line separators that old parsers take for the end of a line are escaped with the rest.
    text = json.dumps(value, ensure_ascii=True, allow_nan=False, separators=(",", ":"))
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


def _asset(name: str) -> str:
    return files("bartizan.lab.report").joinpath("assets", name).read_text(encoding="utf-8")
