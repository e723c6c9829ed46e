"""The story of one matrix job: from settings to a run folder with a result."""

from __future__ import annotations

import platform
import resource
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import msgspec

from paceline.config import encode_toml
from paceline.engines import ENGINES
from paceline.errors import InterruptedRunError, PacelineError
from paceline.files import locked
from paceline.machine import num_cores
from paceline.matrices.matrix import check_product
from paceline.matrices.nodes import Node, Product
from paceline.matrices.plan import Shape, parse_bytes
from paceline.matrices.product import multiply_to_file, prepare_product
from paceline.matrices.product_file import tell_of_other_tiles
from paceline.matrices.settings import MatmulSettings, Settings, TraceSettings, check_matmul, check_trace
from paceline.matrices.sources import in_words, open_matrix
from paceline.matrices.trace import RandomPairs, sum_up
from paceline.matrices.verdict import judge
from paceline.run_folder import RunFolder
from paceline.telemetry.gather_facts import when_and_where
from paceline.telemetry.probes import NodeProber
from paceline.telemetry.recorder import Journal
from paceline.telemetry.records import LeftOut, NodeProbe

# The share of the work that is done, and a text about it.
Watch = Callable[[float, str], None]
Notice = Callable[[str], None]


def run_trace(settings: TraceSettings, watch: Watch, notice: Notice) -> RunFolder:
    """The trace of A² for a random matrix A, in a new run folder."""
    check_trace(settings)
    size, blocks, seed = settings.size, settings.blocks, settings.seed
    pairs = RandomPairs(size, size, blocks, blocks, seed, seed)
    if ENGINES[settings.engine].has_processes:
        from paceline.matrices.cluster.jobs import trace_on_cluster

        return trace_on_cluster(settings, pairs, watch, notice)
    with recorded(settings, notice) as (run, result, probe):

        def progress(done: int, of: int) -> None:
            probe()
            watch(done / of, f"{done:,} of {of:,} block pairs")

        began, processor_before = time.perf_counter(), time.process_time()
        trace = sum_up(pairs.sum_of, pairs.pairs(), pairs.num_pairs, None, progress)
        seconds = time.perf_counter() - began
        result |= trace_result(settings, pairs, trace, seconds) | {"bytes_moved": 0}
        run.write_json("diagnosis.json", judge({"compute": seconds}, seconds, used_share(processor_before, seconds)))
    return run


def run_matmul(settings: MatmulSettings, watch: Watch, notice: Notice) -> RunFolder:
    """The product of two matrices on disk, in a new run folder. Its file appears when it is complete."""
    check_matmul(settings)
    left, right = open_matrix(settings.left), open_matrix(settings.right)
    check_product(left, right)
    if ENGINES[settings.engine].has_processes:
        from paceline.matrices.cluster.jobs import multiply_on_cluster

        return multiply_on_cluster(settings, left, right, watch, notice)
    product = prepare_product(left, right, Path(settings.out), parse_bytes(settings.memory), settings.block or None)
    tell_of_other_tiles(product.out, product.heading, notice)
    with recorded(settings, notice) as (run, result, probe):

        def progress(share: float) -> None:
            probe()
            watch(share, f"{in_words(left.shape)} times {in_words(right.shape)}")

        began, processor_before = time.perf_counter(), time.process_time()
        work = multiply_to_file(product, progress)
        seconds = time.perf_counter() - began
        if work.tiles_found:
            notice(f"{work.tiles_found:,} of {work.tiles:,} tiles were finished by an earlier attempt")
        result |= product_result(settings, left, right, seconds, work.tiles_found, work.tiles) | {
            "tile": list(work.plan),
            "bytes_read": work.bytes_read,
            "bytes_written": work.bytes_written,
            "bytes_moved": 0,
        }
        phases = {"compute": work.compute, "input": work.read, "push": work.write}
        run.write_json("diagnosis.json", judge(phases, seconds, used_share(processor_before, seconds)))
    return run


def used_share(processor_before: float, seconds: float) -> float | None:
    """The share of this machine's cores that this process has used for `seconds`."""
    used = time.process_time() - processor_before
    return min(1.0, used / (seconds * num_cores())) if seconds > 0 else None


def trace_result(settings: TraceSettings, pairs: RandomPairs, trace: float, seconds: float) -> dict[str, Any]:
    """What `result.json` says about a trace, on any engine. Two blocks are made per pair."""
    blocks_made = 2 * pairs.num_pairs
    elements = blocks_made * (settings.size / settings.blocks) ** 2
    return {
        "size": settings.size,
        "blocks": settings.blocks,
        "seed": settings.seed,
        "trace": trace,
        "trace_bits": trace.hex(),
        "seconds": seconds,
        "blocks_made": blocks_made,
        "elements_per_second": elements / seconds if seconds else 0.0,
    }


def product_result(
    settings: MatmulSettings, left: Node, right: Node, seconds: float, tiles_found: int, tiles: int
) -> dict[str, Any]:
    """What `result.json` says about a product, on any engine. The rate counts what was computed this time."""
    shape = Shape(*left.shape, right.shape[1])
    flops = 2.0 * shape.rows * shape.inner * shape.columns * (tiles - tiles_found) / max(1, tiles)
    return {
        "out": str(Path(settings.out).resolve()),
        **shape._asdict(),
        "dtype": str(Product(left, right).dtype),
        "seconds": seconds,
        "flop_per_second": flops / seconds if seconds else 0.0,
        "tiles": tiles,
        "tiles_found": tiles_found,
    }


@contextmanager
def recorded(
    settings: Settings, notice: Notice, probe_here: bool = True
) -> Iterator[tuple[RunFolder, dict[str, Any], Callable[[], None]]]:
    """A new run folder, the result to fill, and a function to call regularly that probes this node.

    However the job ends, `result.json` says so.
    """
    run = RunFolder.make(settings.run, settings.job, encode_toml(msgspec.to_builtins(settings)))
    result: dict[str, Any] = {"status": "running", "job": settings.job, "engine": settings.engine}
    result |= when_and_where(time.time())
    journal, prober = Journal(run.path, notice), NodeProber()

    def probe(now: bool = False) -> None:
        if probe_here and (now or journal.due()):
            records = prober.take()
            for record in records:
                if isinstance(record, NodeProbe | LeftOut):
                    record.node = platform.node()
            journal.add(records)

    # A sweep must not take the folder for one that was left behind.
    with locked(run.path / "config.toml"):
        try:
            probe(now=True)
            yield run, result, probe
            probe(now=True)
            result["status"] = "done"
        except KeyboardInterrupt:
            result["status"] = "interrupted"
            raise InterruptedRunError("interrupted", settings.how_to_continue) from None
        except Exception as error:
            result |= {"status": "failed", "error": str(error)}
            raise
        finally:
            result["peak_memory_bytes"] = max(result.get("peak_memory_bytes", 0), _peak_memory())
            result["cores"] = num_cores()
            with suppress(PacelineError):
                run.write_json("result.json", result)


def _peak_memory() -> int:
    with suppress(OSError, ValueError, IndexError):
        # In `getrusage`, a process starts with its parent's peak.
        return 1024 * int(Path("/proc/self/status").read_text().partition("VmHWM:")[2].split()[0])
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else 1024 * peak
