"""Signals that come while numba is imported, or while a kernel is compiled or loaded, are handled after that."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading

import pytest

from bartizan._util.jit import deferred_signals

# The handler notes what numba was doing when it ran. The signal comes in the middle of numba's import (an audit hook),
# then inside the lock that numba holds while it compiles or loads.
CHILD = """
import signal, sys
import numpy as np, bartizan as bz

handled, sent = [], []

def handler(number, frame):
    lock = getattr(sys.modules.get("numba.core.compiler_lock"), "global_compiler_lock", None)
    handled.append("compiling" if lock is not None and lock.is_locked() else "idle")
    handled.append("imported" if hasattr(sys.modules.get("numba"), "njit") else "half imported")
    raise KeyboardInterrupt

def send(place):
    if place not in sent:
        sent.append(place)
        signal.raise_signal(signal.SIGINT)

sys.addaudithook(lambda event, args: send("import") if event == "import" and args[0] == "numba.core.types" else None)
signal.signal(signal.SIGINT, handler)
x = np.arange(90, dtype=np.float32).reshape(9, 10)
for _ in range(5):
    try:
        out = bz.aggregate(x, bz.Mean())
        break
    except KeyboardInterrupt:
        from numba.core import event

        class Listener(event.Listener):
            def on_start(self, _):
                send("compile")

            def on_end(self, _):
                pass

        event.register("numba:compiler_lock", Listener())
print(sent, handled, out.update[0])
"""


@pytest.mark.parametrize("cached", [False, True], ids=["compiled", "loaded from the cache"])
def test_a_signal_waits_until_numba_is_imported_and_the_kernel_is_there(cached, tmp_path):
    environment = os.environ | {"NUMBA_CACHE_DIR": str(tmp_path)} if not cached else None
    child = [sys.executable, "-c", CHILD]
    done = subprocess.run(child, env=environment, stdout=subprocess.PIPE, text=True, check=True, timeout=300)
    assert done.stdout == "['import', 'compile'] ['idle', 'imported', 'idle', 'imported'] 40.0\n"


@pytest.fixture
def handled():
    """The signals that were handled; SIGUSR2's handler raises."""
    numbers = []

    def note(number, _):
        numbers.append(number)
        if number == signal.SIGUSR2:
            raise ZeroDivisionError

    before = {number: signal.signal(number, note) for number in (signal.SIGUSR1, signal.SIGUSR2)}
    yield numbers
    for number, handler in before.items():
        signal.signal(number, handler)


def test_signals_inside_the_block_are_handled_at_its_end_each_once(handled):
    @deferred_signals()
    def several():
        for number in (signal.SIGUSR2, signal.SIGUSR1, signal.SIGUSR2):
            deferred_signals()(signal.raise_signal)(number)
        assert handled == []

    with pytest.raises(ZeroDivisionError):
        several()
    assert handled == [signal.SIGUSR2, signal.SIGUSR1]
    signal.raise_signal(signal.SIGUSR1)  # its own handler is back
    assert len(handled) == 3


def test_signals_are_handled_also_where_the_block_raises(handled):
    @deferred_signals()
    def failing():
        signal.raise_signal(signal.SIGUSR1)
        raise KeyError

    with pytest.raises(KeyError):
        failing()
    assert handled == [signal.SIGUSR1]


def test_in_another_thread_nothing_waits(handled):
    def work():
        with deferred_signals():
            os.kill(os.getpid(), signal.SIGUSR1)

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert handled == [signal.SIGUSR1]
