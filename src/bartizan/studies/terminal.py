"""Tables on a terminal, drawn with rich."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING

from bartizan._util.console import is_ascii

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table


def new_console(command: str, extra: str = "cli") -> Console:
    """Return a rich console on stdout; characters that its encoding lacks are shown as "?"."""
    try:
        from rich.console import Console
    except ModuleNotFoundError as missing:
        raise ModuleNotFoundError(f"bartizan {command} needs rich: pip install 'bartizan[{extra}]'") from missing
    if is_ascii(sys.stdout) and hasattr(sys.stdout, "reconfigure"):
        sys.stdout.reconfigure(errors="replace")
    console = Console(highlight=False)
    if not console.is_terminal:
        console.width = 200
    return console


def spinner_name() -> str:
    """The name of a rich spinner that stdout can show."""
    return "line" if is_ascii(sys.stdout) else "dots"


def new_table(heads: Sequence[str], title: str | None = None, left: Sequence[str] = ()) -> Table:
    """Return an empty table; columns in `left` are aligned to the left, the others to the right."""
    from rich.box import SIMPLE_HEAD
    from rich.table import Table

    table = Table(title=title, box=SIMPLE_HEAD, padding=(0, 1, 0, 0), pad_edge=False)
    for head in heads:
        table.add_column(head, justify="left" if head in left else "right", no_wrap=True)
    return table
