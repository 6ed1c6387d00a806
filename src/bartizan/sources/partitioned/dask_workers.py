"""Steps as tasks of a Dask cluster."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import CancelledError
from contextlib import suppress
from typing import Any

from dask.distributed import Future, TimeoutError, as_completed, futures_of

from bartizan.sources.partitioned.workers import Step, TaskWorkers, failed, late

CANCEL_SECONDS = 5.0  # in which the scheduler must take note that tasks are not wanted any more


class DaskWorkers(TaskWorkers):
    """Tasks run where their part is; of a worker that dies, on another one, as long as its part can be had again."""

    def __init__(self, client: Any, parts: Sequence[Any], timeout: float) -> None:
        if client.asynchronous:
            raise TypeError("engine must be a Dask Client that waits for results: Client(..., asynchronous=False).")
        self._client, self._timeout = client, timeout
        self._last: Mapping[str, Any] = {}
        super().__init__([part if _is_small(part) else self._scattered(part) for part in parts])

    def share(self, value: Any) -> Any:
        return self._scattered(value, broadcast=True)

    def _scattered(self, value: Any, broadcast: bool = False) -> Any:
        try:
            options = {"broadcast": broadcast, "hash": False, "timeout": self._timeout}
            return self._within(self._timeout, self._client.scatter, [value], **options)[0]
        except TimeoutError:
            late(["the workers"], self._timeout)
        except OSError as lost:
            failed("the workers", lost)

    def _within(self, seconds: float, method: Callable[..., Any], *given: Any, **options: Any) -> Any:
        """Return what a method of the client returns; raise TimeoutError if a worker hangs, where it would wait."""
        options |= {"asynchronous": True}
        return self._client.sync(lambda: method(*given, **options), callback_timeout=max(seconds, 0.001))

    def submit(self, step: Step, calls: Sequence[Sequence[Any]]) -> list[Any]:
        # In one message: Dask sends a second one only after 10 ms.
        return self._client.map(step, *zip(*calls, strict=True), pure=False) if calls else []

    def results(self, tasks: Mapping[str, Any]) -> list[Any]:
        names = {future.key: name for name, future in tasks.items()}
        self._last = tasks  # to release them now would delay the next step's message
        deadline = time.monotonic() + self._timeout
        try:
            for future in as_completed(tasks.values(), timeout=self._timeout):  # type: ignore[no-untyped-call, unused-ignore]
                name = names.pop(future.key)
                if future.status == "cancelled":
                    failed(self._lost_parts() or name, "its worker was lost, and with it what only that worker held")
                if future.status != "finished":
                    failed(name, future.exception(self._timeout))
            return self._within(deadline - time.monotonic(), self._client.gather, list(tasks.values()))
        except TimeoutError:
            late(list(names.values()) or list(tasks), self._timeout)
        except (OSError, CancelledError) as lost:
            failed(", ".join(tasks), lost)
        finally:
            if names:
                with suppress(TimeoutError, OSError):
                    self._within(CANCEL_SECONDS, self._client.cancel, list(tasks.values()))

    def _lost_parts(self) -> str:
        """Return the parts that no worker has any more: Dask cancels all tasks of a message that names one of them."""
        lost = [any(each.status in ("lost", "cancelled") for each in futures_of(part)) for part in self.parts]
        return ", ".join(f"part {n}" for n, is_lost in enumerate(lost) if is_lost)


def _is_small(part: Any) -> bool:
    """Return whether a part holds no numbers itself: a future, or a list of futures and of what workers open."""
    opened = (Future, str, os.PathLike)
    items = part if isinstance(part, (list, tuple)) else [part]
    return all(isinstance(item, opened) or callable(item) for item in items)
