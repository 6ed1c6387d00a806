"""Measure the peak memory of a call, as the operating system or the GPU reports it."""

from __future__ import annotations

import ctypes
import gc
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any, TypeVar

from bartizan._util import machine

T = TypeVar("T")
STATUS, CLEAR = Path("/proc/self/status"), Path("/proc/self/clear_refs")


def watched(call: Callable[[], T], device: str) -> tuple[T, int | None]:
    """Return the result of a call and the bytes it held at most beyond those held before; None if unknown.

    Kernels and BLAS allocate outside Python, so the peak of the process's resident memory is read.
    """
    gc.collect()
    before = _reset(device)
    result = call()
    machine.synchronise(device)
    on_gpu = device == "cuda"
    peak = machine.torch_for("device='cuda'").cuda.max_memory_allocated() if on_gpu else of_process("VmHWM:")
    return result, None if before is None or peak is None else max(0, peak - before)


def size_of(array: Any) -> int:
    """Return the bytes of an array or tensor."""
    return int(array.nbytes) if hasattr(array, "nbytes") else int(array.numel() * array.element_size())


def _reset(device: str) -> int | None:
    if device == "cuda":
        cuda = machine.torch_for("device='cuda'").cuda
        cuda.synchronize()
        cuda.reset_peak_memory_stats()
        return int(cuda.memory_allocated())
    with suppress(OSError, AttributeError):
        ctypes.CDLL(None).malloc_trim(0)  # what was freed before must not be there to be used again
    try:
        CLEAR.write_text("5")  # forget the peak
    except OSError:
        return None
    return of_process("VmRSS:")


def of_process(name: str) -> int | None:
    """Return a field of the process's status in bytes, such as "VmRSS:"; None if there is none."""
    for line in STATUS.read_text().splitlines():
        if line.startswith(name):
            return 1024 * int(line.split()[1])
    return None
