"""Evaluate a model on the test images or the test text, and on images with a backdoor's trigger."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from bartizan.lab.torch_import import Tensor, functional, nn, torch
from bartizan.lab.training.flat_model import FlatLayout

if TYPE_CHECKING:
    from bartizan.lab.data.device_images import OnDevice
    from bartizan.lab.data.device_text import TextOnDevice

BATCH_IMAGES = 500
GPU_BATCH_IMAGES = 2500  # on a GPU
CPU_BATCH_IMAGES = 100  # on a processor, where larger activations leave the cache


def evaluate(
    model: nn.Module,
    weights: Tensor,
    images: OnDevice | TextOnDevice,
    batch: int = BATCH_IMAGES,
    *,
    batch_statistics: bool = False,
    half: bool = False,
) -> tuple[float, float]:
    """Return accuracy and mean loss of a model with given weights on a set of images.

    With `batch_statistics` BatchNorm normalises each batch by itself, as in training, and not by running statistics.
    With `half` images on a GPU are classified in float16, and again in float32 if a number overflows.
    """
    half = half and weights.is_cuda
    total = torch.zeros(2, dtype=torch.float64, device=weights.device)
    for outputs, labels in _outputs(model, weights, images, batch, batch_statistics, half):
        loss = functional.cross_entropy(outputs.double(), labels, reduction="sum")
        total += torch.stack([(outputs.argmax(1) == labels).sum().double(), loss])
    right, loss_sum = total.tolist()
    if half and not abs(loss_sum) < float("inf"):  # float16 ends at 65,504
        return evaluate(model, weights, images, batch, batch_statistics=batch_statistics)
    n = images.labels.numel()  # of text, one for each character
    return right / n, loss_sum / n


def backdoor_rate(model: nn.Module, weights: Tensor, triggered: OnDevice | TextOnDevice, target: int) -> float:
    """Return the fraction of triggered images of other classes that the model assigns to the target class."""
    fooled, others = 0, 0
    for outputs, labels in _outputs(model, weights, triggered):
        other = labels != target
        fooled += int((outputs.argmax(1)[other] == target).sum())
        others += int(other.sum())
    return fooled / others if others else 0.0


def _outputs(
    model: nn.Module,
    weights: Tensor,
    images: OnDevice | TextOnDevice,
    batch: int = BATCH_IMAGES,
    batch_statistics: bool = False,
    half: bool = False,
) -> Iterator[tuple[Tensor, Tensor]]:
    """Yield scores and labels of all images; `half` in float16, which has the digits of TF32, a GPU's usual float32."""
    # Copies: BatchNorm writes to them in training mode, and some of a GPU's kernels want them aligned.
    tensors = {name: part.clone() for name, part in FlatLayout.of(model).named(weights).items()}
    model.eval()  # passes put it in training mode themselves
    for module in model.modules():
        if batch_statistics and isinstance(module, nn.modules.batchnorm._BatchNorm):
            module.train()
    n, device = len(images.labels), images.labels.device
    half = half and not batch_statistics and weights.dtype == torch.float32
    if half:
        batch = GPU_BATCH_IMAGES
    elif device.type == "cpu" and not batch_statistics:
        batch = min(batch, CPU_BATCH_IMAGES)
    with torch.no_grad():
        # Of nearly equal sizes: a last batch of few images would have statistics of few.
        for where in torch.arange(n, device=device).tensor_split(-(-n // batch)):
            given = images.batch(where)
            if given.ndim == 4:  # images
                given = given.contiguous(memory_format=torch.channels_last)
            with torch.autocast(device.type, torch.float16, cache_enabled=False, enabled=half and given.ndim == 4):
                outputs = torch.func.functional_call(model, tensors, given)
            yield outputs.to(weights.dtype), images.labels[where]
