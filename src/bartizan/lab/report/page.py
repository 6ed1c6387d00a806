"""The HTML page: template, style, script and data in one text."""

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
    """Return the page: template, style, script and data in one text that needs no other file."""
    script = "(() => {\n'use strict';\n" + "\n".join(asset(name) for name in SCRIPTS) + "\n})();\n"
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    lead, *more = made.findings
    parts = {
        # Only this script may run and nothing may be fetched, whatever a name in the data contains.
        "policy": f"default-src 'none'; style-src 'unsafe-inline'; script-src 'sha256-{digest}'; base-uri 'none'",
        "title": html.escape(made.title),
        "lead": html.escape(lead),
        "more": "".join(f"<p>{html.escape(sentence)}</p>" for sentence in more),
        "style": asset("report.css"),
        "data": embedded(data(made)),
        "script": script,
    }
    return re.sub(r"\{\{(\w+)\}\}", lambda found: parts[found[1]], asset("template.html"))


def embedded(value: Any) -> str:
    """Return JSON for a script element, in which no character can end that element.

    >>> embedded("</script>")
    '"\\\\u003c/script\\\\u003e"'
    """
    # ASCII only: this also escapes line separators that old parsers take for the end of a line.
    text = json.dumps(value, ensure_ascii=True, allow_nan=False, separators=(",", ":"))
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


def asset(name: str) -> str:
    return files("bartizan.lab.report").joinpath("assets", name).read_text(encoding="utf-8")
