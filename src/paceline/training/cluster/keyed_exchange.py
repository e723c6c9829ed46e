"""How does a worker exchange the parameters of a model with a table? One round trip per step and shard, by key.

A frame carries the gradient of a batch that is done and the keys of one to come. What is not answered is asked again.
"""

from __future__ import annotations

import time
from collections.abc import Sequence

import numpy as np

from paceline.kernels.exchange import pick
from paceline.parameters.scratch import Scratch
from paceline.training.cluster.best_compute import compute_at_best, compute_in_company, one_row
from paceline.training.cluster.links import Links, StepLink
from paceline.training.cluster.messages import Begin
from paceline.training.cluster.numbered_batch import NumberedBatch
from paceline.training.cluster.steps import EMPTY, Ask
from paceline.training.cluster.worker import Setup
from paceline.wire.coding import VALUE_BYTES, read_values
from paceline.wire.frames import WireError

# Nanoseconds that a shard had a request between applying and answering; if it was longer, that was the gate.
SHORTEST_HELD = 100_000


class KeyedExchange:
    """A worker's exchange with all shards, by key."""

    def __init__(self, setup: Setup) -> None:
        table, config = setup.model.layout.table, setup.config
        assert table is not None
        scratch, rest = Scratch(table), (setup.spec.rank, config.shards, config.wire.key_deltas)
        is_compiled = config.device == "cpu" and setup.model.make_kernel is not None
        compute = None if is_compiled else setup.compute
        self.batches: Sequence[NumberedBatch] = [
            NumberedBatch(reader, setup.model, compute, scratch, *rest) for reader in setup.readers
        ]
        self.links = Links(setup.spec, setup.queue.recalled)
        self._setup = setup
        self._meter = setup.meter
        self._coding = config.wire.values
        self._pulls_all = config.wire.pull == "all"
        self._no_indices = self.batches[0].indices(0).copy()

    def warm_up(self) -> None:
        """Load or compile the loops, and measure how long a step computes; changes nothing."""
        for batch in self.batches:
            for rows in (1, 0):
                batch.read(time.perf_counter_ns, 0, 0, rows, 0)
                if rows:
                    batch.put(0, np.zeros(batch.num_values(0), np.float32))
                    batch.gradient()
                batch.pick(0)
        pick(batch.columns, EMPTY, self._no_indices, EMPTY)
        sizes = self._setup.config.batch_size, self._setup.num_rows
        at_best = compute_at_best(batch, *sizes), compute_in_company(batch, *sizes)
        self._meter.compute_at_best = (*at_best, one_row(batch))

    def join(self, begin: Begin) -> int:
        """Connect to the shards; the batch to continue with."""
        return self.links.replace(begin, lambda endpoint: StepLink(endpoint, self._setup.config.wire))

    def ask(self, number: int, flags: int, done: NumberedBatch | None, losses: float,
            ahead: NumberedBatch | None) -> Sequence[tuple[int, int]]:  # fmt: skip
        """Push the gradient of the batch that is done, and pull for the one ahead."""
        trained, rows = (done.trained, done.rows.num_rows) if done else (0, 0)
        for shard, link in enumerate(self.links.all):
            pushed = done.pick(shard) if done else EMPTY
            indices = ahead.indices(shard) if ahead else self._no_indices
            link.send(Ask(flags, number, trained, losses, rows, pushed, indices))
        return ()

    def receive(self, batch: NumberedBatch) -> int:
        """The values that a batch needs, from all shards; for how many nanoseconds one held its reply back."""
        kind, meter, waited = self._coding, self._meter, 0
        for shard, link in enumerate(self.links.all):
            reply = link.receive(batch.number)
            meter.got_reply(*reply.times)
            # Gates of several shards are closed at the same time.
            if reply.times.held > SHORTEST_HELD:
                waited = max(waited, reply.times.held)
            if self._pulls_all and batch.ends[shard + 1] > batch.ends[shard]:
                values = batch.pick_from(shard, read_values(reply.data, len(reply.data) // VALUE_BYTES[kind], kind))
            else:
                values = read_values(reply.data, batch.num_values(shard), kind)
            batch.put(shard, values)
        return waited

    def lost(self, error: WireError) -> None:
        """What links cannot mend is a fault of this worker."""
        raise error
