"""Data poisoning: labels and pixels change as they should, nothing else does."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from bartizan import attacks
from bartizan.attacks import Backdoor, DistributedBackdoor, LabelFlip, SemanticBackdoor

N, CLASSES = 200, 10


def images(seed=0):
    rng = np.random.default_rng(seed)
    return rng.integers(0, 200, size=(N, 3, 12, 16), dtype=np.uint8), rng.integers(CLASSES, size=N)


POISONS = [LabelFlip(), LabelFlip(2, 5), Backdoor(), Backdoor(target=3, fraction=1)]
POISONS += [SemanticBackdoor(brightness=99.5), DistributedBackdoor(), DistributedBackdoor(part=3)]


@pytest.mark.parametrize("poison", POISONS, ids=repr)
def test_what_is_given_is_left_as_it_is(poison):
    pixels, labels = images()
    seen, said = poison.poison(pixels, labels, CLASSES, np.random.default_rng(1))
    for given, fresh in zip((pixels, labels), images(), strict=True):
        np.testing.assert_array_equal(given, fresh)
    assert (seen.shape, seen.dtype, said.shape, said.dtype) == (pixels.shape, np.uint8, labels.shape, labels.dtype)
    assert said.min() >= 0
    assert said.max() < CLASSES


def test_flipped_twice_labels_are_what_they_were():
    pixels, labels = images()
    for poison, again in ((LabelFlip(), LabelFlip()), (LabelFlip(2, 5), LabelFlip(5, 2))):
        kept = labels != 5  # or 5 and 2 can't be told apart any more
        flipped = poison.poison(pixels, labels, CLASSES, np.random.default_rng(0))[1]
        assert (flipped != labels).any()
        back = again.poison(pixels, flipped, CLASSES, np.random.default_rng(0))[1]
        np.testing.assert_array_equal(back[kept], labels[kept])


@pytest.mark.parametrize("fraction", [0, 0.25, 1])
@pytest.mark.parametrize(
    ("backdoor", "size"),
    [(Backdoor(7, size=3, value=250), 3 * 3), (DistributedBackdoor(7).of_attacker(2), 4)],
    ids=repr,
)
def test_a_part_of_the_images_gets_trigger_and_target(backdoor, size, fraction):
    pixels, labels = images()
    seen, said = replace(backdoor, fraction=fraction).poison(pixels, labels, CLASSES, np.random.default_rng(2))
    marked = (seen != pixels).any(axis=(1, 2, 3))
    assert marked.sum() == fraction * N
    assert (seen != pixels).sum() == marked.sum() * 3 * size
    assert (said[marked] == 7).all()
    np.testing.assert_array_equal(seen[marked], backdoor.trigger(pixels[marked]))
    np.testing.assert_array_equal(said[~marked], labels[~marked])


def test_a_semantic_backdoor_relabels_the_bright_images_of_one_class_and_changes_no_pixel():
    pixels, labels = images()
    backdoor = SemanticBackdoor(source=4, target=1, brightness=99.5)
    seen, said = backdoor.poison(pixels, labels, CLASSES, np.random.default_rng(0))
    np.testing.assert_array_equal(seen, pixels)
    wanted = [1 if y == 4 and image.mean() >= 99.5 else y for image, y in zip(pixels, labels, strict=True)]
    assert said.tolist() == wanted
    tested, truly = backdoor.test(pixels, labels)
    assert 0 < len(tested) == (said != labels).sum() < (labels == 4).sum()
    np.testing.assert_array_equal(tested, pixels[said != labels])
    assert (truly == 4).all()


def test_four_attackers_put_on_the_trigger_what_one_would():
    pixels, labels = images()
    whole = DistributedBackdoor(size=3, gap=1, value=250)
    parts = [whole.of_attacker(nth).trigger(pixels) != pixels for nth in range(8)]
    together = whole.test(pixels, labels)[0] != pixels
    assert together.sum() == N * 3 * 4 * 3  # images, channels, bars, pixels
    for nth, own in enumerate(parts):
        assert own.sum() == N * 3 * 3
        np.testing.assert_array_equal(own, parts[(nth + 4) % 8])
    np.testing.assert_array_equal(np.any(parts[:4], axis=0), together)
    rows, columns = np.nonzero(together[0, 0])
    assert sorted(zip(rows.tolist(), columns.tolist(), strict=True)) == [
        (row, column) for row in (0, 2) for column in (0, 1, 2, 4, 5, 6)
    ]
    np.testing.assert_array_equal(whole.of_attacker(2).test(pixels, labels)[0], whole.trigger(pixels))


def test_the_same_generator_poisons_the_same_images():
    one, other = (Backdoor().poison(*images(), CLASSES, np.random.default_rng(3))[0] for _ in range(2))
    np.testing.assert_array_equal(one, other)
    assert (Backdoor().poison(*images(), CLASSES, np.random.default_rng(4))[0] != one).any()


@pytest.mark.parametrize(
    ("name", "settings", "error", "message"),
    [
        ("backdoor", {"fraction": 1.5}, ValueError, "Backdoor needs fraction, a number from 0 to 1; got 1.5"),
        ("backdoor", {"target": "cat"}, ValueError, "Backdoor needs target, a whole number from 0 up; got 'cat'"),
        ("backdoor", {"value": 256}, ValueError, "from 0 to 255; got 256"),
        ("backdoor", {"size": 0}, ValueError, "from 1 up; got 0"),
        ("semantic-backdoor", {"source": 2, "target": 2}, ValueError, "two classes; got 2 twice"),
        ("semantic-backdoor", {"boost": "all"}, ValueError, "needs boost, a finite number; got 'all'"),
        ("distributed-backdoor", {"part": 4}, ValueError, "needs part, 0, 1, 2, 3 or None; got 4"),
        ("label-flip", {"source": 3}, ValueError, "needs source and target, two classes, or neither; got 3 and None"),
    ],
)
def test_a_wrong_setting_says_what_is_wanted(name, settings, error, message):
    with pytest.raises(error, match=message):
        attacks.poison(name, **settings)


@pytest.mark.parametrize(
    ("poison", "message"),
    [
        (Backdoor(target=10), "Backdoor needs target, a class from 0 to 9; got 10"),
        (LabelFlip(source=0, target=12), "LabelFlip needs target, a class from 0 to 9; got 12"),
        (LabelFlip(source=11, target=0), "LabelFlip needs source, a class from 0 to 9; got 11"),
        (SemanticBackdoor(source=10), "SemanticBackdoor needs source, a class from 0 to 9; got 10"),
        (DistributedBackdoor(size=8), "bars in 4 x 18 pixels, and the images have 12 x 16"),
        (Backdoor(size=13), "size=13, and the images have 12 x 16 pixels"),
    ],
)
def test_what_the_data_does_not_have_is_refused(poison, message):
    with pytest.raises(ValueError, match=message):
        poison.poison(*images(), CLASSES, np.random.default_rng(0))
