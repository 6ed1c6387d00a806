"""LoRA adapters: linear layers whose weights are fixed, plus a product of two small trained matrices."""

from __future__ import annotations

from bartizan.lab.torch_import import Tensor, functional, nn, torch


class AdaptedLinear(nn.Module):
    r"""A linear layer with weights :math:`W + B A`: W and the bias are fixed, A and B have `rank` rows and columns.

    As in Hu et al. (2022), A is drawn and B is zero at first, so that nothing changes before the first step.

    >>> layer = AdaptedLinear(nn.Linear(6, 4), rank=2)
    >>> sorted((name, tuple(one.shape)) for name, one in layer.named_parameters())
    [('A', (2, 6)), ('B', (4, 2))]
    """

    weight: Tensor
    bias: Tensor | None

    def __init__(self, linear: nn.Linear, rank: int) -> None:
        super().__init__()
        self.register_buffer("weight", linear.weight.detach())
        self.register_buffer("bias", None if linear.bias is None else linear.bias.detach())
        self.A = nn.Parameter(torch.randn(rank, linear.in_features) / linear.in_features**0.5)
        self.B = nn.Parameter(torch.zeros(linear.out_features, rank))

    def forward(self, x: Tensor) -> Tensor:
        return functional.linear(x, self.weight, self.bias) + x @ self.A.T @ self.B.T


def with_adapters(model: nn.Module, rank: int, seed: int = 0) -> nn.Module:
    """Put adapters on every linear layer of a model, in place, and fix all other weights: they become buffers.

    The adapters are drawn from the seed alone. Their rank is at most the width of their layer.
    """
    linear = [name for name, module in model.named_modules() if isinstance(module, nn.Linear)]
    if not linear:
        raise ValueError("model.adapters needs a network with linear layers.")
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        for path in linear:
            parent, _, name = path.rpartition(".")
            holder = model.get_submodule(parent)
            layer = getattr(holder, name)
            holder.add_module(name, AdaptedLinear(layer, min(rank, layer.in_features, layer.out_features)))
    for module in model.modules():
        if isinstance(module, AdaptedLinear):
            continue
        for name, parameter in list(module.named_parameters(recurse=False)):
            delattr(module, name)
            module.register_buffer(name, parameter.detach())
    return model


def lowered_ranks(model: nn.Module, rank: int) -> str:
    """Return a note about the layers that are too narrow for adapters of this rank; empty if there are none."""
    ranks = {name: len(one.A) for name, one in model.named_modules() if isinstance(one, AdaptedLinear)}
    narrow = {name: own for name, own in ranks.items() if own < rank}
    if not narrow:
        return ""
    least = min(narrow, key=narrow.__getitem__)
    return (
        f"model.adapters = {rank} is above the width of {len(narrow)} of {len(ranks)} linear layers: there the "
        f"adapters' rank is the width, such as {narrow[least]} in {least}."
    )
