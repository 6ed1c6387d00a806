"""Evaluate a model on the test images or the test text, and on images with a backdoor's trigger."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from bartizan.lab.training.flat_model import FlatLayout
from bartizan.lab.training.torch_import import Tensor, functional, nn, torch

if TYPE_CHECKING:
    from bartizan.lab.data.device_images import OnDevice
    from bartizan.lab.data.device_text import TextOnDevice


def evaluate(
    model: nn.Module,
    weights: Tensor,
    images: OnDevice | TextOnDevice,
    batch: int = 500,
    *,
    batch_statistics: bool = False,
) -> tuple[float, float]:
    """Accuracy and mean loss of the model with these weights.

    With `batch_statistics` BatchNorm normalises each batch by itself, as in training, and not by running statistics.
    """
    right, loss = 0.0, 0.0
    for outputs, labels in _outputs(model, weights, images, batch, batch_statistics):
        right += float((outputs.argmax(1) == labels).sum())
        loss += float(functional.cross_entropy(outputs.double(), labels, reduction="sum"))
    n = images.labels.numel()  # of text, one for each character
    return right / n, loss / n


def backdoor_rate(
    model: nn.Module, weights: Tensor, triggered: OnDevice | TextOnDevice, target: int, batch: int = 500
) -> float:
    """The part of the triggered images of other classes that the model assigns to the target class."""
    fooled, others = 0, 0
    for outputs, labels in _outputs(model, weights, triggered, batch):
        other = labels != target
        fooled += int((outputs.argmax(1)[other] == target).sum())
        others += int(other.sum())
    return fooled / others if others else 0.0


def _outputs(
    model: nn.Module, weights: Tensor, images: OnDevice | TextOnDevice, batch: int, batch_statistics: bool = False
) -> Iterator[tuple[Tensor, Tensor]]:
    flat = FlatLayout.of(model)
    tensors = flat.named(weights.clone() if batch_statistics else weights)  # BatchNorm writes to them in training mode
    model.eval()  # passes put it in training mode themselves
    for module in model.modules():
        if batch_statistics and isinstance(module, nn.modules.batchnorm._BatchNorm):
            module.train()
    n, device = len(images.labels), images.labels.device
    half = device.type == "cuda" and weights.dtype == torch.float32
    if half and not batch_statistics:
        batch *= 5  # to fill a large GPU
    with torch.inference_mode():
        # Of nearly equal sizes: a last batch of few images would have statistics of few.
        for where in torch.arange(n, device=device).tensor_split(-(-n // batch)):
            given = images.batch(where)
            if half:
                # As many digits as TF32, in which a GPU convolves float32, and half the memory to read.
                with torch.autocast("cuda", torch.float16):
                    last = given.contiguous(memory_format=torch.channels_last)
                    outputs = torch.func.functional_call(model, tensors, last).float()
            if not half or not bool(outputs.isfinite().all()):  # float16 ends at 65,504
                outputs = torch.func.functional_call(model, tensors, given)
            yield outputs, images.labels[where]
