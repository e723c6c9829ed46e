"""What happens in the process of a matrix job's worker, from its start to its end?

`run_worker` is all that an engine needs to know. The worker does the tasks that the coordinator names; a thread beside
it says every second that it is alive, and ends the process when the coordinator is gone. For products another thread
serves the blocks that live here.
"""

from __future__ import annotations

import os
import platform
import queue
import threading
import time
import traceback
from itertools import islice
from pathlib import Path
from typing import Any

import msgspec
import psutil

from paceline.errors import ConfigError, DataError, PacelineError
from paceline.machine import num_cores
from paceline.matrices.cluster.blocks import Blocks, BlockService
from paceline.matrices.cluster.messages import Do, Done, Peers, ProductTask, ToWorker, TraceTask, WorkerSpec
from paceline.matrices.cluster.tiles import TileMaker
from paceline.matrices.product_file import Heading, ProductFile
from paceline.matrices.trace import RandomPairs, sums_in_order
from paceline.telemetry.meter import period_at
from paceline.telemetry.probes import NodeProber
from paceline.training.cluster.messages import Beat, Failed, Hello, Message, Ready, Report, decode, encode
from paceline.version import VERSION
from paceline.wire.connection import Connection, connect
from paceline.wire.frames import Kind, SilentPeerError, WireError
from paceline.wire.server import Server

LOOPBACK = "127.0.0.1"
BEAT_SECONDS = 1.0
TICK_SECONDS = 0.5


class Lifeline:
    """A worker's connection to the coordinator: beats and probes out, tasks and addresses in."""

    def __init__(self, connection: Connection, hello: Hello) -> None:
        self.tasks: queue.SimpleQueue[Do] = queue.SimpleQueue()
        self.blocks: Blocks | None = None
        self.doing = "starts"
        self._connection = connection
        self._addresses: list[str] = []
        self._prober = NodeProber()
        self.say(hello)
        for work in (self._beat, self._listen):
            threading.Thread(target=work, name=f"paceline-lifeline{work.__name__}", daemon=True).start()

    def say(self, message: Message) -> None:
        """Tell the coordinator."""
        self._connection.send(Kind.MESSAGE, 0, encode(message))

    def serve(self, blocks: Blocks) -> None:
        """From now on tell these where other workers are."""
        self.blocks = blocks
        blocks.addresses = self._addresses

    def _beat(self) -> None:
        began, next_report = time.monotonic(), 0.0
        while True:
            memory = psutil.Process().memory_info()
            fetched = self.blocks.bytes_fetched if self.blocks else 0
            try:
                self.say(Beat(doing=self.doing, bytes_sent=0, bytes_received=fetched, memory_bytes=memory.rss))
                now = time.monotonic()
                if now >= next_report:
                    next_report = now + period_at(now - began) - BEAT_SECONDS / 2
                    if records := self._prober.take():
                        self.say(Report(now=time.perf_counter(), records=records))
            except WireError:
                _end()
            time.sleep(BEAT_SECONDS)

    def _listen(self) -> None:
        while True:
            try:
                order: Any = decode(self._connection.receive(silence_seconds=3600), ToWorker)
            except SilentPeerError:
                continue
            except WireError:
                _end()
            if isinstance(order, Do):
                self.tasks.put(order)
            elif isinstance(order, Peers):
                self._addresses = order.addresses
                if self.blocks is not None:
                    self.blocks.addresses = order.addresses


def run_worker(content: bytes, node: str, host: str) -> None:
    """Be the worker that `content`, a `WorkerSpec`, describes, on the node of that name and address, to the end."""
    spec = msgspec.msgpack.decode(content, type=WorkerSpec)
    hello = Hello(
        role="worker", rank=spec.rank, pid=os.getpid(), node=node, paceline=VERSION,
        python=platform.python_version(),
    )  # fmt: skip
    lifeline = Lifeline(connect(spec.coordinator, spec.token, None), hello)
    try:
        if isinstance(spec.work, TraceTask):
            _sum_pairs(spec.work, lifeline)
        else:
            _multiply(spec, spec.work, lifeline, LOOPBACK if spec.loopback else host)
    except Exception as error:  # noqa: BLE001 (whatever it is, the user reads it where the job was started)
        lifeline.say(_failure(error))


def _failure(error: Exception) -> Failed:
    """What the coordinator is told of an error."""
    if isinstance(error, PacelineError):
        kind = "data" if isinstance(error, DataError) else "config" if isinstance(error, ConfigError) else "run"
        return Failed(kind=kind, message=error.message, hint=error.hint)
    where = traceback.extract_tb(error.__traceback__)[-1]
    text = f"{type(error).__name__}: {error} ({os.path.basename(where.filename)}, line {where.lineno})"
    return Failed(kind="run", message=text, hint="")


def _sum_pairs(work: TraceTask, lifeline: Lifeline) -> None:
    """Tasks of a trace: nothing but sums leaves this process."""
    random = RandomPairs(*work.numbers)
    lifeline.say(Ready())
    while True:
        lifeline.doing = "waits for a task"
        order = lifeline.tasks.get()
        task = order.task
        lifeline.doing = f"sums block pairs of task {task}"
        began = time.perf_counter()
        pairs = islice(random.pairs(), work.cuts[task], work.cuts[task + 1])
        sums = list(sums_in_order(random.sum_of, pairs, _num_threads(order)))
        lifeline.say(Done(task=task, sums=sums, seconds={"compute": time.perf_counter() - began}))


def _multiply(spec: WorkerSpec, work: ProductTask, lifeline: Lifeline, host: str) -> None:
    """Tasks of a product: tiles of the result, from blocks that live here and on others."""
    server = Server(host, 0, spec.token, None)
    blocks = Blocks(spec.rank, spec.token, work)
    lifeline.serve(blocks)
    threading.Thread(target=_serve, args=(server, blocks, lifeline), name="paceline-serve", daemon=True).start()
    heading = msgspec.json.decode(work.heading, type=Heading)
    file = ProductFile(Path(work.out), heading, set())
    lifeline.say(Ready(address=server.address))
    while True:
        lifeline.doing = "waits for a task"
        order = lifeline.tasks.get()
        lifeline.doing = f"computes tile {order.task}"
        fetched, read, others = blocks.bytes_fetched, blocks.bytes_read, blocks.read_for_others
        seconds = TileMaker(blocks, heading, _num_threads(order)).make(work.tiles[order.task], file)
        done = Done(
            task=order.task, seconds=seconds, bytes_fetched=blocks.bytes_fetched - fetched,
            bytes_read=blocks.bytes_read - read, blocks_read_for_others=blocks.read_for_others - others,
        )  # fmt: skip
        lifeline.say(done)


def _serve(server: Server, blocks: Blocks, lifeline: Lifeline) -> None:
    """On a thread of its own: serve blocks to the end, or say why not."""
    try:
        server.serve(BlockService(blocks), TICK_SECONDS)
    except Exception as error:  # noqa: BLE001 (others would wait for blocks that nobody serves)
        lifeline.say(_failure(error))


def _num_threads(order: Do) -> int:
    return max(1, num_cores() // max(1, order.sharing))


def _end() -> None:
    """The coordinator is gone, and so is the job: nothing here is worth keeping."""
    os._exit(0)
