"""How do workers exchange gradients among themselves? PyTorch adds them up, and every worker updates all values itself.

A worker holds all values and what the optimizer remembers, in memory or on its GPU. Each generation of a run has a
process group of its own. Its members find each other by notes at the run's shard, which keeps the books.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial

from paceline.errors import in_short
from paceline.machine import num_cores
from paceline.processes.messages import Failed
from paceline.telemetry.meter import COMPUTE, PULL, PUSH
from paceline.torch.buckets import GROUP_SECONDS, BucketedSums
from paceline.torch.process_group import ProcessGroup, make_group
from paceline.training.cluster.batch_queue import RecalledError
from paceline.training.cluster.links import Links
from paceline.training.cluster.messages import Begin
from paceline.training.cluster.notes import MEET_SECONDS, POLL_SECONDS, Notes
from paceline.training.cluster.piece_links import PIECE_VALUES, PieceLink
from paceline.training.cluster.plain_batch import PlainBatch
from paceline.training.cluster.shard_link import ShardLink
from paceline.training.cluster.steps import Ask
from paceline.training.cluster.worker import Setup
from paceline.training.dense_store import make_dense_store
from paceline.wire.frames import LostConnectionError, WireError

# A worker whose process has ended itself this often will not do better.
MOST_INCARNATIONS = 2
NO_GROUP_HINT = "check that the workers' nodes can reach each other; with GPUs, NCCL_DEBUG=INFO on the nodes logs more"
ALL_OF_IT = 1 << 62


class AllreduceExchange:
    """A worker that adds up with the others."""

    def __init__(self, setup: Setup) -> None:
        dense, recalled = setup.model.layout.dense, setup.queue.recalled
        assert dense is not None
        self.links = Links(setup.spec, recalled)
        self._setup = setup
        self._recalled = recalled
        self._device = device = setup.config.device
        self._store = make_dense_store(dense, device, num_workers=1)
        self._make_sums = partial(BucketedSums, setup.model.tensors, dense.num_trained, recalled, device)
        self._sums = self._make_sums()
        rest = setup.compute, setup.spec.rank, self._store.values, self._sums.sums
        self.batches: Sequence[PlainBatch] = [PlainBatch(reader, *rest) for reader in setup.readers]
        self._notes: Notes | None = None
        self._incarnation = 0
        # On a GPU all groups so far: ending one means waiting for its threads, which may be waiting for Python.
        self._groups: list[ProcessGroup] = []

    def warm_up(self) -> None:
        """Load or compile the loops; changes nothing."""
        self.batches[0].read(time.perf_counter_ns, 0, 0, 0, 0)
        self.batches[0].gradient()
        # Once there is somebody to send it to.
        self._setup.compute.filled = lambda tensor: self._sums.filled(tensor)

    def join(self, begin: Begin) -> int:
        """Take the states over, and meet the other workers; the batch to continue with."""
        self._incarnation = begin.incarnation
        with self._ended_if_it_hangs():
            self._sums.leave()
        if (use_threads := self._setup.compute.use_threads) is not None:
            use_threads(num_cores() // begin.sharing)
        next_batch = self.links.replace(begin, lambda endpoint: PieceLink(endpoint, num_values=0))
        self.links.activity = "takes the values over"
        link = self.links.all[0]
        for start in range(0, self._store.size, PIECE_VALUES):
            count = min(PIECE_VALUES, self._store.size - start)
            self._store.load(start, link.fetch_states(start, count, self._store.width))
        self.links.activity = "waits for the other workers"
        self._meet(begin)
        self.links.activity = ""
        return next_batch

    def _meet(self, begin: Begin) -> None:
        spec, workers, host = self._setup.spec, self._setup.config.workers, self._setup.host
        if self._notes is not None:
            self._notes.close()
        link = ShardLink(begin.shards[0], spec.token, spec.tls, self._recalled, spec.mac)
        self._notes = Notes(link, begin.generation, self._recalled)
        if self._sums.on_its_way and self._device == "cpu":
            # The last group may still write to the old ones.
            self._sums = self._make_sums()
            for batch in self.batches:
                batch.sums = self._sums.sums
        try:
            with self._ended_if_it_hangs():
                group = make_group(self._notes, spec.rank, workers, host, GROUP_SECONDS, self._device)
                self._groups = [*self._groups, group] if self._device == "cuda" else [group]
                self._sums.meet(group.group)
        except RuntimeError as error:
            raise LostConnectionError(f"cannot connect to the other workers: {in_short(error)}") from None

    def ask(self, number: int, flags: int, done: PlainBatch | None, losses: float,
            ahead: PlainBatch | None) -> Sequence[tuple[int, int]]:  # fmt: skip
        """Add up with the others, update, and tell the shard; bring it all states if it wants them."""
        link, now = self.links.all[0], self._setup.meter.now
        if done is None:
            link.announce(Ask(flags, number, 0, 0.0, 0))
            return ()
        rows = done.rows.num_rows
        all_rows = self._add_up(rows)
        added = now()
        self._store.apply(0, self._sums.sums, all_rows, done.trained)
        applied = now()
        link.announce(Ask(flags, number, done.trained, losses, rows))
        if link.may_push():
            self.links.activity = "brings the values to the shard"
            for start in range(0, self._store.size, PIECE_VALUES):
                link.send_piece(start, self._store.part(start, start + PIECE_VALUES))
            self.links.activity = ""
        return (PUSH, added), (COMPUTE, applied), (PULL, now())

    def _add_up(self, rows: int) -> int:
        self.links.activity = "adds up with the other workers"
        try:
            return self._sums.add_up(rows)
        except RuntimeError as error:
            if self._recalled():
                raise RecalledError from None
            raise LostConnectionError(f"another worker is gone: {in_short(error)}") from None
        finally:
            self.links.activity = ""

    def receive(self, batch: PlainBatch) -> int:
        """The values are here already; the worker only waits until the shard lets it continue."""
        self.links.all[0].receive(batch.number)
        return ALL_OF_IT

    def lost(self, error: WireError) -> None:
        """The shard or another worker was lost. If this happens to one process after the other, the run ends."""
        if not self.links.recalled_in_time(error):
            self._end(error.message)

    @contextmanager
    def _ended_if_it_hangs(self) -> Iterator[None]:
        """If this takes too long on a GPU, a new process begins again: NCCL cannot be interrupted."""
        said = f"NCCL did not connect the workers within {MEET_SECONDS:g} s"
        timer = threading.Timer(MEET_SECONDS + POLL_SECONDS, self._end, [said])
        timer.daemon = True
        if self._device != "cpu":
            timer.start()
        try:
            yield
        finally:
            timer.cancel()

    def _end(self, why: str) -> None:
        """End this process, so that the engine starts another one, or the run if that has not helped before."""
        if self._incarnation >= MOST_INCARNATIONS:
            self._setup.lifeline.say(Failed(kind="run", message=why, hint=NO_GROUP_HINT))
        os._exit(1)
