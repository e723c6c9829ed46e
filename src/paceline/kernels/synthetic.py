"""The loops that generate click rows, from random numbers that depend on seed, row and field alone, and images."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from paceline.kernels.hashing import mix
from paceline.kernels.jit import compiled
from paceline.kernels.keys import GOLDEN

HIDDEN_BIAS = -1.2
HIDDEN_SPREAD = 0.5
NUMBER_SCALE = 0.3
NUMBER_MEAN = 3.0


class Skew(NamedTuple):
    """How often a few keys of a vocabulary occur: the logarithm of rank + 1, as a share of its largest value, is
    max(`cubic` · u³, `slope` · u + `shift`) for a uniform u.
    """

    cubic: float
    slope: float
    shift: float


@compiled
def scramble(x: int) -> int:
    """64 bits such that neighbouring inputs give unrelated outputs."""
    return mix(np.uint64(x) + GOLDEN)


@compiled
def uniform(seed: int, row: int, field: int) -> float:
    """A number in [0, 1) for a field of a row."""
    bits = scramble(scramble(scramble(np.uint64(seed)) ^ np.uint64(row)) ^ np.uint64(field))
    return np.float64(bits >> np.uint64(11)) * (1.0 / (1 << 53))


@compiled
def hidden_weight(key: int) -> float:
    """The weight of a key in the model that labels come from: about normal, the sum of four uniform numbers."""
    bits = scramble(np.uint64(key) + np.uint64(7))
    total = 0.0
    for _ in range(4):
        total += np.float64(bits & np.uint64(0xFFFF)) / 65536.0
        bits >>= np.uint64(16)
    return (total - 2.0) * np.sqrt(3.0) * HIDDEN_SPREAD


@compiled
def hidden_factor(key: int, number: int) -> float:
    """A factor of a key in the model that labels come from: about normal, as its weight is."""
    return hidden_weight(scramble(np.uint64(key)) ^ np.uint64(number)) / HIDDEN_SPREAD


@compiled
def add_interactions(keys: NDArray[np.uint32], strength: float, factors: NDArray[np.float64]) -> float:
    """What all pairs of `keys` add to the score: `strength` times the products of their factors.

    `factors` is scratch, as many numbers as a key has factors.
    """
    factors[:] = 0.0
    squares = 0.0
    for i in range(keys.size):
        for f in range(factors.size):
            factor = hidden_factor(keys[i], f)
            factors[f] += factor
            squares += factor * factor
    total = 0.0
    for f in range(factors.size):
        total += factors[f] * factors[f]
    return 0.5 * strength * (total - squares)


@compiled
def fill_clicks(seed: int, first_row: int, num_numbers: int, vocabularies: NDArray[np.int64], skew: Skew,
                strength: float, logs: NDArray[np.float64], factors: NDArray[np.float64], keys: NDArray[np.uint32],
                values: NDArray[np.float32], labels: NDArray[np.uint8]) -> None:  # fmt: skip
    """Fill rows `first_row` onwards: numbers at keys 0 …, then one key of each vocabulary, value 1.

    With a `strength`, pairs of the smaller half of the vocabularies, which come last, have an effect of their own.
    `logs` is scratch with room for one number per vocabulary, `factors` with room for those of a key.
    """
    nonzeros = num_numbers + vocabularies.size
    for v in range(vocabularies.size):
        logs[v] = np.log(float(vocabularies[v]))
    for i in range(labels.size):
        row, at = first_row + i, i * nonzeros
        score = HIDDEN_BIAS
        for field in range(num_numbers):
            number = -NUMBER_MEAN * np.log(1.0 - uniform(seed, row, field))
            keys[at + field] = field
            values[at + field] = np.float32(np.log1p(number) * NUMBER_SCALE)
            score += hidden_weight(field) * values[at + field]
        first_key = num_numbers
        for v in range(vocabularies.size):
            size = vocabularies[v]
            u = uniform(seed, row, num_numbers + v)
            share = max(skew.cubic * (u * u * u), skew.slope * u + skew.shift)
            rank = min(np.int64(np.exp(share * logs[v]) - 1.0), size - 1)
            # Ranks are scattered over the vocabulary: hot keys lie anywhere, as in data that comes from outside.
            key = first_key + (rank * 2654435761) % size
            keys[at + num_numbers + v] = key
            values[at + num_numbers + v] = np.float32(1)
            score += hidden_weight(key)
            first_key += size
        if strength > 0.0:
            score += add_interactions(
                keys[at + num_numbers + vocabularies.size // 2 : at + nonzeros], strength, factors
            )
        labels[i] = uniform(seed, row, nonzeros) < 1.0 / (1.0 + np.exp(-score))


@compiled
def add_patterns(pixels: NDArray[np.uint8], labels: NDArray[np.uint16], patterns: NDArray[np.float32],
                 places: NDArray[np.float32], wide: NDArray[np.float32]) -> None:  # fmt: skip
    """Halve random bytes and add the pattern of each image's class, linearly interpolated.

    `pixels` [n, size, size · channels]; `patterns` [classes, side, side · channels], whole numbers from 0 to 127;
    `places` [size] from 0 to side - 1, multiples of 1/64, so that every sum here is exact, and every machine
    makes the same bytes. `wide` [side, size · channels] is room for a pattern that is as wide as the image.
    """
    num_rows, size, width = pixels.shape
    side, channels = patterns.shape[1], width // size
    for i in range(num_rows):
        label = labels[i]
        for x in range(size):
            left = min(np.int64(places[x]), side - 2)
            across = places[x] - np.float32(left)
            for line in range(side):
                for k in range(left * channels, (left + 1) * channels):
                    here, there = patterns[label, line, k], patterns[label, line, k + channels]
                    wide[line, (x - left) * channels + k] = here + (there - here) * across
        for y in range(size):
            above = min(np.int64(places[y]), side - 2)
            down = places[y] - np.float32(above)
            for at in range(width):
                value = wide[above, at] + (wide[above + 1, at] - wide[above, at]) * down
                pixels[i, y, at] = (pixels[i, y, at] >> np.uint8(1)) + np.uint8(np.int32(value))
