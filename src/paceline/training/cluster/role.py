"""What happens in the process of a worker or a shard, from its start to its end?

`run_role` is all that an engine needs to know. How a process reports to the coordinator is in `processes/lifeline.py`.
"""

from __future__ import annotations

import os
import sys
from contextlib import closing
from functools import partial
from typing import TYPE_CHECKING, Any

import msgspec
import psutil

from paceline.imports import import_from
from paceline.parameters.keyed import KeyedStore
from paceline.parameters.layout import Layout
from paceline.parameters.parts import DENSE, TABLE, Part
from paceline.parameters.store import CompiledStore
from paceline.processes.lifeline import Lifeline, run_supervised
from paceline.processes.messages import Ready
from paceline.settings import RunConfig
from paceline.telemetry.meter import ShardReport, WorkerMeter, WorkerReport
from paceline.telemetry.probes import ConnectionProber, NodeProber
from paceline.training.cluster.clocks import WorkerClocks
from paceline.training.cluster.compiled_serving import CompiledServing
from paceline.training.cluster.copies import Copies
from paceline.training.cluster.keyed_steps import KeyedSteps
from paceline.training.cluster.messages import RoleSpec, ToRole
from paceline.training.cluster.shard import ShardService
from paceline.training.cluster.shared import share, shared_bytes, shares
from paceline.training.pace import Pace
from paceline.wire.server import Server

if TYPE_CHECKING:
    from paceline.models.model import Compute, Model
    from paceline.parameters.dense import DenseStore

TICK_SECONDS = 0.5
SPIN_SECONDS = 0.0003
NICENESS = 5
# What workers exchange, imported only where it is used: the others may lack a library, and take time to load.
KEYED = "paceline.training.cluster.keyed_exchange:KeyedExchange"
GPU_COMPUTE = "paceline.torch.sparse.compute:GpuCompute"
EXCHANGES = {
    "shard": "paceline.training.cluster.piece_exchange:PieceExchange",
    "allreduce": "paceline.training.cluster.allreduce_exchange:AllreduceExchange",
}


def run_role(content: bytes, node: str, host: str) -> None:
    """Be the role that `content`, a `RoleSpec`, describes, on the node of that name and address, until the run ends."""
    # Numba looks for a BLAS in SciPy and for C functions in CFFI; the loops need neither, and loading the two takes
    # longer than loading all loops.
    for unneeded in ("scipy", "cffi"):
        sys.modules.setdefault(unneeded, None)  # type: ignore[arg-type]
    run_supervised(content, node, host, RoleSpec, ToRole, _run, _own_memory)


def _run(spec: RoleSpec, lifeline: Lifeline, host: str) -> None:
    config = msgspec.msgpack.decode(spec.config, type=RunConfig)
    lifeline.num_roles = config.workers + config.shards
    run = _run_shard if spec.role == "shard" else _run_worker
    run(spec, config, lifeline, host)


def _own_memory() -> int:
    """Bytes of this process's memory; what others see too counts for the process that made it."""
    memory = psutil.Process().memory_info()
    return int(memory.rss - getattr(memory, "shared", 0) + shared_bytes())


def _run_shard(spec: RoleSpec, config: RunConfig, lifeline: Lifeline, host: str) -> None:
    port = config.wire.port and config.wire.port + 1 + spec.rank
    server = Server(host, port, spec.token, spec.tls, mac=spec.mac)
    service = make_shard(spec, config, msgspec.msgpack.decode(spec.layout, type=Layout), server)
    for store in service.stores.values():
        store.warm_up()
    if service.loop is not None:
        service.loop.warm_up()
    lifeline.status, lifeline.refused = lambda: (service.doing, 0, 0), lambda: server.refused
    chunks, node, wire = ShardReport(spec.rank), NodeProber(), ConnectionProber("shard", spec.rank)
    clocks = service.clocks
    lifeline.records = lambda: [
        *chunks.take(server.spinner.spun + clocks.spun, *clocks.counters), *node.take(), *wire.take(service.sockets())
    ]  # fmt: skip
    lifeline.say(Ready(address=server.address))
    with closing(server):
        server.serve(service, TICK_SECONDS, SPIN_SECONDS, service.loop)


def make_shard(spec: RoleSpec, config: RunConfig, layout: Layout, server: Server) -> ShardService:
    """One shard: its clocks, its stores, and what it exchanges with workers in a step."""
    pace, rank, keyed = Pace.of(config.pace), spec.rank, layout.table is not None
    clocks = WorkerClocks(config.workers, pace.in_flight(keyed), pace.staleness)
    stores: dict[str, CompiledStore] = {}
    # A second copy of dense values alone would take as much memory again.
    copies = Copies(clocks, stores, in_place=not keyed)
    serve = partial(ShardService, server, clocks, stores, copies)
    dense: DenseStore | None = None
    place = ""
    if layout.dense is not None:
        dense, place = _make_dense_store(spec, config, layout)
        stores[DENSE] = dense
    if layout.table is not None:
        stores[TABLE] = table = KeyedStore(layout.table, rank, config.shards, hot_keys=spec.hot_keys)
        keyed_steps = KeyedSteps(clocks, copies, table, dense, pace.fold, config.wire)
        loop = CompiledServing(clocks, copies, table, keyed_steps.pulls, pace.fold) if keyed_steps.can_compile else None
        return serve(keyed_steps, loop=loop)
    assert dense is not None
    if config.exchange == "allreduce":
        from paceline.training.cluster.bookkeeper import Bookkeeper

        bookkeeper = Bookkeeper(clocks, copies, stores)
        return serve(bookkeeper, bookkeeper.chunk)
    from paceline.training.cluster.piece_steps import PieceSteps

    steps = PieceSteps(clocks, copies, dense, pace.fold, place, server.call_soon)
    return serve(steps, steps.chunk)


def _make_dense_store(spec: RoleSpec, config: RunConfig, layout: Layout) -> tuple[DenseStore, str]:
    """A shard's range of the dense values, and where workers of this machine can read it."""
    # Imported here: the shard of a model without dense values starts sooner without it.
    from paceline.parameters.dense import DenseStore, check_room

    assert layout.dense is not None
    part = Part(DENSE, layout.dense.num_values, layout.dense.width, 1, config.shards)
    first, size = part.of(spec.rank).start, part.size_of(spec.rank)
    # With a sum.
    check_room(4 * size * (part.width + 1), size)
    is_seen = layout.table is None and shares(spec, config)
    memory, place = share(part.width * size) if is_seen else (None, "")
    return DenseStore(layout.dense, first, size, memory), place


def _run_worker(spec: RoleSpec, config: RunConfig, lifeline: Lifeline, host: str) -> None:
    from paceline.data.blocks.reader import Reader
    from paceline.models.inputs import open_for
    from paceline.models.registry import find
    from paceline.training.cluster.batch_queue import BatchQueue
    from paceline.training.cluster.worker import Setup, Worker
    from paceline.training.feeds import make_order

    dataset, pace = open_for(config), Pace.of(config.pace)
    model = find(config.model).build(config, dataset, pace.rows_per_update(config.workers, config.batch_size))
    keyed, split = model.layout.table is not None, dataset.split("train")
    if spec.loopback and pace.in_flight(keyed) > 1:
        # All roles share this machine's cores, and all workers wait for the shards: shards go first.
        os.nice(NICENESS)
    order = make_order(config, dataset)
    readers: list[Any] = [Reader(dataset, order) for _ in range(pace.in_flight(keyed) + 1)]
    queue, meter = BatchQueue(lifeline), WorkerMeter(spec.rank)
    compute = _make_compute(config, model, dataset)
    setup = Setup(spec, config, model, compute, readers, split.rows, queue, lifeline, meter, host)
    exchange = import_from(KEYED if keyed else EXCHANGES[config.exchange])(setup)
    worker = Worker(setup, exchange)
    lifeline.status = worker.status
    exchange.warm_up()
    chunks, node, wire = WorkerReport(meter), NodeProber(), ConnectionProber("worker", spec.rank)
    lifeline.records = lambda: [*chunks.take(), *node.take(), *wire.take(exchange.links.sockets)]
    lifeline.say(Ready(data=dataset.fingerprint))
    worker.run()


def _make_compute(config: RunConfig, model: Model, dataset: Any) -> Compute:
    """What computes a worker's gradients. PyTorch modules on a GPU are there by themselves."""
    if model.layout.table is None or config.device == "cpu":
        return model.compute()
    compute: Compute = import_from(GPU_COMPUTE)(model, dataset.longest_row)
    return compute
