"""The interface of the engines that run steps on workers, and the engine of this process alone."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from operator import add
from typing import Any, NoReturn, Protocol

from bartizan._util.text import quoted, short

Step = Callable[..., Any]
MAX_SUMS = 4  # that the caller adds up itself: a further step of a cluster takes longer
ENGINES = {"distributed": ("Dask futures", "client, the Dask Client"), "ray": ("Ray object references", "'ray'")}
"""The name of a kind of part and the engine that reads it, by the package of the part's type."""


class WorkerError(RuntimeError):
    """A worker died, did not answer in time, or returned an invalid answer, so the round has no result."""


class Workers(Protocol):
    """An engine, which runs a step on the worker of each part."""

    n_parts: int

    def share(self, value: Any) -> Any:
        """Send a value to each worker once; return what steps then take as an argument in its place."""

    def map(self, step: Step, arguments: Mapping[int, Sequence[Any]]) -> dict[int, Any]:
        """Return step(part, *arguments) of each of these parts."""

    def sum(self, step: Step, arguments: Mapping[int, Sequence[Any]]) -> list[Any]:
        """Return what the step gives, added up in a tree of workers to at most `MAX_SUMS` sums."""


class TaskWorkers(ABC):
    """Base of the engines that run functions as tasks, and take the results of tasks as arguments of others."""

    def __init__(self, parts: Sequence[Any]) -> None:
        self.parts = parts
        self.n_parts = len(parts)

    @abstractmethod
    def submit(self, step: Step, calls: Sequence[Sequence[Any]]) -> list[Any]:
        """Call a function with each of these arguments on some worker; tasks may be arguments of others."""

    @abstractmethod
    def results(self, tasks: Mapping[str, Any]) -> list[Any]:
        """Wait for tasks, each with the name that errors call it by; whatever is wrong with one is a WorkerError."""

    @abstractmethod
    def share(self, value: Any) -> Any: ...

    def map(self, step: Step, arguments: Mapping[int, Sequence[Any]]) -> dict[int, Any]:
        return dict(zip(arguments, self.results(self._on_parts(step, arguments)), strict=True))

    def sum(self, step: Step, arguments: Mapping[int, Sequence[Any]]) -> list[Any]:
        sums = self._on_parts(step, arguments)
        while len(sums) > MAX_SUMS:
            names, odd = list(sums), dict(list(sums.items())[len(sums) // 2 * 2 :])
            pairs = list(zip(names[::2], names[1::2], strict=False))
            added = self.submit(add, [(sums[a], sums[b]) for a, b in pairs])
            sums = dict(zip(map(" and ".join, pairs), added, strict=True)) | odd
        return self.results(sums)

    def _on_parts(self, step: Step, arguments: Mapping[int, Sequence[Any]]) -> dict[str, Any]:
        tasks = self.submit(step, [(self.parts[part], *given) for part, given in arguments.items()])
        return dict(zip((f"part {part}" for part in arguments), tasks, strict=True))


class LocalWorkers(TaskWorkers):
    """One part after another in this process: for parts that do not fit into memory together."""

    def submit(self, step: Step, calls: Sequence[Sequence[Any]]) -> list[Any]:
        return [step(*arguments) for arguments in calls]

    def results(self, tasks: Mapping[str, Any]) -> list[Any]:
        return list(tasks.values())

    def share(self, value: Any) -> Any:
        return value


def failed(name: str, error: BaseException | str) -> NoReturn:
    """Raise a WorkerError for a part whose worker failed, with the reason."""
    own = isinstance(error, (str, WorkerError))
    said = str(error) if own else f"{type(error).__name__}: {short(error)}"
    raise WorkerError(f"{name}: {said}") from (None if isinstance(error, str) else error)


def late(names: Sequence[str], timeout: float) -> NoReturn:
    """Raise a WorkerError: these parts did not answer in time."""
    raise WorkerError(f"{', '.join(names)}: no answer within {timeout:g} s. Raise timeout=, or look at the worker.")


def workers_of(engine: Any, parts: Any, timeout: float) -> Workers:
    """Return the workers of an engine: None, a Dask client or "ray"."""
    if isinstance(parts, (str, bytes, Mapping)) or not isinstance(parts, Sequence):
        raise TypeError(f"parts must be a list with one part per worker; got {quoted(parts)}.")
    if engine is None:
        for item in (item for part in parts for item in (part if isinstance(part, (list, tuple)) else [part])):
            if found := ENGINES.get(_package_of(item)):
                raise TypeError(f"parts holds {found[0]}, which only their workers can read: pass engine={found[1]}.")
        return LocalWorkers(parts)
    if engine == "ray":
        from bartizan.sources.partitioned.ray_workers import RayWorkers

        return RayWorkers(parts, timeout)
    if _package_of(engine) == "distributed":
        from bartizan.sources.partitioned.dask_workers import DaskWorkers

        return DaskWorkers(engine, parts, timeout)
    raise TypeError(
        f"engine must be None, a Dask Client, 'ray' or a torch.distributed process group; got {quoted(engine)}."
    )


def _package_of(thing: Any) -> str:
    """Return the package that defines the type of an object, without an import."""
    return type(thing).__module__.partition(".")[0]
