"""The commands `bartizan init`, `bartizan run` and `bartizan sweep`."""

from __future__ import annotations

import argparse
import shlex
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from bartizan._util.arguments import number
from bartizan._util.text import short
from bartizan.lab.metrics import metric_of

FILE = Path("experiment.toml")


def add_to(commands: Any) -> None:
    init = commands.add_parser("init", help="write a commented experiment.toml")
    init.add_argument("file", nargs="?", type=Path, default=FILE, metavar="FILE", help=f"default {FILE}")
    init.add_argument("--force", action="store_true", help="write over a file that is there")
    init.set_defaults(run=_init)

    run = commands.add_parser("run", help="train a model under attack, as an experiment.toml says")
    _add_shared_options(
        run,
        "where the results go (default runs/NAME/ and a folder that names the experiment)",
        "go on with an unfinished run from its last checkpoint",
    )
    watches = ("mlflow", "tensorboard", "wandb")
    run.add_argument("--watch", choices=watches, help="also send each round there (tensorboard: into the run's folder)")
    run.set_defaults(run=_run)

    sweep = commands.add_parser("sweep", help="run all experiments of an experiment.toml's [grid]")
    _add_shared_options(
        sweep,
        "where the folders of the runs go (default runs/NAME)",
        "go on with unfinished runs, which it does anyway",
    )
    sweep.add_argument(
        "--workers", type=number, metavar="N", help="runs at a time (default: one per core, or one on a GPU)"
    )
    sweep.set_defaults(run=_sweep)


def _add_shared_options(parser: argparse.ArgumentParser, out: str, resume: str) -> None:
    parser.add_argument(
        "file", nargs="?", type=Path, metavar="FILE", help="the experiment's TOML; without it, all defaults"
    )
    parser.add_argument(
        "--set", action="append", default=[], metavar="KEY=VALUE", help="change a key, such as rule.name=krum"
    )
    parser.add_argument("--data", type=Path, metavar="DIR", help="where the data's files are: data.folder")
    parser.add_argument("--out", type=Path, metavar="DIR", help=out)
    parser.add_argument("--device", choices=("auto", "cpu", "cuda"), help="where to train (default: as the file says)")
    either = parser.add_mutually_exclusive_group()
    either.add_argument("--resume", action="store_true", help=resume)
    either.add_argument("--fresh", action="store_true", help="replace what is there, finished or not")


def _init(options: argparse.Namespace) -> None:
    from bartizan._util.atomic import write_whole
    from bartizan.lab.config.template import commented

    if options.file.exists() and not options.force:
        raise FileExistsError(f"{options.file} is there already. Pass --force to write over it, or give another name.")
    write_whole(options.file, commented())
    print(f"Wrote {options.file}. Edit it, then: bartizan run {shlex.quote(str(options.file))}")


def _experiment(options: argparse.Namespace, *, grid: bool) -> Any:
    from bartizan.lab.config.experiment import Experiment

    experiment = Experiment.from_toml(options.file) if options.file else Experiment()
    if experiment.grid and not grid:
        print("Its [grid] is for `bartizan sweep`; this runs the experiment without it.")
        experiment = experiment.without_grid()
    settings = dict[str, Any]()
    if options.data:
        settings["data.folder"] = str(options.data)
    if options.device:
        settings["device"] = options.device
    return experiment.with_settings(options.set).changed(settings)


def _run(options: argparse.Namespace) -> None:
    from bartizan.lab.runs.folder import recorded
    from bartizan.lab.runs.progress_display import Display
    from bartizan.lab.runs.run import run
    from bartizan.watch.base import watcher

    experiment = _experiment(options, grid=False).without_grid()
    folder = options.out or Path("runs") / experiment.name / experiment.slug
    done = None if options.fresh else recorded(folder, experiment)
    if done is not None and done.end is not None:
        print("This run was finished before; --fresh would run it again.")
    else:
        if done is not None and options.resume:
            print(f"Going on with the run in {folder}.")
        name = folder.name
        where = {"folder": folder / "tensorboard"} if options.watch == "tensorboard" else {}
        tracked = watcher(options.watch, **where) if options.watch else lambda line: None
        with Display({name: experiment.rounds}) as progress:

            def watch(line: Mapping[str, Any]) -> None:
                progress.update(name, line)
                tracked(line)

            try:
                done = run(experiment, folder, resume=options.resume, fresh=options.fresh, watch=watch)
            except KeyboardInterrupt:
                if name in progress.runs:
                    how = "the same command with --resume, and without --fresh, goes on"
                    progress.print(f"Stopped after round {progress.runs[name].round}; {how}.")
                raise
    end, metric = done.end or {}, metric_of(done.run)
    best = f"no {metric.name} was measured"
    if end.get("best") is not None and end.get("last") is not None:
        best = f"best {metric.name} {metric.shown(end['best'])}, last {metric.shown(end['last'])}"
    converged = "" if end.get("converged") else ", which counts as not converged"
    print(f"{short(end.get('status') or 'ended', 60).capitalize()} after {len(done.rounds)} rounds: {best}{converged}.")
    print(f"Results: {folder}\nbartizan report {shlex.quote(str(folder))}")


def _sweep(options: argparse.Namespace) -> int:
    from bartizan.lab.runs.progress_display import Display
    from bartizan.lab.runs.sweep import sweep

    experiment = _experiment(options, grid=True)
    folder = options.out or Path("runs") / experiment.name
    runs = experiment.runs()
    with Display({one.slug: one.rounds for one in runs}) as progress:
        try:
            outcomes = sweep(runs, folder, workers=options.workers, resume=not options.fresh, watch=progress.update)
        except KeyboardInterrupt:
            progress.print("Stopped; the same command, without --fresh, goes on where it was.")
            raise
    counts = Counter(outcome.status for outcome in outcomes)
    skipped = f", {counts['skipped']} were finished before" if counts["skipped"] else ""
    print(f"{counts['finished']} runs finished{skipped}, {counts['failed']} failed.")
    for outcome in outcomes:
        if outcome.error:
            print(f"  {outcome.folder.name}: {short(outcome.error)}")
    print(f"Results: {folder}\nbartizan report {shlex.quote(str(folder))}")
    return 1 if counts["failed"] else 0
