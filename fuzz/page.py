"""Write the figures of a campaign (benchmarks/results/hostile.json) into docs/reliability.md.

    python -m fuzz.page            # write them
    python -m fuzz.page --check    # exit with 1 if the page has other figures

Text between `<!-- made: NAME -->` and `<!-- end -->` is generated; the text around it is written by hand.
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


def table(report: dict[str, Any]) -> str:
    """Return a Markdown table with a row for each surface."""
    lines = [f"| surface | {' | '.join(COUNTS)} | slowest | memory |", "|---" * (len(COUNTS) + 3) + "|"]
    for name, one in report["surfaces"].items():
        counts = [f"{one.get(key, 0):,}" for key in COUNTS]
        ends = [f"{one['slowest_seconds']:.2g} s", f"{one['largest_peak_bytes'] / 2**20:.1f} MiB"]
        lines.append(f"| {' | '.join([name, *counts, *ends])} |")
    return "\n".join(lines)


def summary(report: dict[str, Any]) -> str:
    """Return the run in two sentences."""
    compared = sum(one.get("compared", 0) for one in report["surfaces"].values())
    versions = ", ".join(f"{name} {one}" for name, one in report["versions"].items() if one)
    return (
        f"Seed {report['seed']}, {report['processes']} processes at a time, {report['seconds'] / 60:.0f} minutes: "
        f"{report['cases']:,} cases, {compared:,} answers compared, {report['crashes']:,} crashes, "
        f"{report['wrong']:,} wrong results. On {report['machine']}, with {versions}."
    )


def filled(text: str, report: dict[str, Any]) -> str:
    """Return the page with the figures inserted."""
    parts = {"campaign": textwrap.fill(summary(report), 125, break_on_hyphens=False) + "\n\n" + table(report)}
    return MADE.sub(lambda place: f"{place[1]}{parts[place[2]]}\n{place[3]}", text)


def main() -> int:
    text = PAGE.read_text(encoding="utf-8")
    wanted = filled(text, json.loads(RESULTS.read_text(encoding="utf-8")))
    if "--check" not in sys.argv[1:]:
        write_whole(PAGE, wanted)
    elif text != wanted:
        print(f"{PAGE.name} has other figures than {RESULTS.name}: run python -m fuzz.page")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
