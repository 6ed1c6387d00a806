"""What runs the steps on workers: the interface of the engines, and the engine of this process alone."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from operator import getitem
from typing import Any, NoReturn, Protocol

from bartizan._util.text import quoted, short

Step = Callable[..., Any]


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
        """The sum of what the step gives, added up in a tree of workers; it stays there until `get` or `then`."""

    def exchange(
        self, cut: Step, cuts: Mapping[int, Sequence[Any]], join: Step, joins: Sequence[Sequence[Any]]
    ) -> tuple[list[Any], list[Any]]:
        """All to all: cut(part, *cuts[part]) gives a list with a piece for each of `joins`, and one thing more.

        join(*joins[n], *pieces), of the n-th pieces of all parts in order, runs on some worker. Returned are the
        further things, and what the joins gave.
        """

    def hold(self, value: Any) -> Any:
        """A value of this process in the place of a sum."""

    def then(self, step: Step, total: Any, *arguments: Any) -> Any:
        """step(sum, *arguments), which stays on a worker as well."""

    def get(self, total: Any) -> Any:
        """A sum, or what was made of it, in this process."""

    def left(self, total: Any) -> Any:
        """What the engine gives its users in place of a value on a worker."""


class TaskWorkers(ABC):
    """Engines that run functions as tasks, and take the results of tasks as arguments of others."""

    def __init__(self, parts: Sequence[Any]) -> None:
        self.parts = parts
        self.n_parts = len(parts)

    @abstractmethod
    def submit(self, step: Step, *arguments: Any) -> Any:
        """Run a function on some worker; returns a task, which may be an argument of another."""

    @abstractmethod
    def results(self, tasks: Mapping[str, Any]) -> list[Any]:
        """Wait for tasks, each with the name that errors call it by; whatever is wrong with one is a WorkerError."""

    @abstractmethod
    def share(self, value: Any) -> Any: ...

    def map(self, step: Step, arguments: Mapping[int, Sequence[Any]]) -> dict[int, Any]:
        tasks = {f"part {part}": self.submit(step, self.parts[part], *given) for part, given in arguments.items()}
        return dict(zip(arguments, self.results(tasks), strict=True))

    def sum(self, step: Step, arguments: Mapping[int, Sequence[Any]]) -> Any:
        sums = {f"part {part}": self.submit(step, self.parts[part], *given) for part, given in arguments.items()}
        while len(sums) > 1:
            names = list(sums)
            pairs = [names[at : at + 2] for at in range(0, len(names), 2)]
            sums = {
                " and ".join(pair): sums[pair[0]] if len(pair) == 1 else self.submit(_add, *(sums[n] for n in pair))
                for pair in pairs
            }
        return sums

    def exchange(
        self, cut: Step, cuts: Mapping[int, Sequence[Any]], join: Step, joins: Sequence[Sequence[Any]]
    ) -> tuple[list[Any], list[Any]]:
        tasks = {f"part {part}": self.submit(cut, self.parts[part], *given) for part, given in cuts.items()}
        rests = {name: self.submit(getitem, task, -1) for name, task in tasks.items()}
        joined = {
            f"coordinates {n + 1} of {len(joins)}": self.submit(
                join, *given, *(self.submit(getitem, task, n) for task in tasks.values())
            )
            for n, given in enumerate(joins)
        }
        results = self.results(rests | joined)
        return results[: len(rests)], results[len(rests) :]

    def hold(self, value: Any) -> Any:
        return {"the sum": self.share(value)}

    def then(self, step: Step, total: Any, *arguments: Any) -> Any:
        return {"the sum": self.submit(step, *total.values(), *arguments)}

    def left(self, total: Any) -> Any:
        return next(iter(total.values()))

    def get(self, total: Any) -> Any:
        return self.results(total)[0]


def _add(a: Any, b: Any) -> Any:
    return a + b


class LocalWorkers(TaskWorkers):
    """One part after another in this process: for parts that do not fit into memory together."""

    def submit(self, step: Step, *arguments: Any) -> Any:
        return step(*arguments)

    def results(self, tasks: Mapping[str, Any]) -> list[Any]:
        return list(tasks.values())

    def share(self, value: Any) -> Any:
        return value


def failed(name: str, error: BaseException | str) -> NoReturn:
    """Raise that the worker of this part failed, and how."""
    said = error if isinstance(error, str) else f"{type(error).__name__}: {short(error)}"
    raise WorkerError(f"{name}: {said}") from (None if isinstance(error, str) else error)


def late(names: Sequence[str], timeout: float) -> NoReturn:
    """Raise that these parts did not answer in time."""
    raise WorkerError(f"{', '.join(names)}: no answer within {timeout:g} s. Raise timeout=, or look at the worker.")


def workers_of(engine: Any, parts: Any, timeout: float) -> Workers:
    """The workers of an engine: None, a Dask client or "ray"."""
    if isinstance(parts, (str, bytes, Mapping)) or not isinstance(parts, Sequence):
        raise TypeError(f"parts must be a list with one part a worker; got {quoted(parts)}.")
    if engine is None:
        return LocalWorkers(parts)
    if engine == "ray":
        from bartizan.partitioned.ray_workers import RayWorkers

        return RayWorkers(parts, timeout)
    if type(engine).__module__.partition(".")[0] == "distributed":
        from bartizan.partitioned.dask_workers import DaskWorkers

        return DaskWorkers(engine, parts, timeout)
    raise TypeError(
        f"engine must be None, a Dask Client, 'ray' or a torch.distributed process group; got {quoted(engine)}."
    )
