"""Headers are read as they were written, and nothing else is taken for one."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from paceline.errors import RunError
from paceline.wire import frames
from paceline.wire.frames import CAPS, HEADER, BadFrameError, Kind, WireError, frame_buffers, read_header, views_of


@given(st.sampled_from(Kind), st.integers(0, 2**32 - 1), st.data())
def test_a_header_is_read_as_it_was_written(kind: Kind, flags: int, data: st.DataObject) -> None:
    length = data.draw(st.integers(0, CAPS[kind]))
    assert read_header(HEADER.pack(b"pl", 1, kind, flags, length)) == (kind, flags, length)


@given(st.binary(max_size=40))
def test_random_bytes_are_a_header_or_a_bad_frame(data: bytes) -> None:
    try:
        kind, flags, length = read_header(data)
    except BadFrameError:
        return
    assert data[:16] == HEADER.pack(b"pl", 1, kind, flags, length)


@pytest.mark.parametrize(
    ("header", "says"),
    [
        (HEADER.pack(b"GE", 1, 1, 0, 0), "b'GE'"),
        (HEADER.pack(b"pl", 2, 1, 0, 0), "version 2"),
        (HEADER.pack(b"pl", 1, 9, 0, 0), "unknown kind 9"),
        (HEADER.pack(b"pl", 1, 4, 0, 65_537), "65,537 bytes of HELD; the limit is 65,536"),
        (b"pl", "2 bytes"),
    ],
)
def test_a_bad_header_is_named_with_its_sender(header: bytes, says: str) -> None:
    with pytest.raises(BadFrameError) as caught:
        read_header(header, "node7:4000")
    assert says in caught.value.message
    assert "node7:4000" in caught.value.message
    assert caught.value.hint


def test_parts_of_any_shape_make_one_body() -> None:
    parts = (b"ab", np.empty((0, 3)), np.arange(6, dtype=np.int64).reshape(2, 3), memoryview(b""), bytearray(b"c"))
    buffers, num_bytes = frame_buffers(Kind.STEP, 5, parts, "peer")
    body = b"ab" + np.arange(6, dtype=np.int64).tobytes() + b"c"
    frame = HEADER.pack(b"pl", 1, Kind.STEP, 5, len(body)) + body
    assert num_bytes == len(frame)
    for skipped in range(num_bytes + 1):
        views = views_of(buffers, skipped)
        assert b"".join(views) == frame[skipped:]
        assert all(view.nbytes for view in views)


def test_what_is_too_long_is_not_sent() -> None:
    with pytest.raises(BadFrameError, match="65,537 bytes of HELD"):
        frame_buffers(Kind.HELD, 0, (bytes(65_537),), "peer")


def test_what_is_not_contiguous_is_not_sent() -> None:
    with pytest.raises(TypeError):
        views_of([np.zeros((4, 4))[:, :2]])


def test_all_errors_are_errors_of_the_wire() -> None:
    for name in ("BadFrameError", "LostConnectionError", "SilentPeerError", "RefusedError"):
        assert issubclass(getattr(frames, name), WireError)
    assert issubclass(WireError, RunError)
