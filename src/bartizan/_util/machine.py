"""The machine: its devices, names, free memory, and the time of a call."""

from __future__ import annotations

import os
import platform
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

from bartizan._util.extras import missing_extra

T = TypeVar("T")


def checked_device(device: str) -> str:
    """Check that a device is "cpu", or "cuda" where torch can use a GPU, and return it."""
    if device == "cpu":
        return device
    if device != "cuda":
        raise ValueError(f"device must be 'cpu' or 'cuda', got {device!r}.")
    if not torch_for("device='cuda'").cuda.is_available():
        raise ValueError("device='cuda' needs a GPU that torch can use, and there is none here. Take device='cpu'.")
    return device


def torch_for(what: str) -> Any:
    """Import torch; `what` needs it, for the error where it is missing."""
    try:
        import torch
    except ModuleNotFoundError as missing:
        raise missing_extra(f"{what} needs torch", "torch") from missing
    return torch


def name_of(device: str) -> str:
    """Return the name of the GPU, or of the processor with the number of threads of the kernels."""
    if checked_device(device) == "cuda":
        return str(torch_for("device='cuda'").cuda.get_device_name())
    from bartizan._util.threads import n_threads

    return f"{_processor()}, {n_threads()} thread{'s' if n_threads() != 1 else ''}"


def free_memory(device: str) -> int:
    """Return the bytes of memory that are free."""
    if device == "cuda":
        cuda = torch_for("device='cuda'").cuda
        # torch can use the memory that it has reserved, which the driver counts as taken.
        return int(cuda.mem_get_info()[0] + cuda.memory_reserved() - cuda.memory_allocated())
    for line in _lines("/proc/meminfo"):
        if line.startswith("MemAvailable:"):
            return 1024 * int(line.split()[1])
    return os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")


def synchronise(device: str) -> None:
    """Wait until the device has finished."""
    if device == "cuda":
        torch_for("device='cuda'").cuda.synchronize()


def timed(call: Callable[[], T], device: str = "cpu") -> tuple[T, float]:
    """Return the result of a call, and its seconds until the device has finished."""
    synchronise(device)
    start = time.perf_counter()
    result = call()
    synchronise(device)
    return result, time.perf_counter() - start


def _processor() -> str:
    for line in _lines("/proc/cpuinfo"):
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()


def _lines(path: str) -> list[str]:
    try:
        return Path(path).read_text().splitlines()
    except OSError:
        return []
