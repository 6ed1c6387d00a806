"""Steps as tasks of a Ray cluster."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import Any

from bartizan._util.extras import missing_extra

try:
    import ray
except ModuleNotFoundError as missing:
    raise missing_extra("engine='ray' needs Ray", "ray") from missing

from bartizan.sources.partitioned.workers import Step, TaskWorkers, failed, late


class RayWorkers(TaskWorkers):
    """Tasks run near their part; of a worker that dies, again on another one."""

    def __init__(self, parts: Sequence[Any], timeout: float) -> None:
        if not ray.is_initialized():
            raise RuntimeError('engine="ray" needs a Ray cluster: call ray.init(...) first.')
        self._timeout = timeout
        super().__init__([part if isinstance(part, ray.ObjectRef) else ray.put(part) for part in parts])

    def share(self, value: Any) -> Any:
        return ray.put(value)

    def submit(self, step: Step, calls: Sequence[Sequence[Any]]) -> list[Any]:
        return [_REMOTE.remote(step, *arguments) for arguments in calls]

    def results(self, tasks: Mapping[str, Any]) -> list[Any]:
        waiting, found = {ref: name for name, ref in tasks.items()}, {}
        deadline = time.monotonic() + self._timeout
        while waiting:
            ready, _ = ray.wait(list(waiting), timeout=max(0.0, deadline - time.monotonic()))
            if not ready:
                for ref in waiting:
                    ray.cancel(ref, force=True)
                late(list(waiting.values()), self._timeout)
            for ref in ready:
                name = waiting.pop(ref)
                try:
                    found[ref] = ray.get(ref, timeout=max(0.001, deadline - time.monotonic()))
                except ray.exceptions.RayTaskError as error:
                    failed(name, error.cause or error)
                except ray.exceptions.GetTimeoutError:
                    late([name], self._timeout)
                except ray.exceptions.RayError as error:
                    failed(name, error)
        return [found[ref] for ref in tasks.values()]


def _run(step: Step, *arguments: Any) -> Any:
    """Run a step on a worker, of a part that may be a list of references, one per client."""
    part, *rest = arguments
    if isinstance(part, (list, tuple)) and any(isinstance(item, ray.ObjectRef) for item in part):
        part = [ray.get(item) if isinstance(item, ray.ObjectRef) else item for item in part]
    return step(part, *rest)


_REMOTE = ray.remote(_run)  # once, so that calls do not send the function again
