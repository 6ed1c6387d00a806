"""Import torch, or say what to install; modules of the laboratory import it from here."""

from bartizan._util.extras import missing_extra

try:
    import torch
    from torch import Tensor, nn
    from torch.nn import functional
except ModuleNotFoundError as missing:
    if missing.name != "torch":
        raise
    raise missing_extra("The laboratory needs torch", "lab") from missing

__all__ = ["Tensor", "functional", "nn", "torch"]
