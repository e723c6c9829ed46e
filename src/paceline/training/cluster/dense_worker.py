"""What does a worker of a cluster do for a dense model? It pulls all values, computes, and pushes all of its gradient.

Nothing of this is asked for twice: where a connection breaks, the coordinator takes all roles back to a checkpoint.
"""

from __future__ import annotations

import math
import os
import socket
import time
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from paceline.config import RunConfig
from paceline.data.images.dataset import ImageDataset, ImageReader
from paceline.data.rows import EpochOrder
from paceline.machine import num_cores
from paceline.models.dense import build_model, num_values
from paceline.parameters.optimizers.dense import num_planes
from paceline.parameters.optimizers.sgd import rate_at
from paceline.parameters.parts import Parts
from paceline.telemetry.meter import COMPUTE, INPUT, PULL, PUSH, WAIT, WorkerMeter
from paceline.training.cluster import steps
from paceline.training.cluster.messages import (
    Begin,
    Fetch,
    FromShard,
    Go,
    Idle,
    Join,
    Joined,
    RoleSpec,
    Stop,
    Wait,
    decode,
    encode,
)
from paceline.training.cluster.rations import Rations, RecalledError
from paceline.training.cluster.shard import CHUNK_HEAD_BYTES
from paceline.training.cluster.shared import find, share, shares
from paceline.training.cluster.steps import read_held, read_reply
from paceline.training.embedded.worker import check_losses
from paceline.wire.connection import Connection, connect
from paceline.wire.frames import BadFrameError, Frame, Kind, SilentPeerError, WireError
from paceline.wire.tls import Tls

if TYPE_CHECKING:
    from paceline.training.cluster.role import Lifeline

Floats = NDArray[np.float32]

PIECE_VALUES = 1 << 17
PIECES_ASKED_FOR = 8
POLL_SECONDS = 0.5
SILENCE_SECONDS = 5.0
# A lost shard is known to the coordinator, and so to its workers, after this many seconds.
GIVE_UP_SECONDS = 12.0
NO_KEYS = np.zeros(0, np.uint8)


class DenseLink:
    """A worker's connection to one shard."""

    def __init__(self, shard: int, begin: Begin, spec: RoleSpec, tls: Tls | None, rations: Rations,
                 gradient: str = "", num_values: int = 0) -> None:  # fmt: skip
        """`gradient`: where gradients are, for a shard of so many values that sees the same memory."""
        self.doing = f"waits for shard {shard}"
        self._waits = self.doing
        self._rations = rations
        self.connection: Connection = connect(begin.shards[shard], spec.token, tls)
        join = Join(
            rank=spec.rank, incarnation=begin.incarnation, generation=begin.generation, gradient=gradient
        )  # fmt: skip
        self.connection.send(Kind.MESSAGE, 0, encode(join))
        joined = decode(self.connection.receive(SILENCE_SECONDS), FromShard)
        if not isinstance(joined, Joined):
            raise BadFrameError(f"shard {shard} does not let worker {spec.rank} join")
        self.applied = joined.applied
        self.weights = find(joined.weights, num_values) if gradient else None
        """The shard's own, where this process sees them."""

    def announce(self, batch: int, flags: int, trained: int, losses: float, rows: int) -> None:
        """Say what comes next: a push of the batch before, a pull for this one, or both."""
        parts = steps.step_parts(batch, trained, losses, rows, NO_KEYS, 0, 0, 0, NO_KEYS)
        self.connection.send(Kind.STEP, flags, *parts)

    def may_push(self) -> bool:
        """Wait for the word to push; whether there is a need to."""
        go = decode(self._next(), FromShard)
        if not isinstance(go, Go):
            raise BadFrameError(f"a {type(go).__name__} of {self.connection.peer} where a word to push was expected")
        return go.wanted

    def push(self, sums: Floats) -> None:
        """Send a gradient."""
        for start in range(0, len(sums), PIECE_VALUES):
            piece = sums[start : start + PIECE_VALUES]
            self.connection.send(Kind.CHUNK, 0, start.to_bytes(CHUNK_HEAD_BYTES, "little"), piece)

    def wait(self, batch: int) -> steps.Times:
        """Wait until the pull of a batch may begin; what the shard says of its time."""
        frame = self._next()
        if frame.kind != Kind.VALUES or (reply := read_reply(frame)).batch != batch:
            raise BadFrameError(f"{self.connection.peer} did not answer batch {batch}")
        self.doing = ""
        return reply.times

    def pull(self, out: Floats) -> None:
        """Fetch all values; a few pieces are on the way at any time."""
        if self.weights is not None:
            np.copyto(out, self.weights)
            return
        starts = list(range(0, len(out), PIECE_VALUES))
        for number, start in enumerate(starts):
            ahead = starts[:PIECES_ASKED_FOR] if number == 0 else starts[number + PIECES_ASKED_FOR - 1 :][:1]
            for asked in ahead:
                count = min(PIECE_VALUES, len(out) - asked)
                self.connection.send(Kind.MESSAGE, 0, encode(Fetch(what="weights", start=asked, count=count)))
            frame = self.connection.receive(SILENCE_SECONDS)
            if frame.kind != Kind.CHUNK or len(frame.body) % 4:
                raise BadFrameError(f"a {frame.kind.name} frame of {self.connection.peer} where values were expected")
            data = frame.body[CHUNK_HEAD_BYTES:].view(np.float32)
            if len(data) != min(PIECE_VALUES, len(out) - start):
                raise BadFrameError(f"{self.connection.peer} sends {len(data)} values from {start} on")
            out[start : start + len(data)] = data

    def _next(self) -> Frame:
        """The next frame that is no notice of a reply that is held back."""
        while True:
            try:
                frame = self.connection.receive(SILENCE_SECONDS)
            except SilentPeerError:
                if self._rations.recalled():
                    raise RecalledError from None
                raise
            if frame.kind != Kind.HELD:
                return frame
            ranks = ", ".join(map(str, read_held(frame)))
            self.doing = f"{self._waits}, which " + (f"waits for worker {ranks}" if ranks else "is being saved")
            if self._rations.recalled():
                raise RecalledError


class DenseWorker:
    """One worker: its model, all values as it last pulled them, and its gradient."""

    def __init__(self, spec: RoleSpec, config: RunConfig, tls: Tls | None, dataset: ImageDataset,
                 lifeline: Lifeline) -> None:  # fmt: skip
        self._spec = spec
        self._config = config
        self._tls = tls
        self._lifeline = lifeline
        self._model = build_model(config, dataset.shape, dataset.classes)
        order = EpochOrder([block.rows for block in dataset.split("train").blocks], config.seed)
        self._reader = ImageReader(dataset, order)
        self._parts = Parts(num_values(self._model), num_planes(config.optimizer), config.shards, in_ranges=True)
        self._values = np.zeros(self._parts.num_keys, np.float32)
        self._sums, self._place = (
            share(self._parts.num_keys) if shares(spec, config) else (np.zeros_like(self._values), "")
        )
        self._rations = Rations(lifeline)
        self._links: list[DenseLink] = []
        self._generation = 0
        self._doing = "waits for the coordinator"
        self._bytes_before = (0, 0)
        self.meter = WorkerMeter(spec.rank)
        self.meter.num_bytes = lambda: self.status()[1:]

    def status(self) -> tuple[str, int, int]:
        """What this worker does, and the bytes that it sent to shards and received from them."""
        sent, received = self._bytes_before
        links = self._links
        for link in links:
            sent, received = sent + link.connection.bytes_sent, received + link.connection.bytes_received
        waits = [link.doing for link in links if link.doing]
        return (waits[0] if waits else self._doing), sent, received

    def sockets(self) -> dict[str, socket.socket]:
        """The connections to shards that stand now, by name."""
        return {f"shard {shard}": link.connection.socket for shard, link in enumerate(self._links)}

    def warm_up(self) -> None:
        """Load or compile the loops; changes nothing."""
        self._model.gradient(self._values, self._reader.between(0, 0), self._sums, (0, 0))

    def run(self) -> None:
        """Train leg after leg until told to stop."""
        while True:
            self._doing = "waits for the coordinator"
            order = self._lifeline.orders.get()
            if isinstance(order, Stop):
                return
            if isinstance(order, Wait):
                continue
            try:
                self._join(order)
                self._train_leg(order)
            except RecalledError:
                self._generation = 0
                continue
            except WireError as error:
                self._await_recall(error)
                self._generation = 0
                continue
            self._lifeline.beat()
            self._lifeline.report()
            self._lifeline.say(Idle(leg=order.leg))

    def _await_recall(self, error: WireError) -> None:
        """A shard cannot be reached. Mostly it is lost, and the coordinator will say so; else this worker must go, so
        that all return to what is whole.
        """
        self._doing = f"waits to be called back: {error.message}"
        deadline = time.monotonic() + GIVE_UP_SECONDS
        while not self._rations.recalled():
            if time.monotonic() > deadline:
                self._give_up(error)
            time.sleep(POLL_SECONDS / 10)

    def _give_up(self, error: WireError) -> None:
        """Go: the engine starts another process."""
        os._exit(1)

    def _train_leg(self, begin: Begin) -> None:
        """Train on all rows that the coordinator hands out before the next stop."""
        self.meter.restart()
        self._rations.begin(begin.leg)
        number, ahead = self._rations.next, self._take()
        self._announce(number, steps.LEAVE if ahead is None else steps.PULL, 0, 0.0, 0)
        while ahead is not None:
            start, stop, trained = ahead
            self._pull(number)
            self._doing = "reads"
            rows = self._reader.between(start, stop)
            self.meter.mark(INPUT)
            self._doing = "computes"
            losses = float(self._model.gradient(self._values, rows, self._sums, (self._spec.rank, start)))
            if not math.isfinite(losses):
                rate = rate_at(self._config.optimizer, trained)
                check_losses(losses, trained, self._spec.rank, number, rate)
            self.meter.mark(COMPUTE)
            number, ahead = self._rations.next, self._take()
            next_ = steps.LEAVE if ahead is None else steps.PULL
            self._push(number, steps.PUSH | next_, trained, losses, rows.num_rows)
        for link in self._links:
            link.wait(number)
            self.meter.mark(WAIT)

    def _take(self) -> tuple[int, int, int] | None:
        if not self._rations.at_hand():
            self._doing = "waits for rows from the coordinator"
        rows = self._rations.take()
        self.meter.mark(INPUT)
        return rows

    def _announce(self, number: int, flags: int, trained: int, losses: float, rows: int) -> None:
        for link in self._links:
            link.announce(number, flags, trained, losses, rows)

    def _push(self, number: int, flags: int, trained: int, losses: float, rows: int) -> None:
        """Give every shard its part of the gradient, and say that the next values are wanted."""
        self._announce(number, flags, trained, losses, rows)
        for shard, link in enumerate(self._links):
            wanted = link.may_push()
            self.meter.mark(WAIT)
            self._doing = f"pushes to shard {shard}"
            if wanted:
                link.push(self._sums[self._parts.of(shard)])
            self.meter.mark(PUSH)
        sizes = [self._since(link) for link in self._links] if self.meter.sampling else ()
        self.meter.end_step(rows, 1, sizes)

    def _pull(self, number: int) -> None:
        """All values, once every shard lets this worker go on."""
        for shard, link in enumerate(self._links):
            before = self.meter.phases[PULL]
            times = link.wait(number)
            self.meter.mark(PULL)
            self.meter.got_reply(*times)
            self.meter.waited_within(PULL, min(times.held, self.meter.phases[PULL] - before))
            self._doing = f"pulls from shard {shard}"
            link.pull(self._values[self._parts.of(shard)])
            self.meter.mark(PULL)

    def _since(self, link: DenseLink) -> tuple[int, int]:
        """What a step sends to a shard and receives from it: always the same. Where both see it nothing is sent, but
        would be on other machines, which is what `plan` wants to know.
        """
        size = 4 * self._parts.size(self._links.index(link))
        return size, size

    def _join(self, begin: Begin) -> None:
        """Connect to the shards, unless these connections stand, and find out where to go on."""
        if begin.generation == self._generation and self._links:
            return
        self._model.use_threads(num_cores() // begin.sharing)
        self._bytes_before = self.status()[1:]
        for link in self._links:
            link.connection.close()
        self._links = []
        for shard in range(len(begin.shards)):
            size = self._parts.size(shard)
            self._links.append(DenseLink(shard, begin, self._spec, self._tls, self._rations, self._place, size))
        for link in self._links:
            link.doing = ""
        self._generation = begin.generation
        self._rations.next = min(link.applied for link in self._links) + 1
