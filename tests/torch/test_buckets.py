"""The sums of a step go out in the same buckets in the same order, whatever is complete first."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from paceline.models.model import Tensor
from paceline.torch import buckets
from paceline.torch.buckets import BucketedSums

NUM_TRAINED = 60
# The last two are buffers.
TENSORS = tuple(
    Tensor(f"t{number}", (size,), start) for number, (start, size) in enumerate(
        [(0, 10), (10, 20), (30, 0), (30, 5), (35, 25), (60, 3), (63, 2)]
    )
)  # fmt: skip


class Group:
    """Two workers with the same sums; from bucket `broken` on, the other one is gone."""

    def __init__(self, broken: int = 1 << 30) -> None:
        self.sizes: list[int] = []
        self.waited = 0
        self._broken = broken

    def allreduce(self, parts: list[Any]) -> Any:
        if len(self.sizes) >= self._broken:
            raise RuntimeError("connection closed by peer")
        (part,) = parts
        self.sizes.append(len(part))
        part.mul_(2)
        return self

    def wait(self, _timeout: timedelta | None = None) -> None:
        self.waited += 1


@pytest.fixture(autouse=True)
def small_buckets(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(buckets, "BUCKET_VALUES", 20)


@settings(deadline=None)  # the first call loads PyTorch
@given(order=st.permutations(range(5)), told=st.integers(0, 5))
def test_each_value_goes_once(order: list[int], told: int) -> None:
    bucketed, group = BucketedSums(TENSORS, NUM_TRAINED), Group()
    bucketed.meet(group)
    for _step in range(2):
        group.sizes.clear()
        for tensor in order[:told]:
            TENSORS[tensor].of(bucketed.sums)[...] = 1 + np.arange(*TENSORS[tensor].shape)
            bucketed.filled(tensor)
        for tensor in [*order[told:], 5, 6]:
            TENSORS[tensor].of(bucketed.sums)[...] = 1 + np.arange(*TENSORS[tensor].shape)
        assert bucketed.add_up(rows=7) == 14
        assert group.sizes == [25, 25, 10, 6]
        for found in TENSORS:
            assert found.of(bucketed.sums).tolist() == [2 * (1 + i) for i in range(*found.shape)]
        assert not bucketed.on_its_way


def test_the_last_layers_go_first() -> None:
    bucketed, group = BucketedSums(TENSORS, NUM_TRAINED), Group()
    bucketed.meet(group)
    bucketed.filled(0)
    assert group.sizes == []
    bucketed.filled(4)
    assert group.sizes == [25]
    assert bucketed.on_its_way


def test_another_worker_is_gone() -> None:
    bucketed = BucketedSums(TENSORS, NUM_TRAINED)
    bucketed.meet(Group(broken=1))
    for tensor in (4, 3, 2, 1, 0):
        bucketed.filled(tensor)
    with pytest.raises(RuntimeError, match="closed by peer"):
        bucketed.add_up(rows=7)
    assert bucketed.on_its_way


class Silent(Group):
    """The other worker says nothing for a while, and then, perhaps, what it should."""

    def __init__(self, looks: int) -> None:
        super().__init__()
        self._looks = looks

    def wait(self, _timeout: timedelta | None = None) -> None:
        super().wait(_timeout)
        if not self.is_completed():
            raise RuntimeError("Operation timed out!")

    def is_completed(self) -> bool:
        return self.waited > self._looks


def test_one_that_is_slow_is_waited_for() -> None:
    bucketed, group = BucketedSums(TENSORS, NUM_TRAINED), Silent(looks=5)
    bucketed.meet(group)
    assert bucketed.add_up(rows=7) == 14


def test_one_that_is_silent_is_left_when_recalled() -> None:
    group = Silent(looks=1 << 30)
    bucketed = BucketedSums(TENSORS, NUM_TRAINED, recalled=lambda: group.waited == 3)
    bucketed.meet(group)
    with pytest.raises(RuntimeError, match="timed out"):
        bucketed.add_up(rows=7)
    assert bucketed.on_its_way


class Unanswered:
    """A group on a device, as NCCL's, whose sums are never complete."""

    aborted = False

    def allreduce(self, parts: list[Any]) -> Any:
        return self

    def is_completed(self) -> bool:
        return False

    def abort(self) -> None:
        self.aborted = True


def test_a_group_that_cannot_be_interrupted_is_aborted() -> None:
    looks = iter([False, False, True])
    bucketed, group = BucketedSums(TENSORS, NUM_TRAINED, lambda: next(looks), device="meta"), Unanswered()
    with pytest.raises(RuntimeError, match="do not answer"):
        bucketed.meet(group)
    bucketed.leave()
    assert group.aborted
