"""What workers see of an image: a square from anywhere in training, from the middle in tests."""

from __future__ import annotations

import numpy as np
import pytest

from paceline.data.images.blocks import Images
from paceline.data.images.crops import Crops
from paceline.errors import ConfigError, DataError
from paceline.settings import ImageConfig

FULL = (5, 7, 2)
ROWS = 40
# Every byte of an image says where it is: row, column and channel.
PLACES = (np.arange(5)[:, None, None] * 20 + np.arange(7)[None, :, None] * 2 + np.arange(2)).astype(np.uint8)
IMAGES = Images(np.tile(PLACES.reshape(-1), (ROWS, 1)), np.arange(ROWS, dtype=np.uint16))


def test_whole_images_are_passed_on() -> None:
    crops = Crops(ImageConfig(), FULL, seed=1)
    assert crops.shape == FULL
    assert crops.training(IMAGES, (0, 0)) is IMAGES
    assert crops.testing(IMAGES) is IMAGES


@pytest.mark.parametrize("flip", [False, True])
def test_training_sees_squares_from_anywhere(flip: bool) -> None:
    crops = Crops(ImageConfig(crop=3, flip=flip), FULL, seed=1)
    assert crops.shape == (3, 3, 2)
    seen = crops.training(IMAGES, (0, 0))
    assert np.array_equal(seen.labels, IMAGES.labels)
    found = set()
    for image in seen.pixels.reshape(-1, 3, 3, 2):
        mirrored = bool(image[0, 0, 0] > image[0, 1, 0])
        upright = image[:, ::-1] if mirrored else image
        top, left = upright[0, 0, 0] // 20, upright[0, 0, 0] % 20 // 2
        assert np.array_equal(upright, PLACES[top : top + 3, left : left + 3])
        found.add((int(top), int(left), mirrored))
    assert {top for top, _, _ in found} == {0, 1, 2}
    assert {left for _, left, _ in found} == {0, 1, 2, 3, 4}
    assert {mirrored for *_, mirrored in found} == ({False, True} if flip else {False})


def test_what_is_random_depends_on_seed_rank_and_position_alone() -> None:
    settings = ImageConfig(crop=3, flip=True)
    first = Crops(settings, FULL, seed=1).training(IMAGES, (2, 100)).pixels.tobytes()
    assert Crops(settings, FULL, seed=1).training(IMAGES, (2, 100)).pixels.tobytes() == first
    for seed, turn in ((2, (2, 100)), (1, (3, 100)), (1, (2, 140))):
        assert Crops(settings, FULL, seed=seed).training(IMAGES, turn).pixels.tobytes() != first


def test_tests_see_the_middle() -> None:
    seen = Crops(ImageConfig(crop=3, flip=True), FULL, seed=1).testing(IMAGES).pixels
    assert np.array_equal(seen, np.tile(PLACES[1:4, 2:5].reshape(-1), (ROWS, 1)))
    assert seen.flags.c_contiguous


def test_a_crop_that_is_larger_than_the_images_says_what_fits() -> None:
    assert Crops(ImageConfig(crop=5), FULL, seed=1).shape == (5, 5, 2)
    with pytest.raises(ConfigError, match=r"`images.crop` is 6, but the images have 5 × 7 pixels") as caught:
        Crops(ImageConfig(crop=6), FULL, seed=1)
    assert "images.crop=5" in caught.value.hint


def test_images_of_another_size_are_refused() -> None:
    crops = Crops(ImageConfig(), (5, 7, 1), seed=1)
    for look in (crops.testing, lambda rows: crops.training(rows, (0, 0))):
        with pytest.raises(DataError, match="images of 70 bytes where 35 were expected"):
            look(IMAGES)
