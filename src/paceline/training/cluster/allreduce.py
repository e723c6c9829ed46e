"""What does a worker do where gradients are added up among workers? The same as one that pushes them to shards, but it
holds all values and what the optimizer remembers itself, in memory or on its GPU, and PyTorch adds the gradients up.

Each generation of a run has a process group of its own. Its members find each other by notes at the run's shard, over
the same connections as everything else.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import numpy as np

from paceline.config import RunConfig
from paceline.data.images.dataset import ImageDataset
from paceline.errors import RunError
from paceline.models.dense import Tensor
from paceline.telemetry.meter import COMPUTE, PULL, PUSH, WAIT
from paceline.torch.model import Group, import_torch, in_short, make_group
from paceline.training.cluster.dense_worker import PIECE_VALUES, SILENCE_SECONDS, DenseLink, DenseWorker
from paceline.training.cluster.messages import (
    Begin,
    Failed,
    Fetch,
    FromShard,
    Note,
    Noted,
    Read,
    RoleSpec,
    decode,
    encode,
)
from paceline.training.cluster.rations import RecalledError
from paceline.training.cluster.shard import CHUNK_HEAD_BYTES
from paceline.training.embedded.dense import make_table
from paceline.wire.connection import Connection, connect
from paceline.wire.frames import BadFrameError, Kind, LostConnectionError, WireError
from paceline.wire.tls import Tls

if TYPE_CHECKING:
    from paceline.training.cluster.role import Lifeline

LOOK_SECONDS = 0.02
GPU_LOOK_SECONDS = 0.0001
MEET_SECONDS = 30.0
# A long step is no fault: others wait for the slowest worker's.
GROUP_SECONDS = 600.0
RECALL_SECONDS = 1.0
PARCEL_VALUES = 4 << 20
NEVER = 1 << 30
# A worker that has ended itself so often, and whose successors did, will not do better.
MOST_INCARNATIONS = 2
NO_GROUP_HINT = "see that the workers' nodes reach each other; with GPUs, NCCL_DEBUG=INFO tells more on theirs"


class Notes:
    """Where the members of a process group leave each other notes: at the shard. As PyTorch's stores have it."""

    def __init__(self, connection: Connection, generation: int, recalled: Callable[[], bool]) -> None:
        self._connection = connection
        self._recalled = recalled
        self._prefix = f"{generation}/"
        self._lock = threading.Lock()
        self._is_closed = False

    def set(self, key: str, value: bytes) -> None:
        with self._lock:
            self._connection.send(Kind.MESSAGE, 0, encode(Note(name=self._prefix + key, content=bytes(value))))

    def close(self) -> None:
        with self._lock:
            self._is_closed = True
            self._connection.close()

    def find(self, key: str) -> bytes | None:
        with self._lock:
            if self._is_closed:
                return None  # threads of a group that is gone may still look
            self._connection.send(Kind.MESSAGE, 0, encode(Read(name=self._prefix + key)))
            noted = decode(self._connection.receive(SILENCE_SECONDS), FromShard)
        if not isinstance(noted, Noted):
            raise BadFrameError(f"a {type(noted).__name__} of {self._connection.peer} where a note was expected")
        return noted.content

    def get(self, key: str, seconds: float = MEET_SECONDS) -> bytes:
        deadline = time.monotonic() + seconds
        while (value := self.find(key)) is None:
            if self._recalled() or time.monotonic() > deadline:
                raise LostConnectionError(f"the other workers did not come to the group in {seconds:g} s")
            time.sleep(LOOK_SECONDS)
        return value


class Message:
    """The sums of a step, which go to the other workers in parcels: the last layers' first, while those of the layers
    before are still being computed. All workers send the same parcels in the same order.
    """

    def __init__(
        self, tensors: tuple[Tensor, ...], num_trained: int, recalled: Callable[[], bool] = lambda: False,
        device: str = "cpu",
    ) -> None:  # fmt: skip
        """Nobody waits any longer for the others once `recalled` says so: one of them may be gone without a word."""
        self._recalled = recalled
        self._on_gpu = device != "cpu"
        # One number more than there are values: the rows that the sums are of. It is in the last parcel, with what
        # is not trained.
        self._flat = import_torch().zeros(tensors[-1].stop + 1, device=device)
        self.sums = self._flat[:-1] if self._on_gpu else self._flat[:-1].numpy()
        self._parcels = _pack([tensor for tensor in tensors if tensor.stop <= num_trained])
        self._parcels.append(range(num_trained, len(self._flat)))
        self._of_tensor = [
            next(number for number, parcel in enumerate(self._parcels) if tensor.start in parcel) for tensor in tensors
        ]
        self._group: Any = None
        self._begin()

    def meet(self, group: Any) -> None:
        """From now on the other workers are those of this group. Only while nothing is on its way."""
        self._group = group
        self._begin()
        if self._on_gpu:
            # Connections are made when the first sum is: here, where that may take a while.
            self._wait(group.allreduce([self._flat[:1]]), time.monotonic() + GROUP_SECONDS)

    def leave(self) -> None:
        """Leave the group. What runs on a GPU for it may wait for somebody who is gone: that ends."""
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
            # Another worker is gone, which `add_up` will find out as well.
            self._left[len(self._sent)] = NEVER

    def add_up(self, rows: int) -> int:
        """Send what has not gone, with the rows, and wait; the rows of all workers. `RuntimeError` if one is gone, or
        this worker is recalled.
        """
        self._flat[-1] = rows
        while len(self._sent) < len(self._parcels):
            self._send()
        deadline = time.monotonic() + GROUP_SECONDS
        for sent in self._sent:
            self._wait(sent, deadline)
        self._begin()
        return int(self._flat[-1])

    def _begin(self) -> None:
        self._sent: list[Any] = []
        # By parcel, the tensors that are not complete. The last one waits for the end of the step.
        self._left = [self._of_tensor.count(number) for number in range(len(self._parcels) - 1)] + [NEVER]

    def _wait(self, sent: Any, deadline: float) -> None:
        if self._on_gpu:
            # Its own wait would end the group where it takes long.
            while not sent.is_completed():
                if self._recalled() or time.monotonic() > deadline:
                    raise RuntimeError("the others do not answer")
                time.sleep(GPU_LOOK_SECONDS)
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
        parcel = self._parcels[len(self._sent)]
        self._sent.append(self._group.allreduce([self._flat[parcel.start : parcel.stop]]))


def _pack(tensors: list[Tensor]) -> list[range]:
    """Neighbours together until there are enough values, from the last on."""
    parcels: list[range] = []
    for tensor in reversed(tensors):
        if parcels and len(parcels[-1]) < PARCEL_VALUES:
            parcels[-1] = range(tensor.start, parcels[-1].stop)
        else:
            parcels.append(range(tensor.start, tensor.stop))
    return parcels


class AllreduceWorker(DenseWorker):
    """One worker that adds up with the others."""

    def __init__(self, spec: RoleSpec, config: RunConfig, tls: Tls | None, dataset: ImageDataset, lifeline: Lifeline,
                 host: str) -> None:  # fmt: skip
        super().__init__(spec, config, tls, dataset, lifeline)
        self._host = host
        self._table = make_table(config, self._model, dataset.split("train").rows, num_workers=1)
        self._values = self._table.values
        self._use(self._new_message())
        self._notes: Notes | None = None
        self._incarnation = 0
        # On a GPU all that there were: to end one is to wait for threads of it that may be waiting for Python.
        self._groups: list[Group] = []

    def _new_message(self) -> Message:
        model = self._model
        return Message(model.tensors, model.num_trained, self._rations.recalled, self._config.device)

    def _use(self, message: Message) -> None:
        self._message, self._sums = message, message.sums

    def warm_up(self) -> None:
        super().warm_up()
        # Once there is somebody to send it to.
        self._model.filled = lambda tensor: self._message.filled(tensor)

    def _join(self, begin: Begin) -> None:
        """Take the states over, and meet the other workers."""
        if begin.generation == self._generation and self._links:
            return
        self._incarnation = begin.incarnation
        with self._ended_if_it_hangs():
            self._message.leave()
        super()._join(begin)
        self._doing = "takes the values over"
        link = self._links[0]
        self._fetch_states(link)
        self._doing = "waits for the other workers"
        if self._notes is not None:
            self._notes.close()
        connection = connect(begin.shards[0], self._spec.token, self._tls)
        self._notes = Notes(connection, begin.generation, self._rations.recalled)
        device = self._config.device
        if self._message.on_its_way and device == "cpu":
            # What a group that is gone may still write to.
            self._use(self._new_message())
        try:
            with self._ended_if_it_hangs():
                place = self._host, GROUP_SECONDS, device
                group = make_group(self._notes, self._spec.rank, self._config.workers, *place)
                self._groups = [*self._groups, group] if device == "cuda" else [group]
                self._message.meet(group.group)
        except RuntimeError as error:
            raise LostConnectionError(f"the other workers cannot be met: {in_short(error)}") from None

    def _give_up(self, error: WireError) -> None:
        """Go, unless another process was no better off: then the run ends, and says why."""
        if self._incarnation >= MOST_INCARNATIONS:
            raise RunError(error.message, NO_GROUP_HINT)
        super()._give_up(error)

    @contextmanager
    def _ended_if_it_hangs(self) -> Iterator[None]:
        """Whoever does not get through this in time begins anew, as a new process: NCCL cannot be interrupted."""
        if self._config.device == "cpu":
            yield
            return
        timer = threading.Timer(MEET_SECONDS + LOOK_SECONDS, self._end)
        timer.daemon = True
        timer.start()
        try:
            yield
        finally:
            timer.cancel()

    def _end(self) -> None:
        if self._incarnation >= MOST_INCARNATIONS:
            said = f"NCCL does not get the workers together in {MEET_SECONDS:g} s"
            self._lifeline.say(Failed(kind="run", message=said, hint=NO_GROUP_HINT))
        os._exit(1)

    def _pull(self, number: int) -> None:
        """The values are here already; others need not be waited for either."""
        self._links[0].wait(number)
        self.meter.mark(WAIT)

    def _push(self, number: int, flags: int, trained: int, losses: float, rows: int) -> None:
        """Add up with the others, update, and tell the shard; bring it all states if it wants them."""
        self._doing = "adds up with the other workers"
        try:
            all_rows = self._message.add_up(rows)
        except RuntimeError as error:
            if self._rations.recalled():
                raise RecalledError from None
            raise LostConnectionError(f"another worker is gone: {in_short(error)}") from None
        self.meter.mark(PUSH)
        self._table.apply(self._sums, all_rows, trained, 0, self._parts.num_keys)
        self.meter.mark(COMPUTE)
        link = self._links[0]
        link.announce(number, flags, trained, losses, rows)
        if link.may_push():
            self._doing = "brings the values to the shard"
            self._bring_states(link)
        self.meter.mark(PULL)
        self.meter.end_step(rows, 1)

    def _fetch_states(self, link: DenseLink) -> None:
        for start in range(0, self._parts.num_keys, PIECE_VALUES):
            count = min(PIECE_VALUES, self._parts.num_keys - start)
            link.connection.send(Kind.MESSAGE, 0, encode(Fetch(what="states", start=start, count=count)))
            data = link.connection.receive(SILENCE_SECONDS).body[CHUNK_HEAD_BYTES:].view(np.float32)
            if len(data) != count * self._parts.width:
                raise BadFrameError(f"{link.connection.peer} sends {len(data)} numbers for {count} values")
            self._table.load(data.reshape(count, -1), start)

    def _bring_states(self, link: DenseLink) -> None:
        for start in range(0, self._parts.num_keys, PIECE_VALUES):
            piece = self._table.part(start, start + PIECE_VALUES)
            link.connection.send(Kind.CHUNK, 0, start.to_bytes(CHUNK_HEAD_BYTES, "little"), piece)
