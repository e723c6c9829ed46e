"""What does a worker of a cluster do?

One round trip a step and shard: it sends a gradient and the keys of a batch to come together, and reads and numbers
the batch after that while the frames travel.
"""

from __future__ import annotations

import math
import socket
import statistics
import threading
import time
from collections import deque
from typing import TYPE_CHECKING, Any

import numpy as np

from paceline.config import RunConfig
from paceline.data.rows import EpochOrder
from paceline.data.sparse.batch import Batch
from paceline.data.sparse.dataset import Dataset
from paceline.data.sparse.reader import RowReader
from paceline.kernels.exchange import deal_keys, pack_order, pick, pick_keys, put, unpack_order
from paceline.kernels.logistic import gradient, number_keys
from paceline.machine import num_cores
from paceline.models.logistic import LogisticScratch
from paceline.parameters.optimizers import rules_at
from paceline.telemetry.meter import COMPUTE, INPUT, WorkerMeter
from paceline.training.cluster import steps
from paceline.training.cluster.links import EMPTY, Ask, Link
from paceline.training.cluster.messages import Begin, Idle, RoleSpec, Stop, Wait
from paceline.training.cluster.rations import Rations, RecalledError
from paceline.training.embedded.worker import check_losses
from paceline.training.pace import Pace
from paceline.wire.coding import VALUE_BYTES, Floats, read_values
from paceline.wire.tls import Tls

if TYPE_CHECKING:
    from paceline.training.cluster.role import Lifeline

# Nanoseconds for which a shard had a request between applying and answering; what is longer was the gate.
SHORTEST_HELD = 100_000
BATCHES_AT_BEST, MOST_ROWS_AT_BEST, AT_BEST_SECONDS = 8, 20_000, 0.04
COMPANY_VALUES, COMPANY_GATHERS, MOST_COMPANY = 1 << 22, 1 << 16, 16


class Prepared:
    """A batch read and numbered: its rows, and its distinct keys in the order in which they go to the shards."""

    def __init__(self, dataset: Dataset, order: EpochOrder, scratch: LogisticScratch, num_shards: int,
                 ascending: bool) -> None:  # fmt: skip
        self.number = 0
        self.trained = 0
        self.count = 0
        self.rows: Batch
        self.ends = np.zeros(num_shards + 1, np.int64)
        self._reader = RowReader(dataset, order)
        self._scratch = scratch
        self._local = np.zeros(0, np.uint32)
        self._num_shards = num_shards
        self._keys_a_shard = dataset.features // num_shards + 1
        self._ascending = ascending
        # One shard has all keys in the order of their numbers: nothing needs to be moved there and back.
        self._in_order = num_shards == 1 and not ascending
        self._make_room(0)

    def read(self, number: int, start: int, stop: int, trained: int) -> None:
        """Fill in batch `number`, the rows at positions `start` to `stop`."""
        self.number, self.trained = number, trained
        self.rows = self._reader.between(start, stop)

    def number_keys(self) -> None:
        """Find the distinct keys of the rows, and where they belong."""
        # The tables that number keys are shared by both batches: they stay in the near caches.
        tables = self._scratch.room_for(self.rows.num_nonzeros)
        if self.rows.num_nonzeros > len(self._local):
            self._local = np.zeros(len(tables.local), np.uint32)
            if self._in_order:
                self._make_room(len(tables.distinct))
        distinct = self._indices if self._in_order else tables.distinct
        self.count = 0
        if self.rows.num_rows:
            self.count = number_keys(
                self.rows.keys, self._scratch.bias, tables.slots, tables.direct, tables.turn, distinct, self._local
            )
        if self._in_order:
            self.ends[1] = self.count
            return
        if self.count > len(self._numbers):
            self._make_room(self.count + self.count // 4)
        distinct = distinct[: self.count]
        if self._ascending:
            packed = self._packed[: self.count]
            pack_order(distinct, self._num_shards, self._keys_a_shard, packed)
            packed.sort()
            unpack_order(packed, self._num_shards, self._keys_a_shard, self._numbers, self._indices, self.ends)
        else:
            deal_keys(distinct, self._num_shards, self._numbers, self._indices, self.ends)

    def put(self, shard: int, values: Floats) -> None:
        """Take on the weights of the keys that a shard holds, for the next `gradient`."""
        if self._in_order:
            self._weights = values
        else:
            put(values, self._numbers_of(shard), self._weights)

    def pick(self, shard: int) -> Floats:
        """The sums of the gradients of the keys that a shard holds; as they are until the next `gradient`."""
        if self._in_order:
            return self._sums[: self.count]
        picked = self._outgoing[self.ends[shard] : self.ends[shard + 1]]
        pick(self._sums, self._numbers_of(shard), picked)
        return picked

    def _numbers_of(self, shard: int) -> Any:
        """Which of the batch's distinct keys a shard holds, in the order of `indices`."""
        return self._numbers[self.ends[shard] : self.ends[shard + 1]]

    def indices(self, shard: int) -> Any:
        """The indices at a shard of the keys that it holds."""
        return self._indices[self.ends[shard] : self.ends[shard + 1]]

    def gradient(self) -> float:
        """Add the gradients up from the weights that were put, for `pick`; the sum of the losses."""
        rows = self.rows
        return gradient(rows.offsets, self._local, rows.values, rows.labels, self._weights[: self.count], self._sums)

    def _make_room(self, num_keys: int) -> None:
        num_moved = 0 if self._in_order else num_keys
        self._weights = np.zeros(num_moved, np.float32)
        self._sums = np.zeros(num_keys, np.float32)
        self._outgoing = np.zeros(num_moved, np.float32)
        self._numbers = np.zeros(num_moved, np.uint32)
        self._indices = np.zeros(num_keys, self._scratch.buffers.distinct.dtype)
        self._packed = np.zeros(num_keys if self._ascending else 0, np.uint64)


class ClusterWorker:
    """One worker: its rows, its links to the shards, and its batches, those in flight and one ahead."""

    def __init__(self, spec: RoleSpec, config: RunConfig, tls: Tls | None, dataset: Dataset,
                 lifeline: Lifeline) -> None:  # fmt: skip
        self._spec = spec
        self._config = config
        self._tls = tls
        self._lifeline = lifeline
        order = EpochOrder([block.rows for block in dataset.split("train").blocks], config.seed)
        ascending = config.wire.key_deltas or config.wire.key_cache
        scratch = LogisticScratch(dataset.features, dataset.key_dtype)
        in_flight = Pace.of(config.pace).in_flight(config.dense)
        self._batches = [Prepared(dataset, order, scratch, config.shards, ascending) for _ in range(in_flight + 1)]
        self._links: list[Link] = []
        self._in_flight = in_flight
        self.meter = WorkerMeter(spec.rank)
        self.meter.num_bytes = lambda: self.status()[1:]
        self.meter.looked = lambda: self._looked_before + sum(link.looked for link in self._links)
        self._doing = "waits for the coordinator"
        self._generation = 0
        self._rations = Rations(lifeline)
        self._picked = EMPTY
        self._no_indices = np.zeros(0, dataset.key_dtype)
        self._bytes_before = (0, 0)
        self._looked_before = 0
        self._read_at = 0
        self._num_rows = dataset.split("train").rows

    def status(self) -> tuple[str, int, int]:
        """What this worker does, and the bytes that it sent to shards and received from them."""
        sent, received = self._bytes_before
        links = self._links
        for link in links:
            sent, received = sent + link.num_bytes[0], received + link.num_bytes[1]
        waits = [link.doing for link in links if link.doing]
        return (waits[0] if waits else self._doing), sent, received

    def sockets(self) -> dict[str, socket.socket]:
        """The connections to shards that stand now, by name."""
        found = {f"shard {shard}": link.socket for shard, link in enumerate(self._links)}
        return {name: connected for name, connected in found.items() if connected is not None}

    def warm_up(self) -> None:
        """Load or compile the loops; changes nothing."""
        for batch in self._batches:
            for rows in (1, 0):
                batch.read(0, 0, rows, 0)
                batch.number_keys()
                if rows:
                    batch.put(0, np.zeros(batch.ends[1], np.float32))
                    batch.gradient()
                batch.pick(0)
        pick_keys(EMPTY, batch.indices(0), EMPTY)
        self.meter.compute_at_best = self._compute_at_best(), self._compute_in_company()

    def _compute_at_best(self) -> float:
        """Seconds of the processor for computing a step, one after the other; changes nothing."""
        size = min(self._config.batch_size, self._num_rows, MOST_ROWS_AT_BEST)
        began = time.perf_counter()
        seen: list[int] = []
        found: list[float] = []
        for start in range(0, min(self._num_rows - size + 1, BATCHES_AT_BEST * size), size):
            # The first time, rows may have to be read from a disk.
            self._time_compute(start, start + size)
            seen.append(start)
            if time.perf_counter() - began > AT_BEST_SECONDS / 2:
                break
        while not found or time.perf_counter() - began < AT_BEST_SECONDS:
            found.append(self._time_compute(seen[len(found) % len(seen)], seen[len(found) % len(seen)] + size))
        return statistics.median(found) * self._config.batch_size / size

    def _time_compute(self, start: int, stop: int) -> float:
        """Seconds of the processor for computing a step over these rows."""
        batch = self._batches[0]
        batch.read(0, start, stop, 0)
        began = time.thread_time()
        batch.number_keys()
        numbered = time.thread_time() - began
        for shard in range(self._config.shards):
            batch.put(shard, np.zeros(len(batch.indices(shard)), np.float32))
        began = time.thread_time()
        batch.gradient()
        return numbered + time.thread_time() - began

    def _compute_in_company(self) -> float:
        """The same while other cores are busy, too: those of a machine share what is behind them."""
        table = np.ones(COMPANY_VALUES, np.float32)
        indices = np.random.default_rng(0).integers(0, COMPANY_VALUES, COMPANY_GATHERS).astype(self._no_indices.dtype)
        count = min(num_cores(), MOST_COMPANY) - 1
        here, done = threading.Barrier(count + 1), threading.Event()

        def keep_busy() -> None:
            own = np.zeros(COMPANY_GATHERS, np.float32)
            here.wait()
            while not done.is_set():
                pick_keys(table, indices, own)

        company = [threading.Thread(target=keep_busy, daemon=True) for _ in range(count)]
        for one in company:
            one.start()
        here.wait()
        try:
            return self._compute_at_best()
        finally:
            done.set()
            for one in company:
                one.join()

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
                self._train_leg(order)
            except RecalledError:
                # In the middle of a step: where to go on is for the shards to say.
                self._generation = 0
                continue
            self._lifeline.beat()
            self._lifeline.report()
            self._lifeline.say(Idle(leg=order.leg))

    def _train_leg(self, begin: Begin) -> None:
        """Train on all rows that the coordinator hands out before the next stop."""
        self._join(begin)
        self.meter.restart()
        self._rations.begin(begin.leg)
        number, ahead = self._rations.next, self._read_next()
        self._mark_read()
        if ahead is None:
            self._ask(number, steps.LEAVE, None, 0.0, None)
        else:
            number = self._train(number, ahead)
        for link in self._links:
            link.receive(number)
            link.doing = ""

    def _train(self, number: int, ahead: Prepared | None) -> int:
        """Ask for batches from `number` on, the first being `ahead`, to the last one; the number of the last frame."""
        # What the frames in flight asked for; None when all batches have been: further frames only push.
        flying: deque[Prepared | None] = deque()
        while len(flying) < self._in_flight:
            self._ask(number + len(flying), steps.PULL, None, 0.0, ahead)
            flying.append(ahead)
            ahead = self._read_next()
            self._mark_read()
        number += self._in_flight - 1
        meter = self.meter
        while (current := flying.popleft()) is not None:
            waited = self._receive(current)
            received = meter.now()
            losses = current.gradient()
            if not math.isfinite(losses):
                check_losses(losses, current.trained, self._spec.rank, current.number, self._rate(current.trained))
            computed = meter.now()
            number += 1
            last = ahead is None and not any(flying)
            self._ask(number, steps.PUSH | (steps.LEAVE if last else steps.PULL), current, losses, ahead)
            flying.append(ahead)
            pushed = meter.now()
            # While the frames travel.
            ahead = self._read_next()
            sizes = [link.bytes_since() for link in self._links] if meter.sampling else ()
            meter.end_exchange(
                current.rows.num_rows, received, computed, pushed, self._read_at, meter.now(), waited, sizes
            )
            if meter.sampling:
                for link in self._links:
                    link.bytes_since()
        return number

    def _ask(self, number: int, flags: int, done: Prepared | None, losses: float, ahead: Prepared | None) -> None:
        """Push the gradient of the batch that is done, and pull for the one ahead."""
        trained, rows = (done.trained, done.rows.num_rows) if done else (0, 0)
        for shard, link in enumerate(self._links):
            pushed = EMPTY
            if done is not None:
                pushed = done.pick(shard)
            indices = ahead.indices(shard) if ahead else self._no_indices
            link.send(Ask(flags, number, trained, losses, rows, pushed, indices))

    def _receive(self, batch: Prepared) -> int:
        """The weights of a batch's keys, from all shards; for how many nanoseconds one held it back."""
        kind, meter = self._config.wire.values, self.meter
        waited = 0
        for shard, link in enumerate(self._links):
            reply = link.receive(batch.number)
            link.doing = ""
            meter.got_reply(*reply.times)
            # Gates of several shards are closed at the same time.
            if reply.times.held > SHORTEST_HELD:
                waited = max(waited, reply.times.held)
            indices = batch.indices(shard)
            if self._config.wire.pull == "all" and len(indices):
                all_values = read_values(reply.data, len(reply.data) // VALUE_BYTES[kind], kind)
                if len(self._picked) < len(indices):
                    self._picked = np.empty(len(indices) * 5 // 4, np.float32)
                values = self._picked[: len(indices)]
                pick_keys(all_values, indices, values)
            else:
                values = read_values(reply.data, len(indices), kind)
            batch.put(shard, values)
        self._doing = "computes"
        return waited

    def _read_next(self) -> Prepared | None:
        """The next batch, read and numbered; None when there are no more rows in this leg."""
        number = self._rations.next
        if not self._rations.at_hand():
            self._doing = "waits for rows from the coordinator"
        if (rows := self._rations.take()) is None:
            self._read_at = self.meter.now()
            return None
        self._doing = "reads"
        batch = self._batches[number % len(self._batches)]
        batch.read(number, *rows)
        self._read_at = self.meter.now()
        batch.number_keys()
        return batch

    def _mark_read(self) -> None:
        """Count what was just read where no step has begun."""
        self.meter.mark_at(INPUT, self._read_at)
        self.meter.mark(COMPUTE)

    def _join(self, begin: Begin) -> None:
        """Connect to the shards, unless these connections stand, and find out where to go on."""
        if begin.generation == self._generation and self._links:
            return
        self._bytes_before, self._looked_before = self.status()[1:], self.meter.looked()
        for link in self._links:
            link.close()
        self._links = []
        wire, token = self._config.wire, self._spec.token
        for shard in range(len(begin.shards)):
            self._links.append(Link(shard, self._spec.rank, begin, token, self._tls, wire, self._rations.recalled))
        for link in self._links:
            link.doing = ""
        self._generation = begin.generation
        self._rations.next = min(link.applied for link in self._links) + 1

    def _rate(self, trained: int) -> float:
        return float(rules_at(self._config.optimizer, trained).keys.rate)
