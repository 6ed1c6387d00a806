"""Batches made on the device equal a loop in NumPy, and the generator alone decides how images are moved."""

from __future__ import annotations

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from bartizan.lab.data import Images  # noqa: E402
from bartizan.lab.data.device_images import PADDING, OnDevice, moments_for  # noqa: E402

DEVICES = ["cpu", *(["cuda"] if torch.cuda.is_available() else [])]
on_every_device = pytest.mark.parametrize("device", DEVICES)


def images(n=40, C=3, H=12, W=10):
    rng = np.random.default_rng(0)
    return Images(rng.integers(0, 256, (n, C, H, W), dtype=np.uint8), rng.integers(0, 10, n))


def generator(seed=0, device="cpu"):
    return torch.Generator(device).manual_seed(seed)


def normalised(pixels, mean, std):
    return (pixels / 255 - np.reshape(mean, (-1, 1, 1))) / np.reshape(std, (-1, 1, 1))


@on_every_device
@pytest.mark.parametrize("shape", [(), (7,), (5, 4), (2, 0), (2, 3, 4)])
def test_a_batch_is_its_images_normalised(shape, device):
    data = images()
    there = OnDevice(data, device)
    indices = torch.from_numpy(np.random.default_rng(1).integers(0, len(data), shape))
    batch = there.batch(indices)
    assert (batch.dtype, batch.device.type, batch.shape) == (torch.float32, device, (*shape, *data.shape))
    np.testing.assert_allclose(batch.cpu(), normalised(data.pixels[indices.numpy()], *data.moments()), atol=2e-6)
    assert there.batch(indices, augment=generator()).shape == batch.shape


@pytest.mark.parametrize(
    ("scaling", "mean", "std"),
    [("imagenet", [0.485, 0.456, 0.406], [0.229, 0.224, 0.225]), ("symmetric", [127 / 255] * 3, [128 / 255] * 3)],
)
def test_pixels_are_scaled_as_pretrained_networks_want_them(scaling, mean, std):
    data = images()
    batch = OnDevice(data, "cpu", moments_for(scaling, data)).batch(torch.arange(40))
    np.testing.assert_allclose(batch, normalised(data.pixels, mean, std), atol=2e-6)
    grey, _ = moments_for(scaling, images(C=1))
    assert grey == pytest.approx([np.mean(mean)])
    for one, own in zip(moments_for("own", data), data.moments(), strict=True):
        np.testing.assert_array_equal(one, own)


@on_every_device
def test_images_are_scaled_to_the_size_that_is_asked_for(device):
    flat = Images(np.repeat(np.uint8([10, 200]), 3 * 8 * 8).reshape(2, 3, 8, 8), [0, 1])
    there = OnDevice(flat, device, resize=20)
    batch = there.batch(torch.tensor([[0, 1]]), augment=None).cpu()
    assert (there.shape, batch.shape) == ((3, 20, 20), (1, 2, 3, 20, 20))
    np.testing.assert_allclose(batch[0, :, :, 0, 0], batch[0, :, :, 7, 13], atol=1e-6)
    np.testing.assert_allclose(batch.mean((1, 2, 3, 4)), 0, atol=1e-6)
    ramp = Images(np.arange(64, dtype=np.uint8).reshape(1, 1, 8, 8), [0])
    small, large = (OnDevice(ramp, device, resize=n).batch(torch.tensor([0])).cpu() for n in (0, 16))
    assert large.mean().item() == pytest.approx(small.mean().item(), abs=1e-5)
    assert (large.diff(dim=2) >= 0).all()


@on_every_device
@pytest.mark.parametrize("flip", [True, False])
@pytest.mark.parametrize("C", [1, 3])
def test_moved_images_are_those_of_a_loop(C, flip, device):
    data = images(C=C)
    indices = torch.from_numpy(np.random.default_rng(1).integers(0, len(data), (6, 5)))
    moved = OnDevice(data, device, flip=flip).batch(indices, augment=generator()).cpu()

    draws = generator()
    sides = (2 * PADDING + 1, 2 * PADDING + 1, 2 if flip else 1)
    downs, rights, mirrors = (torch.randint(side, (30, 1), generator=draws).ravel().tolist() for side in sides)
    _, H, W = data.shape
    for at, index in enumerate(indices.ravel().tolist()):
        wide = np.pad(data.pixels[index], ((0, 0), (PADDING, PADDING), (PADDING, PADDING)))
        cut = wide[:, downs[at] : downs[at] + H, rights[at] : rights[at] + W]
        cut = cut[:, :, ::-1] if mirrors[at] else cut
        np.testing.assert_allclose(moved[at // 5, at % 5], normalised(cut, *data.moments()), atol=2e-6)


@on_every_device
def test_a_generator_decides_and_global_randomness_stays(device):
    there = OnDevice(images(), device)
    indices = torch.arange(40)
    before = torch.random.get_rng_state()
    one, same, other = (there.batch(indices, augment=generator(seed, device)) for seed in (3, 3, 4))
    assert torch.equal(one, same)
    assert not torch.equal(one, other)
    assert torch.equal(before, torch.random.get_rng_state())


def test_constant_images_are_refused():
    with pytest.raises(ValueError, match="std must be positive"):
        OnDevice(Images(np.zeros((2, 1, 4, 4), np.uint8), [0, 1]))


def test_what_is_done_to_the_source_afterwards_does_not_show():
    data = images()
    there = OnDevice(data)
    data.pixels[:] = 0
    assert there.pixels.any()
