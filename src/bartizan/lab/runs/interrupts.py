"""Handle Ctrl-C and SIGTERM between two rounds instead of within one."""

from __future__ import annotations

import os
import signal
import threading
from types import FrameType
from typing import Any

SIGNALS = (signal.SIGINT, signal.SIGTERM)


class Interrupts:
    """Set `requested` on the first Ctrl-C or SIGTERM; a second Ctrl-C raises KeyboardInterrupt at once."""

    def __init__(self) -> None:
        self.requested = False
        self._before: dict[signal.Signals, Any] = {}

    def __enter__(self) -> Interrupts:
        if threading.current_thread() is threading.main_thread():
            for which in SIGNALS:
                if signal.getsignal(which) not in (signal.SIG_IGN, None):
                    self._before[which] = signal.signal(which, self._handle)
        return self

    def __exit__(self, *raised: object) -> None:
        for which, before in self._before.items():
            signal.signal(which, before)

    def _handle(self, which: int, frame: FrameType | None) -> None:
        if which == signal.SIGINT:
            if self.requested:
                raise KeyboardInterrupt
            # Not print: the signal may have come while something was being printed.
            os.write(2, b"\nStopping once this round is done and saved; Ctrl-C again stops at once.\n")
        self.requested = True
