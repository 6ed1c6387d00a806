"""Let Triton interpret its kernels where there is no GPU, which it decides when it is first imported."""

import os
import signal

import pytest

try:
    import torch
except ModuleNotFoundError:
    pass
else:
    if not torch.cuda.is_available():
        os.environ.setdefault("TRITON_INTERPRET", "1")

# A background job inherits an ignored SIGINT, and would hand it on to every process that a test starts.
signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture
def one_thread():
    """Hold torch to one thread: what tests compute is too small for more."""
    threaded = pytest.importorskip("torch")
    before = threaded.get_num_threads()
    threaded.set_num_threads(1)
    yield
    threaded.set_num_threads(before)
