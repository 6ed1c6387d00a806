"""Write the report of a folder: the page, PNG pictures and CSV tables."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from bartizan._util.atomic import write_whole
from bartizan._util.extras import missing_extra
from bartizan._util.regular_files import open_regular
from bartizan.lab.report import figures, tables
from bartizan.lab.report.content import Content, content, page
from bartizan.lab.report.load import load
from bartizan.watch.tensorboard_watch import event_modules

MAKER = "bartizan report"
"""Software that the pictures name as their maker."""


@dataclass(frozen=True)
class Written:
    """The files of a report."""

    page: Path
    beside: list[Path]
    """The CSV and PNG files."""
    content: Content
    missing: str
    """The reason why there are no PNG files; empty if there are."""


def write(
    folder: str | Path,
    out: str | Path | None = None,
    *,
    title: str | None = None,
    tensorboard: str | Path | None = None,
) -> Written:
    """Read the runs in a folder and write `report.html` there, or to `out`; each file is complete or not written."""
    target = Path(folder) / "report.html" if out is None else Path(out)
    if target.suffix.lower() not in (".html", ".htm") or target.is_dir():
        raise ValueError(f"--out wants a file that ends in .html, got {str(target)!r}.")
    if tensorboard is not None:
        event_modules("--tensorboard")  # fail before anything is read or written
    made = content(load(Path(folder)), title)
    beside: dict[str, str | bytes] = {
        "runs.csv": tables.runs(made.runs, made.factors),
        "rounds.csv": tables.rounds(made.runs),
    }
    missing = ""
    try:
        beside |= figures.pictures(made, MAKER)
    except ModuleNotFoundError as absent:
        if absent.name is None or absent.name.split(".")[0] != "matplotlib":
            raise
        missing = str(missing_extra("no PNG files, which need matplotlib", "plot"))
    write_whole(target, page(made))
    for name, whole in beside.items():
        write_whole(target.parent / name, whole)
    for name in set(figures.PICTURES) - set(beside):
        _remove_old(target.parent / name)
    if tensorboard is not None:
        tables.write_events(made.runs, Path(tensorboard))
    return Written(target, [target.parent / name for name in beside], made, missing)


def _remove_old(picture: Path) -> None:
    """Remove a picture that an earlier report drew; a file of the same name that it did not write stays."""
    try:
        with open_regular(picture) as file:
            ours = b"Software\0" + MAKER.encode() in file.read(256)
    except OSError:
        return
    if ours:
        picture.unlink()
