"""Folders of images by class: what is read of them, and what is refused, by name."""

from __future__ import annotations

import builtins
import os
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import PIL.Image
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from paceline.data.sources import image_folders
from paceline.data.sources.image_decoding import decode, load_pillow, read_head
from paceline.errors import ConfigError, DataError, UsageError
from tests.conftest import Command
from tests.data.image_inputs import (
    all_images,
    image_bytes,
    random_pixels,
    run_images,
    same_images,
    save_image,
    sorted_images,
)
from tests.data.inputs import source_of, write


def photos(folder: Path, classes: str = "abc", count: int = 4, shape: tuple[int, ...] = (5, 7, 3)) -> Path:
    """Random images, this many in each class's folder."""
    for number, name in enumerate(classes):
        for i in range(count):
            save_image(folder / name / f"{i}.png", random_pixels(*shape, seed=100 * number + i))
    return folder


def test_folders_are_classes_and_files_are_rows(tmp_path: Path) -> None:
    made = run_images(tmp_path, photos(tmp_path / "in"))
    assert made.dataset.shape == (5, 7, 3)
    assert made.dataset.manifest.class_names == ["a", "b", "c"]
    assert made.dataset.manifest.source == {
        "format": "images", "sources": [str(tmp_path / "in")], "test": [], "seed": 0,
    }  # fmt: skip
    expected = [(n, random_pixels(5, 7, 3, seed=100 * n + i).tobytes()) for n in range(3) for i in range(4)]
    assert sorted_images(all_images(made.dataset)) == sorted(expected)


def test_classes_are_shuffled_by_the_seed(tmp_path: Path) -> None:
    photos(tmp_path / "in", count=20)
    first, again, other = (run_images(tmp_path, tmp_path / "in", seed=seed).dataset for seed in (1, 1, 2))
    assert same_images(all_images(first), all_images(again))
    assert not same_images(all_images(first), all_images(other))
    labels = all_images(first).labels
    assert len(np.unique(labels[:20])) == 3
    assert (np.diff(labels.astype(int)) != 0).sum() > 20


def test_the_result_does_not_depend_on_chunks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    photos(tmp_path / "in", count=9)
    whole = run_images(tmp_path, tmp_path / "in").dataset
    monkeypatch.setattr(image_folders, "HEADS_PER_CHUNK", 2)
    assert run_images(tmp_path, tmp_path / "in").dataset.manifest == whole.manifest


@pytest.mark.parametrize("held_out", ["test", "val"])
def test_train_and_test_folders_are_the_splits(tmp_path: Path, held_out: str) -> None:
    photos(tmp_path / "in" / "train")
    photos(tmp_path / "in" / held_out, classes="ac", count=2)
    dataset = run_images(tmp_path, tmp_path / "in").dataset
    assert dataset.manifest.class_names == ["a", "b", "c"]
    assert dataset.split("train").rows == 12
    assert all_images(dataset, "test").labels.tolist() == [0, 0, 2, 2]


def test_val_beside_test_holds_the_validation_rows(tmp_path: Path) -> None:
    for count, name in enumerate(("train", "test", "val"), 2):
        photos(tmp_path / "in" / name, count=count)
    dataset = run_images(tmp_path, tmp_path / "in").dataset
    assert [dataset.split(split).rows for split in ("train", "test", "validation")] == [6, 9, 12]
    assert all_images(dataset, "validation").labels.tolist() == [0] * 4 + [1] * 4 + [2] * 4
    with pytest.raises(
        ConfigError, match="`validation-fraction` is given, but the input has validation rows of its own"
    ):
        run_images(tmp_path, tmp_path / "in", validation_fraction=0.1)


def test_validation_rows_from_their_own_folder(tmp_path: Path) -> None:
    for name in ("some", "others"):
        photos(tmp_path / name)
    dataset = run_images(tmp_path, tmp_path / "some", validation=[tmp_path / "others"], test_fraction=0.2).dataset
    assert dataset.split("validation").rows == 12
    assert dataset.split("train").rows + dataset.split("test").rows == 12


def test_test_rows_from_their_own_folder(tmp_path: Path) -> None:
    photos(tmp_path / "in" / "train")
    photos(tmp_path / "in" / "test", count=2)
    splits = run_images(tmp_path, tmp_path / "in").dataset
    named = run_images(tmp_path, tmp_path / "in" / "train", test=[tmp_path / "in" / "test"]).dataset
    left_out = run_images(tmp_path, tmp_path / "in", test=[tmp_path / "in" / "test"])
    assert splits.fingerprint == named.fingerprint == left_out.dataset.fingerprint
    assert left_out.left_out == ()
    assert left_out.notes == ("6 files are held out: not used for training",)


def test_a_class_may_be_called_train(tmp_path: Path) -> None:
    photos(tmp_path / "in" / "train", classes="x")
    photos(tmp_path / "in" / "plane", classes="x")
    assert run_images(tmp_path, tmp_path / "in").dataset.manifest.class_names == ["plane", "train"]


def test_globs_single_files_and_nested_folders(tmp_path: Path) -> None:
    photos(tmp_path / "in")
    save_image(tmp_path / "in" / "c" / "more" / "deep.png", random_pixels(5, 7, 3))
    assert run_images(tmp_path, tmp_path / "in").dataset.split("train").rows == 13
    dataset = run_images(tmp_path, tmp_path / "in" / "*" / "1.png", tmp_path / "in" / "b" / "2.png").dataset
    assert sorted(all_images(dataset).labels.tolist()) == [0, 1, 1, 2]


def test_files_that_are_no_images_are_left_out_and_told(tmp_path: Path) -> None:
    photos(tmp_path / "in")
    write(tmp_path / "in" / "a" / "Thumbs.db", b"x")
    write(tmp_path / "in" / "LICENSE", b"x")
    write(tmp_path / "in" / "b" / ".hidden.png", b"x")
    made = run_images(tmp_path, tmp_path / "in")
    assert made.rows == 12
    assert made.notes == (f"left out: `{tmp_path / 'in' / 'LICENSE'}` and 1 more, not in the format images",)


# What is in the files.


def one_of_each_kind(folder: Path, pixels: Any) -> None:
    for kind in ("bmp", "gif", "png", "ppm" if pixels.ndim == 3 else "pgm", "tif", "webp"):
        options = {"lossless": True} if kind == "webp" else {}
        save_image(folder / kind / f"x.{kind.upper()}", pixels, **options)


def test_every_kind_of_file_gives_the_same_pixels(tmp_path: Path) -> None:
    pixels = np.kron(np.arange(6).reshape(2, 3), np.full((3, 3), 40)).astype(np.uint8)
    colours = np.stack([pixels, pixels[::-1], pixels[:, ::-1]], axis=2)
    one_of_each_kind(tmp_path / "in", colours)
    rows = all_images(run_images(tmp_path, tmp_path / "in").dataset)
    assert rows.num_rows == 6
    for row in rows.pixels:
        assert np.array_equal(row, colours.reshape(-1))


def test_grey_files_alone_stay_grey(tmp_path: Path) -> None:
    pixels = random_pixels(4, 4)
    save_image(tmp_path / "in" / "a" / "grey.png", pixels)
    save_image(tmp_path / "in" / "b" / "deep.png", pixels.astype(np.uint16) * 257)
    save_image(tmp_path / "in" / "c" / "bits.png", pixels > 127)
    PIL.Image.merge("LA", [PIL.Image.fromarray(pixels)] * 2).save(tmp_path / "in" / "c" / "alpha.png")
    dataset = run_images(tmp_path, tmp_path / "in").dataset
    assert dataset.shape == (4, 4, 1)
    bits = np.where(pixels > 127, 255, 0).astype(np.uint8)
    assert sorted_images(all_images(dataset)) == sorted(
        [(0, pixels.tobytes()), (1, pixels.tobytes()), (2, bits.tobytes()), (2, pixels.tobytes())]
    )


def test_one_file_in_colour_makes_all_of_them_so(tmp_path: Path) -> None:
    grey, colour = random_pixels(4, 4), random_pixels(4, 4, 3, seed=1)
    save_image(tmp_path / "in" / "a" / "grey.png", grey)
    save_image(tmp_path / "in" / "b" / "colour.png", colour)
    palette = PIL.Image.fromarray(np.full((4, 4, 3), (255, 0, 9), np.uint8)).quantize(4)
    palette.save(tmp_path / "in" / "b" / "palette.png", transparency=b"\x80\xff")
    PIL.Image.fromarray(np.zeros((4, 4, 4), np.uint8)).convert("CMYK").save(tmp_path / "in" / "b" / "print.jpg")
    dataset = run_images(tmp_path, tmp_path / "in").dataset
    assert dataset.shape == (4, 4, 3)
    rows = sorted_images(all_images(dataset))
    assert (0, np.repeat(grey.reshape(-1), 3).tobytes()) in rows
    assert (1, colour.tobytes()) in rows
    assert (1, bytes((255, 0, 9)) * 16) in rows


def test_of_an_animation_the_first_frame(tmp_path: Path) -> None:
    frames = [PIL.Image.fromarray(np.full((4, 4), level, np.uint8)) for level in (10, 200, 90)]
    (tmp_path / "in" / "a").mkdir(parents=True)
    for kind in ("gif", "tiff", "webp"):
        frames[0].save(tmp_path / "in" / "a" / f"x.{kind}", save_all=True, append_images=frames[1:])
    rows = all_images(run_images(tmp_path, tmp_path / "in").dataset)
    assert rows.num_rows == 3
    assert abs(rows.pixels.astype(int) - 10).max() <= 3


@pytest.mark.parametrize("orientation", range(1, 9))
def test_photographs_are_turned_as_their_exif_says(tmp_path: Path, orientation: int) -> None:
    """A square of 8 × 8 in each corner, so that JPEG keeps it; viewers agree with Pillow's own turning."""
    pixels = np.kron(np.array([[0, 80, 160], [250, 40, 120]]), np.ones((8, 8))).astype(np.uint8)
    exif = PIL.Image.Exif()
    exif[0x0112] = orientation
    path = save_image(tmp_path / "in" / "a" / "x.jpg", pixels, exif=exif, quality=100)
    dataset = run_images(tmp_path, tmp_path / "in").dataset
    from PIL import ImageOps

    seen = np.asarray(ImageOps.exif_transpose(PIL.Image.open(path)))
    assert dataset.shape == (*seen.shape, 1)
    assert np.array_equal(all_images(dataset).pixels[0], seen.reshape(-1))


def test_damaged_exif_is_passed_over(tmp_path: Path) -> None:
    save_image(tmp_path / "in" / "a" / "x.jpg", random_pixels(8, 8), exif=b"Exif\0\0rubbish")
    assert run_images(tmp_path, tmp_path / "in").rows == 1


def test_size_scales_the_shorter_side_and_cuts_out_the_centre(tmp_path: Path) -> None:
    """Three squares side by side, or one above the other: the middle one is left."""
    squares = np.kron(np.array([[10, 120, 230]]), np.ones((40, 40))).astype(np.uint8)
    save_image(tmp_path / "in" / "a" / "wide.png", squares)
    save_image(tmp_path / "in" / "a" / "high.png", squares.T.copy())
    save_image(tmp_path / "in" / "a" / "wide.jpg", np.kron(squares, np.ones((8, 8))).astype(np.uint8), quality=100)
    save_image(tmp_path / "in" / "a" / "small.png", np.full((3, 3), 120, np.uint8))
    dataset = run_images(tmp_path, tmp_path / "in", size=16).dataset
    assert dataset.shape == (16, 16, 1)
    assert dataset.manifest.source["size"] == 16
    middle = all_images(dataset).pixels.reshape(4, 16, 16)[:, 1:-1, 1:-1]
    assert abs(middle.astype(int) - 120).max() <= 2


def test_size_leaves_images_alone_that_have_it(tmp_path: Path) -> None:
    photos(tmp_path / "in", shape=(6, 6, 3))
    plain, sized = (run_images(tmp_path, tmp_path / "in", size=size).dataset for size in (None, 6))
    assert plain.fingerprint == sized.fingerprint


# What is refused.


def refused(command: Command, tmp_path: Path, *arguments: Any) -> tuple[str, str]:
    """The error and the hint of a command that must fail with code 2 and leave nothing behind."""
    outcome = command("prepare", *arguments, "--out", tmp_path / "out")
    assert outcome.code == 2
    error, hint = outcome.err.strip().splitlines()
    assert not [path for path in tmp_path.iterdir() if "out" in path.name]
    return error.removeprefix("error: "), hint.removeprefix("hint: ")


def test_sizes_that_differ(command: Command, tmp_path: Path) -> None:
    photos(tmp_path / "in")
    path = save_image(tmp_path / "in" / "b" / "2.png", random_pixels(6, 7, 3))
    save_image(tmp_path / "in" / "c" / "0.png", random_pixels(9, 7, 3))
    error, hint = refused(command, tmp_path, tmp_path / "in")
    first = tmp_path / "in" / "a" / "0.png"
    assert error == f"`{path}` is 6 × 7 (height × width), but `{first}` is 5 × 7"
    assert hint == "--size 256 scales the shorter side to 256 and crops the centre"


PNG, JPEG = image_bytes("PNG", random_pixels(64, 64, 3)), image_bytes("JPEG", random_pixels(64, 64, 3))


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"hello",
        PNG[: len(PNG) // 2],
        JPEG[: len(JPEG) // 2],
        PNG[:30] + b"\xff" * 20 + PNG[50:],
        b"\x89PNG\r\n\x1a\n",
    ],
    ids=["empty", "text", "half a PNG", "half a JPEG", "damaged", "signature alone"],
)
def test_images_that_do_not_decode(command: Command, tmp_path: Path, content: bytes) -> None:
    photos(tmp_path / "in", shape=(64, 64, 3))
    path = write(tmp_path / "in" / "b" / "1.png", content)
    error, hint = refused(command, tmp_path, tmp_path / "in")
    assert error.startswith(f"`{path}` cannot be decoded: ")
    assert hint == "save it again, or remove it"


@given(kind=st.sampled_from(["BMP", "GIF", "JPEG", "PNG", "PPM", "TIFF", "WEBP"]), data=st.data())
@settings(max_examples=200, deadline=None)
def test_hostile_bytes_decode_or_are_refused(
    tmp_path_factory: pytest.TempPathFactory, kind: str, data: st.DataObject
) -> None:
    content = bytearray(image_bytes(kind, random_pixels(9, 6, 3)))
    for place, byte in data.draw(st.lists(st.tuples(st.integers(0, 400), st.integers(0, 255)), min_size=1, max_size=6)):
        content[place % len(content)] = byte
    cut = data.draw(st.one_of(st.just(len(content)), st.integers(0, len(content))))
    path = write(tmp_path_factory.getbasetemp() / "hostile-image", bytes(content[:cut]))
    refused, pixels = None, np.empty(0, np.uint8)
    try:
        assert read_head(source_of(path)).height > 0
        pixels = decode(source_of(path), 3, 8)
    except DataError as error:
        refused = error
    if refused is None:
        assert pixels.shape == (8 * 8 * 3,)
    else:
        assert refused.message.startswith(f"`{path}` cannot be decoded: ")
        assert "\n" not in refused.message


def test_pixels_of_32_bits(command: Command, tmp_path: Path) -> None:
    path = save_image(tmp_path / "in" / "a" / "x.tif", np.zeros((4, 4), np.float32))
    assert refused(command, tmp_path, tmp_path / "in")[0].startswith(f"`{path}` cannot be decoded: its pixels have 32")


def test_files_without_a_class(command: Command, tmp_path: Path) -> None:
    photos(tmp_path / "in")
    stray = save_image(tmp_path / "in" / "stray.png", random_pixels(5, 7, 3))
    error, hint = refused(command, tmp_path, tmp_path / "in")
    assert error == f"`{stray}` is not in a folder that names its class"
    assert hint == "put images into one folder per class, as in FOLDER/cat/1.jpg, and name FOLDER"


def test_test_images_of_another_class(command: Command, tmp_path: Path) -> None:
    photos(tmp_path / "in" / "train")
    photos(tmp_path / "in" / "test", classes="ad")
    error, hint = refused(command, tmp_path, tmp_path / "in")
    path = tmp_path / "in" / "test" / "d" / "0.png"
    assert error == f"`{path}` has the class `d`, which is not one of the 3 training classes"
    assert hint == "training and test images have the same folders"


def test_a_folder_beside_the_splits(command: Command, tmp_path: Path) -> None:
    for name in ("train", "test", "extra"):
        photos(tmp_path / "in" / name)
    error, hint = refused(command, tmp_path, tmp_path / "in")
    assert error == f"`{tmp_path}/in/extra/a/0.png` is neither in train/ nor in test/"
    assert f"{tmp_path}/in/train --test {tmp_path}/in/test" in hint


def test_test_rows_twice(command: Command, tmp_path: Path) -> None:
    photos(tmp_path / "in" / "train")
    photos(tmp_path / "in" / "test")
    photos(tmp_path / "more")
    error, hint = refused(command, tmp_path, tmp_path / "in", "--test-fraction", "0.1")
    assert error.startswith("`test-fraction` is given, but the input has test rows of its own: ")
    assert hint == "leave --test-fraction out, or name only the training files"
    error, hint = refused(command, tmp_path, tmp_path / "in", "--test", tmp_path / "more")
    assert error.startswith("`test` is given, but the input has test rows of its own: ")


def test_without_pillow(command: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    photos(tmp_path / "in")
    found = builtins.__import__

    def without(name: str, *arguments: Any, **options: Any) -> Any:
        if name.startswith("PIL"):
            raise ImportError(name)
        return found(name, *arguments, **options)

    monkeypatch.setattr(builtins, "__import__", without)
    error, hint = refused(command, tmp_path, tmp_path / "in")
    assert error == "folders of images need Pillow, which is not installed"
    assert hint == "pip install 'paceline[images]'"


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"features": 5}, "`features` is 5, but the input is images; it is for criteo, libsvm"),
        ({"hash_bits": 20}, "`hash-bits` is 20, but the input is images"),
        ({"index_base": "0"}, "`index-base` is `0`, but the input is images"),
        ({"skip_bad_rows": 3}, "`skip-bad-rows` is 3, but the input is images"),
        ({"label": "y"}, "`label` is `y`, but the input is images"),
        ({"integers": "bucket"}, "`integers` is `bucket`, but the input is images"),
        ({"size": 0}, "`size` is 0; it must be 1 to 4096"),
        ({"size": 5000}, "`size` is 5000; it must be 1 to 4096"),
    ],
)
def test_settings_that_mean_nothing_for_images(tmp_path: Path, options: dict[str, Any], words: str) -> None:
    photos(tmp_path / "in")
    with pytest.raises(ConfigError) as error:
        run_images(tmp_path, tmp_path / "in", **options)
    assert error.value.message.startswith(words)
    assert error.value.hint
    assert error.value.exit_code == 2


def test_size_is_for_image_files_alone(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="`size` is 8, but the input is libsvm; it is for images"):
        run_images(tmp_path, write(tmp_path / "a", "1 1:1\n"), size=8)
    with pytest.raises(ConfigError, match="`size` is 8, but the input is cifar; it is for images"):
        run_images(tmp_path, write(tmp_path / "data_batch_1.bin", b"\0" * 3073), size=8)


def test_a_format_that_the_folder_does_not_have(tmp_path: Path) -> None:
    photos(tmp_path / "in")
    for name in ("idx", "cifar"):
        with pytest.raises(DataError, match=f"nor any other file has the format {name}"):
            run_images(tmp_path, tmp_path / "in", format=name)


def test_tables_beside_few_images_are_tables(tmp_path: Path) -> None:
    for i in range(3):
        (tmp_path / "in").mkdir(exist_ok=True)
        write(tmp_path / "in" / f"{i}.svm", "1 1:1\n")
    save_image(tmp_path / "in" / "zzz" / "logo.png", random_pixels(4, 4))
    with pytest.raises(UsageError, match=r"logo\.png"):
        run_images(tmp_path, tmp_path / "in", format="libsvm")


def test_a_huge_image_file_is_refused(command: Command, tmp_path: Path) -> None:
    folder = photos(tmp_path / "in")
    os.truncate(next(folder.rglob("*.png")), 5 << 30)
    error, _ = refused(command, tmp_path, folder)
    assert "is larger than 512 MiB, the limit for an image file" in error


def test_a_large_image_is_read_without_a_warning(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = next(photos(tmp_path / "in").rglob("*.png"))
    monkeypatch.setattr(load_pillow(), "MAX_IMAGE_PIXELS", 20)
    with warnings.catch_warnings(record=True) as said:
        read_head(source_of(path))
    assert not said
