"""The figures of docs/reliability.md, from what `python -m fuzz --out benchmarks/results/hostile.json` wrote.

    python -m fuzz.page            # write what is made of them
    python -m fuzz.page --check    # 1 if the page says something else

What stands between `<!-- made: NAME -->` and `<!-- end -->` is made; the text around is written by hand.
"""

from __future__ import annotations

import json
import re
import sys
import textwrap
from pathlib import Path
from typing import Any

from bartizan._util.atomic import write_whole

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs" / "reliability.md"
RESULTS = ROOT / "benchmarks" / "results" / "hostile.json"
MADE = re.compile(r"(<!-- made: (\w+) -->\n).*?(<!-- end -->)", re.DOTALL)
COUNTS = ("cases", "by coverage", "accepted", "compared", "refused", "crashes", "wrong")


def table(told: dict[str, Any]) -> str:
    """One line a surface."""
    lines = [f"| surface | {' | '.join(COUNTS)} | slowest | memory |", "|---" * (len(COUNTS) + 3) + "|"]
    for name, one in told["surfaces"].items():
        counts = [f"{one.get(key, 0):,}" for key in COUNTS]
        ends = [f"{one['slowest_seconds']:.2g} s", f"{one['largest_peak_bytes'] / 2**20:.1f} MiB"]
        lines.append(f"| {' | '.join([name, *counts, *ends])} |")
    return "\n".join(lines)


def summary(told: dict[str, Any]) -> str:
    """The run in two sentences."""
    compared = sum(one.get("compared", 0) for one in told["surfaces"].values())
    versions = ", ".join(f"{name} {one}" for name, one in told["versions"].items() if one)
    return (
        f"Seed {told['seed']}, {told['processes']} processes at a time, {told['seconds'] / 60:.0f} minutes: "
        f"{told['cases']:,} cases, {compared:,} answers compared, {told['crashes']:,} crashes, "
        f"{told['wrong']:,} wrong results. On {told['machine']}, with {versions}."
    )


def made(text: str, told: dict[str, Any]) -> str:
    """A page with its places filled."""
    parts = {"campaign": textwrap.fill(summary(told), 125, break_on_hyphens=False) + "\n\n" + table(told)}
    return MADE.sub(lambda place: f"{place[1]}{parts[place[2]]}\n{place[3]}", text)


def main() -> int:
    has = PAGE.read_text(encoding="utf-8")
    wanted = made(has, json.loads(RESULTS.read_text(encoding="utf-8")))
    if "--check" not in sys.argv[1:]:
        write_whole(PAGE, wanted)
    elif has != wanted:
        print(f"{PAGE.name} is not what {RESULTS.name} makes of it: run python -m fuzz.page")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
