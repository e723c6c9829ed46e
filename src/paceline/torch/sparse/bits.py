"""How do keys travel over the bus? Each with as many bits as the largest needs (`kernels/packing.py: pack_bits`)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from paceline.torch.model import torch
from paceline.torch.sparse.triton_ import tl, triton

KEYS_PER_PROGRAM = 1024


def unpack(words: Any, num_words: Sequence[int], num_keys: Sequence[int], width: int, out: Any) -> None:
    """The keys of some blocks into `out`, one block after the other. Their words [int64] are on the GPU and follow each
    other, too.
    """
    blocks = np.zeros((len(num_keys), 4), np.int64)
    blocks[:, 0], blocks[:, 1], blocks[:, 2] = _starts(num_words), num_keys, _starts(num_keys)
    most = max(num_keys, default=0)
    if most:
        grid = triton.cdiv(most, KEYS_PER_PROGRAM), len(num_keys)
        unpack_keys[grid](words, copied(torch.from_numpy(blocks), out.device), out, width, KEYS_PER_PROGRAM)


def copied(tensor: Any, device: Any) -> Any:
    """A copy on the GPU for which nothing waits here."""
    return tensor.pin_memory().to(device, non_blocking=True) if device.type == "cuda" else tensor


def _starts(counts: Sequence[int]) -> Any:
    return np.cumsum(counts) - counts


@triton.jit
def unpack_keys(words, blocks, out, WIDTH: tl.constexpr, KEYS: tl.constexpr):
    """Some keys of one block. `blocks` says of each where its words begin, how many keys it has, and where these go."""
    block = blocks + 4 * tl.program_id(1)
    first, count, place = tl.load(block), tl.load(block + 1), tl.load(block + 2)
    i = tl.program_id(0).to(tl.int64) * KEYS + tl.arange(0, KEYS)
    there = i < count
    word, shift = first + i * WIDTH // 64, (i * WIDTH % 64).to(tl.uint64)
    low = tl.load(words + word, there, other=0).to(tl.uint64, bitcast=True)
    high = tl.load(words + word + 1, there, other=0).to(tl.uint64, bitcast=True)
    # Shifting by 64 in one step is not defined.
    key = ((low >> shift) | ((high << 1) << (63 - shift))) & ((1 << WIDTH) - 1)
    tl.store(out + place + i, key.to(out.dtype.element_ty), there)
