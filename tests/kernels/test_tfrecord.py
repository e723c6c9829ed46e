from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from paceline.kernels.tfrecord import CUT_SHORT, LENGTH_CHECKSUM, WHOLE, walk_records
from tests.data.inputs import record


@given(st.lists(st.binary(max_size=40), max_size=6), st.integers(0, 80))
def test_walking_stops_where_records_end(contents: list[bytes], cut: int) -> None:
    records = [record(content) for content in contents]
    data = b"".join(records)
    end, count, stopped, _ = walk_records(np.frombuffer(data, np.uint8))
    assert (end, count, stopped) == (len(data), len(records), WHOLE)
    shorter = data[: max(0, len(data) - cut)]
    end, count, stopped, needed = walk_records(np.frombuffer(shorter, np.uint8))
    assert end == len(b"".join(records[:count])) <= len(shorter)
    assert stopped == (WHOLE if end == len(shorter) else CUT_SHORT)
    assert stopped == WHOLE or needed > len(shorter) - end


def test_a_broken_length_is_noticed() -> None:
    data = bytearray(record(b"one") + record(b"two"))
    data[len(record(b"one")) + 2] ^= 1
    assert walk_records(np.frombuffer(bytes(data), np.uint8))[:3] == (len(record(b"one")), 1, LENGTH_CHECKSUM)


@given(st.binary(max_size=200))
def test_any_bytes_can_be_walked(data: bytes) -> None:
    end, _, _, _ = walk_records(np.frombuffer(data, np.uint8))
    assert 0 <= end <= len(data)
