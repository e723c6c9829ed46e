"""Keys travel with as few bits as the largest needs, and arrive as they were."""

from __future__ import annotations

import numpy as np
import pytest

from paceline.kernels.packing import pack_bits
from paceline.torch.model import torch
from paceline.torch.sparse.bits import unpack


@pytest.mark.parametrize("width", [1, 5, 26, 31, 32, 33, 63])
def test_keys_arrive_as_they_were(width: int) -> None:
    rng = np.random.default_rng(width)
    blocks = [rng.integers(0, 1 << width, count, np.int64, endpoint=False) for count in (1100, 0, 1, 64, 77)]
    blocks[3][:] = (1 << width) - 1
    packed = []
    for block in blocks:
        packed.append(np.zeros(-(-len(block) * width // 64) + 1, np.uint64))
        pack_bits(block, width, packed[-1])
        assert not packed[-1][-1]
    words = torch.from_numpy(np.concatenate(packed).view(np.int64))
    kind = torch.int32 if width < 32 else torch.int64
    out = torch.full((sum(map(len, blocks)),), -1, dtype=kind)
    unpack(words, [*map(len, packed)], [*map(len, blocks)], width, out)
    assert out.tolist() == np.concatenate(blocks).tolist()


def test_no_keys() -> None:
    out = torch.zeros(0, dtype=torch.int32)
    unpack(torch.zeros(1, dtype=torch.int64), [1], [0], 7, out)
    unpack(torch.zeros(0, dtype=torch.int64), [], [], 7, out)
