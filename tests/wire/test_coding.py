"""Keys and values come out as they went in; what does not decode is refused."""

from __future__ import annotations

from contextlib import suppress

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from paceline.wire.coding import DELTAS, KeyWriter, read_keys, read_values, write_values
from paceline.wire.frames import BadFrameError

KEYS = st.lists(st.integers(0, 2**32 - 2), max_size=50, unique=True)


@given(lists=st.lists(KEYS, max_size=30), deltas=st.booleans(), wide=st.booleans())
def test_keys_come_out_as_they_went_in(lists: list[list[int]], deltas: bool, wide: bool) -> None:
    dtype = np.dtype(np.uint64 if wide else np.uint32)
    writer = KeyWriter(deltas)
    for keys in lists + lists[:3]:
        wanted = np.sort(np.array(keys, dtype))
        coding, data = writer.write(wanted)
        got = np.empty(len(wanted), dtype)
        read_keys(coding, np.frombuffer(bytearray(data.tobytes()), np.uint8), 2**32, got)
        assert got.tolist() == wanted.tolist()


@given(coding=st.integers(0, 4), data=st.binary(max_size=60), count=st.integers(0, 12))
def test_keys_that_do_not_exist_never_come_out(coding: int, data: bytes, count: int) -> None:
    out = np.zeros(count, np.uint32)
    with suppress(BadFrameError):
        read_keys(coding, np.frombuffer(bytearray(data), np.uint8), 1000, out)
        assert (out < 1000).all()


@given(st.lists(st.floats(width=32, allow_nan=False, allow_infinity=False), max_size=50))
def test_values_come_out_as_exactly_as_promised(values: list[float]) -> None:
    wanted = np.array(values, np.float32)
    for kind, error in (("float32", 0.0), ("float16", 2.0**-11), ("bfloat16", 2.0**-8)):
        data = np.frombuffer(bytearray(write_values(wanted, kind).tobytes()), np.uint8)
        got = read_values(data, len(wanted), kind).astype(np.float64)
        limit = wanted.astype(np.float64)
        if kind == "float16":
            limit = np.clip(limit, -65504, 65504)
        if kind == "bfloat16":
            inside = np.abs(limit) < 3.38e38
            got, limit = got[inside], limit[inside]
        np.testing.assert_allclose(got, limit, rtol=error, atol=2.0**-24 if kind == "float16" else 1e-38)


def test_values_of_another_length_are_refused() -> None:
    with pytest.raises(BadFrameError, match="6 bytes for 2 values of float32"):
        read_values(np.zeros(6, np.uint8), 2, "float32")


def test_gaps_that_go_around_are_refused() -> None:
    """Of 64 bits the largest key, after which keys would begin again at 0."""
    around = encoded([2**64 - 1]) + encoded([3])
    with pytest.raises(BadFrameError):
        read_keys(DELTAS, np.frombuffer(around, np.uint8), 10, np.empty(2, np.uint64))


def encoded(keys: list[int]) -> bytes:
    return KeyWriter(deltas=True).write(np.array(keys, np.uint64))[1].tobytes()
