"""How is a file damaged? As chance, a bad disk or an attacker would do it, the same for the same seed."""

from __future__ import annotations

import random
import re
from collections.abc import Callable

# What parsers of text may stumble over: nesting, numbers beyond every type, values of other types.
WORDS = (b"[" * 100_000, b'{"a":' * 50_000, b"9" * 5_000, b"-1", b"0", b"1e999", b"-1e999", b"1e-999", b"NaN",
         b"Infinity", b"nan", b"inf", b"null", b"true", b"[]", b"{}", b'""', b'"\\ud800"', b'"../../../etc/passwd"',
         b"1" + b"0" * 18, b"1" + b"0" * 19, b"-9223372036854775809", b"0.5", b'"x"', b"[1, 2]", b"\xff\xfe", b"\x00",
         b"\n")  # fmt: skip
VALUE = re.compile(rb'[:=]\s*("[^"]*"|[-\w.]+|\[[^\[\]]*\])')
# Integers at the edges of what sizes, offsets, counts and types can hold.
INTERESTING = (0, 1, 2, 3, 7, 8, 15, 16, 31, 32, 63, 64, 100, 127, 128, 255, 256, 1000, 4096, 65_535, 65_536, 1 << 24,
               (1 << 31) - 1, 1 << 31, (1 << 32) - 1, 1 << 32, 1 << 40, (1 << 63) - 1, 1 << 63, (1 << 64) - 1,
               (1 << 64) - 2, (1 << 64) - 8)  # fmt: skip


def mutate(content: bytes, chance: random.Random) -> tuple[bytes, str]:
    """The content with one to four changes, and what they were."""
    changed = bytearray(content)
    done = [chance.choice(MUTATORS)(changed, chance) for _ in range(chance.choice((1, 1, 2, 4))) if changed]
    return bytes(changed), "; ".join(done)


def flip_bits(content: bytearray, chance: random.Random) -> str:
    places = [chance.randrange(8 * len(content)) for _ in range(chance.choice((1, 1, 1, 3, 20)))]
    for place in places:
        content[place // 8] ^= 1 << place % 8
    return f"bits {places} flipped"


def set_byte(content: bytearray, chance: random.Random) -> str:
    at = chance.randrange(len(content))
    content[at] = chance.choice((0, 1, 9, 10, 13, 32, 34, 44, 48, 58, 127, 128, 255, chance.randrange(256)))
    return f"byte {at} set to {content[at]}"


def set_integer(content: bytearray, chance: random.Random) -> str:
    size = chance.choice((1, 2, 4, 4, 8))
    at = chance.randrange(max(1, len(content) // size)) * size
    number = chance.choice(INTERESTING) % (1 << 8 * size)
    order = chance.choice(("little", "little", "big"))
    content[at : at + size] = number.to_bytes(size, order)  # type: ignore[arg-type]
    return f"{size} bytes at {at} set to {number} ({order})"


def add_to_integer(content: bytearray, chance: random.Random) -> str:
    size = chance.choice((1, 4, 8))
    at = chance.randrange(max(1, len(content) // size)) * size
    step = chance.choice((-1, 1, -8, 8, 1 << 16))
    number = int.from_bytes(content[at : at + size], "little") + step
    content[at : at + size] = (number % (1 << 8 * size)).to_bytes(size, "little")
    return f"{step} added to the {size} bytes at {at}"


def cut_short(content: bytearray, chance: random.Random) -> str:
    length = chance.randrange(len(content))
    del content[length:]
    return f"cut to {length} bytes"


def remove_slice(content: bytearray, chance: random.Random) -> str:
    start, stop = _slice(content, chance)
    del content[start:stop]
    return f"bytes {start} to {stop} removed"


def move_slice(content: bytearray, chance: random.Random) -> str:
    start, stop = _slice(content, chance)
    piece = content[start:stop]
    del content[start:stop]
    to = chance.randrange(len(content) + 1)
    content[to:to] = piece
    return f"bytes {start} to {stop} moved to {to}"


def copy_slice(content: bytearray, chance: random.Random) -> str:
    start, stop = _slice(content, chance)
    to = chance.randrange(len(content))
    content[to : to + stop - start] = content[start:stop]
    return f"bytes {start} to {stop} copied over those at {to}"


def repeat_slice(content: bytearray, chance: random.Random) -> str:
    start, stop = _slice(content, chance)
    times = chance.choice((1, 2, 50))
    content[stop:stop] = content[start:stop] * times
    return f"bytes {start} to {stop} repeated {times} times"


def insert_words(content: bytearray, chance: random.Random) -> str:
    at, words = chance.randrange(len(content) + 1), chance.choice(WORDS)
    content[at : at + chance.choice((0, 0, 1, 4))] = words
    return f"{words[:20]!r} ({len(words)} bytes) put at {at}"


def replace_value(content: bytearray, chance: random.Random) -> str:
    """Another value for one in JSON or TOML: numbers, texts and lists behind a colon or an equals sign."""
    found = list(VALUE.finditer(content))
    if not found:
        return insert_words(content, chance)
    place, words = chance.choice(found), chance.choice(WORDS)
    before = bytes(place[1])
    content[place.start(1) : place.end(1)] = words
    return f"{before[:20]!r} at {place.start(1)} replaced by {words[:20]!r} ({len(words)} bytes)"


def _slice(content: bytearray, chance: random.Random) -> tuple[int, int]:
    start = chance.randrange(len(content))
    return start, min(len(content), start + chance.choice((1, 4, 8, 16, 64, chance.randrange(1, len(content) + 1))))


Mutator = Callable[[bytearray, random.Random], str]
MUTATORS: tuple[Mutator, ...] = (flip_bits, flip_bits, set_byte, set_integer, set_integer, set_integer, add_to_integer,
                                 cut_short, remove_slice, move_slice, copy_slice, repeat_slice, insert_words,
                                 replace_value)  # fmt: skip
