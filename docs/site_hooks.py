"""Hooks of mkdocs and mkdocstrings: formulas are drawn as SVG, so that no script is fetched, and examples are code."""

from __future__ import annotations

import html
import io
import re
from functools import cache
from typing import Any

from griffe import Extension, Object

BLOCK = re.compile(r"^\$\$\s*(.+?)\s*\$\$$", re.DOTALL | re.MULTILINE)
DOCSTRING_BLOCK = re.compile(r"<p>\.\. math::\s*(.+?)</p>", re.DOTALL)
DOCSTRING_INLINE = re.compile(r":math:<code>(.+?)</code>", re.DOTALL)
EXAMPLE = re.compile(r"^>>> .*?(?=^\s*$|\Z)", re.DOTALL | re.MULTILINE)
DIRECTIVE = re.compile(r"^::: bartizan\.\S+$", re.MULTILINE)
FAMILIES = ("reference/rules/", "reference/pre-aggregators/", "reference/sketches/", "reference/attacks/")
UNDER_A_HEADING = "\n    options: {heading_level: 3, show_root_toc_entry: false}"
SIZE = 13.0
# What matplotlib's subset of TeX writes otherwise, as patterns.
SPELLINGS = {
    r"\\tfrac": r"\\frac",
    r"\\text\b": r"\\mathrm",
    r"\\\|": r"\\Vert ",
    r"\\top\b": "T",
    r"\\[bB]ig+": "",
    r"\\sqrt (\w)": r"\\sqrt{\1}",
    r"\\frac(\w)(\w)": r"\\frac{\1}{\2}",
}


@cache
def drawn(tex: str) -> str:
    """A formula as inline SVG in the colour of the text around."""
    from matplotlib import rc_context
    from matplotlib.figure import Figure
    from matplotlib.font_manager import FontProperties
    from matplotlib.mathtext import MathTextParser

    spelt = " ".join(html.unescape(tex).split())
    for theirs, ours in SPELLINGS.items():
        spelt = re.sub(theirs, ours, spelt)
    shown = f"${spelt}$"
    try:
        width, height, depth, *_ = MathTextParser("path").parse(shown, dpi=72, prop=FontProperties(size=SIZE))
    except ValueError:  # not in matplotlib's subset: as it is written
        return f"<code>{tex}</code>"
    figure = Figure(figsize=((width + 2) / 72, (height + depth + 2) / 72))
    figure.text(1 / (width + 2), (depth + 1) / (height + depth + 2), shown, size=SIZE, color="#123456")
    out = io.StringIO()
    with rc_context({"svg.fonttype": "path", "svg.hashsalt": "formula"}):
        figure.savefig(out, format="svg", transparent=True, metadata={"Date": None, "Creator": None})
    svg = re.sub(r"^.*?(?=<svg)", "", out.getvalue(), flags=re.DOTALL)
    svg = re.sub(r"<metadata>.*?</metadata>|<defs>\s*<style.*?</defs>", "", svg, flags=re.DOTALL)
    label = f'<svg class="formula" role="img" aria-label="{html.escape(tex)}" '
    svg = svg.replace("#123456", "currentColor").replace("<svg ", label, 1)
    return re.sub(r"\s*\n\s*", " ", svg)


def on_page_markdown(markdown: str, *, page: Any, **_: Any) -> str:
    """Replace `$$ ... $$` paragraphs of a page, and put docstrings of rules and attacks under their own headings."""
    if page.file.src_uri.startswith(FAMILIES):
        markdown = DIRECTIVE.sub(lambda found: found[0] + UNDER_A_HEADING, markdown)
    return BLOCK.sub(lambda found: f'<div class="formula">{drawn(found[1])}</div>', markdown)


def on_page_content(content: str, **_: Any) -> str:
    """Replace the formulas of docstrings, in which mkdocstrings leaves Sphinx's roles as they are."""
    content = DOCSTRING_BLOCK.sub(lambda found: f'<div class="formula">{drawn(found[1])}</div>', content)
    return DOCSTRING_INLINE.sub(lambda found: drawn(found[1]), content)


class Examples(Extension):
    """Fences the examples of docstrings, which Markdown would take for quotations."""

    def on_object(self, *, obj: Object, **_: Any) -> None:
        if obj.docstring:
            obj.docstring.value = EXAMPLE.sub(lambda found: f"```pycon\n{found[0].rstrip()}\n```", obj.docstring.value)
