"""How does text become a key, and a row number a coin toss?

`hash_text` is FNV-1a with 64 bits over the column's name, a zero byte and the text, then the finaliser of splitmix64:

    state = 0xcbf29ce484222325
    for byte in name + b"\\0" + text: state = (state ^ byte) * 0x100000001b3 mod 2**64
    z = state; z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9; z = (z ^ z >> 27) * 0x94d049bb133111eb; hash = z ^ z >> 31

and a key is the lowest bits of the hash. `salt_of` is the state after the name and the zero byte.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from paceline.kernels.jit import compiled, inlined
from paceline.kernels.keys import GOLDEN

FNV_BASIS = np.uint64(0xCBF29CE484222325)
FNV_PRIME = np.uint64(0x100000001B3)


def salt_of(name: str) -> np.uint64:
    """The hash state after a column's name: what the texts of that column are hashed from."""
    bytes_of_name = np.frombuffer(name.encode() + b"\0", np.uint8)
    return np.uint64(hash_bytes(FNV_BASIS, bytes_of_name, 0, len(bytes_of_name)))


@inlined
def hash_bytes(state: Any, text: NDArray[np.uint8], start: int, stop: int) -> Any:
    """The FNV-1a state after `text[start:stop]`."""
    state = np.uint64(state)
    for i in range(start, stop):
        state = (state ^ np.uint64(text[i])) * FNV_PRIME
    return state


@inlined
def mix(state: Any) -> Any:
    """The finaliser of splitmix64: every bit of the state moves every bit of the result."""
    z = np.uint64(state)
    z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return z ^ (z >> np.uint64(31))


@inlined
def hash_text(salt: Any, text: NDArray[np.uint8], start: int, stop: int) -> Any:
    """The hash of `text[start:stop]` in the column of that salt."""
    return mix(hash_bytes(salt, text, start, stop))


@compiled
def draw(seed: Any, first_row: int, chosen: NDArray[np.bool_], threshold: Any) -> None:
    """`chosen[i]` becomes whether row `first_row + i` is drawn: its splitmix64 number is below `threshold`."""
    state = mix(np.uint64(seed))
    for i in range(chosen.size):
        chosen[i] = mix(state + np.uint64(first_row + i + 1) * GOLDEN) < np.uint64(threshold)
