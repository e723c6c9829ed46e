"""How are TFRecord files of sparse tf.Example read?

A record is `length` (8 bytes), its checksum (4), the data (`length` bytes) and its checksum (4), all little-endian;
a checksum is CRC-32C, rotated and shifted so that checksums of checksums stay useful. The data is a protocol buffer,

    Example { 1: Features { 1: entry { 1: name, 2: Feature { 1: bytes | 2: floats | 3: int64s { 1: numbers } } } } }

of which the features `label`, `index` and `value` are read and all others ignored.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from paceline.kernels import problems
from paceline.kernels.crc32c import checksum
from paceline.kernels.jit import compiled, inlined
from paceline.kernels.text import Bytes, Counts, note_bad, signed
from paceline.kernels.words import HIGH_BITS, WORD_BYTES, load_word, trailing_zeros

HEADER_BYTES, FOOTER_BYTES = 12, 4

VARINT, FIXED64, DELIMITED, FIXED32 = 0, 1, 2, 5
FLOATS, INTEGERS = 2, 3  # the fields of a Feature
FIRST_LETTERS, LAST_LETTERS = np.frombuffer(b"labeindevalu", "<u4"), np.frombuffer(b"lxe", np.uint8)

ONE_AS_FLOAT = 0x3F800000
EXPONENT_BITS = np.uint32(0x7F800000)  # all set: infinite, or not a number

WHOLE, CUT_SHORT, LENGTH_CHECKSUM = 0, 1, 2


@inlined
def _word(data: Bytes, i: int) -> Any:
    """The little-endian uint32 at `i`."""
    return np.uint32(
        np.uint32(data[i])
        | np.uint32(data[i + 1]) << np.uint32(8)
        | np.uint32(data[i + 2]) << np.uint32(16)
        | np.uint32(data[i + 3]) << np.uint32(24)
    )


@compiled
def walk_records(data: Bytes) -> tuple[int, int, int, int]:
    """Follow the lengths: where the last whole record ends, how many there are, what stopped, bytes it would need."""
    i = num_records = 0
    while i + HEADER_BYTES <= data.size:
        if checksum(data, i, i + 8) != _word(data, i + 8):
            return i, num_records, LENGTH_CHECKSUM, 0
        length = np.uint64(_word(data, i)) | np.uint64(_word(data, i + 4)) << np.uint64(32)
        if length > np.uint64(1 << 40):
            return i, num_records, CUT_SHORT, 1 << 40
        after = i + HEADER_BYTES + signed(length) + FOOTER_BYTES
        if after > data.size:
            return i, num_records, CUT_SHORT, after - i
        i = after
        num_records += 1
    return i, num_records, WHOLE if i == data.size else CUT_SHORT, HEADER_BYTES


@compiled
def parse_tfrecord(data: Bytes, base: int, limit: int, room: Any, label_bits: NDArray[np.uint32],
                   bits: NDArray[np.uint32], places: NDArray[np.int64], labelled: bool) -> Counts:  # fmt: skip
    """Parse whole records into rows, each with its label and record number. Index i, `base` <= i < `limit`, is key
    i - `base`.

    They go into the arrays of `room` (`data/sources/parsed.py`); `label_bits` and `bits` are its labels and values seen
    as bits. Rows that do not parse are left out and noted in `room.bad` as (record, problem, offending number); when it
    is full the loop ends. `places` is scratch of shape [3, 3]. If rows are not `labelled`, labels are 0.
    """
    i = record = rows = nonzeros = num_bad = 0
    room.offsets[0] = 0
    while i < data.size:
        record += 1
        start = i + HEADER_BYTES
        stop = start + signed(_word(data, i)) + (signed(_word(data, i + 4)) << 32)
        i = stop + FOOTER_BYTES
        number = signed(0)
        count = signed(0)
        if checksum(data, start, stop) != _word(data, stop):
            problem = problems.DATA_CHECKSUM
        else:
            problem = _find_features(data, start, stop, places)
        if not labelled:
            room.labels[rows] = 0
        elif problem == problems.NONE:
            problem, number = _read_label(data, places, room.labels, label_bits, rows)
        if problem == problems.NONE:
            problem, count, number = _read_keys(data, places, base, limit, room.keys, nonzeros)
        if problem == problems.NONE:
            problem, number = _read_values(data, places, bits, nonzeros, count)
        if problem == problems.NONE:
            room.lines[rows] = record
            rows += 1
            nonzeros += count
            room.offsets[rows] = nonzeros
        else:
            num_bad = note_bad(room.bad, num_bad, record, problem, number, 0)
            if num_bad == room.bad.shape[0]:
                break
    return Counts(record, rows, nonzeros, num_bad, 0)


@inlined
def _varint(data: Bytes, i: int, stop: int) -> tuple[Any, int]:
    """The varint at `i` and where it ends; -1 for where if it does not end before `stop`."""
    if i + WORD_BYTES <= stop:
        word = load_word(data, i)
        bits = trailing_zeros(~word & HIGH_BITS)
        if bits < 40:
            # Five bytes at most, which end at the first clear high bit: their seven low bits each, side by side.
            word &= np.uint64(0xFFFFFFFFFF) >> np.uint64(39 - bits)
            low = word & np.uint64(0x7F) | (word & np.uint64(0x7F00)) >> np.uint64(1)
            middle = (word & np.uint64(0x7F0000)) >> np.uint64(2) | (word & np.uint64(0x7F000000)) >> np.uint64(3)
            return low | middle | (word & np.uint64(0x7F00000000)) >> np.uint64(4), i + (bits >> 3) + 1
    value = np.uint64(0)
    shift = np.uint64(0)
    while i < stop and shift < np.uint64(70):
        byte = np.uint64(data[i])
        value |= (byte & np.uint64(127)) << shift
        i += 1
        if byte < np.uint64(128):
            return value, i
        shift += np.uint64(7)
    return value, -1


@inlined
def _field(data: Bytes, i: int, stop: int) -> tuple[int, int, int, int]:
    """The protocol-buffer field at `i`: number, wire type, where its content begins and ends; number 0 if broken."""
    tag, i = _varint(data, i, stop)
    if i < 0 or tag >> np.uint64(3) == 0 or tag > np.uint64(0xFFFFFFFF):
        return 0, 0, 0, 0
    number, kind = signed(tag >> np.uint64(3)), signed(tag & np.uint64(7))
    start = i
    if kind == VARINT:
        _, after = _varint(data, i, stop)
    elif kind == FIXED64:
        after = i + 8
    elif kind == FIXED32:
        after = i + 4
    elif kind == DELIMITED:
        length, start = _varint(data, i, stop)
        if start < 0 or length > np.uint64(stop - start):
            return 0, 0, 0, 0
        after = start + signed(length)
    else:
        return 0, 0, 0, 0
    if after < 0 or after > stop:
        return 0, 0, 0, 0
    return number, kind, start, after


@compiled
def _find_features(data: Bytes, start: int, stop: int, places: NDArray[np.int64]) -> int:
    """Note for `label`, `index` and `value` (rows of `places`) the kind of list and where it begins and ends."""
    places[:] = 0
    i = start
    while i < stop:
        number, kind, features, i = _field(data, i, stop)
        if number == 0:
            return problems.NO_EXAMPLE
        if number != 1 or kind != DELIMITED:
            continue
        j = features
        while j < i:
            number, kind, entry, j = _field(data, j, i)
            if number == 0:
                return problems.NO_EXAMPLE
            if number == 1 and kind == DELIMITED and not _note_entry(data, entry, j, places):
                return problems.NO_EXAMPLE
    return problems.NONE


@compiled
def _note_entry(data: Bytes, start: int, stop: int, places: NDArray[np.int64]) -> bool:
    """Note one entry of the map of features, if it is one of the three; False if it is broken."""
    which = -1
    feature_start = feature_stop = 0
    i = start
    while i < stop:
        number, kind, begins, i = _field(data, i, stop)
        if number == 0:
            return False
        if number == 1 and kind == DELIMITED:
            which = _which(data, begins, i)
        elif number == 2 and kind == DELIMITED:
            feature_start, feature_stop = begins, i
    if which < 0:
        return True
    places[which] = 0
    i = feature_start
    while i < feature_stop:
        number, kind, begins, i = _field(data, i, feature_stop)
        if number == 0:
            return False
        if kind == DELIMITED and number in (FLOATS, INTEGERS):
            places[which, 0], places[which, 1], places[which, 2] = number, begins, i
    return True


@inlined
def _which(data: Bytes, start: int, stop: int) -> int:
    """0 for `label`, 1 for `index`, 2 for `value`, -1 for any other name."""
    if stop - start == 5:
        for which in range(3):
            if _word(data, start) == FIRST_LETTERS[which] and data[start + 4] == LAST_LETTERS[which]:
                return which
    return -1


@compiled
def _read_label(
    data: Bytes, places: NDArray[np.int64], labels: NDArray[np.float32], label_bits: NDArray[np.uint32], row: int
) -> tuple[int, int]:
    """Write the label of a row, an integer or a float: the problem, if any, and the bits of a float that is wrong."""
    count = 0
    label = signed(0)
    i, stop = places[0, 1], places[0, 2]
    while i < stop:
        number, kind, begins, i = _field(data, i, stop)
        if number == 0 or count > 0:
            return problems.NO_LABEL, count
        if places[0, 0] == INTEGERS and kind in (DELIMITED, VARINT):
            integer, after = _varint(data, begins, i)
            label = signed(integer)
        elif places[0, 0] == FLOATS and i - begins == 4:
            label = signed(_word(data, begins))
            after = i
        else:
            return problems.NO_LABEL, count
        if after != i:
            return problems.NO_LABEL, count
        count += 1
    if count == 0:
        return problems.NO_LABEL, count
    if places[0, 0] == FLOATS:
        bits = np.uint32(label)
        label_bits[row] = bits
        return problems.LABEL_NOT_FINITE if bits & EXPONENT_BITS == EXPONENT_BITS else problems.NONE, label
    labels[row] = label
    return problems.NONE, 0


@compiled
def _read_keys(
    data: Bytes, places: NDArray[np.int64], base: int, limit: int, keys: NDArray[Any], written: int
) -> tuple[int, int, int]:
    """Write the keys of a row from `keys[written]` on: the problem, if any, how many, and the offending index."""
    if places[1, 0] != INTEGERS:
        return problems.NO_INDEX, 0, 0
    first = written
    i, stop = places[1, 1], places[1, 2]
    while i < stop:
        number, kind, j, i = _field(data, i, stop)
        if number == 0:
            return problems.NO_EXAMPLE, 0, 0
        if number != 1 or (kind != DELIMITED and kind != VARINT):
            continue
        while j < i:
            integer, j = _varint(data, j, i)
            if j < 0:
                return problems.NO_EXAMPLE, 0, 0
            index = signed(integer)
            if index < base:
                return problems.KEY_BELOW_BASE, 0, index
            if index >= limit:
                return problems.KEY_TOO_LARGE, 0, index
            keys[written] = index - base
            written += 1
    return problems.NONE, written - first, 0


@compiled
def _read_values(
    data: Bytes, places: NDArray[np.int64], bits: NDArray[np.uint32], written: int, count: int
) -> tuple[int, int]:
    """Write the bits of a row's `count` values from `bits[written]` on; all ones where there is no `value`."""
    if places[2, 0] == 0:
        for k in range(written, written + count):
            bits[k] = ONE_AS_FLOAT
        return problems.NONE, 0
    if places[2, 0] != FLOATS:
        return problems.LENGTHS_DIFFER, 0
    left = count
    i, stop = places[2, 1], places[2, 2]
    while i < stop:
        number, kind, j, i = _field(data, i, stop)
        if number == 0:
            return problems.NO_EXAMPLE, 0
        if number != 1 or (kind != DELIMITED and kind != FIXED32):
            continue
        left -= (i - j) >> 2
        if left < 0 or (i - j) & 3 != 0:
            return problems.LENGTHS_DIFFER, 0
        # Without a way out of the loop it works on several values at once.
        infinite = False
        for k in range((i - j) >> 2):
            value = _word(data, j + 4 * k)
            infinite |= value & EXPONENT_BITS == EXPONENT_BITS
            bits[written + k] = value
        if infinite:
            return problems.NOT_FINITE, _first_infinite(bits, written)
        written += (i - j) >> 2
    return problems.LENGTHS_DIFFER if left != 0 else problems.NONE, 0


@inlined
def _first_infinite(bits: NDArray[np.uint32], start: int) -> int:
    k = start
    while bits[k] & EXPONENT_BITS != EXPONENT_BITS:
        k += 1
    return signed(bits[k])
