"""What was asked of a matrix job? Checked before anything starts, and kept as the run's `config.toml`."""

from __future__ import annotations

from typing import Any, Literal

import msgspec
import tomli_w

from paceline.config import MOST_WORKERS, converted, refuse_unknown
from paceline.engines import ENGINES
from paceline.errors import ConfigError
from paceline.matrices.matrix import BlockMatrix
from paceline.matrices.plan import parse_bytes
from paceline.matrices.trace import check_num_blocks


class TraceSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The trace of A² for a random A. `workers` 0: one per node of the cluster, or one per core without a cluster."""

    job: Literal["trace"] = "trace"
    size: int
    blocks: int
    seed: int = 0
    engine: str = "local"
    address: str = ""
    workers: int = 0
    run: str = ""


class MatmulSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The product of two matrices on disk. `memory` is for each process; `block` 0: as large as the memory allows."""

    job: Literal["matmul"] = "matmul"
    left: str
    right: str
    out: str
    memory: str = "4GB"
    block: int = 0
    engine: str = "local"
    address: str = ""
    workers: int = 0
    run: str = ""


Settings = TraceSettings | MatmulSettings


def check_settings(settings: Settings) -> None:
    """Raise the first problem that can be found without looking at files."""
    if settings.engine not in ENGINES:
        raise ConfigError(
            f"`engine` is `{settings.engine}`; it is {' or '.join(ENGINES)}", "--engine ray for a cluster"
        )
    if not ENGINES[settings.engine].has_processes:
        if settings.address:
            raise ConfigError(f"`address` is `{settings.address}`, but the engine is local", "--engine ray")
        if settings.workers:
            raise ConfigError(
                f"`workers` is {settings.workers}, but the engine is local", "--engine ray; local uses all cores"
            )
    if not 0 <= settings.workers <= MOST_WORKERS:
        raise ConfigError(
            f"`workers` is {settings.workers}; it is 1 to {MOST_WORKERS}", "leave it out for one per node"
        )
    if isinstance(settings, TraceSettings):
        check_num_blocks(BlockMatrix.random(settings.size, blocks=settings.blocks, seed=settings.seed).blocks)
        return
    parse_bytes(settings.memory)
    if settings.block < 0:
        raise ConfigError(f"`block` is {settings.block}; a block has at least 1 row", "--block 2000")


def trace_settings_of(tree: dict[str, Any]) -> TraceSettings:
    """The checked settings of a trace, as a recipe has them."""
    refuse_unknown(tree, TraceSettings, "")
    settings = converted(tree, TraceSettings, "see `paceline trace --help`")
    check_settings(settings)
    return settings


def settings_to_toml(settings: Settings) -> bytes:
    """The settings as `config.toml` holds them."""
    return tomli_w.dumps(msgspec.to_builtins(settings)).encode()
