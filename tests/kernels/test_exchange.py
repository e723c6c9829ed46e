"""Keys are dealt out to shards and come back in their order."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from paceline.kernels.exchange import deal_keys, pack_order, pick, put, unpack_order
from paceline.kernels.tables import Several, Single

FEATURES = 1_000


@pytest.mark.parametrize("num_shards", [1, 2, 3, 7])
@pytest.mark.parametrize("ascending", [False, True])
@pytest.mark.parametrize("dtype", [np.uint32, np.uint64])
@pytest.mark.parametrize("count", [0, 1, 300])
def test_every_key_goes_to_its_shard(num_shards: int, ascending: bool, dtype: type, count: int) -> None:
    keys: NDArray[Any] = np.random.default_rng(count).permutation(FEATURES + 1)[:count].astype(dtype)
    numbers, ends = np.zeros(count, np.uint32), np.zeros(num_shards + 1, np.int64)
    indices: NDArray[Any] = np.zeros(count, dtype)
    if ascending:
        packed, stride = np.zeros(count, np.uint64), FEATURES // num_shards + 1
        pack_order(keys, num_shards, stride, packed)
        packed.sort()
        unpack_order(packed, num_shards, stride, numbers, indices, ends)
    else:
        deal_keys(keys, num_shards, numbers, indices, ends)
    assert ends[0] == 0
    assert ends[-1] == count
    for shard in range(num_shards):
        mine = slice(ends[shard], ends[shard + 1])
        assert (keys[numbers[mine]] % num_shards == shard).all()
        assert (keys[numbers[mine]] // num_shards == indices[mine]).all()
        if ascending:
            assert (np.diff(indices[mine].astype(np.int64)) > 0).all()
    assert sorted(numbers.tolist()) == list(range(count))
    for columns in (Single(), Several(3)):
        size = count * (3 if columns else 1)
        values, there, back = np.arange(size, dtype=np.float32), np.zeros(size, np.float32), np.zeros(size, np.float32)
        pick(columns, values, numbers, there)
        put(columns, there, numbers, back)
        assert back.tolist() == values.tolist()
        if count:
            assert there.reshape(count, -1).tolist() == values.reshape(count, -1)[numbers].tolist()
