"""How does an image file become pixels? The one place that knows Pillow."""

from __future__ import annotations

import struct
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from io import BytesIO
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from paceline.data.sources.files import Source, open_stream
from paceline.errors import DataError, UsageError

if TYPE_CHECKING:
    from types import ModuleType

    from PIL.Image import Image

# Named, so that no other decoder is tried: some of Pillow's call other programs.
DECODERS = ("BMP", "GIF", "JPEG", "PNG", "PPM", "TIFF", "WEBP")
GREY_MODES = ("1", "L", "LA", "La", "I", "I;16", "I;16L", "I;16B", "I;16N")
ORIENTATION = 0x0112
SIDEWAYS = (5, 6, 7, 8)
MOST_FILE_BYTES = 512 << 20


class ImageHead(NamedTuple):
    """What a file says of its image before it is decoded: its size as one would see it, and whether it is grey."""

    height: int
    width: int
    grey: bool


def load_pillow() -> ModuleType:
    """`PIL.Image`, or an error that says how to get it."""
    try:
        import PIL.Image
    except ImportError:
        raise UsageError(
            "folders of images need Pillow, which is not installed", "pip install 'paceline[images]'"
        ) from None
    # Pillow refuses images of twice that size; what it says about smaller ones is not for users of paceline.
    warnings.filterwarnings("ignore", category=PIL.Image.DecompressionBombWarning)
    PIL.Image.init()
    return PIL.Image


def read_head(source: Source) -> ImageHead:
    """Look at the beginning of an image file."""
    with open_stream(source) as stream, _opened(source, stream.file) as image:
        if image.mode == "F" or (image.mode == "I" and image.format == "TIFF"):
            raise ValueError(f"its pixels have 32 bits (mode {image.mode}); only 8 and 16 are supported")
        width, height = image.size
        if _orientation(image) in SIDEWAYS:
            width, height = height, width
        return ImageHead(height, width, image.mode in GREY_MODES)


def decode(source: Source, channels: int, size: int | None) -> NDArray[np.uint8]:
    """The pixels of an image file, uint8 [height · width · channels]: grey for one channel, RGB for three.

    With `size` the shorter side is scaled to that many pixels and the centre cut out, a square. Of several frames it is
    the first; a photograph is turned the way its EXIF says.
    """
    if (source.num_bytes or 0) > MOST_FILE_BYTES:
        message = f"`{source.name}` is larger than {MOST_FILE_BYTES >> 20} MiB, the limit for an image file"
        raise DataError(message, "scale the image down, or remove it")
    with open_stream(source) as stream:
        content = stream.file.read()
    with _opened(source, BytesIO(content)) as image:
        turn = _orientation(image)
        if size is not None:
            # A JPEG can be decoded at a fraction of its size; twice the size asked for leaves the rest to the filter.
            image.draft(None, (2 * size, 2 * size))
        plain = _eight_bits(image).convert("L" if channels == 1 else "RGB")
        if size is not None:
            plain = _centre(plain, size)
        return np.asarray(_turned(plain, turn)).reshape(-1)


@contextmanager
def _opened(source: Source, file: Any) -> Iterator[Image]:
    """An image file opened by Pillow; whatever its decoders raise becomes an error that names the file."""
    pillow = load_pillow()
    hint = "save it again, or remove it"
    try:
        with pillow.open(file, formats=DECODERS) as image:
            yield image
    except pillow.UnidentifiedImageError:
        raise DataError(
            f"`{source.name}` cannot be decoded: it is not an image, or its format is unknown", hint
        ) from None
    except Exception as error:  # noqa: BLE001 - damaged bytes make decoders raise anything
        reason = " ".join(str(error).split()) or type(error).__name__
        raise DataError(f"`{source.name}` cannot be decoded: {reason}", hint) from None


def _orientation(image: Image) -> int:
    """How a camera was held, as its EXIF says: 1 (upright) to 8."""
    if image.format not in ("JPEG", "MPO", "WEBP") or "exif" not in image.info:
        return 1
    try:
        return int(image.getexif().get(ORIENTATION, 1))
    except (SyntaxError, ValueError, TypeError, struct.error):
        return 1  # nobody can tell, and viewers show it as it is


def _turned(image: Image, orientation: int) -> Image:
    from PIL.Image import Transpose

    turns = {
        2: Transpose.FLIP_LEFT_RIGHT, 3: Transpose.ROTATE_180, 4: Transpose.FLIP_TOP_BOTTOM, 5: Transpose.TRANSPOSE,
        6: Transpose.ROTATE_270, 7: Transpose.TRANSVERSE, 8: Transpose.ROTATE_90,
    }  # fmt: skip
    return image.transpose(turns[orientation]) if orientation in turns else image


def _eight_bits(image: Image) -> Image:
    """The image in a mode that converts as it should: 16 bits are scaled to 8, not cut off at 255."""
    if image.mode.startswith("I"):
        return load_pillow().fromarray((np.asarray(image) >> 8).astype(np.uint8))  # type: ignore[no-any-return]
    if image.mode == "P" and "transparency" in image.info:
        return image.convert("RGBA")
    return image


def _centre(image: Image, size: int) -> Image:
    """The square in the middle, scaled to `size`: as if the shorter side were scaled first, and then cut."""
    from PIL.Image import Resampling

    side = min(image.size)
    left, top = ((length - side) / 2 for length in image.size)
    return image.resize((size, size), Resampling.BILINEAR, box=(left, top, left + side, top + side))
