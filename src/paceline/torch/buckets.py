"""How do the gradients of a step get to the other workers while it is still being computed? In buckets.

The last layers' sums go first, while those of the layers before are computed. All workers send the same buckets in the
same order.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from datetime import timedelta
from typing import Any

from paceline.models.model import Tensor
from paceline.torch.model import torch

BUCKET_VALUES = 4 << 20
GPU_POLL_SECONDS = 0.0001
# A long step is not a fault: others wait for the slowest worker's.
GROUP_SECONDS = 600.0
RECALL_SECONDS = 1.0
NEVER = 1 << 30


class BucketedSums:
    """The sums of a step's gradients, which workers of a process group add up bucket by bucket."""

    def __init__(self, tensors: tuple[Tensor, ...], num_trained: int, recalled: Callable[[], bool] = lambda: False,
                 device: str = "cpu") -> None:  # fmt: skip
        """Waiting for the others ends once `recalled()`: a worker may have been lost without a sign."""
        self._recalled = recalled
        self._on_gpu = device != "cpu"
        # One number more than there are values: the rows that the sums are of. It is in the last bucket, with what
        # is not trained.
        self._flat = torch.zeros(tensors[-1].stop + 1, device=device)
        self.sums = self._flat[:-1] if self._on_gpu else self._flat[:-1].numpy()
        self._buckets = _pack([tensor for tensor in tensors if tensor.stop <= num_trained])
        self._buckets.append(range(num_trained, len(self._flat)))
        self._of_tensor = [
            next(number for number, bucket in enumerate(self._buckets) if tensor.start in bucket) for tensor in tensors
        ]
        self._group: Any = None
        self._begin()

    def meet(self, group: Any) -> None:
        """From now on the other workers are those of this group. Only while nothing is on its way."""
        self._group = group
        self._begin()
        if self._on_gpu:
            # Connections are made for the first sum: here, where that may take a while.
            self._wait(group.allreduce([self._flat[:1]]), time.monotonic() + GROUP_SECONDS)

    def leave(self) -> None:
        """Leave the group, and end what runs on a GPU for it: it may wait for a worker that was lost."""
        if self._on_gpu and self._group is not None:
            self._group.abort()
        self._group = None

    @property
    def on_its_way(self) -> bool:
        """Whether some of it was sent and not waited for."""
        return bool(self._sent)

    def filled(self, tensor: int) -> None:
        """The sums of this tensor are complete: send what may go."""
        self._left[self._of_tensor[tensor]] -= 1
        try:
            while self._left[len(self._sent)] == 0:
                self._send()
        except RuntimeError:
            # Another worker was lost; `add_up` will find out, too.
            self._left[len(self._sent)] = NEVER

    def add_up(self, rows: int) -> int:
        """Send the rest, with the rows, and wait; returns the rows of all workers. `RuntimeError` if a worker was lost
        or this one is recalled.
        """
        self._flat[-1] = rows
        while len(self._sent) < len(self._buckets):
            self._send()
        deadline = time.monotonic() + GROUP_SECONDS
        for sent in self._sent:
            self._wait(sent, deadline)
        self._begin()
        return int(self._flat[-1])

    def _begin(self) -> None:
        self._sent: list[Any] = []
        # By bucket, the tensors that are not complete. The last one waits for the end of the step.
        self._left = [self._of_tensor.count(number) for number in range(len(self._buckets) - 1)] + [NEVER]

    def _wait(self, sent: Any, deadline: float) -> None:
        if self._on_gpu:
            # Its own wait would end the group if it takes long.
            while not sent.is_completed():
                if self._recalled() or time.monotonic() > deadline:
                    raise RuntimeError("the others do not answer")
                time.sleep(GPU_POLL_SECONDS)
            sent.wait()
            return
        while True:
            try:
                sent.wait(timedelta(seconds=RECALL_SECONDS))
                return
            except RuntimeError:
                if sent.is_completed() or self._recalled() or time.monotonic() > deadline:
                    raise

    def _send(self) -> None:
        bucket = self._buckets[len(self._sent)]
        self._sent.append(self._group.allreduce([self._flat[bucket.start : bucket.stop]]))


def _pack(tensors: list[Tensor]) -> list[range]:
    """Neighbours together until there are enough values, from the last on."""
    buckets: list[range] = []
    for tensor in reversed(tensors):
        if buckets and len(buckets[-1]) < BUCKET_VALUES:
            buckets[-1] = range(tensor.start, buckets[-1].stop)
        else:
            buckets.append(range(tensor.start, tensor.stop))
    return buckets
