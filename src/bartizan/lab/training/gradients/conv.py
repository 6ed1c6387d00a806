"""A convolution of many clients at once.

Channels are the last dimension in memory, so that the patches under a kernel are rows of a matrix, and a client's
gradient is a product of two matrices: (positions, channels out) and (positions, patch).
"""

from __future__ import annotations

from typing import Any

from bartizan.lab.torch_import import Tensor, functional, nn, torch
from bartizan.lab.training.gradients.grouped_layers import GroupedLayer, PassBuffers

CHANNELS_LAST = torch.channels_last
Pair = tuple[int, int]


class GroupedConv(GroupedLayer):
    """An `nn.Conv2d` with shared weights or with each client's own."""

    def __init__(self, pass_buffers: PassBuffers, name: str, layer: nn.Conv2d) -> None:
        super().__init__(pass_buffers, name, layer)
        self.kernel: Pair = (layer.kernel_size[0], layer.kernel_size[1])
        self.stride: Pair = (layer.stride[0], layer.stride[1])
        self.padding: Pair = (int(layer.padding[0]), int(layer.padding[1]))
        self.groups = layer.groups

    @staticmethod
    def fits(layer: nn.Conv2d) -> bool:
        return layer.padding_mode == "zeros" and layer.dilation == (1, 1) and not isinstance(layer.padding, str)

    def compute(self, ctx: Any, x: Tensor) -> Tensor:
        x = x.contiguous(memory_format=CHANNELS_LAST)
        ctx.save_for_backward(x)
        weight, bias = self.weights()
        if not self.pass_buffers.shared:
            return self.with_own_weights(x, weight, bias).detach()  # no view, as the next layer may write to it
        weight = weight.contiguous(memory_format=CHANNELS_LAST)
        return functional.conv2d(x, weight, bias, self.stride, self.padding, groups=self.groups)

    def differentiate(self, ctx: Any, gradient: Tensor) -> Tensor | None:
        (x,), g = ctx.saved_tensors, gradient.contiguous(memory_format=CHANNELS_LAST)
        self.rows(self.weight).copy_(self.weights_gradient(g, x))
        if self.bias is not None:
            torch.sum(self.by_client(g.permute(0, 2, 3, 1)), 1, out=self.rows(self.bias))
        return self.images_gradient(g, x) if ctx.needs_input_grad[0] else None

    def with_own_weights(self, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        """Convolve with each client's own weights."""
        if self.groups > 1:
            flat = None if bias is None else bias.flatten()
            groups = self.pass_buffers.m * self.groups
            beside = channels_of_all(x, self.pass_buffers.m)
            out = functional.conv2d(beside, weight.flatten(0, 1), flat, self.stride, self.padding, groups=groups)
            return images_of_each(out, self.pass_buffers.m)
        seen = patches(x, self.kernel, self.stride, self.padding)
        out = x.new_empty(*seen.shape[:3], weight.shape[1])
        rows = self.by_client(out)
        torch.bmm(self.by_client(seen), by_patch(weight).mT, out=rows)
        if bias is not None:
            rows += bias[:, None]
        return out.permute(0, 3, 1, 2)

    def weights_gradient(self, g: Tensor, x: Tensor) -> Tensor:
        """Return each client's gradient of the weight, (m, out, in / groups, kh, kw)."""
        m, shape = self.pass_buffers.m, self.weight.shape
        if self.groups > 1:
            like = g.new_empty(m * shape[0], *shape[1:])
            beside = channels_of_all(g, m), channels_of_all(x, m)
            return self.by_torch(*beside, like, m * self.groups, 1).view(m, *shape)
        seen = self.by_client(patches(x, self.kernel, self.stride, self.padding))
        product = self.by_client(g.permute(0, 2, 3, 1)).mT @ seen
        return product.view(m, shape[0], *self.kernel, shape[1]).permute(0, 1, 4, 2, 3)

    def images_gradient(self, g: Tensor, x: Tensor) -> Tensor:
        m, (weight, _) = self.pass_buffers.m, self.weights()
        if self.pass_buffers.shared:
            return self.by_torch(g, x, weight.contiguous(memory_format=CHANNELS_LAST), self.groups, 0)
        if self.groups > 1:
            beside = channels_of_all(g, m), channels_of_all(x, m)
            return images_of_each(self.by_torch(*beside, weight.flatten(0, 1), m * self.groups, 0), m)
        (down, right), (kh, kw) = self.padding, self.kernel
        if self.stride == (1, 1) and down < kh and right < kw:
            # A convolution with the flipped kernel.
            turned = by_patch(weight.flip(3, 4).transpose(1, 2))
            seen = self.by_client(patches(g, self.kernel, (1, 1), (kh - 1 - down, kw - 1 - right)))
            back = seen @ turned.mT
            return back.view(len(x), *x.shape[2:], -1).permute(0, 3, 1, 2)
        back = self.by_client(g.permute(0, 2, 3, 1)) @ by_patch(weight)
        return add_patches(back, x, self.kernel, self.stride, self.padding)

    def by_torch(self, g: Tensor, x: Tensor, weight: Tensor, groups: int, which: int) -> Tensor:
        """Return torch's own gradient of the images (0) or of the weight (1)."""
        wanted = (which == 0, which == 1, False)
        return torch.ops.aten.convolution_backward(
            g, x, weight, None, self.stride, self.padding, (1, 1), False, (0, 0), groups, wanted
        )[which]


def patches(x: Tensor, kernel: Pair, stride: Pair, padding: Pair) -> Tensor:
    """Return the patch under the kernel at each position of (N, C, H, W): (N, rows, columns, kernel * kernel * C)."""
    (down, right), (kh, kw), (sh, sw) = padding, kernel, stride
    last = x.permute(0, 2, 3, 1)
    if (kh, kw) == (1, 1) and (down, right) == (0, 0):
        return last[:, ::sh, ::sw]
    wide = functional.pad(last, (0, 0, right, right, down, down))
    return wide.unfold(1, kh, sh).unfold(2, kw, sw).permute(0, 1, 2, 4, 5, 3).flatten(3)


def add_patches(cols: Tensor, x: Tensor, kernel: Pair, stride: Pair, padding: Pair) -> Tensor:
    """Add the values of all patches to their pixels: the transpose of `patches`."""
    N, C, H, W = x.shape
    (down, right), (kh, kw), (sh, sw) = padding, kernel, stride
    rows, columns = (H + 2 * down - kh) // sh + 1, (W + 2 * right - kw) // sw + 1
    cols = cols.view(N, rows, columns, kh, kw, C)
    wide = cols.new_zeros(N, H + 2 * down, W + 2 * right, C)
    for i in range(kh):
        for j in range(kw):
            seen = wide[:, i : i + sh * (rows - 1) + 1 : sh, j : j + sw * (columns - 1) + 1 : sw]
            seen += cols[:, :, :, i, j]
    return wide[:, down : down + H, right : right + W].permute(0, 3, 1, 2)


def by_patch(weight: Tensor) -> Tensor:
    """Return clients' weights, (m, out, in, kh, kw), in the order of a patch: (m, out, kh * kw * in)."""
    return weight.permute(0, 1, 3, 4, 2).flatten(2)


def channels_of_all(x: Tensor, m: int) -> Tensor:
    """Return all clients' channels in one image, (batch, m * channels, ...), for a grouped convolution."""
    return x.reshape(m, -1, *x.shape[1:]).transpose(0, 1).flatten(1, 2)


def images_of_each(x: Tensor, m: int) -> Tensor:
    """Undo `channels_of_all`; channels are last in memory."""
    B, channels, H, W = x.shape
    out = torch.empty((m * B, channels // m, H, W), dtype=x.dtype, device=x.device, memory_format=CHANNELS_LAST)
    out.view(m, B, channels // m, H, W).copy_(x.reshape(B, m, channels // m, H, W).transpose(0, 1))
    return out
