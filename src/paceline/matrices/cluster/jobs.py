"""How do matrix jobs run on a cluster? They are cut into tasks for workers, and the results are put together."""

from __future__ import annotations

import math
import time
from collections import Counter
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path

from paceline.engines import ClusterEngine, ProcessRequest, open_engine
from paceline.machine import num_cores
from paceline.matrices.cluster.messages import Done, ProductTask, TraceTask
from paceline.matrices.cluster.placement import check_share, share_out
from paceline.matrices.cluster.pool import WorkerPool
from paceline.matrices.jobs import Notice, Watch, product_result, recorded, trace_result
from paceline.matrices.nodes import Node, Product, cuts
from paceline.matrices.plan import Plan, Shape, parse_bytes
from paceline.matrices.product_file import Heading, check_out, product_file, tell_of_other_tiles
from paceline.matrices.settings import MatmulSettings, Settings, TraceSettings
from paceline.matrices.sources import fingerprint, in_words
from paceline.matrices.trace import RandomPairs
from paceline.matrices.verdict import judge
from paceline.run_folder import RunFolder
from paceline.telemetry.meter import PHASES
from paceline.telemetry.recorder import Journal
from paceline.telemetry.records import NodeProbe

ENTRY = "paceline.matrices.cluster.worker:run_worker"
TASKS_PER_WORKER = 8


def trace_on_cluster(settings: TraceSettings, pairs: RandomPairs, watch: Watch, notice: Notice) -> RunFolder:
    """The trace of a product of random matrices: blocks are made where they are needed, and only sums are sent."""
    with ExitStack() as stack:
        engine = _start_engine(settings, stack)
        count = engine.num_processes
        edges = cuts(pairs.num_pairs, TASKS_PER_WORKER * count)
        homes = [task * count // (len(edges) - 1) for task in range(len(edges) - 1)]
        pool = WorkerPool(engine, TraceTask(pairs, edges), homes, may_move=True)
        stack.callback(pool.supervisor.close)
        pool.wait_until_ready()
        with recorded(settings, notice, probe_here=False) as (run, result, _):
            sums: dict[int, list[float]] = {}
            seconds = _run(pool, run, set(), lambda done: sums.update({done.task: done.sums}), notice,
                           lambda share: watch(share, f"{len(sums):,} of {len(homes):,} tasks"))  # fmt: skip
            trace = math.fsum(value for task in sums.values() for value in task)
            result |= trace_result(settings, pairs, trace, seconds)
            result |= pool.account() | {
                "algorithm": "block pairs on one worker, sums to the coordinator",
                "bytes_moved": pool.control.message_bytes,
                "bytes_lower_bound": 8 * pairs.num_pairs,
                "bytes_naive": _naive_trace_bytes(pairs, count),
            }
    return run


def multiply_on_cluster(settings: MatmulSettings, left: Node, right: Node, watch: Watch, notice: Notice) -> RunFolder:
    """A product of files that every node sees: each worker computes a rectangle, and fetches what it does not own."""
    out, memory, product = Path(settings.out).resolve(), parse_bytes(settings.memory), Product(left, right)
    shape, dtype, size = Shape(*left.shape, right.shape[1]), product.dtype, product.dtype.itemsize
    check_out(out, product.shape, dtype)
    check_share(shape, size, memory, settings.block)
    with ExitStack() as stack:
        engine = _start_engine(settings, stack)
        shares = share_out(shape, size, engine.num_processes, memory, settings.block)
        plan = Plan(shares.block, shares.block, shares.block)
        seen = fingerprint(left), fingerprint(right)
        heading = Heading(*seen, product.shape, str(dtype), plan, f"ray {shares.digest}")
        paths = str(Path(settings.left).resolve()), str(Path(settings.right).resolve()), str(out)
        tiles = [tile for some in shares.tiles for tile in some]
        work = ProductTask(*paths, heading, shares.rectangles, tiles)
        tell_of_other_tiles(out, heading, notice)
        file = stack.enter_context(product_file(out, heading))
        pool = WorkerPool(engine, work, shares.homes, may_move=False)
        stack.callback(pool.supervisor.close)
        pool.wait_until_ready()
        with recorded(settings, notice, probe_here=False) as (run, result, _):
            before = {task for task, start in enumerate(shares.starts) if start in file.done}
            if before:
                notice(f"{len(before):,} of {len(tiles):,} tiles were finished by an earlier attempt")
            counted = Counter(dict.fromkeys(("bytes_fetched", "bytes_read", "blocks_read_for_others"), 0))

            def finished(done: Done) -> None:
                file.finish_tile(*shares.starts[done.task])
                counted.update(done.counts)

            words = f"{in_words(left.shape)} times {in_words(right.shape)}"
            seconds = _run(pool, run, before, finished, notice, lambda share: watch(share, words))
            file.finish()
            result |= product_result(settings, left, right, seconds, len(before), len(tiles)) | pool.account()
            result |= shares.movement(engine.num_processes, size) | dict(counted)
            result["bytes_moved"] = counted["bytes_fetched"] + pool.control.message_bytes
    return run


def _start_engine(settings: Settings, stack: ExitStack) -> ClusterEngine:
    """Without a number of workers, one per node of a cluster, or one per core of this machine."""
    per_node = bool(settings.address and not settings.workers)
    requests = [ProcessRequest(ENTRY, per_node=per_node)] * (1 if per_node else settings.workers or num_cores())
    return stack.enter_context(open_engine(settings.engine, settings.address, requests)).get()


def _run(
    pool: WorkerPool, run: RunFolder, before: set[int], finished: Callable[[Done], None], notice: Notice,
    watch: Callable[[float], None],
) -> float:  # fmt: skip
    """Do all tasks and write the diagnosis; how many seconds that took."""
    seconds, probes = dict.fromkeys(PHASES, 0.0), list[NodeProbe]()
    journal = Journal(run.path, notice)
    told, began = -1, time.perf_counter()
    try:
        for share, tasks, records in pool.run(before):
            for done in tasks:
                for name, value in done.seconds.items():
                    seconds[name] += value
                finished(done)
            if records:
                journal.add(records)
                probes += [record for record in records if isinstance(record, NodeProbe) and record.cores]
            # Roles move with each loss and each return.
            recoveries = pool.supervisor.recoveries
            if (now := sum(pool.supervisor.restarts.values()) + len(recoveries)) != told:
                told = now
                run.write_json("roles.json", pool.supervisor.places())
                for back in recoveries[-1:]:
                    notice(f"worker {back['rank']} on node {back['node']} was lost ({back['cause']}) and is back "
                           f"after {back['seconds']:.1f} s")  # fmt: skip
            watch(share)
    finally:
        run.write_json("roles.json", [])
    whole = time.perf_counter() - began
    available = len(pool.workers) * whole
    seconds["wait"] = max(0.0, available - sum(seconds.values()))
    run.write_json("diagnosis.json", judge(seconds, available, _busy_share(probes)))
    return whole


def _busy_share(probes: list[NodeProbe]) -> float | None:
    """The share of their time that the nodes' cores were busy, for whatever program."""
    whole = sum(len(probe.cores) * probe.seconds for probe in probes)
    return sum(sum(probe.cores) * probe.seconds for probe in probes) / whole if whole else None


def _naive_trace_bytes(pairs: RandomPairs, workers: int) -> int:
    """What would move if all blocks were dealt out in turn and one block of each pair went to the other's worker."""
    rows, columns = cuts(pairs.rows, pairs.row_blocks), cuts(pairs.columns, pairs.column_blocks)
    return sum(
        4 * (rows[i + 1] - rows[i]) * (columns[j + 1] - columns[j])
        for i, j, _ in pairs.pairs()
        if (i * pairs.column_blocks + j) % workers != (j * pairs.column_blocks + i) % workers
    )
