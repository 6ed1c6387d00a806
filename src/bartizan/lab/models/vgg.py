"""VGG16 (Simonyan and Zisserman, 2014), with torchvision's names and shapes; with a norm, those of its VGG16-BN."""

from __future__ import annotations

from bartizan.lab.models.layers import AdaptivePool, initialise, norm_layer
from bartizan.lab.torch_import import Tensor, nn

STAGES = ((64, 64), (128, 128), (256, 256, 256), (512, 512, 512), (512, 512, 512))


class VGG16(nn.Module):
    """A network of thirteen convolutions in five stages, each of which halves the image, and three linear layers.

    As in torchvision, the last map is pooled to 7 x 7 for every image size, so the linear layers, with nearly all of
    the 138 million parameters, are the same for 32 pixels as for 224.
    """

    def __init__(self, n_classes: int, image: tuple[int, int, int], norm: str) -> None:
        super().__init__()
        channels, side = image[0], min(image[1:])
        if side < 16:
            raise ValueError(f"vgg16 needs images of at least 16 x 16 pixels, got {image[1]} x {image[2]}.")
        make, layers = norm_layer(norm), list[nn.Module]()
        for stage in STAGES:
            for wide in stage:
                layers += [nn.Conv2d(channels, wide, 3, padding=1)]
                layers += [make(wide)] if norm != "none" else []
                layers += [nn.ReLU(inplace=True)]
                channels = wide
            layers += [nn.MaxPool2d(2) if side >= 2 else nn.Identity()]
            side //= 2
        self.features = nn.Sequential(*layers)
        self.avgpool = AdaptivePool(7)
        self.classifier = nn.Sequential(
            nn.Linear(512 * 7 * 7, 4096),
            nn.ReLU(inplace=True),
            nn.Dropout(0.5),
            nn.Linear(4096, 4096),
            nn.ReLU(inplace=True),
            nn.Dropout(0.5),
            nn.Linear(4096, n_classes),
        )
        initialise(self, linear_std=0.01)

    def forward(self, x: Tensor) -> Tensor:
        return self.classifier(self.avgpool(self.features(x)).flatten(1))
