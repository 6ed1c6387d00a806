"""numba, imported and compiling without interruption by signals.

A signal's handler may raise, as Ctrl-C does, anywhere in Python code. In the middle of numba's first import, or in
LLVM's calls back to Python while a kernel is compiled or loaded, that loses the signal, makes numba unusable for the
rest of the process, or ends it with a segmentation fault. So signals wait there until numba is done.
"""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any


@contextmanager
def deferred_signals() -> Iterator[None]:
    """Defer the handling of signals to the end of the block.

    Only those with a handler in Python are deferred: it would run in the main thread, between two lines of the block.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    handlers = {number: signal.getsignal(number) for number in signal.valid_signals()}
    handlers = {number: handler for number, handler in handlers.items() if callable(handler)}
    came: dict[int, None] = {}
    try:
        for number in handlers:
            signal.signal(number, lambda number, _: came.setdefault(number))
        yield
    finally:
        for number, handler in reversed(handlers.items()):  # SIGINT, whose handler raises, after the others
            signal.signal(number, handler)
        with ExitStack() as rest:  # each is handled, also where the handler of another raises
            for signum in reversed(came):
                rest.callback(signal.raise_signal, signum)


with deferred_signals():
    from llvmlite import binding as llvm
    from llvmlite import ir
    from numba import carray, config, typeof, types  # type: ignore[attr-defined]
    from numba import njit as _njit
    from numba import uint64 as u64
    from numba.core import cgutils, event
    from numba.extending import intrinsic
    from numba.np.numpy_support import from_dtype

__all__ = [
    "carray",
    "cgutils",
    "config",
    "deferred_signals",
    "event",
    "from_dtype",
    "intrinsic",
    "ir",
    "llvm",
    "njit",
    "typeof",
    "types",
    "u64",
]


def njit(*, inner: bool = False, **options: Any) -> Callable[[Callable[..., Any]], Any]:
    """Compile like numba's njit, with signals deferred while the function is compiled or loaded from the cache.

    An `inner` function is called by other compiled functions only. It gets no entry from Python, and none gets one from
    C: numba would take a good part of its time to make them.
    """

    def decorate(function: Callable[..., Any]) -> Any:
        lean: dict[str, Any] = {"no_cpython_wrapper": inner, "no_cfunc_wrapper": True}
        dispatcher = _njit(**lean, **options)(function)
        dispatcher.compile = deferred_signals()(dispatcher.compile)
        if inner:  # so that a call from Python finds no entry, and raises

            def refuse(*_: Any, **__: Any) -> None:
                raise TypeError(f"{function.__qualname__} is called by other kernels only.")

            dispatcher._insert, dispatcher._compile_for_args = lambda *_: None, refuse
        return dispatcher

    return decorate
