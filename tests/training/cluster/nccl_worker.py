"""One of two workers that add up on a GPU: `python -m tests.training.cluster.nccl_worker RANK FOLDER lives|dies`.

NCCL refuses two processes on one GPU that know they are on the same machine; these are told that they are not.
"""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path

from paceline.models.model import Tensor
from paceline.torch.buckets import BucketedSums
from paceline.torch.model import import_torch
from paceline.torch.process_group import make_group

NUM_TRAINED, STEPS = 6_000_000, 5
TENSORS = (Tensor("a", (1_000_000,), 0), Tensor("b", (5_000_000,), 1_000_000), Tensor("c", (7,), NUM_TRAINED))


class FileNotes:
    """Notes that are files."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir(exist_ok=True)
        self._folder = folder

    def set(self, key: str, value: bytes) -> None:
        path = self._folder / key.encode().hex()
        path.with_suffix(".new").write_bytes(value)
        path.with_suffix(".new").rename(path)

    def find(self, key: str) -> bytes | None:
        path = self._folder / key.encode().hex()
        return path.read_bytes() if path.exists() else None

    def get(self, key: str) -> bytes:
        deadline = time.monotonic() + 60
        while (value := self.find(key)) is None:
            assert time.monotonic() < deadline
            time.sleep(0.01)
        return value


def main() -> None:
    rank, folder, fate = int(sys.argv[1]), Path(sys.argv[2]), sys.argv[3]
    os.environ["NCCL_HOSTID"] = str(rank)
    torch = import_torch()
    recalled = folder / "recalled"
    bucketed = BucketedSums(TENSORS, NUM_TRAINED, recalled.exists, "cuda")
    first = make_group(FileNotes(folder / "first"), rank, 2, "127.0.0.1", 60, "cuda")
    bucketed.meet(first.group)
    for step in range(STEPS):
        if fate == "dies" and step == 2:
            if rank == 1:
                os._exit(9)
            try:
                add_up(bucketed, rank, step)
            except RuntimeError as error:
                print("alone:", str(error).splitlines()[0], flush=True)
                bucketed.leave()
                bucketed = BucketedSums(TENSORS, NUM_TRAINED, device="cuda")
                second = make_group(FileNotes(folder / "second"), 0, 1, "127.0.0.1", 60, "cuda")
                bucketed.meet(second.group)
                assert add_up(bucketed, rank, step) == 1
                assert torch.equal(bucketed.sums, torch.full_like(bucketed.sums, step + 1))
                print("again", flush=True)
                os._exit(0)
            raise AssertionError("the other one is gone")
        rows = add_up(bucketed, rank, step)
        assert rows == 3, rows
        assert torch.equal(bucketed.sums, torch.full_like(bucketed.sums, 2 * step + 3)), bucketed.sums
    print("done", flush=True)
    os._exit(0)


def add_up(bucketed: BucketedSums, rank: int, step: int) -> int:
    bucketed.sums.fill_(step + rank + 1)
    for tensor in (1, 0):
        bucketed.filled(tensor)
    return bucketed.add_up(rank + 1)


if __name__ == "__main__":
    main()
