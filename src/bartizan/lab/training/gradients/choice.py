"""Choose the fastest pass for a model and a device, and how many clients it computes at once."""

from __future__ import annotations

from bartizan.lab.config.sections import Clients
from bartizan.lab.training.gradients.cuda_graphs import Captured
from bartizan.lab.training.gradients.grouped import Grouped
from bartizan.lab.training.gradients.passes import Pass, Vmapped
from bartizan.lab.training.torch_import import Tensor, functional, nn, torch

IN_CACHE = 2**27  # bytes: on a processor more clients at once are slower, as their images leave the cache


def fastest_passes(model: nn.Module, device: torch.device, work: Clients) -> tuple[Pass, Pass]:
    """The pass for weights that all clients share, and the one for weights of their own (docs/reference/models.md)."""
    plain = not work.compiled and work.precision == "float32"
    many = Grouped(model) if Grouped.fits(model) else Vmapped(model)
    if device.type != "cuda":
        if not plain:
            raise ValueError(
                f"clients.compiled and clients.precision = 'bfloat16' are for a GPU; these clients are on {device}."
            )
        return many, many
    captured = Captured(model, compiled=work.compiled, precision=getattr(torch, work.precision))
    return many if plain else captured, captured


def clients_at_once(model: nn.Module, batch: int, image: tuple[int, int, int], device: torch.device) -> int:
    """The number of clients whose pass fits into the cache, or into a third of a GPU's memory.

    The free memory of the GPU does not matter, as the number must be the same when a run is resumed.
    """
    most = torch.cuda.get_device_properties(device).total_memory // 3 if device.type == "cuda" else IN_CACHE
    return max(1, most // bytes_of_pass(model, batch, image))


def bytes_of_pass(model: nn.Module, batch: int, image: tuple[int, int, int]) -> int:
    """Peak memory of one client's pass: tensors saved for the backward pass, and the patches of one layer."""
    kept, patches = 0, 0

    def keep(tensor: Tensor) -> Tensor:
        nonlocal kept
        whole = tensor if tensor._base is None else tensor._base
        if not (whole.is_leaf and whole.requires_grad):  # weights are not of the pass
            kept += tensor.numel() * tensor.element_size()
        return tensor

    def count_patches(module: nn.Module, given: tuple[Tensor, ...], out: Tensor) -> None:
        nonlocal patches
        if isinstance(module, nn.Conv2d) and module.groups == 1:
            seen = out[:, 0].numel() * module.weight[0].numel()
            patches = max(patches, seen * out.element_size())

    hooks = [module.register_forward_hook(count_patches) for module in model.modules()]
    tensors = {n: torch.empty_like(p, device="meta", requires_grad=True) for n, p in model.named_parameters()}
    tensors |= {n: torch.empty_like(b, device="meta") for n, b in model.named_buffers()}
    try:
        with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
            out = torch.func.functional_call(model, tensors, torch.empty(batch, *image, device="meta"))
            functional.cross_entropy(out, torch.zeros(batch, dtype=torch.long, device="meta"))
    finally:
        for hook in hooks:
            hook.remove()
    return kept + 2 * patches
