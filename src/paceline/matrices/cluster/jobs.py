"""How do matrix jobs run on a cluster? Cut into tasks, placed on workers, put together again."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from contextlib import ExitStack
from itertools import pairwise, product
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from paceline.engines.ray import RayEngine
from paceline.errors import ConfigError
from paceline.machine import num_cores
from paceline.matrices.cluster.crew import Crew
from paceline.matrices.cluster.messages import Done, ProductTask, TraceTask
from paceline.matrices.cluster.placement import (
    Grid,
    Owners,
    Rectangle,
    fetched_elements,
    grid_of,
    least_elements,
    naive_elements,
    place,
)
from paceline.matrices.cluster.tiles import tile_bytes
from paceline.matrices.jobs import Watch, product_in_words, product_result, recorded, trace_result
from paceline.matrices.nodes import Node, Product, cuts
from paceline.matrices.plan import Shape, in_bytes, parse_bytes
from paceline.matrices.product_file import Heading, check_out, product_file, read_journal
from paceline.matrices.settings import MatmulSettings, Settings, TraceSettings
from paceline.matrices.sources import fingerprint
from paceline.matrices.trace import RandomPairs
from paceline.matrices.verdict import judge
from paceline.run_folder import Run
from paceline.telemetry.recorder import Journal

# What a process of a cluster runs: "module:function".
ENTRY = "paceline.matrices.cluster.worker:run_worker"
TASKS_A_WORKER = 8
# Without `--block`, so many blocks a worker along each side, if they are not smaller than this then.
BLOCKS_A_SIDE = 4
LEAST_BLOCK, MOST_BLOCK = 256, 2048


def trace_on_cluster(settings: TraceSettings, pairs: RandomPairs, watch: Watch, notice: Callable[[str], None]) -> Run:
    """The trace of a product of random matrices: blocks are made where they are needed, and only sums travel."""
    with ExitStack() as stack:
        engine = _start_engine(settings, stack)
        count = engine.num_roles
        all_pairs = pairs.pairs()
        edges = cuts(len(all_pairs), TASKS_A_WORKER * count)
        homes = [task * count // (len(edges) - 1) for task in range(len(edges) - 1)]
        crew = Crew(engine, TraceTask((*pairs,), edges), homes, count, may_move=True)
        stack.callback(crew.close)
        crew.wait_until_ready()
        with recorded(settings, probe_here=False) as (run, result, _):
            sums: dict[int, list[float]] = {}
            seconds = _run(crew, run, set(), lambda done: sums.update({done.task: done.sums}), notice,
                           lambda share: watch(share, f"{len(sums):,} of {len(homes):,} tasks"))  # fmt: skip
            trace = math.fsum(value for task in sums.values() for value in task)
            result |= trace_result(settings, trace, seconds["whole"], pairs.num_blocks_made)
            result |= _account(crew) | {
                "algorithm": "block pairs on one worker, sums to the coordinator",
                "bytes_moved": crew.message_bytes,
                "bytes_lower_bound": 8 * len(all_pairs),
                "bytes_naive": _naive_trace_bytes(pairs, count),
            }
            run.write_json("diagnosis.json", judge(seconds, count * seconds["whole"]))
    return run


def multiply_on_cluster(
    settings: MatmulSettings, left: Node, right: Node, watch: Watch, notice: Callable[[str], None]
) -> Run:
    """A product of files that every node sees: each worker computes a rectangle, and fetches what it does not own."""
    out, shape = Path(settings.out).resolve(), Shape(*left.shape, right.shape[1])
    dtype = Product(left, right).dtype
    check_out(out, (shape.rows, shape.columns), dtype)
    with ExitStack() as stack:
        engine = _start_engine(settings, stack)
        block = settings.block or _good_block(shape, engine.num_roles)
        grid = grid_of(shape, block)
        rectangles = place(grid, engine.num_roles)
        of_workers = [_tiles(one, grid, dtype.itemsize, settings.memory) for one in rectangles]
        tiles = [tile for some in of_workers for tile in some]
        homes = [rank for rank, some in enumerate(of_workers) for _ in some]
        seen = fingerprint(left), fingerprint(right)
        heading = Heading(*seen, (shape.rows, shape.columns), str(dtype), (block, engine.num_roles, len(tiles)), "ray")
        found = read_journal(out)
        kept = found[1] if found is not None and found[0] == heading else set()
        starts = [(grid.rows[tile.top], grid.columns[tile.left]) for tile in tiles]
        work = ProductTask(
            str(Path(settings.left).resolve()), str(Path(settings.right).resolve()), *seen, str(out),
            msgspec.json.encode(heading), block, [(*one,) for one in rectangles], [(*one,) for one in tiles],
        )  # fmt: skip
        file = stack.enter_context(product_file(out, heading, kept))
        crew = Crew(engine, work, homes, engine.num_roles, may_move=False)
        stack.callback(crew.close)
        crew.wait_until_ready()
        with recorded(settings, probe_here=False) as (run, result, _):
            counted = {"bytes_fetched": 0, "bytes_read": 0, "blocks_read_for_others": 0}

            def finished(done: Done) -> None:
                file.finish_tile(*starts[done.task])
                for name in counted:
                    counted[name] += getattr(done, name)

            before = {task for task, start in enumerate(starts) if start in kept}
            if before:
                notice(f"{len(before):,} of {len(tiles):,} tiles were there from an earlier attempt")
            seconds = _run(crew, run, before, finished, notice,
                           lambda share: watch(share, product_in_words(shape)))  # fmt: skip
            file.finish()
            result |= product_result(settings, left, right, seconds["whole"], len(tiles) - len(before), len(tiles))
            result |= (
                _account(crew)
                | _movement(grid, rectangles, of_workers, engine.num_roles, dtype)
                | {
                    "block": block,
                    "bytes_moved": counted["bytes_fetched"] + crew.message_bytes,
                    "bytes_read": counted["bytes_read"],
                    "blocks_read_for_others": counted["blocks_read_for_others"],
                }
            )
            run.write_json("diagnosis.json", judge(seconds, engine.num_roles * seconds["whole"]))
    return run


def _start_engine(settings: Settings, stack: ExitStack) -> RayEngine:
    workers = settings.workers or (None if settings.address else num_cores())
    engine = RayEngine(settings.address, workers, ENTRY)
    stack.callback(engine.close)
    return engine


def _run(
    crew: Crew, run: Run, before: set[int], finished: Callable[[Done], None], notice: Callable[[str], None],
    watch: Callable[[float], None],
) -> dict[str, float]:  # fmt: skip
    """Do all tasks; seconds of all workers by phase, and of the `whole`."""
    seconds: dict[str, float] = {}
    journal = Journal(run.path)
    told = -1

    def add(done: Done) -> None:
        for name, value in done.seconds.items():
            seconds[name] = seconds.get(name, 0.0) + value
        finished(done)

    def look(share: float, records: list[Any]) -> None:
        nonlocal told
        if records:
            journal.add(records)
        # Who is where has changed with each loss and each return.
        if (now := crew.restarts + len(crew.recoveries)) != told:
            told = now
            run.write_json("roles.json", crew.roles())
            for back in crew.recoveries[-1:]:
                notice(f"worker {back['rank']} on node {back['node']} was lost ({back['cause']}) and is back "
                       f"after {back['seconds']:.1f} s")  # fmt: skip
        watch(share)

    began = time.perf_counter()
    try:
        crew.run(before, add, look)
    finally:
        run.write_json("roles.json", [])
    seconds["whole"] = time.perf_counter() - began
    busy = sum(seconds.values()) - seconds["whole"]
    seconds["wait"] = max(0.0, len(crew.workers) * seconds["whole"] - busy)
    return seconds


def _account(crew: Crew) -> dict[str, Any]:
    return {
        "workers": len(crew.workers),
        "nodes": len({worker.node for worker in crew.workers}),
        "restarts": {"workers": crew.restarts},
        "recoveries": crew.recoveries,
        "peak_memory_bytes": max(worker.peak_memory_bytes for worker in crew.workers),
    }


def _movement(
    grid: Grid, rectangles: list[Rectangle], tiles: list[list[Rectangle]], workers: int, dtype: np.dtype[Any]
) -> dict[str, Any]:
    return {
        "algorithm": "each worker an equal rectangle of the result, each block on a worker that needs it",
        "bytes_planned": dtype.itemsize * fetched_elements(grid, Owners(grid, rectangles), tiles),
        "bytes_lower_bound": int(dtype.itemsize * least_elements(grid, workers)),
        "bytes_naive": dtype.itemsize * naive_elements(grid, workers),
    }


def _naive_trace_bytes(pairs: RandomPairs, workers: int) -> int:
    """What would move if all blocks were dealt out one after the other and one of each pair went to the other."""
    rows, columns = cuts(pairs.rows, pairs.row_blocks), cuts(pairs.columns, pairs.column_blocks)
    moved = 0
    for i, j, _ in pairs.pairs():
        if (i * pairs.column_blocks + j) % workers != (j * pairs.column_blocks + i) % workers:
            moved += 4 * (rows[i + 1] - rows[i]) * (columns[j + 1] - columns[j])
    return moved


def _good_block(shape: Shape, workers: int) -> int:
    """A side that gives each worker some blocks along each side of its rectangle."""
    wanted = min(shape.rows, shape.columns) / (BLOCKS_A_SIDE * math.sqrt(workers))
    return max(1, min(MOST_BLOCK, max(LEAST_BLOCK, round(wanted)), max(shape)))


def _tiles(one: Rectangle, grid: Grid, itemsize: int, memory: str) -> list[Rectangle]:
    """A worker's rectangle in tiles that fit into its memory, so that little is fetched twice."""
    limit = parse_bytes(memory)
    height, width = one.bottom - one.top, one.right - one.left
    # Rows are fetched again for each cut of the columns, and the other way round.
    both = sorted(product(range(1, height + 1), range(1, width + 1)), key=lambda n: n[0] * width + n[1] * height)
    for rows, columns in both:
        found = [
            Rectangle(one.top + top, one.top + bottom, one.left + left, one.left + right)
            for top, bottom in pairwise(cuts(height, rows))
            for left, right in pairwise(cuts(width, columns))
        ]
        if all(tile_bytes(grid, tile, itemsize) <= limit for tile in found):
            return found
    needed = max(tile_bytes(grid, Rectangle(i, i + 1, j, j + 1), itemsize)
                 for i in range(one.top, one.bottom) for j in range(one.left, one.right))  # fmt: skip
    raise ConfigError(
        f"`memory` is {in_bytes(limit)}, too little for a block and its factors in blocks of {grid.rows[1]:,}",
        f"`--memory {in_bytes(needed)}` would do, or a smaller --block",
    )
