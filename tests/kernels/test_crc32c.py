from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from paceline.kernels.crc32c import HAS_INSTRUCTION, checksum_by_instruction, checksum_by_tables
from tests.data.inputs import crc32c, masked


def test_crc_of_the_standard_vector() -> None:
    assert crc32c(b"123456789") == 0xE3069283  # the check value of CRC-32C


@given(st.binary(max_size=100), st.integers(0, 20))
def test_checksums_are_masked_crcs(data: bytes, start: int) -> None:
    ways = [checksum_by_tables, *([checksum_by_instruction] if HAS_INSTRUCTION else [])]
    for checksum in ways:
        found = int(checksum(np.frombuffer(data, np.uint8), min(start, len(data)), len(data)))
        assert found.to_bytes(4, "little") == masked(data[start:])
