"""Images stored as bytes on the device, where batches are shifted, mirrored and normalised."""

from __future__ import annotations

import numpy as np

from bartizan._util.types import Array
from bartizan.lab.data.base import Images
from bartizan.lab.torch_import import Tensor, functional, torch

PADDING = 4
IMAGENET = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)


def moments_for(scaling: str, images: Images) -> tuple[Array, Array]:
    """Return mean and deviation of each channel of pixels from 0 to 1: the images' own, or a pretrained network's."""
    if scaling == "own":
        return images.moments()
    both = np.array(IMAGENET if scaling == "imagenet" else [[127 / 255] * 3, [128 / 255] * 3])
    mean, deviation = both if images.shape[0] == 3 else np.repeat(both.mean(axis=1, keepdims=True), images.shape[0], 1)
    return mean, deviation


class OnDevice:
    r"""A set of images as one uint8 tensor, from which normalised batches are made.

    Each channel becomes :math:`(x / 255 - \mathrm{mean}) / \mathrm{std}`. By default both are computed from these
    images; a test set takes those of its training set.

    >>> import numpy as np
    >>> train = OnDevice(Images(np.arange(64, dtype=np.uint8).reshape(1, 1, 8, 8), [0]), "cpu")
    >>> batch = train.batch(torch.tensor([[0, 0, 0]]))
    >>> batch.shape, batch.dtype, round(batch.std(correction=0).item(), 4)
    (torch.Size([1, 3, 1, 8, 8]), torch.float32, 1.0)
    """

    def __init__(
        self,
        images: Images,
        device: torch.device | str = "cpu",
        moments: tuple[Array, Array] | None = None,
        *,
        flip: bool = True,
        resize: int = 0,
    ) -> None:
        """Copy the images to the device; without `flip`, as for digits, none is mirrored.

        With `resize` batches are scaled to that many pixels per side, bilinearly.
        """
        self.moments = moments or images.moments()
        C = images.shape[0]
        if not self.moments[1].all():
            raise ValueError(
                f"std must be positive in every channel, got {self.moments[1]}: a channel may be constant."
            )
        self.flip, self.resize = flip, resize
        self.shape = (C, resize, resize) if resize else images.shape
        self.device = torch.device(device)
        self.pixels = torch.tensor(images.pixels, dtype=torch.uint8, device=self.device)
        self.labels = torch.tensor(images.labels, dtype=torch.int64, device=self.device)
        # For pixels from 0 to 255, so that a batch is subtracted from and divided once.
        self._mean, self._std = (
            (255 * torch.tensor(one, dtype=torch.float64)).float().reshape(C, 1, 1).to(self.device)
            for one in self.moments
        )

    def batch(self, indices: Tensor, augment: torch.Generator | None = None) -> Tensor:
        """Return float32 images, (*indices.shape, C, H, W); with `augment`, each shifted and mirrored at random.

        An image is padded with 4 black pixels on each side, cropped to its size at a random place, and mirrored with
        probability 1/2. A generator on the CPU gives the same images on every device.
        """
        indices = indices.to(self.device)
        chosen = self.pixels.index_select(0, indices.reshape(-1))
        if augment is not None:
            chosen = self._augmented(chosen, augment)
        values = chosen.to(torch.float32).sub_(self._mean).div_(self._std)
        if values.shape[1:] != self.shape:
            values = functional.interpolate(values, self.shape[1:], mode="bilinear", antialias=True)
        return values.reshape(*indices.shape, *self.shape)

    def _augmented(self, chosen: Tensor, generator: torch.Generator) -> Tensor:
        B, C, H, W = chosen.shape
        sides = (2 * PADDING + 1, 2 * PADDING + 1, 2 if self.flip else 1)
        down, right, mirrored = (
            torch.randint(side, (B, 1), generator=generator, device=generator.device).to(self.device) for side in sides
        )
        columns = torch.arange(W, device=self.device)
        columns = torch.where(mirrored.bool(), columns.flip(0), columns) + right
        rows = torch.arange(H, device=self.device) + down
        wide = W + 2 * PADDING
        places = (rows[:, :, None] * wide + columns[:, None, :]).reshape(B, 1, H * W).expand(B, C, H * W)
        return functional.pad(chosen, (PADDING,) * 4).flatten(2).gather(2, places).reshape(B, C, H, W)

    def __len__(self) -> int:
        return len(self.labels)
