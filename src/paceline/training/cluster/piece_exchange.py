"""How does a worker exchange dense values with shards? It pulls all of them, and pushes all of its gradient."""

from __future__ import annotations

import os
import time
from collections.abc import Sequence

import numpy as np

from paceline.machine import num_cores
from paceline.parameters.parts import parts_of
from paceline.telemetry.meter import PUSH, WAIT
from paceline.training.cluster.links import Links
from paceline.training.cluster.messages import Begin
from paceline.training.cluster.piece_links import PieceLink
from paceline.training.cluster.plain_batch import PlainBatch
from paceline.training.cluster.shared import share, shares
from paceline.training.cluster.steps import Ask
from paceline.training.cluster.worker import Setup
from paceline.wire.frames import WireError


class PieceExchange:
    """A worker's exchange of dense values with all shards."""

    def __init__(self, setup: Setup) -> None:
        spec, config = setup.spec, setup.config
        self.links = Links(spec, setup.queue.recalled)
        self._setup = setup
        self._meter = setup.meter
        # Which values each shard has.
        (self._part,) = parts_of(setup.model.layout, config.shards)
        size = self._part.size
        self._values = np.zeros(size, np.float32)
        self._sums, self._place = share(size) if shares(spec, config) else (np.zeros(size, np.float32), "")
        rest = setup.compute, spec.rank, self._values, self._sums
        self.batches: Sequence[PlainBatch] = [PlainBatch(reader, *rest) for reader in setup.readers]

    def warm_up(self) -> None:
        """Load or compile the loops; changes nothing."""
        self.batches[0].read(time.perf_counter_ns, 0, 0, 0, 0)
        self.batches[0].gradient()

    def join(self, begin: Begin) -> int:
        """Connect to the shards; the batch to continue with."""
        if (use_threads := self._setup.compute.use_threads) is not None:
            use_threads(num_cores() // begin.sharing)
        size_of = self._part.size_of
        return self.links.replace(begin, lambda endpoint: PieceLink(endpoint, size_of(endpoint.shard)), self._place)

    def ask(self, number: int, flags: int, done: PlainBatch | None, losses: float,
            ahead: PlainBatch | None) -> Sequence[tuple[int, int]]:  # fmt: skip
        """Give every shard its part of the gradient that is done, and say that the next values are wanted."""
        trained, rows = (done.trained, done.rows.num_rows) if done else (0, 0)
        for link in self.links.all:
            link.announce(Ask(flags, number, trained, losses, rows))
        marks: list[tuple[int, int]] = []
        if done is not None:
            for shard, link in enumerate(self.links.all):
                wanted = link.may_push()
                marks.append((WAIT, self._meter.now()))
                if wanted:
                    link.push(self._sums[self._part.of(shard)])
                marks.append((PUSH, self._meter.now()))
        return marks

    def receive(self, batch: PlainBatch) -> int:
        """All values, once every shard lets this worker continue; for how many nanoseconds they held it back."""
        waited = 0
        for shard, link in enumerate(self.links.all):
            began = time.perf_counter_ns()
            times = link.receive(batch.number)
            self._meter.got_reply(*times)
            waited += min(times.held, time.perf_counter_ns() - began)
            link.pull(self._values[self._part.of(shard)])
        return waited

    def lost(self, error: WireError) -> None:
        """A shard cannot be reached."""
        if not self.links.recalled_in_time(error):
            os._exit(1)  # the engine starts another process
