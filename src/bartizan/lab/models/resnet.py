"""ResNet18 (He et al., 2016), with torchvision's names and shapes."""

from __future__ import annotations

from bartizan.lab.models.layers import GlobalPool, Layer, initialise, norm_layer
from bartizan.lab.torch_import import Tensor, nn


class ResidualBlock(nn.Module):
    """A block of two convolutions and a residual connection."""

    def __init__(self, channels: int, wide: int, stride: int, norm: Layer) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(channels, wide, 3, stride, padding=1, bias=False)
        self.bn1 = norm(wide)
        self.relu = nn.ReLU(inplace=True)
        self.conv2 = nn.Conv2d(wide, wide, 3, padding=1, bias=False)
        self.bn2 = norm(wide)
        self.downsample: nn.Module | None = None
        if stride != 1 or channels != wide:
            self.downsample = nn.Sequential(nn.Conv2d(channels, wide, 1, stride, bias=False), norm(wide))

    def forward(self, x: Tensor) -> Tensor:
        shortcut = x if self.downsample is None else self.downsample(x)
        x = self.relu(self.bn1(self.conv1(x)))
        return self.relu(self.bn2(self.conv2(x)) + shortcut)


class ResNet18(nn.Module):
    """A stem, eight blocks, two at each of four sizes, and a linear layer."""

    def __init__(self, n_classes: int, image: tuple[int, int, int], norm: str) -> None:
        """Build the network: its stem makes 224 pixels per side four times fewer, 64 two times, and keeps 32."""
        super().__init__()
        channels, side, make = image[0], min(image[1:]), norm_layer(norm)
        wide_stem = side >= 48
        self.conv1 = nn.Conv2d(
            channels, 64, 7 if wide_stem else 3, 2 if wide_stem else 1, padding=3 if wide_stem else 1, bias=False
        )
        self.bn1 = make(64)
        self.relu = nn.ReLU(inplace=True)
        self.maxpool = nn.MaxPool2d(3, 2, padding=1) if side >= 128 else nn.Identity()
        self.layer1 = nn.Sequential(ResidualBlock(64, 64, 1, make), ResidualBlock(64, 64, 1, make))
        self.layer2 = nn.Sequential(ResidualBlock(64, 128, 2, make), ResidualBlock(128, 128, 1, make))
        self.layer3 = nn.Sequential(ResidualBlock(128, 256, 2, make), ResidualBlock(256, 256, 1, make))
        self.layer4 = nn.Sequential(ResidualBlock(256, 512, 2, make), ResidualBlock(512, 512, 1, make))
        self.avgpool = GlobalPool()
        self.fc = nn.Linear(512, n_classes)
        initialise(self)

    def forward(self, x: Tensor) -> Tensor:
        x = self.maxpool(self.relu(self.bn1(self.conv1(x))))
        x = self.layer4(self.layer3(self.layer2(self.layer1(x))))
        return self.fc(self.avgpool(x).flatten(1))
