"""Ctrl-C between two rounds instead of within one."""

from __future__ import annotations

import os
import signal
import threading
from types import FrameType
from typing import Any

SIGNALS = (signal.SIGINT, signal.SIGTERM)


class Interrupts:
    """Notes a request to stop, for whoever asks; a second Ctrl-C does not wait."""

    def __init__(self) -> None:
        self.asked = False
        self._before: dict[signal.Signals, Any] = {}

    def __enter__(self) -> Interrupts:
        if threading.current_thread() is threading.main_thread():
            for which in SIGNALS:
                if signal.getsignal(which) not in (signal.SIG_IGN, None):
                    self._before[which] = signal.signal(which, self._heard)
        return self

    def __exit__(self, *gone: object) -> None:
        for which, before in self._before.items():
            signal.signal(which, before)

    def _heard(self, which: int, frame: FrameType | None) -> None:
        if which == signal.SIGINT:
            if self.asked:
                raise KeyboardInterrupt
            # Not print: the signal may have come while something was being printed.
            os.write(2, b"\nStopping once this round is done and saved; Ctrl-C again stops at once.\n")
        self.asked = True
