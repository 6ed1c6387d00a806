"""The figures of a campaign as Markdown, which `python -m studies pages` writes into its page."""

COUNTS = ("cases", "by coverage", "accepted", "compared", "refused", "crashes", "wrong")


def summary(report):
    """Return the run in two sentences."""
    compared = sum(one.get("compared", 0) for one in report["surfaces"].values())
    versions = ", ".join(f"{name} {one}" for name, one in report["versions"].items() if one)
    return (
        f"Seed {report['seed']}, {report['processes']} processes at a time, {report['seconds'] / 60:.0f} minutes: "
        f"{report['cases']:,} cases, {compared:,} answers compared, {report['crashes']:,} crashes, "
        f"{report['wrong']:,} wrong results. On {report['machine']}, with {versions}."
    )


def section(report):
    """Return a table with a row for each surface."""
    lines = [f"| surface | {' | '.join(COUNTS)} | slowest | memory |", "|---" * (len(COUNTS) + 3) + "|"]
    for name, one in report["surfaces"].items():
        counts = [f"{one.get(key, 0):,}" for key in COUNTS]
        ends = [f"{one['slowest_seconds']:.2g} s", f"{one['largest_peak_bytes'] / 2**20:.1f} MiB"]
        lines.append(f"| {' | '.join([name, *counts, *ends])} |")
    return "\n".join(lines)
