"""BatchNorm and depthwise convolutions of many clients on a GPU, by kernels that read each tensor once or twice.

torch's operations would pass 30 times over every activation of a MobileNet or an EfficientNet, whose layers do so
little arithmetic that memory is all they wait for. Tensors are images with channels last: (N, H, W, C).
"""

from __future__ import annotations

from typing import Any

import triton
import triton.language as tl

from bartizan.lab.training.gradients.conv import LAST, GroupedConv
from bartizan.lab.training.gradients.grouped_layers import GroupedNorm
from bartizan.lab.training.torch_import import Tensor, nn, torch

CHANNELS, PLACES = 32, 32  # of a tile
TAP_PLACES = 16  # places of a tile that holds a row of the kernel for each
LEAST_PLACES = 1024  # of a part of a client's places
PROGRAMS = 4096  # enough to fill a large GPU
# Not compiled in: one kernel serves all sizes but for C, by which reads are aligned.
SIZES = ("H", "W", "given_H", "given_W", "padding")


class FusedBatchNorm(GroupedNorm):
    """`nn.BatchNorm2d`: two reads and a write forward, four reads and a write back."""

    def compute(self, ctx: Any, x: Tensor) -> Tensor:
        x = x.contiguous(memory_format=LAST)
        rows = self.units(x)
        n = rows.shape[1]
        if n < 2:
            raise ValueError("BatchNorm needs more than one value a channel to train on: take a larger batch.")
        # About a value of the channel: far from zero a small variance would lose its digits.
        origin = rows[:, 0].contiguous()
        first, second = sums(rows, rows, origin, squares=True)
        mean, variance = origin + first / n, ((second - first * first / n) / n).clamp_(min=0)
        self.update_statistics(mean, variance, n)
        inverse = (variance + self.eps).rsqrt_()
        ctx.save_for_backward(x, mean, inverse)
        assert self.bias is not None
        scale = self.per_unit(self.weight.weights, len(rows)) * inverse
        shift = self.per_unit(self.bias.weights, len(rows)).expand_as(scale).contiguous()
        out = torch.empty_like(x)
        combine(rows, None, mean, scale, scale, shift, self.units(out))
        return out

    def differentiate(self, ctx: Any, gradient: Tensor) -> Tensor:
        x, mean, inverse = ctx.saved_tensors
        gradient = gradient.contiguous(memory_format=LAST)
        g, rows = self.units(gradient), self.units(x)
        first, second = sums(g, rows, mean, squares=False)
        second = second * inverse
        assert self.bias is not None
        self.bias.rows.copy_(first)
        self.weight.rows.copy_(second)
        scale, n = self.per_unit(self.weight.weights, len(rows)) * inverse, rows.shape[1]
        dx = torch.empty_like(gradient)
        combine(rows, g, mean, -scale * inverse * second / n, scale, -scale * first / n, self.units(dx))
        return dx


class PointwiseConv(GroupedConv):
    """`nn.Conv2d` of one pixel, where clients share its weights: products of matrices, a row for each place."""

    @staticmethod
    def fits(layer: nn.Conv2d) -> bool:
        plain = (*layer.kernel_size, *layer.stride) == (1, 1, 1, 1) and set(layer.padding) == {0}
        return GroupedConv.fits(layer) and plain and layer.groups == 1 and layer.bias is None

    def compute(self, ctx: Any, x: Tensor) -> Tensor:
        if not self.pass_buffers.shared:
            return super().compute(ctx, x)
        x = x.contiguous(memory_format=LAST)
        ctx.save_for_backward(x)
        return self.product(x, self.matrix.mT)

    def differentiate(self, ctx: Any, gradient: Tensor) -> Tensor | None:
        if not self.pass_buffers.shared:
            return super().differentiate(ctx, gradient)
        (x,), g = ctx.saved_tensors, gradient.contiguous(memory_format=LAST)
        m, (out, channels) = self.pass_buffers.m, self.matrix.shape
        places = x.numel() // channels // m
        # A client's sum over many places, in parts: one product for each client would leave a GPU idle.
        parts = next(n for n in (16, 8, 4, 2, 1) if n == 1 or (places % n == 0 and places // n >= LEAST_PLACES))
        by_part = (t.permute(0, 2, 3, 1).reshape(m * parts, -1, t.shape[1]) for t in (g, x))
        rows = torch.bmm(next(by_part).mT, next(by_part)).view(m, parts, out, channels).sum(1)
        self.weight.rows.copy_(rows[..., None, None])
        return self.product(g, self.matrix) if ctx.needs_input_grad[0] else None

    @property
    def matrix(self) -> Tensor:
        return self.weight.weights[:, :, 0, 0]

    @staticmethod
    def product(images: Tensor, matrix: Tensor) -> Tensor:
        """The channels of each place times a matrix."""
        N, _, H, W = images.shape
        shape = (N, matrix.shape[1], H, W)
        out = torch.empty(shape, dtype=images.dtype, device=images.device, memory_format=LAST)
        rows = out.permute(0, 2, 3, 1).view(-1, matrix.shape[1])
        torch.mm(images.permute(0, 2, 3, 1).reshape(-1, images.shape[1]), matrix, out=rows)
        return out


class DepthwiseConv(GroupedConv):
    """`nn.Conv2d` with a group for each channel, where clients share its weights."""

    @staticmethod
    def fits(layer: nn.Conv2d) -> bool:
        square = len({*layer.kernel_size}) == len({*layer.stride}) == len({*layer.padding}) == 1
        return GroupedConv.fits(layer) and square and layer.groups == layer.in_channels == layer.out_channels

    def compute(self, ctx: Any, x: Tensor) -> Tensor:
        if not self.pass_buffers.shared:
            return super().compute(ctx, x)
        x = x.contiguous(memory_format=LAST)
        ctx.save_for_backward(x)
        height, width = ((n + 2 * self.padding[0] - self.kernel[0]) // self.stride[0] + 1 for n in x.shape[2:])
        out = torch.empty((*x.shape[:2], height, width), dtype=x.dtype, device=x.device, memory_format=LAST)
        self.slide(x, out, transposed=False)
        return out if self.bias is None else out.add_(self.bias.weights[:, None, None])

    def differentiate(self, ctx: Any, gradient: Tensor) -> Tensor | None:
        if not self.pass_buffers.shared:
            return super().differentiate(ctx, gradient)
        (x,), g = ctx.saved_tensors, gradient.contiguous(memory_format=LAST)
        self.weight.rows.copy_(self.tap_sums(g, x))
        if self.bias is not None:
            torch.sum(self.by_client(g.permute(0, 2, 3, 1)), 1, out=self.bias.rows)
        if not ctx.needs_input_grad[0]:
            return None
        dx = torch.empty_like(x)
        self.slide(g, dx, transposed=True)
        return dx

    def slide(self, given: Tensor, out: Tensor, transposed: bool) -> None:
        """The convolution of `given`, or its transpose."""
        N, C, H, W = out.shape
        sizes = (N * H * W, H, W, *given.shape[2:], C, self.padding[0])
        grid = -(-sizes[0] // PLACES), -(-C // CHANNELS)
        weight = self.weight.weights.contiguous()
        _slide[grid](given, weight, out, *sizes, self.kernel[0], self.stride[0], transposed, PLACES, CHANNELS)

    def tap_sums(self, g: Tensor, x: Tensor) -> Tensor:
        """Each client's gradient of the weight, (m, channels, 1, kernel, kernel)."""
        (N, C, H, W), m, kernel = g.shape, self.pass_buffers.m, self.kernel[0]
        places, blocks = N // m * H * W, -(-C // CHANNELS)
        parts = max(1, min(PROGRAMS // (kernel * m * blocks), -(-places // (4 * TAP_PLACES))))
        each = -(-places // parts)
        out = g.new_empty(parts, m, C, kernel, kernel)
        sizes = (places, each, H, W, *x.shape[2:], C, self.padding[0])
        wide = triton.next_power_of_2(kernel)
        _tap_sums[kernel, blocks, parts * m](g, x, out, *sizes, m, kernel, self.stride[0], wide, TAP_PLACES, CHANNELS)
        return out.sum(0)[:, :, None]


def sums(g: Tensor, x: Tensor, mean: Tensor, squares: bool) -> tuple[Tensor, Tensor]:
    """The sums of g and of g (x - mean) over the places of (units, places, channels); of x - mean for g in squares."""
    U, L, C = x.shape
    blocks = -(-C // CHANNELS)
    parts = max(1, min(PROGRAMS // (U * blocks), -(-L // (4 * PLACES))))
    out = x.new_empty(2, parts, U, C)
    _sums[blocks, U, parts](g, x, mean, out, L, -(-L // parts), C, squares, PLACES, CHANNELS)
    first, second = out.sum(1)
    return first, second


def combine(x: Tensor, g: Tensor | None, mean: Tensor, by_x: Tensor, by_g: Tensor, shift: Tensor, out: Tensor) -> None:
    """out = by_x (x - mean) + by_g g + shift, where all but x, g and out are (units, channels)."""
    U, L, C = x.shape
    grid = -(-L // (4 * PLACES)), -(-C // CHANNELS), U
    _combine[grid](x, x if g is None else g, mean, by_x, by_g, shift, out, L, C, g is not None, 4 * PLACES, CHANNELS)


@triton.jit(do_not_specialize=["L", "each"])
def _sums(g, x, mean, out, L, each, C, SQUARES: tl.constexpr, PLACES: tl.constexpr, CHANNELS: tl.constexpr):
    u, part = tl.program_id(1), tl.program_id(2)
    c = tl.program_id(0) * CHANNELS + tl.arange(0, CHANNELS)
    base = u.to(tl.int64) * L * C
    centre = tl.load(mean + u * C + c, mask=c < C, other=0.0)[None, :]
    first = tl.zeros((PLACES, CHANNELS), x.dtype.element_ty)
    second = tl.zeros((PLACES, CHANNELS), x.dtype.element_ty)
    end = tl.minimum((part + 1) * each, L)
    for start in range(part * each, end, PLACES):
        place = start + tl.arange(0, PLACES)[:, None]
        here = (place < end) & (c[None, :] < C)
        at = base + place * C + c[None, :]
        centred = tl.where(here, tl.load(x + at, mask=here, other=0.0) - centre, 0.0)
        by = centred
        if not SQUARES:
            by = tl.load(g + at, mask=here, other=0.0)
        first += by
        second += by * centred
    to = out + (part * tl.num_programs(1) + u) * C + c
    tl.store(to, tl.sum(first, 0), mask=c < C)
    tl.store(to + tl.num_programs(2) * tl.num_programs(1) * C, tl.sum(second, 0), mask=c < C)


@triton.jit(do_not_specialize=["L"])
def _combine(
    x,
    g,
    mean,
    by_x,
    by_g,
    shift,
    out,
    L,
    C,
    HAS_G: tl.constexpr,
    PLACES: tl.constexpr,
    CHANNELS: tl.constexpr,
):
    u = tl.program_id(2)
    c = tl.program_id(1) * CHANNELS + tl.arange(0, CHANNELS)
    place = tl.program_id(0) * PLACES + tl.arange(0, PLACES)[:, None]
    here = (place < L) & (c[None, :] < C)
    at = u.to(tl.int64) * L * C + place * C + c[None, :]
    own = u * C + c
    centre = tl.load(mean + own, mask=c < C, other=0.0)[None, :]
    y = (tl.load(x + at, mask=here, other=0.0) - centre) * tl.load(by_x + own, mask=c < C, other=0.0)[None, :]
    if HAS_G:
        y += tl.load(g + at, mask=here, other=0.0) * tl.load(by_g + own, mask=c < C, other=0.0)[None, :]
    tl.store(out + at, y + tl.load(shift + own, mask=c < C, other=0.0)[None, :], mask=here)


@triton.jit(do_not_specialize=["n_places", *SIZES], do_not_specialize_on_alignment=["weight"])
def _slide(
    given,
    weight,
    out,
    n_places,
    H,
    W,
    given_H,
    given_W,
    C,
    padding,
    KERNEL: tl.constexpr,
    STRIDE: tl.constexpr,
    TRANSPOSED: tl.constexpr,
    PLACES: tl.constexpr,
    CHANNELS: tl.constexpr,
):
    """Each place of `out`, (N, H, W), as the sum over the taps that reach it of `given`, (N, given_H, given_W)."""
    place = tl.program_id(0) * PLACES + tl.arange(0, PLACES)
    c = tl.program_id(1) * CHANNELS + tl.arange(0, CHANNELS)
    column, row, image = place % W, place // W % H, place // (W * H)
    total = tl.zeros((PLACES, CHANNELS), given.dtype.element_ty)
    for i in tl.static_range(KERNEL):
        for j in tl.static_range(KERNEL):
            if TRANSPOSED:
                down, right = row + padding - i, column + padding - j
                there = (down % STRIDE == 0) & (right % STRIDE == 0) & (down >= 0) & (right >= 0)
                down, right = down // STRIDE, right // STRIDE
            else:
                down, right = row * STRIDE - padding + i, column * STRIDE - padding + j
                there = (down >= 0) & (right >= 0)
            there = there & (down < given_H) & (right < given_W) & (place < n_places)
            here = there[:, None] & (c[None, :] < C)
            at = ((image.to(tl.int64) * given_H + down) * given_W + right)[:, None] * C + c[None, :]
            tap = tl.load(weight + (c * KERNEL + i) * KERNEL + j, mask=c < C, other=0.0)
            total += tl.load(given + at, mask=here, other=0.0) * tap[None, :]
    at = place.to(tl.int64)[:, None] * C + c[None, :]
    tl.store(out + at, total, mask=(place[:, None] < n_places) & (c[None, :] < C))


@triton.jit(do_not_specialize=["places", "each", "m", *SIZES])
def _tap_sums(
    g,
    x,
    out,
    places,
    each,
    H,
    W,
    given_H,
    given_W,
    C,
    padding,
    m,
    KERNEL: tl.constexpr,
    STRIDE: tl.constexpr,
    WIDE: tl.constexpr,
    PLACES: tl.constexpr,
    CHANNELS: tl.constexpr,
):
    """A part of a client's sums of g times x under row i of the kernel; its columns are the second dimension."""
    i, client, part = tl.program_id(0), tl.program_id(2) % m, tl.program_id(2) // m
    c = tl.program_id(1) * CHANNELS + tl.arange(0, CHANNELS)
    j = tl.arange(0, WIDE)
    total = tl.zeros((PLACES, WIDE, CHANNELS), x.dtype.element_ty)
    end = tl.minimum((part + 1) * each, places)
    for start in range(part * each, end, PLACES):
        place = start + tl.arange(0, PLACES)
        inside = place < end
        whole = client.to(tl.int64) * places + place  # of all clients' places
        image, down = whole // (W * H), place // W % H * STRIDE - padding + i
        right = (place % W * STRIDE - padding)[:, None] + j[None, :]
        reached = (
            (inside & (down >= 0) & (down < given_H))[:, None]
            & (right >= 0)
            & (right < given_W)
            & (j < KERNEL)[None, :]
        )
        at = ((image * given_H + down)[:, None] * given_W + right)[:, :, None] * C + c[None, None, :]
        seen = tl.load(x + at, mask=reached[:, :, None] & (c < C)[None, None, :], other=0.0)
        by = tl.load(g + whole[:, None] * C + c[None, :], mask=inside[:, None] & (c < C)[None, :], other=0.0)
        total += seen * by[:, None, :]
    to = (((part * m + client) * C + c)[None, :] * KERNEL + i) * KERNEL + j[:, None]
    tl.store(out + to, tl.sum(total, 0), mask=(j < KERNEL)[:, None] & (c < C)[None, :])
