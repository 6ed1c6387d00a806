"""Rules and sketches by their repr, as openings name them; only the package's own are made from a text."""

from __future__ import annotations

import ast
from dataclasses import is_dataclass
from typing import Any

from bartizan import measure, rules
from bartizan._util.text import quoted
from bartizan.measure import Projection
from bartizan.rules import coordinatewise, preaggregators
from bartizan.rules.base import Rule
from bartizan.sources.committed.round_messages import MAX_DIMENSIONS

MODULES = measure, rules, coordinatewise, preaggregators
KINDS_OF_PARTS: dict[str, Any] = {
    name: kind for module in MODULES for name, kind in vars(module).items() if is_dataclass(kind)
}


def rule_from(text: str) -> Rule:
    """Return the rule with this repr; ValueError if it is none of the package's own.

    >>> rule_from("ARC(n_byzantine=2) >> CAF(n_byzantine=2)")
    ARC(n_byzantine=2) >> CAF(n_byzantine=2)
    """
    return _built(text, Rule)


def projection_from(text: str) -> Projection:
    """Return the projection with this repr; ValueError if it is none of the package's own, or too large."""
    sketch = _built(text, Projection)
    if sketch.k > MAX_DIMENSIONS:
        raise ValueError(f"wanted a projection to at most {MAX_DIMENSIONS:,} dimensions, got {quoted(text)}")
    return sketch


def _built(text: str, wanted: type[Any]) -> Any:
    def part(node: ast.expr) -> Any:
        if isinstance(node, ast.BinOp) and isinstance(node.op, ast.RShift):
            return part(node.left) >> part(node.right)
        if not (isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and not node.args):
            raise TypeError("wanted names with settings")
        return KINDS_OF_PARTS[node.func.id](**{str(one.arg): ast.literal_eval(one.value) for one in node.keywords})

    try:
        found = part(ast.parse(text, mode="eval").body)
    except (ValueError, TypeError, SyntaxError, KeyError, ArithmeticError, RecursionError, MemoryError):
        found = None
    if not isinstance(found, wanted) or repr(found) != text:
        raise ValueError(f"wanted a {wanted.__name__.lower()} of bartizan's own by its repr, got {quoted(text)}")
    return found
