"""Kernel launches at a low cost on the host.

Triton binds and specialises all arguments at every launch, which takes longer than a small kernel runs. A `Launcher`
keeps the kernel that was compiled for each kind of tensors, and then only passes the arguments on.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import torch

from bartizan.kernels.compiling import reported


@dataclass(frozen=True, eq=False)
class Launcher:
    """`kernel` with these constants, its last parameters in their order. Its integers must not be specialised."""

    kernel: Any
    constants: tuple[Any, ...]
    options: dict[str, int] = field(default_factory=dict)
    compiled: dict[tuple[Any, ...], Any] = field(default_factory=dict)

    def __call__(self, grid: tuple[int, int, int], *arguments: Any) -> None:
        kinds = tuple(
            [
                (a.dtype, a.data_ptr() % 16, a.get_device()) if isinstance(a, torch.Tensor) else a is None
                for a in arguments
            ]
        )
        ready = self.compiled.get(kinds)
        if ready is None:
            with reported(f"{self.kernel.__name__.strip('_')} for the GPU"):
                # Interpreted, a kernel is never compiled, and this is None.
                self.compiled[kinds] = self.kernel[grid](*arguments, *self.constants, **self.options)
        else:
            ready[grid](*arguments, *self.constants)
