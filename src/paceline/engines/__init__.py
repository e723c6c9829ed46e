"""Where processes live: threads of this process, or processes that a cluster places, starts and restarts."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, Protocol

from paceline.errors import ConfigError
from paceline.imports import import_from
from paceline.machine import num_cores

if TYPE_CHECKING:
    from concurrent.futures import Future


class EngineKind(NamedTuple):
    """What is known about an engine before it opens: its `title` in messages, its `loader` ("module:function"), what
    counts the free cores of the cluster at an address, `core_counter`, and what raises if that cluster does not let
    this process in, `access_check`.

    An engine without a loader does not place processes: workers are threads of this process.
    """

    title: str
    loader: str = ""
    core_counter: str = ""
    access_check: str = ""

    @property
    def has_processes(self) -> bool:
        """Whether workers and shards are processes, which can be on several machines."""
        return bool(self.loader)


ENGINES = {
    "local": EngineKind("this process"),
    "ray": EngineKind(
        "Ray",
        "paceline.engines.ray:load",
        "paceline.engines.ray:count_free_cores",
        "paceline.engines.ray_access:check_access",
    ),
}


class ProcessRequest(NamedTuple):
    """A process that a cluster is asked for: it loads `entry` ("module:function") and calls it when told to.

    With `per_node` there is one such process on every node. One with a `gpu` gets one to itself, or, if there are too
    few and all of them `may_share_gpu`, a part of one.
    """

    entry: str
    gpu: bool = False
    may_share_gpu: bool = True
    per_node: bool = False


class ClusterEngine(Protocol):
    """Starts processes and keeps them running. It knows nothing of what they do."""

    host: str
    """The address at which the processes can reach this one."""
    loopback: bool
    """Whether all nodes are this machine, so that nothing needs to be reachable from elsewhere."""
    num_processes: int
    restarts: Literal["one", "all"]
    """What the engine starts again when a process ends: that one, or all of them."""

    def begin(self, number: int, content: bytes) -> None:
        """Let a process call its entry with this content, the name of its node, and that node's address.

        Processes are started with the engine, spread over the nodes, and started again when they end.
        """

    def end(self, number: int, pid: int) -> None:
        """End a process that no longer answers, so that it is started again."""

    def failure_of(self, number: int) -> str:
        """What went wrong when a process was told to begin; empty if nothing has so far."""

    def lost(self) -> str:
        """Why the cluster is lost, so that it starts no more processes; empty if it is not.

        Processes that run may continue for a while.
        """

    def why_not_running(self, number: int) -> str:
        """Why a process is not running; empty if the cluster does not know."""

    def name_of(self, node: str) -> str:
        """A node's name as people know it."""

    def own_place(self) -> dict[str, Any]:
        """`node`, `address` and `pid` of this process."""

    def close(self) -> None:
        """End all processes that were started, and leave the cluster as it was found. Closing twice does no harm."""


class PendingEngine:
    """An engine that opens on its own thread, at `start` or at the latest when `get` is called.

    Loading a cluster's library and joining the cluster takes as long as loading the compiler: the caller can do that
    meanwhile.
    """

    def __init__(self, name: str, address: str, requests: Sequence[ProcessRequest]) -> None:
        self._name, self._address, self._requests = name, address, requests
        self._engine: Future[ClusterEngine] | None = None
        self._threads = ExitStack()

    def start(self) -> None:
        """Begin to open the engine, unless that has been done."""
        if self._engine is None:
            # Not at the top: asking what an engine can do does not need it.
            from concurrent.futures import ThreadPoolExecutor

            # On the caller's thread: two threads that load libraries only slow each other down. Joining is mostly
            # waiting.
            make = _load(self._name)
            # The thread stays until the end: what it started would end with it.
            thread = self._threads.enter_context(ThreadPoolExecutor(1, thread_name_prefix="paceline-start"))
            self._engine = thread.submit(make, self._address, self._requests)

    def get(self) -> ClusterEngine:
        """The engine, once it is open."""
        self.start()
        assert self._engine is not None
        return self._engine.result()

    def __enter__(self) -> PendingEngine:
        return self

    def __exit__(self, *_: object) -> None:
        """Close the engine if it was started."""
        if self._engine is not None and self._engine.exception() is None:
            self._engine.result().close()
        self._threads.close()


def open_engine(name: str, address: str, requests: Sequence[ProcessRequest]) -> PendingEngine:
    """The engine `name` with these processes, on the cluster at `address`, or on one of its own if that is empty."""
    return PendingEngine(name, address, requests)


def usable_cores(name: str, address: str) -> int:
    """The cores that a run with the engine `name` can use: of this machine, or of the cluster at `address`."""
    return int(import_from(ENGINES[name].core_counter)(address)) if address else num_cores()


def check_access(name: str, address: str) -> None:
    """Raise if the cluster at `address` does not let this process in. Empty is a cluster of its own.

    Does nothing for an engine that is not known.
    """
    if name in ENGINES and (check := ENGINES[name].access_check):
        import_from(check)(address)


def _load(name: str) -> Any:
    """Load an engine's library; returns what opens the engine, from its address and the requests."""
    if not ENGINES[name].has_processes:
        raise ConfigError(f"the engine `{name}` does not start processes", "--engine ray")
    return import_from(ENGINES[name].loader)()
