"""How do processes get onto a Ray cluster? Only this file and its neighbours (`ray_access.py`, `ray_head.py`) know Ray.

Ray places the processes (a placement group with one processor each, and a GPU where requested), starts them, restarts
them when they end, and knows the nodes. What the processes say to each other does not go through Ray.
"""

from __future__ import annotations

import atexit
import os
import secrets
import signal
import threading
import time
from collections.abc import Sequence
from contextlib import ExitStack, suppress
from typing import Any, Literal

from paceline.engines import ProcessRequest
from paceline.engines.leftovers import OwnFolder
from paceline.engines.ray_access import content_of, import_ray, join, lacks_token, quick_start, read_token_again
from paceline.engines.ray_head import HeadWatch
from paceline.errors import ConfigError
from paceline.imports import import_from

LOOPBACK = "127.0.0.1"
ROOM_SECONDS = 10.0
LEAVE_SECONDS = 5.0


class RayEngine:
    """A Ray of its own on this machine (`address` empty), or one that runs already (`auto` or HOST:PORT)."""

    restarts: Literal["one", "all"] = "one"

    def __init__(self, address: str, requests: Sequence[ProcessRequest]) -> None:
        self._ray = import_ray()
        self.num_processes = len(requests)
        self._folder: OwnFolder | None = None
        self._head: HeadWatch | None = None
        self._environment_before: dict[str, str | None] = {}
        self._actors: list[Any] = []
        self._attempts = 0
        self._begun: dict[int, Any] = {}
        self._node_names: dict[str, str] = {}
        self._group: Any = None
        self._joined = not self._ray.is_initialized()
        try:
            if self._joined and address:
                join(self._ray, address)
            elif self._joined:
                self._start_own()
            self._head = HeadWatch(self._ray.get_runtime_context().gcs_address)
            num_nodes = sum(node["Resources"].get("CPU", 0) >= 1 for node in self._alive_nodes())
            self._requests = [one for one in requests for _ in range(num_nodes if one.per_node else 1)]
            self.num_processes = len(self._requests)
            self._check_room()
            on_gpus = [request for request in self._requests if request.gpu]
            may_share = all(request.may_share_gpu for request in on_gpus)
            self._start(self._find_gpus(len(on_gpus), may_share) if on_gpus else 0.0)
        except BaseException:
            self.close()
            raise
        self._own_node = self._ray.get_runtime_context().get_node_id()
        here = self._ray.util.get_node_ip_address()
        self.loopback = all(node["NodeManagerAddress"] == here for node in self._alive_nodes())
        self.host = LOOPBACK if self.loopback else here

    # -- start

    def _start_own(self) -> None:
        self._folder = OwnFolder()
        os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
        # Ray lets its processes give way to all others; here they are what the machine is for.
        os.environ.setdefault("RAY_worker_niceness", "0")
        if "RAY_AUTH_MODE" not in os.environ or lacks_token():
            # Ray would leave a token of its own in the user's home.
            own = {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": secrets.token_hex(32)}
            self._environment_before = {name: os.environ.get(name) for name in own}
            os.environ |= own
            read_token_again()
        with quick_start():
            self._ray.init(
                "local", num_cpus=self.num_processes, include_dashboard=False, log_to_driver=False,
                logging_level="ERROR", _temp_dir=str(self._folder.ray), _node_ip_address=LOOPBACK,
            )  # fmt: skip

    def _check_room(self) -> None:
        has = int(self._ray.cluster_resources().get("CPU", 0))
        hint = "fewer --workers or --shards, or more nodes"
        needed = self.num_processes
        if has < needed:
            raise ConfigError(f"the cluster has {has} processors; {needed} are needed, one per process", hint)
        free = int(self._free("CPU", needed))
        if free < needed:
            raise ConfigError(
                f"{free} of the cluster's {has} processors are free; {needed} are needed, one per process",
                f"wait until others have finished, or {hint}",
            )

    def _find_gpus(self, wanted: int, may_share: bool) -> float:
        """How much of a GPU each of `wanted` processes gets."""
        has = self._ray.cluster_resources().get("GPU", 0)
        share = share_of_gpus(has, wanted, may_share)
        free = self._free("GPU", wanted * share)
        if free >= wanted * share:
            return share
        if may_share and free >= 1:
            return share_of_gpus(free, wanted, may_share)
        raise ConfigError(
            f"{free:g} of the cluster's {has:g} GPUs are free; {wanted * share:g} are needed",
            "wait until others have finished, or fewer --workers",
        )

    def _free(self, what: str, wanted: float) -> float:
        """How many of these are free; a run that has just ended releases its own within a moment."""
        deadline = time.monotonic() + 2
        while (free := float(self._ray.available_resources().get(what, 0))) < wanted and time.monotonic() < deadline:
            time.sleep(0.1)
        return free

    def _start(self, gpu_share: float) -> None:
        """Start all processes early: they take a while to load what they run."""
        from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

        ray = self._ray
        gpus = [gpu_share if request.gpu else 0 for request in self._requests]
        bundles = [{"CPU": 1, "GPU": share} if share else {"CPU": 1} for share in gpus]
        self._group = ray.util.placement_group(bundles, strategy="SPREAD")
        if not self._group.wait(ROOM_SECONDS):
            full = f"the cluster found no room for {self.num_processes} processes in {ROOM_SECONDS:g} s"
            raise ConfigError(full, "see `ray status`")
        host = ray.remote(Host)
        # The group holds the processors; asking for none here lets a successor start while a dead process lingers. One
        # with a GPU has to wait for it.
        self._actors = [
            host.options(
                num_cpus=0, num_gpus=gpus[number], max_restarts=-1, max_task_retries=-1,
                scheduling_strategy=PlacementGroupSchedulingStrategy(self._group, placement_group_bundle_index=number),
            ).remote(request.entry)
            for number, request in enumerate(self._requests)
        ]  # fmt: skip

    def begin(self, number: int, content: bytes) -> None:
        # Ray keeps the call until the process is there.
        self._attempts += 1
        self._begun[number] = self._actors[number].begin.remote(content, self._attempts)

    # -- watch

    def end(self, number: int, pid: int) -> None:
        if self.lost():
            return
        self._ray.kill(self._actors[number], no_restart=False)
        # The pid may have been given to another process.
        if self.loopback and content_of(f"/proc/{pid}/cmdline").startswith(b"ray::Host"):
            # Ray asks first and waits for an answer; a process that is stopped gives none.
            os.kill(pid, signal.SIGKILL)

    def failure_of(self, number: int) -> str:
        begun = self._begun.get(number)
        if begun is None or not self._ray.wait([begun], timeout=0)[0]:
            return ""
        try:
            self._ray.get(begun)
        except self._ray.exceptions.RayError as error:
            # What it comes down to.
            return (str(error).strip() or type(error).__name__).splitlines()[-1].strip()
        return ""

    def lost(self) -> str:
        return f"Ray's head at {self._head.address} no longer answers" if self._head and self._head.lost else ""

    def why_not_running(self, number: int) -> str:
        if lost := self.lost():
            return lost
        has = int(self._ray.cluster_resources().get("CPU", 0))
        if has < self.num_processes:
            return f"the cluster has {has} processors left; {self.num_processes} are needed"
        state = self._ray.util.placement_group_table(self._group).get("state", "")
        return "" if state == "CREATED" else f"the cluster has no room for it (placement group {state.lower()})"

    def name_of(self, node: str) -> str:
        if node not in self._node_names:
            for known in self._ray.nodes():
                self._node_names[known["NodeID"]] = str(known.get("NodeName") or known["NodeManagerAddress"])
        return self._node_names.get(node, node)

    def own_place(self) -> dict[str, Any]:
        return {"node": self.name_of(self._own_node), "address": "", "pid": os.getpid()}

    def close(self) -> None:
        if self._head is not None:
            self._head.close()
        if self._folder is not None and self.lost():
            self._folder.end_processes()
        # Whatever fails, the rest is done; last things first.
        with suppress(self._ray.exceptions.RayError), ExitStack() as stack:
            if self._ray.is_initialized():
                if self._joined:
                    stack.callback(self._leave)
                # A Ray of our own ends with all that is in it.
                if self._group is not None and self._folder is None and not self.lost():
                    stack.callback(self._ray.util.remove_placement_group, self._group)
                for actor in [] if self.lost() else self._actors:
                    stack.callback(self._ray.kill, actor, no_restart=True)
            self._actors, self._group = [], None
        # What a Ray of our own needed.
        if self._environment_before:
            for name, value in self._environment_before.items():
                os.environ.pop(name)
                if value is not None:
                    os.environ[name] = value
            self._environment_before = {}
            read_token_again()
        if self._folder is not None:
            self._folder.remove()
            self._folder = None

    def _leave(self) -> None:
        self._joined = False
        if not self.lost():
            self._ray.shutdown()
            return
        # Ray would wait for its head, now and once more at the end of this process.
        atexit.unregister(self._ray.shutdown)
        leaving = threading.Thread(target=self._ray.shutdown, daemon=True)
        leaving.start()
        leaving.join(LEAVE_SECONDS)

    def _alive_nodes(self) -> list[dict[str, Any]]:
        return [node for node in self._ray.nodes() if node["Alive"]]


class Host:
    """One process, as a Ray actor: it loads the entry, and calls it on a separate thread when told to."""

    def __init__(self, entry: str) -> None:
        # Ctrl-C on a terminal goes to all processes; the coordinator decides what it means.
        if threading.current_thread() is threading.main_thread():
            signal.signal(signal.SIGINT, signal.SIG_IGN)
        self._run = import_from(entry)
        self._attempt = 0

    def begin(self, content: bytes, attempt: int) -> None:
        """Call the entry. Ray may repeat a call whose answer was lost: the second time does nothing.

        A later attempt is meant for this process's successor: then it is time to go.
        """
        import ray

        if self._attempt == attempt:
            return
        if self._attempt:
            os._exit(1)
        self._attempt = attempt
        place = ray.get_runtime_context().get_node_id(), ray.util.get_node_ip_address()
        threading.Thread(target=self._run, args=(content, *place), name="paceline-role", daemon=True).start()


def load() -> type[RayEngine]:
    """Load Ray; returns what opens the engine."""
    import_ray()
    return RayEngine


def count_free_cores(address: str) -> int:
    """The free processors of the cluster at an address: joins it, and leaves it again."""
    ray = import_ray()
    joined = not ray.is_initialized()
    if joined:
        join(ray, address)
    try:
        return int(ray.available_resources().get("CPU", 0))
    finally:
        if joined:
            ray.shutdown()


def share_of_gpus(has: float, wanted: int, may_share: bool) -> float:
    """How much of a GPU each of `wanted` processes gets on a cluster with `has` GPUs.

    >>> [share_of_gpus(has, 4, may_share=True) for has in (8, 4, 3, 2, 1)]
    [1.0, 1.0, 0.5, 0.5, 0.25]
    """
    if has < 1:
        raise ConfigError(
            "`device` is `cuda`, but the cluster has no GPUs", "--device cpu, or nodes with GPUs: see `ray status`"
        )
    if has < wanted and not may_share:
        raise ConfigError(
            f"the cluster has {has:g} GPUs; {wanted} are needed, one per worker",
            "fewer --workers, or --exchange shard, with which workers can share a GPU",
        )
    return 1.0 / -(-wanted // min(wanted, int(has)))
