"""What does a shard do where workers add up their gradients among themselves (`--exchange allreduce`)? It keeps books.

Every worker has all values and updates them by itself, the same as all others. The shard counts what they have done,
holds what worker 0 brings when a checkpoint is due or a leg ends, and hands it to workers that join. It is also where
they leave each other notes, by which PyTorch's process groups find together.
"""

from __future__ import annotations

from collections.abc import Callable

from paceline.config import RunConfig
from paceline.training.cluster.dense_shard import DenseShardService, DenseSlice
from paceline.training.cluster.messages import Go, Note, Noted, Read, Reset, ToShard
from paceline.training.cluster.shard import ShardWorker, say
from paceline.training.cluster.steps import LEAVE, PUSH, Step
from paceline.wire.frames import BadFrameError, Frame
from paceline.wire.server import Peer

MOST_NOTE_BYTES = 1 << 20


class KeeperService(DenseShardService):
    """The one shard of a run whose workers add up among themselves."""

    def __init__(self, config: RunConfig, slice_: DenseSlice, refused: Callable[[], int]) -> None:
        super().__init__(config, slice_, refused)
        self._notes: dict[str, bytes] = {}
        # After which batch of worker 0 the states are that are here.
        self._clock_here = 0

    def _announced(self, peer: Peer, step: Step) -> None:
        """A worker has done a step. Worker 0 is told to bring all states where they are wanted."""
        worker = peer.tag
        if not isinstance(worker, ShardWorker) or worker.peer is not peer or step.batch != worker.asked + 1:
            raise BadFrameError(f"a step from {peer.address}, which is no worker now")
        worker.asked = step.batch
        worker.arrived = worker.worked = peer.arrived
        worker.service = 0.0
        worker.waiting = True
        worker.leaving = bool(step.flags & LEAVE)
        wanted = False
        if step.flags & PUSH:
            worker.applied = step.batch - 1
            self._book(step.rows, step.losses)
            due = self._copy_at is not None and self._copy_at[0] == worker.applied
            wanted = worker.rank == 0 and (due or worker.leaving)
            if not wanted:
                say(peer, Go(wanted=False))
            self._copy_if_due()
        worker.step, worker.received, worker.pushing = (step if wanted else None), 0, False
        if wanted:
            self._let_push()
        else:
            self._answer(worker)

    def _let_push(self) -> None:
        """Tell worker 0 to bring the states that it has announced, unless those before are still fetched."""
        worker = self._workers[0]
        if worker.step is not None and not worker.pushing and worker.peer is not None and self._fetcher is None:
            worker.pushing = True
            say(worker.peer, Go(wanted=True))

    def _take_piece(self, worker: ShardWorker, peer: Peer, frame: Frame) -> None:
        """The next piece of the states that worker 0 brings."""
        if worker.step is None or not worker.pushing or worker.peer is not peer:
            raise BadFrameError(f"worker {worker.rank} brings states that nobody asked for")
        start, count = self._put(frame)
        if start != worker.received:
            raise BadFrameError(f"worker {worker.rank} brings states from {start} on after {worker.received}")
        worker.received += count
        if worker.received == self.slice.num_keys:
            worker.step, worker.pushing = None, False
            self._clock_here = worker.applied
            self._copy_if_due()
            self._answer(worker)

    def _may_copy(self, at: int) -> bool:
        """Once the states are here, and every worker has said that it is there, too."""
        return at == self._clock_here and all(worker.applied == at for worker in self._workers)

    def _copy_if_due(self) -> None:
        if self._copy_at is not None and self._may_copy(self._copy_at[0]):
            self._copy(self._copy_at[1])

    def _told(self, peer: Peer, message: ToShard) -> None:
        match message:
            case Note(name=name, content=content):
                if len(content) > MOST_NOTE_BYTES:
                    raise BadFrameError(f"a note of {len(content):,} bytes")
                self._notes[name] = content
            case Read(name=name):
                say(peer, Noted(content=self._notes.get(name)))
            case _:
                super()._told(peer, message)

    def _reset(self, reset: Reset) -> None:
        super()._reset(reset)
        self._notes.clear()
        self._clock_here = reset.applied[0]
