"""Kernel launches at a low cost on the host.

Triton binds and specialises all arguments at every launch, which takes longer than a small kernel runs. A `Launcher`
keeps the kernel that was compiled for each kind of tensors, and then only passes addresses and numbers on.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from triton.runtime import driver

from bartizan.kernels.compiling import reported


@dataclass(frozen=True, eq=False)
class Launcher:
    """`kernel` with these constants, its last parameters in their order. Its integers must not be specialised."""

    kernel: Any
    constants: tuple[Any, ...]
    options: dict[str, int] = field(default_factory=dict)
    compiled: dict[tuple[Any, ...], Any] = field(default_factory=dict)

    def __call__(self, grid: tuple[int, int, int], *arguments: Any) -> None:
        kinds, numbers = list[Any](), list[Any]()
        for argument in arguments:
            if type(argument) is int:
                numbers.append(argument)
            elif argument is None:
                kinds.append(None)
                numbers.append(None)
            else:
                address = argument.data_ptr()
                kinds.append((argument.dtype, address % 16, argument.get_device()))
                numbers.append(address)
        ready = self.compiled.get(key := tuple(kinds))
        if ready is None:
            with reported(f"{self.kernel.__name__.strip('_')} for the GPU"):
                # Interpreted, a kernel is never compiled, and this is None.
                self.compiled[key] = self.kernel[grid](*arguments, *self.constants, **self.options)
            return
        # What `ready[grid](...)` does, without its look at hooks and at the memory that each address is of.
        active = driver.active
        stream = active.get_current_stream(active.get_current_device())
        ready.run(*grid, stream, ready.function, ready.packed_metadata, None, None, None, *numbers, *self.constants)
