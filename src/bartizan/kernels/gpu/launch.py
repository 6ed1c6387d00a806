"""Kernel launches at a low cost on the host.

Triton binds and specialises all arguments at every launch, which takes longer than a small kernel runs. A `Launcher`
keeps the kernel that was compiled for each kind of tensors, and then only passes addresses and numbers on.
"""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from typing import Any

import torch
from triton.runtime import driver

from bartizan.kernels.compiling import reported


def on_device(device: int) -> AbstractContextManager[Any]:
    """Make this GPU the current one: Triton launches there, wherever the arguments are. -1 is the host's memory."""
    same = device == -1 or device == torch.cuda.current_device()
    return nullcontext() if same else torch.cuda.device(device)


@dataclass(frozen=True, eq=False)
class Launcher:
    """A kernel with its constants, the last parameters in their order; its integers must not be specialised."""

    kernel: Any
    constants: tuple[Any, ...]
    options: dict[str, int] = field(default_factory=dict)
    compiled: dict[tuple[Any, ...], Any] = field(default_factory=dict)

    def __call__(self, grid: tuple[int, int, int], *arguments: Any) -> None:
        kinds, numbers, device = list[Any](), list[Any](), -1
        for argument in arguments:
            if type(argument) is int:
                numbers.append(argument)
            elif argument is None:
                kinds.append(None)
                numbers.append(None)
            else:
                address, device = argument.data_ptr(), argument.get_device()
                kinds.append((argument.dtype, address % 16, device))
                numbers.append(address)
        ready = self.compiled.get(key := tuple(kinds))
        if ready is None:
            with on_device(device), reported(f"{self.kernel.__name__.strip('_')} for the GPU"):
                # Interpreted, a kernel is never compiled, and this is None.
                self.compiled[key] = self.kernel[grid](*arguments, *self.constants, **self.options)
            return
        # What `ready[grid](...)` does, without its look at hooks and at the memory that each address is of.
        stream, metadata = driver.active.get_current_stream(device), ready.packed_metadata
        with on_device(device):
            ready.run(*grid, stream, ready.function, metadata, None, None, None, *numbers, *self.constants)
