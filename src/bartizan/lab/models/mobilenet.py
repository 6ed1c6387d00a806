"""MobileNetV3 (Howard et al., 2019), small and large, with torchvision's names and shapes."""

from __future__ import annotations

from functools import partial
from typing import NamedTuple

from bartizan.lab.models.layers import GlobalPool, Layer, initialise, norm_layer
from bartizan.lab.torch_import import Tensor, nn


class BlockRow(NamedTuple):
    """A row of the paper's tables 1 and 2."""

    kernel: int
    expanded: int
    wide: int
    squeeze: bool
    hard_swish: bool
    stride: int


LARGE_BLOCKS = (
    BlockRow(3, 16, 16, False, False, 1),
    BlockRow(3, 64, 24, False, False, 2),
    BlockRow(3, 72, 24, False, False, 1),
    BlockRow(5, 72, 40, True, False, 2),
    BlockRow(5, 120, 40, True, False, 1),
    BlockRow(5, 120, 40, True, False, 1),
    BlockRow(3, 240, 80, False, True, 2),
    BlockRow(3, 200, 80, False, True, 1),
    BlockRow(3, 184, 80, False, True, 1),
    BlockRow(3, 184, 80, False, True, 1),
    BlockRow(3, 480, 112, True, True, 1),
    BlockRow(3, 672, 112, True, True, 1),
    BlockRow(5, 672, 160, True, True, 2),
    BlockRow(5, 960, 160, True, True, 1),
    BlockRow(5, 960, 160, True, True, 1),
)
SMALL_BLOCKS = (
    BlockRow(3, 16, 16, True, False, 2),
    BlockRow(3, 72, 24, False, False, 2),
    BlockRow(3, 88, 24, False, False, 1),
    BlockRow(5, 96, 40, True, True, 2),
    BlockRow(5, 240, 40, True, True, 1),
    BlockRow(5, 240, 40, True, True, 1),
    BlockRow(5, 120, 48, True, True, 1),
    BlockRow(5, 144, 48, True, True, 1),
    BlockRow(5, 288, 96, True, True, 2),
    BlockRow(5, 576, 96, True, True, 1),
    BlockRow(5, 576, 96, True, True, 1),
)


class Squeeze(nn.Module):
    """A squeeze-and-excite layer: scale the channels by a function of their means."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.avgpool = GlobalPool()
        self.fc1 = nn.Conv2d(channels, rounded(channels // 4), 1)
        self.fc2 = nn.Conv2d(rounded(channels // 4), channels, 1)
        self.activation = nn.ReLU()
        self.scale_activation = nn.Hardsigmoid()

    def forward(self, x: Tensor) -> Tensor:
        return x * self.scale_activation(self.fc2(self.activation(self.fc1(self.avgpool(x)))))


class Inverted(nn.Module):
    """An inverted residual block: expand, depthwise convolution, squeeze-and-excite, project."""

    def __init__(self, channels: int, row: BlockRow, stride: int, norm: Layer) -> None:
        super().__init__()
        act = nn.Hardswish if row.hard_swish else nn.ReLU
        wide = row.expanded
        layers = list[nn.Module]([convolution(channels, wide, 1, 1, norm, act)] if wide != channels else [])
        layers += [convolution(wide, wide, row.kernel, stride, norm, act, groups=wide)]
        layers += [Squeeze(wide)] if row.squeeze else []
        layers += [convolution(wide, row.wide, 1, 1, norm, None)]
        self.block = nn.Sequential(*layers)
        # By the stride of the table, so that a network has the same connections for every image size.
        self.residual = row.stride == 1 and channels == row.wide

    def forward(self, x: Tensor) -> Tensor:
        return x + self.block(x) if self.residual else self.block(x)


class MobileNetV3(nn.Module):
    """A stem, the blocks of the table, one more convolution, and two linear layers."""

    def __init__(
        self, rows: tuple[BlockRow, ...], last: int, n_classes: int, image: tuple[int, int, int], norm: str
    ) -> None:
        """Build the network: it halves images of 128 pixels or more five times, 64 four times, 32 three times."""
        super().__init__()
        side, make = min(image[1:]), norm_layer(norm, eps=0.001, momentum=0.01)
        skipped = 0 if side >= 128 else 1 if side >= 48 else 2  # how many of the first halvings are left out
        strides = [2, *(row.stride for row in rows)]
        for at in [i for i, stride in enumerate(strides) if stride == 2][:skipped]:
            strides[at] = 1
        layers: list[nn.Module] = [convolution(image[0], 16, 3, strides[0], make, nn.Hardswish)]
        channels = 16
        for row, stride in zip(rows, strides[1:], strict=True):
            layers.append(Inverted(channels, row, stride, make))
            channels = row.wide
        layers.append(convolution(channels, 6 * channels, 1, 1, make, nn.Hardswish))
        self.features = nn.Sequential(*layers)
        self.avgpool = GlobalPool()
        self.classifier = nn.Sequential(
            nn.Linear(6 * channels, last), nn.Hardswish(inplace=True), nn.Dropout(0.2), nn.Linear(last, n_classes)
        )
        initialise(self, linear_std=0.01)

    def forward(self, x: Tensor) -> Tensor:
        return self.classifier(self.avgpool(self.features(x)).flatten(1))


def convolution(
    channels: int, wide: int, kernel: int, stride: int, norm: Layer, act: type[nn.Module] | None, groups: int = 1
) -> nn.Sequential:
    """Return a convolution that keeps the size but for its stride, its norm, and an activation or none."""
    conv = nn.Conv2d(channels, wide, kernel, stride, padding=kernel // 2, groups=groups, bias=False)
    return nn.Sequential(conv, norm(wide), *([act(inplace=True)] if act else []))


def rounded(channels: int) -> int:
    """Return the nearest multiple of 8 that is not more than a tenth below.

    >>> [rounded(channels) for channels in (4, 18, 24, 30, 60)]
    [8, 24, 24, 32, 64]
    """
    nearest = max(8, (channels + 4) // 8 * 8)
    return nearest if nearest >= 0.9 * channels else nearest + 8


small = partial(MobileNetV3, SMALL_BLOCKS, 1024)
large = partial(MobileNetV3, LARGE_BLOCKS, 1280)
