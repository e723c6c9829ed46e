"""What happens in the process of a matrix job's worker, from its start to its end?

An engine only needs to know `run_worker`. The worker does the tasks that the coordinator gives it. For products, a
second thread serves the blocks that live here. How a process reports is in `processes/lifeline.py`.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from itertools import islice
from pathlib import Path

from paceline.machine import num_cores
from paceline.matrices.cluster.blocks import Blocks, BlockService
from paceline.matrices.cluster.messages import Do, Done, Peers, ProductTask, ToWorker, TraceTask, WorkerSpec
from paceline.matrices.cluster.tiles import compute_tile
from paceline.matrices.product_file import ProductFile
from paceline.matrices.trace import sums_in_order
from paceline.processes.lifeline import Lifeline, run_supervised
from paceline.processes.messages import Failed, Ready
from paceline.telemetry.probes import NodeProber
from paceline.wire.server import Server

TICK_SECONDS = 0.5


def run_worker(content: bytes, node: str, host: str) -> None:
    """Run the worker that `content`, an encoded `WorkerSpec`, describes, on the node with this name and address."""
    run_supervised(content, node, host, WorkerSpec, ToWorker, _run)


def _run(spec: WorkerSpec, lifeline: Lifeline, host: str) -> None:
    lifeline.records = NodeProber().take
    lifeline.report()  # probes count from now
    if isinstance(spec.work, TraceTask):
        _sum_pairs(spec.work, lifeline)
    else:
        _multiply(spec, spec.work, lifeline, host)


def _tasks(lifeline: Lifeline, work_on: str, bytes_fetched: Callable[[], int] = int) -> Iterator[Do]:
    """The tasks that the coordinator gives, while the lifeline says what this worker does."""

    def show(doing: str) -> None:
        lifeline.status = lambda: (doing, 0, bytes_fetched())

    while True:
        show("waits for a task")
        order: Do = lifeline.orders.get()
        show(f"{work_on} {order.task}")
        yield order


def _sum_pairs(work: TraceTask, lifeline: Lifeline) -> None:
    """Tasks of a trace: only sums leave this process."""
    lifeline.on(Peers, lambda _: None)
    lifeline.say(Ready())
    for order in _tasks(lifeline, "sums block pairs of task"):
        began = time.perf_counter()
        pairs = islice(work.pairs.pairs(), work.cuts[order.task], work.cuts[order.task + 1])
        sums = list(sums_in_order(work.pairs.sum_of, pairs, _num_threads(order)))
        lifeline.say(Done(task=order.task, sums=sums, seconds={"compute": time.perf_counter() - began}))


def _multiply(spec: WorkerSpec, work: ProductTask, lifeline: Lifeline, host: str) -> None:
    """Tasks of a product: tiles of the result, from blocks that live here and on others."""
    server = Server(host, 0, spec.token, None)
    lifeline.refused = lambda: server.refused
    blocks = Blocks(spec.rank, spec.token, work)
    lifeline.on(Peers, lambda peers: setattr(blocks, "addresses", peers.addresses))
    threading.Thread(target=_serve, args=(server, blocks, lifeline), name="paceline-serve", daemon=True).start()
    file = ProductFile(Path(work.out), work.heading, set())
    lifeline.say(Ready(address=server.address))
    for order in _tasks(lifeline, "computes tile", lambda: blocks.counts["bytes_fetched"]):
        before = blocks.counts.copy()
        seconds = compute_tile(work.tiles[order.task], blocks, file, _num_threads(order))
        lifeline.say(Done(task=order.task, seconds=seconds, counts=blocks.counts - before))


def _serve(server: Server, blocks: Blocks, lifeline: Lifeline) -> None:
    """On its own thread: serve blocks, and report why that fails if it does."""
    try:
        server.serve(BlockService(blocks), TICK_SECONDS)
    except Exception as error:  # noqa: BLE001 (other workers would wait for blocks in vain)
        lifeline.say(Failed.of(error))


def _num_threads(order: Do) -> int:
    return max(1, num_cores() // max(1, order.sharing))
