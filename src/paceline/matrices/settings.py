"""What was asked of a matrix job? Checked before anything starts, and kept as the run's `config.toml`."""

from __future__ import annotations

from pathlib import Path
from typing import Any, ClassVar, Literal

import msgspec

from paceline.config import converted, read_recipe, refuse_unknown
from paceline.defaults import MOST_WORKERS
from paceline.engines import ENGINES
from paceline.errors import ConfigError, one_of
from paceline.files import refuse_existing
from paceline.matrices.matrix import BlockMatrix
from paceline.matrices.plan import parse_bytes
from paceline.matrices.trace import check_num_blocks


class Settings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What all matrix jobs share. `workers` 0: one per node of the cluster, or one per core without a cluster."""

    how_to_continue: ClassVar[str]
    job: str
    engine: str = "local"
    address: str = ""
    workers: int = 0
    run: str = ""


class TraceSettings(Settings, frozen=True, kw_only=True):
    """The trace of A² for a random A."""

    how_to_continue = "a trace keeps no partial results: the same command starts over"
    job: Literal["trace"] = "trace"
    size: int
    blocks: int
    seed: int = 0


class MatmulSettings(Settings, frozen=True, kw_only=True):
    """The product of two matrices on disk. `memory` is for each process; `block` 0: as large as the memory allows."""

    how_to_continue = "finished tiles are kept: the same command continues from there"
    job: Literal["matmul"] = "matmul"
    left: str
    right: str
    out: str
    memory: str = "4GB"
    block: int = 0


def check_trace(settings: TraceSettings) -> None:
    """Raise the first problem of a trace."""
    _check_place(settings)
    check_num_blocks(BlockMatrix.random(settings.size, blocks=settings.blocks, seed=settings.seed).blocks)


def check_matmul(settings: MatmulSettings) -> None:
    """Raise the first problem of a product that can be found without looking at its factors."""
    _check_place(settings)
    parse_bytes(settings.memory)
    if settings.block < 0:
        raise ConfigError(f"`block` is {settings.block}; it must be at least 1", "--block 2000")


def _check_place(settings: Settings) -> None:
    engine, workers = settings.engine, settings.workers
    if engine not in ENGINES:
        raise ConfigError(f"`engine` is `{engine}`; it must be {one_of([*ENGINES])}", "--engine ray for a cluster")
    if settings.address and not ENGINES[engine].has_processes:
        raise ConfigError(f"`address` is `{settings.address}`, but the engine is local", "--engine ray")
    if workers and not ENGINES[engine].has_processes:
        raise ConfigError(f"`workers` is {workers}, but the engine is local", "--engine ray; local uses all cores")
    if not 0 <= workers <= MOST_WORKERS:
        raise ConfigError(f"`workers` is {workers}; it must be 1 to {MOST_WORKERS}", "leave it out for one per node")
    if settings.run:
        refuse_existing(Path(settings.run), "choose another name, or remove it first")


def trace_settings_of(tree: dict[str, Any]) -> TraceSettings:
    """The checked settings of a trace in a recipe."""
    settings = _convert(tree)
    check_trace(settings)
    return settings


def load_trace(path: Path) -> TraceSettings:
    """The settings that a trace was made with, from its `config.toml`."""
    return _convert(read_recipe(path))


def _convert(tree: dict[str, Any]) -> TraceSettings:
    refuse_unknown(tree, TraceSettings, "")
    return converted(tree, TraceSettings, "see `paceline trace --help`")
