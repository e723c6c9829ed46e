"""Where roles live: threads of this process, or processes that a cluster places, starts and restarts."""

from __future__ import annotations

from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any, Protocol

from paceline.config import RunConfig

# What a process of a cluster runs: "module:function".
ENTRY = "paceline.training.cluster.role:run_role"


class ClusterEngine(Protocol):
    """What starts the processes of a run and keeps them. It knows nothing of what they do."""

    host: str
    """The address of this process's machine at which the roles can reach it."""
    loopback: bool
    """Whether all nodes are this machine, so that nothing needs to be reachable from elsewhere."""

    def begin(self, number: int, content: bytes) -> None:
        """Let a process call the engine's entry with this content, the name of its node, and that node's address.

        Processes are started with the engine, spread over the nodes, and started again when they end; a process that
        was begins as the one before it did.
        """

    def end(self, number: int, pid: int) -> None:
        """End a process that no longer answers, so that it is started again."""

    def failure_of(self, number: int) -> str:
        """What went wrong when a process was to begin; empty if nothing did so far."""

    def why_not_running(self, number: int) -> str:
        """Why a process is not running, as far as the cluster knows; empty if it does not."""

    def name_of(self, node: str) -> str:
        """How a person would call a node."""

    def own_place(self) -> dict[str, Any]:
        """`node`, `address` and `pid` of this process."""

    def close(self) -> None:
        """End all processes that were started, and leave the cluster as it was found. More than once does no harm."""


class StartingEngine:
    """A cluster engine that starts on a thread of its own, while the caller loads what else it needs.

    Loading a cluster's library and joining it takes as long as loading the compiler. Nothing is started for data that
    is not there: the caller will say so.
    """

    def __init__(self, config: RunConfig, entry: str = ENTRY) -> None:
        self._config = config
        self._entry = entry
        self._engine: Future[ClusterEngine] | None = None
        self._thread: ThreadPoolExecutor | None = None
        if config.engine == "ray" and (Path(config.data) / "manifest.json").is_file():
            from paceline.engines.ray import import_ray

            # Here, alone: two threads that load libraries only hold each other up. Joining is mostly waiting.
            import_ray()
            # The thread stays until the end: what it started would end with it.
            self._thread = ThreadPoolExecutor(1, thread_name_prefix="paceline-start")
            self._engine = self._thread.submit(self._start)

    def get(self) -> ClusterEngine:
        """The engine, once it has started."""
        if self._engine is None:
            engine: Future[ClusterEngine] = Future()
            engine.set_result(self._start())
            self._engine = engine
        return self._engine.result()

    def close(self) -> None:
        """End the engine, if one was started."""
        if self._engine is not None and self._engine.exception() is None:
            self._engine.result().close()
        if self._thread is not None:
            self._thread.shutdown()

    def _start(self) -> ClusterEngine:
        from paceline.engines.ray import RayEngine

        config = self._config
        num_roles = config.workers + config.shards
        # Shards come first.
        on_gpus = range(config.shards, num_roles) if config.device == "cuda" else range(0)
        may_share = config.exchange != "allreduce"
        return RayEngine(config.address, num_roles, self._entry, on_gpus, may_share)
