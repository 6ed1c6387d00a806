"""The figures of a campaign as Markdown, which `python -m studies pages` writes into its page."""

COUNTS = ("cases", "compared", "crashes", "wrong")
GROUPS = {
    "calls and rounds": {"aggregate", "round", "sizes", "weightless", "blind-spots", "server-faults"},
    "adapters": {"adapters", "weightless-adapters"},
    "files of updates, object stores": {"update-files", "shards", "stores", "file-kinds"},
    "data sets, weights and checkpoints": {"cifar", "mnist", "sotu", "tiny-imagenet", "checkpoints", "first-weights"},
    "experiment and run files": {"configs", "results"},
    "Flower, NVFlare": {"flower", "flower-checkpoints", "nvflare"},
}


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
    """Return the run in two sentences, and a table of groups of surfaces."""
    lines = ["| surfaces | cases | compared | crashes | wrong | slowest case |", "|---|--:|--:|--:|--:|--:|"]
    others = report["surfaces"].keys() - set().union(*GROUPS.values())
    for title, names in (GROUPS | {"others": others}).items():
        group = [one for name, one in report["surfaces"].items() if name in names]
        if not group:
            continue
        counts = [f"{sum(one.get(key, 0) for one in group):,}" for key in COUNTS]
        lines.append(f"| {title} | {' | '.join(counts)} | {max(one['slowest_seconds'] for one in group):.2g} s |")
    return "\n".join([summary(report), "", *lines])
