"""Follow a run in Weights & Biases."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from bartizan._util.extras import missing_extra
from bartizan.watch.base import Line, Watcher, settings_of


class WandB(Watcher):
    """Send each round to Weights & Biases, with the run's configuration.

    Args:
        project: The project of the run.
        clients: Whether to send numbers of each client.
        init: Further arguments of `wandb.init`, such as ``mode="offline"``, `dir`, `id` or `group`.
    """

    def __init__(self, project: str = "bartizan", *, clients: bool = True, **init: Any) -> None:
        super().__init__(clients=clients)
        try:
            import wandb
        except ModuleNotFoundError as missing:
            raise missing_extra("bartizan.watch.WandB needs Weights & Biases", "wandb") from missing
        self._wandb: Any = wandb
        self._init = {"project": project, **init}
        self._run: Any = None

    def begin(self, run: Line) -> None:
        given = {"name": run.get("name"), "config": settings_of(run), **self._init}
        self._run = self._wandb.init(**given, reinit="create_new")

    def log(self, step: int, numbers: Mapping[str, float]) -> None:
        self._run.log(dict(numbers), step=step)

    def end(self, end: Line) -> None:
        self._run.finish(exit_code=0 if end.get("status") == "finished" else 1)
