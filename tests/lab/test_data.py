"""Data sets: what is read equals what was written, and a broken or hostile file is named."""

from __future__ import annotations

import os
import struct
import tracemalloc
from pathlib import Path

import numpy as np
import pytest

from bartizan.lab.data import DATASETS, DataError, Dataset, Images, load
from image_files import idx, pixels, same, write_idx

SAMPLES = Path(__file__).parents[3] / "shared" / "data"


def test_the_embedded_set_is_balanced_its_parts_share_no_image_and_it_wants_no_folder(tmp_path):
    data = load()
    assert data.train.pixels.shape == (10_000, 1, 28, 28)
    assert np.bincount(data.train.labels).tolist() == [1000] * 10
    assert np.bincount(data.test.labels).tolist() == [200] * 10
    train, test = ({image.tobytes() for image in part.pixels} for part in (data.train, data.test))
    assert not train & test
    assert (np.diff(data.train.labels) != 0).mean() > 0.8  # in random order: 0.9, give or take 0.003
    with pytest.raises(ValueError, match="comes with bartizan"):
        load("fashion-mnist-mini", tmp_path)


@pytest.mark.parametrize("name", [name for name in DATASETS if not name.endswith("-mini")])
def test_a_set_that_is_not_there_is_named_with_its_download(name, tmp_path):
    with pytest.raises(DataError, match=f"{name} needs its files: download .* from the"):
        load(name)
    with pytest.raises(DataError, match=f"{name}: .* is missing .*Download"):
        load(name, tmp_path)
    with pytest.raises(DataError, match="is not a folder"):
        load(name, tmp_path / "elsewhere")


def test_moments_are_those_of_numpy():
    images = Images(pixels(300, 3, 20, 20), np.zeros(300))
    mean, std = images.moments()
    np.testing.assert_allclose(mean, (images.pixels / 255).mean(axis=(0, 2, 3)), rtol=1e-12)
    np.testing.assert_allclose(std, (images.pixels / 255).std(axis=(0, 2, 3)), rtol=1e-12)


def test_images_and_labels_must_fit():
    with pytest.raises(ValueError, match="uint8 of shape"):
        Images(np.zeros((2, 1, 4, 4)), [0, 1])
    with pytest.raises(ValueError, match="as many labels"):
        Images(pixels(2, 1, 4, 4), [0])
    with pytest.raises(DataError, match=r"labels to test must lie from 0 to 1, got 0 to 2"):
        Dataset("x", ("a", "b"), Images(pixels(1, 1, 4, 4), [0]), Images(pixels(2, 1, 4, 4), [0, 2]))


@pytest.mark.parametrize("below", ["", "MNIST/raw"])
@pytest.mark.parametrize("end", ["", ".gz"])
@pytest.mark.parametrize("mark", ["-", "."])
def test_idx_files_come_back_as_written(mark, end, below, tmp_path):
    wrote = write_idx(tmp_path / below, mark, end)
    data = load("mnist", tmp_path)
    assert same(data.train, wrote[f"train-images{mark}idx3-ubyte"][:, None], range(5))
    assert same(data.test, wrote[f"t10k-images{mark}idx3-ubyte"][:, None], range(3))
    assert (data.classes[9], data.flip) == ("9", False)
    if not below:
        assert load("fashion-mnist", tmp_path).classes[9] == "Ankle boot"


BROKEN_IDX = {
    "an empty file": (b"", "header alone needs 16"),
    "another magic": (struct.pack(">4I", 2049, 5, 28, 28), "begins with 2051, this one with 2049"),
    "other sides": (struct.pack(">4I", 2051, 5, 28, 29) + bytes(5 * 28 * 29), "up to 1,000,000 of 28 x 28"),
    "cut short": (idx(np.zeros((5, 28, 28), np.uint8))[:-1], "needs 3,936 bytes"),
    "too long": (idx(np.zeros((5, 28, 28), np.uint8)) + b"x", "needs 3,936 bytes"),
    "a claim of much": (struct.pack(">4I", 2051, 999_999, 28, 28), "needs 783,999,232 bytes"),
}


@pytest.mark.parametrize("end", ["", ".gz"])
@pytest.mark.parametrize("case", BROKEN_IDX)
def test_a_broken_idx_file_is_named_and_takes_no_memory(case, end, tmp_path):
    data, why = BROKEN_IDX[case]
    write_idx(tmp_path, end=end, train_images=data)
    tracemalloc.start()
    with pytest.raises(DataError, match=rf"train-images-idx3-ubyte{end} is corrupt: .*{why}.* Download"):
        load("mnist", tmp_path)
    assert tracemalloc.get_traced_memory()[1] < 20e6
    tracemalloc.stop()


def test_gz_that_is_cut_or_damaged_is_named_and_zeros_behind_it_are_padding(tmp_path):
    write_idx(tmp_path, end=".gz")
    path = tmp_path / "train-images-idx3-ubyte.gz"
    whole, wanted = path.read_bytes(), load("mnist", tmp_path).train.pixels
    path.write_bytes(whole + bytes(100))
    assert np.array_equal(load("mnist", tmp_path).train.pixels, wanted)
    damaged = whole[:-8] + bytes(8), whole[:2000] + b"x" + whole[2001:]
    for data in (whole[:-4], whole[:500], whole + b"x", *damaged, b"no gz"):
        path.write_bytes(data)
        with pytest.raises(DataError, match=r"train-images-idx3-ubyte\.gz is corrupt"):
            load("mnist", tmp_path)


def test_labels_must_be_as_many_as_images_and_known(tmp_path):
    write_idx(tmp_path, train_labels=idx(np.zeros(4, np.uint8)))
    with pytest.raises(DataError, match="4 labels for 5 images"):
        load("mnist", tmp_path)
    write_idx(tmp_path, train_labels=idx(np.full(5, 10, np.uint8)))
    with pytest.raises(DataError, match="from 0 to 9, and it has 10"):
        load("mnist", tmp_path)


@pytest.fixture
def tiny(tmp_path):
    """Two classes with three images, one of them grey, and three to test, one of which is not there."""
    Image = pytest.importorskip("PIL.Image", reason="Pillow reads JPEG files: pip install '.[lab]'")
    root = tmp_path / "tiny-imagenet-200"

    def jpeg(path, colour, mode="RGB", size=(64, 64)):
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.new(mode, size, colour).save(path, "JPEG")

    jpeg(root / "train/n02/images/n02_0.JPEG", (255, 0, 0))
    jpeg(root / "train/n02/images/n02_10.JPEG", (0, 255, 0))
    jpeg(root / "train/n02/images/n02_2.JPEG", 100, "L")
    jpeg(root / "train/n01/images/n01_0.JPEG", (0, 0, 255))
    jpeg(root / "val/images/val_0.JPEG", (0, 0, 255))
    jpeg(root / "val/images/val_2.JPEG", (255, 0, 0))
    notes = "val_0.JPEG\tn01\t0\t32\t44\t62\nval_1.JPEG\tn01\t0\t0\t1\t1\nval_2.JPEG\tn02\t0\t0\t9\t9\n"
    (root / "val/val_annotations.txt").write_text(notes)
    (root / "wnids.txt").write_text("n02\nn01\n")
    (root / "words.txt").write_text("n02\tgoldfish, Carassius auratus\nn03\tother\n")
    return root, jpeg


def colours(images):
    return images.pixels.mean(axis=(2, 3)).round(-1).astype(int).tolist()


@pytest.mark.parametrize("given_folder", ["its own", "the one around it"])
def test_tiny_imagenet_comes_back_as_written(given_folder, tiny):
    root, _ = tiny
    data = load("tiny-imagenet", root if given_folder == "its own" else root.parent)
    assert data.classes == ("goldfish", "n01")
    assert data.train.labels.tolist() == [0, 0, 0, 1]
    assert colours(data.train) == [[250, 0, 0], [100, 100, 100], [0, 260, 0], [0, 0, 250]]
    assert data.test.labels.tolist() == [1, 0]
    assert colours(data.test) == [[0, 0, 250], [250, 0, 0]]


def test_a_broken_tiny_imagenet_names_the_file(tiny):
    root, jpeg = tiny
    path = root / "train/n02/images/n02_2.JPEG"
    jpeg(path, 0, "L", (65, 64))
    with pytest.raises(DataError, match=r"n02_2\.JPEG is corrupt: it has 65 x 64 pixels; wanted 64 x 64"):
        load("tiny-imagenet", root)
    jpeg(path, 0, "L")
    whole = path.read_bytes()
    for data in (whole[:-60], b"", b"\x89PNG\r\n\x1a\n" + bytes(99), bytes(2**20 + 1)):
        path.write_bytes(data)
        with pytest.raises(DataError, match=r"n02_2\.JPEG is corrupt"):
            load("tiny-imagenet", root)
    path.write_bytes(whole)
    jpeg(root / "val/images/val_7.JPEG", 0, "L")
    with pytest.raises(DataError, match=r"val_annotations\.txt is corrupt: expected a line for val_7\.JPEG, got none"):
        load("tiny-imagenet", root)
    (root / "val/val_annotations.txt").write_text("val_0.JPEG n01")
    with pytest.raises(DataError, match="line 1 must name a class"):
        load("tiny-imagenet", root)
    (root / "wnids.txt").write_text("n01\n../n02\n")
    with pytest.raises(DataError, match=r"wnids\.txt is corrupt"):
        load("tiny-imagenet", root)


@pytest.mark.parametrize(
    ("name", "shape", "n_classes"),
    [("cifar10", (3, 32, 32), 10), ("cifar100", (3, 32, 32), 100), ("tiny-imagenet", (3, 64, 64), 200)],
)
def test_samples_of_the_real_sets_load(name, shape, n_classes):
    if not SAMPLES.is_dir():
        pytest.skip("there are no samples of the real sets in ../shared/data")
    data = load(name, SAMPLES)
    assert (data.train.shape, data.n_classes) == (shape, n_classes)
    assert len(data.train) > len(data.test) >= 100
    # Photographs are neither dark nor bright, and neighbouring pixels are alike: their channels stand in planes.
    mean, std = data.train.moments()
    assert np.all((mean > 0.35) & (mean < 0.6))
    assert np.all((std > 0.2) & (std < 0.35))
    step = np.diff(data.train.pixels.astype(float), axis=3)
    assert np.abs(step).mean() < 25


def test_a_packed_file_with_a_tebibyte_of_zeros_behind_it_is_refused_at_once(tmp_path):
    write_idx(tmp_path, end=".gz")
    os.truncate(tmp_path / "train-labels-idx1-ubyte.gz", 2**40)
    with pytest.raises(DataError, match=r"train-labels-idx1-ubyte\.gz can't be read: it has 1,099,511,627,776 bytes"):
        load("mnist", tmp_path)
