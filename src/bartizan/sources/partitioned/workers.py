"""What runs the steps on workers: the interface of the engines, and the engine of this process alone."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from operator import add, getitem
from typing import Any, NoReturn, Protocol

from bartizan._util.text import quoted, short

Step = Callable[..., Any]
FEW = 4
"""Sums of workers that the caller adds up itself: a further step of a cluster takes longer."""
ENGINES = {"distributed": ("Dask futures", "client, the Dask Client"), "ray": ("Ray object references", "'ray'")}
"""By the package of a part's type: what the part is called, and the engine that reads it."""


class WorkerError(RuntimeError):
    """A worker died, did not answer in time, or answered what can't be: this round has no result."""


class Workers(Protocol):
    """Runs a step on the worker of each part."""

    n_parts: int

    def share(self, value: Any) -> Any:
        """A value that every step takes as an argument: it is sent to each worker once."""

    def map(self, step: Step, arguments: Mapping[int, Sequence[Any]]) -> dict[int, Any]:
        """step(part, *arguments), of each of these parts."""

    def sum(self, step: Step, arguments: Mapping[int, Sequence[Any]]) -> Any:
        """What the step gives, added up in a tree of workers to `FEW` sums, which stay there until `get` or `then`."""

    def exchange(
        self, cut: Step, cuts: Mapping[int, Sequence[Any]], join: Step, joins: Sequence[Sequence[Any]]
    ) -> tuple[list[Any], list[Any]]:
        """All to all: cut(part, *cuts[part]) gives a list with a piece for each of `joins`, and one thing more.

        join(*joins[n], *pieces), of the n-th pieces of all parts in order, runs on some worker. Returned are the
        further things, and what the joins gave.
        """

    def hold(self, value: Any) -> Any:
        """A value of this process in the place of one on a worker."""

    def then(self, step: Step, sums: Any, *arguments: Any) -> Any:
        """step(*arguments, *sums), which stays on a worker as well."""

    def get(self, sums: Any) -> list[Any]:
        """Sums, or what was made of them, in this process."""

    def left(self, made: Any) -> Any:
        """What the engine gives its users in place of a value on a worker."""


class TaskWorkers(ABC):
    """Engines that run functions as tasks, and take the results of tasks as arguments of others."""

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

    def sum(self, step: Step, arguments: Mapping[int, Sequence[Any]]) -> Any:
        sums = self._on_parts(step, arguments)
        while len(sums) > FEW:
            names, odd = list(sums), dict(list(sums.items())[len(sums) // 2 * 2 :])
            pairs = list(zip(names[::2], names[1::2], strict=False))
            added = self.submit(add, [(sums[a], sums[b]) for a, b in pairs])
            sums = dict(zip(map(" and ".join, pairs), added, strict=True)) | odd
        return sums

    def exchange(
        self, cut: Step, cuts: Mapping[int, Sequence[Any]], join: Step, joins: Sequence[Sequence[Any]]
    ) -> tuple[list[Any], list[Any]]:
        tasks = self._on_parts(cut, cuts)
        rests = self.submit(getitem, [(task, -1) for task in tasks.values()])
        pieces = [self.submit(getitem, [(task, n) for task in tasks.values()]) for n in range(len(joins))]
        joined = self.submit(join, [(*given, *own) for given, own in zip(joins, pieces, strict=True)])
        names = [f"coordinates {n + 1} of {len(joins)}" for n in range(len(joins))]
        results = self.results(dict(zip([*tasks, *names], [*rests, *joined], strict=True)))
        return results[: len(rests)], results[len(rests) :]

    def hold(self, value: Any) -> Any:
        return {"the update": self.share(value)}

    def then(self, step: Step, sums: Any, *arguments: Any) -> Any:
        return {"the sum": self.submit(step, [(*arguments, *sums.values())])[0]}

    def left(self, made: Any) -> Any:
        return next(iter(made.values()))

    def get(self, sums: Any) -> list[Any]:
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
    """Raise that the worker of this part failed, and how."""
    own = isinstance(error, (str, WorkerError))
    said = str(error) if own else f"{type(error).__name__}: {short(error)}"
    raise WorkerError(f"{name}: {said}") from (None if isinstance(error, str) else error)


def late(names: Sequence[str], timeout: float) -> NoReturn:
    """Raise that these parts did not answer in time."""
    raise WorkerError(f"{', '.join(names)}: no answer within {timeout:g} s. Raise timeout=, or look at the worker.")


def workers_of(engine: Any, parts: Any, timeout: float) -> Workers:
    """The workers of an engine: None, a Dask client or "ray"."""
    if isinstance(parts, (str, bytes, Mapping)) or not isinstance(parts, Sequence):
        raise TypeError(f"parts must be a list with one part a worker; got {quoted(parts)}.")
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
    """The package that defines the type of an object; imports nothing."""
    return type(thing).__module__.partition(".")[0]
