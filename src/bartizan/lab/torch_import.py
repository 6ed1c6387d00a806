"""Import torch, or say what to install; modules of the laboratory import it from here."""

try:
    import torch
    from torch import Tensor, nn
    from torch.nn import functional
except ModuleNotFoundError as missing:
    if missing.name != "torch":
        raise
    raise ModuleNotFoundError("The laboratory needs torch: pip install 'bartizan[lab]'") from missing

__all__ = ["Tensor", "functional", "nn", "torch"]
