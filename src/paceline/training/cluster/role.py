"""What happens in the process of a worker or a shard, from its start to its end?

`run_role` is all that an engine needs to know. A role first connects to the coordinator: that connection is its
*lifeline*. A thread of its own tells the coordinator every second that the role is alive and what it does, however long
a step takes; and when the coordinator is gone, the role ends.
"""

from __future__ import annotations

import os
import platform
import queue
import sys
import threading
import time
import traceback
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import msgspec
import psutil

from paceline.config import RunConfig
from paceline.errors import ConfigError, DataError, DivergedError, PacelineError
from paceline.parameters.parts import Parts
from paceline.parameters.slice import Slice
from paceline.telemetry.meter import ShardReport, WorkerReport, period_at
from paceline.telemetry.probes import ConnectionProber, NodeProber
from paceline.telemetry.records import AnyRecord
from paceline.training.cluster.messages import (
    Beat,
    Begin,
    Failed,
    Grant,
    Hello,
    Message,
    Ready,
    Report,
    RoleSpec,
    Stop,
    ToRole,
    Wait,
    decode,
    encode,
)
from paceline.training.cluster.shard import ShardService
from paceline.training.cluster.shared import shared_bytes, shares
from paceline.training.pace import Pace
from paceline.version import VERSION
from paceline.wire.connection import Connection, connect
from paceline.wire.frames import Kind, SilentPeerError, WireError
from paceline.wire.server import Server
from paceline.wire.tls import Tls

if TYPE_CHECKING:
    from paceline.training.cluster.dense_worker import DenseWorker
    from paceline.training.cluster.worker import ClusterWorker

BEAT_SECONDS = 1.0
TICK_SECONDS = 0.5
SPIN_SECONDS = 0.0003
NICENESS = 5
LOOPBACK = "127.0.0.1"
KINDS: dict[type[PacelineError], str] = {DataError: "data", ConfigError: "config", DivergedError: "diverged"}


class Lifeline:
    """A role's connection to the coordinator: beats out; `orders` and `grants` in."""

    def __init__(self, connection: Connection, hello: Hello) -> None:
        self.orders: queue.SimpleQueue[Begin | Wait | Stop] = queue.SimpleQueue()
        # No `SimpleQueue`, since they are waited for with a time limit (see `Desk.events`).
        self.grants: queue.Queue[Grant] = queue.Queue()
        self.status: Callable[[], tuple[str, int, int]] = lambda: ("starts", 0, 0)
        self.records: Callable[[], list[AnyRecord]] = list
        self.num_roles = 1
        self._connection = connection
        self._reporting = threading.Lock()
        self._began = time.monotonic()
        self._next_report = 0.0
        self.say(hello)
        for work in (self._beat, self._listen):
            threading.Thread(target=work, name=f"paceline-lifeline{work.__name__}", daemon=True).start()

    def say(self, message: Message) -> None:
        """Tell the coordinator."""
        self._connection.send(Kind.MESSAGE, 0, encode(message))

    def beat(self) -> None:
        """Tell the coordinator that this role is alive, and what it does."""
        doing, sent, received = self.status()
        memory = psutil.Process().memory_info()
        private = memory.rss - getattr(memory, "shared", 0) + shared_bytes()
        self.say(Beat(doing=doing, bytes_sent=sent, bytes_received=received, memory_bytes=private))

    def report(self) -> None:
        """Tell the coordinator what was recorded since the last time."""
        with self._reporting:
            records = self.records()
            if records:
                self.say(Report(now=time.perf_counter(), records=records))

    def _beat(self) -> None:
        while True:
            try:
                self.beat()
                now = time.monotonic()
                if now >= self._next_report:
                    # A beat may come a little early, and must not miss its turn for that.
                    self._next_report = now + period_at(now - self._began, self.num_roles) - BEAT_SECONDS / 2
                    self.report()
            except WireError:
                _end()
            time.sleep(BEAT_SECONDS)

    def _listen(self) -> None:
        last: Begin | Wait | Stop | None = None
        while True:
            try:
                order: Any = decode(self._connection.receive(silence_seconds=3600), ToRole)
            except SilentPeerError:
                continue
            except WireError:
                _end()
            if isinstance(order, Grant):
                self.grants.put(order)
            elif order != last:
                # The coordinator may say the same twice, to be sure that a new role has heard it.
                self.orders.put(order)
                last = order


def run_role(content: bytes, node: str, host: str) -> None:
    """Be the role that `content`, a `RoleSpec`, describes, on the node of that name and address, to the run's end."""
    # Numba looks for a BLAS in SciPy and for C functions in CFFI; loading them takes longer than loading all loops,
    # which need neither.
    for unneeded in ("scipy", "cffi"):
        sys.modules.setdefault(unneeded, None)  # type: ignore[arg-type]
    spec = msgspec.msgpack.decode(content, type=RoleSpec)
    tls = Tls(spec.certificate, spec.key) if spec.certificate else None
    hello = Hello(
        role=spec.role, rank=spec.rank, pid=os.getpid(), node=node, paceline=VERSION,
        python=platform.python_version(),
    )  # fmt: skip
    lifeline = Lifeline(connect(spec.coordinator, spec.token, tls), hello)
    try:
        config = msgspec.msgpack.decode(spec.config, type=RunConfig)
        lifeline.num_roles = config.workers + config.shards
        if spec.role == "shard":
            _run_shard(spec, config, tls, lifeline, LOOPBACK if spec.loopback else host)
        else:
            _run_worker(spec, config, tls, lifeline, LOOPBACK if spec.loopback else host)
    except PacelineError as error:
        kind = next((kind for type_, kind in KINDS.items() if isinstance(error, type_)), "run")
        lifeline.say(Failed(kind=kind, message=error.message, hint=error.hint))
    except Exception as error:  # noqa: BLE001 (whatever it is, the user reads it where the run was started)
        where = traceback.extract_tb(error.__traceback__)[-1]
        text = f"{type(error).__name__}: {error} ({os.path.basename(where.filename)}, line {where.lineno})"
        lifeline.say(Failed(kind="run", message=text, hint=""))


def _run_shard(spec: RoleSpec, config: RunConfig, tls: Tls | None, lifeline: Lifeline, host: str) -> None:
    port = config.wire.port and config.wire.port + 1 + spec.rank
    server = Server(host, port, spec.token, tls)
    service = _make_service(spec, config, server)
    service.slice.warm_up()
    lifeline.status = lambda: (service.doing, 0, 0)
    chunks, node, wire = ShardReport(spec.rank), NodeProber(), ConnectionProber("shard", spec.rank)
    lifeline.records = lambda: [
        *chunks.take(server.looked, *service.counters),
        *node.take(),
        *wire.take(service.sockets()),
    ]
    lifeline.say(Ready(address=server.address))
    try:
        server.serve(service, TICK_SECONDS, SPIN_SECONDS)
    finally:
        server.close()


def _make_service(spec: RoleSpec, config: RunConfig, server: Server) -> ShardService:
    if not config.dense:
        slice_of_keys = Slice(config.optimizer, spec.features, spec.rank, config.shards)
        return ShardService(config, slice_of_keys, lambda: server.refused)
    # Neither kind of role needs what the other does, and starts the sooner.
    from paceline.parameters.optimizers.dense import num_planes
    from paceline.training.cluster.dense_shard import DenseShardService, DenseSlice
    from paceline.training.cluster.keeper import KeeperService

    parts = Parts(spec.num_values, num_planes(config.optimizer), config.shards, in_ranges=True)
    kind = KeeperService if config.exchange == "allreduce" else DenseShardService
    slice_ = DenseSlice(config, parts, spec.rank, spec.num_trained, spec.num_rows, shares(spec, config))
    service = kind(config, slice_, lambda: server.refused)
    service.soon = server.call_soon
    return service


def _make_worker(
    spec: RoleSpec, config: RunConfig, tls: Tls | None, lifeline: Lifeline, host: str
) -> tuple[ClusterWorker | DenseWorker, str]:
    """A worker, and the fingerprint of the data that it sees."""
    from paceline.data.datasets import open_for
    from paceline.data.images.dataset import ImageDataset

    dataset = open_for(config)
    if isinstance(dataset, ImageDataset):
        if config.exchange == "allreduce":
            from paceline.training.cluster.allreduce import AllreduceWorker

            return AllreduceWorker(spec, config, tls, dataset, lifeline, host), dataset.fingerprint
        from paceline.training.cluster.dense_worker import DenseWorker

        return DenseWorker(spec, config, tls, dataset, lifeline), dataset.fingerprint
    from paceline.training.cluster.worker import ClusterWorker

    return ClusterWorker(spec, config, tls, dataset, lifeline), dataset.fingerprint


def _run_worker(spec: RoleSpec, config: RunConfig, tls: Tls | None, lifeline: Lifeline, host: str) -> None:
    worker, fingerprint = _make_worker(spec, config, tls, lifeline, host)
    lifeline.status = worker.status
    if spec.loopback and Pace.of(config.pace).in_flight(config.dense) > 1:
        # All roles share this machine's cores, and all workers wait for the shards: those go first.
        os.nice(NICENESS)
    worker.warm_up()
    chunks = WorkerReport(worker.meter)
    node, wire = NodeProber(), ConnectionProber("worker", spec.rank)
    lifeline.records = lambda: [*chunks.take(), *node.take(), *wire.take(worker.sockets())]
    lifeline.say(Ready(data=fingerprint))
    worker.run()


def _end() -> None:
    """The coordinator is gone, and so is the run: nothing here is worth keeping."""
    os._exit(0)
