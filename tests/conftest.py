"""Triton interprets its kernels where there is no GPU; it decides when it is first imported."""

import os

try:
    import torch
except ModuleNotFoundError:
    pass
else:
    if not torch.cuda.is_available():
        os.environ.setdefault("TRITON_INTERPRET", "1")
