from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from paceline.kernels.hashing import draw, hash_text, mix, salt_of

WORD = (1 << 64) - 1


def reference(name: str, text: bytes) -> int:
    """The hash as its documentation has it."""
    state = 0xCBF29CE484222325
    for byte in name.encode() + b"\0" + text:
        state = (state ^ byte) * 0x100000001B3 & WORD
    return reference_mix(state)


def reference_mix(z: int) -> int:
    z = (z ^ z >> 30) * 0xBF58476D1CE4E5B9 & WORD
    z = (z ^ z >> 27) * 0x94D049BB133111EB & WORD
    return z ^ z >> 31


@given(st.text(max_size=10), st.binary(max_size=30))
def test_text_hashes_as_documented(name: str, text: bytes) -> None:
    assert int(hash_text(salt_of(name), np.frombuffer(text, np.uint8), 0, len(text))) == reference(name, text)


def test_a_published_value_stays() -> None:
    assert reference("C1", b"68fd1e64") == int(hash_text(salt_of("C1"), np.frombuffer(b"68fd1e64", np.uint8), 0, 8))
    assert reference("C1", b"68fd1e64") % 2**22 == 0x3FFFFF & reference("C1", b"68fd1e64")


def test_columns_do_not_share_keys() -> None:
    """The same text in neighbouring columns, and texts that differ in the bits in which the names do."""
    texts = [bytes([byte]) + b"8fd1e64" for byte in b"0123456789abcdef"]
    keys = {reference(f"C{j}", text) for j in range(1, 27) for text in texts}
    assert len(keys) == 26 * len(texts)


@given(st.integers(0, WORD), st.integers(0, 2**40))
def test_rows_are_drawn_as_documented(seed: int, first: int) -> None:
    drawn = np.empty(50, np.bool_)
    draw(np.uint64(seed), first, drawn, np.uint64(2**63))
    state = int(mix(np.uint64(seed)))
    golden = 0x9E3779B97F4A7C15
    assert drawn.tolist() == [
        reference_mix((state + (i + 1) * golden) & WORD) < 2**63 for i in range(first, first + 50)
    ]


def test_about_as_many_rows_are_drawn_as_asked() -> None:
    drawn = np.empty(100_000, np.bool_)
    draw(np.uint64(1), 0, drawn, np.uint64(int(0.1 * 2.0**64)))
    assert abs(drawn.mean() - 0.1) < 0.005
