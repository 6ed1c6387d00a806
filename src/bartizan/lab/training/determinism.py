"""What makes two runs equal: torch's own switches, set for the time of a run."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from bartizan.lab.training.torch_import import torch


@contextmanager
def repeatable(device: str, threads: int | None = None) -> Iterator[None]:
    """To the bit on a CPU; on a GPU as far as cuDNN has such kernels. Afterwards all is as it was."""
    strict = torch.are_deterministic_algorithms_enabled()
    warn_only = torch.is_deterministic_algorithms_warn_only_enabled()
    memory: Any = torch.utils.deterministic
    cudnn: Any = torch.backends.cudnn
    before = memory.fill_uninitialized_memory, torch.get_num_threads(), cudnn.deterministic, cudnn.benchmark
    try:
        if device == "cpu":
            torch.use_deterministic_algorithms(True)
            memory.fill_uninitialized_memory = False
        cudnn.deterministic, cudnn.benchmark = True, False
        # Sums are cut by threads: a resumed run takes as many as it began with.
        torch.set_num_threads(threads or before[1])
        yield
    finally:
        torch.use_deterministic_algorithms(strict, warn_only=warn_only)
        memory.fill_uninitialized_memory, n_threads, cudnn.deterministic, cudnn.benchmark = before
        torch.set_num_threads(n_threads)
