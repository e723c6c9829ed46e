"""Which worker does which task of a matrix job, and what happens to its tasks when it is lost?

Each task is meant for one worker. The tasks of a lost worker wait for its successor for a while; then others take them.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from paceline.engines import ClusterEngine
from paceline.errors import RunError
from paceline.matrices.cluster.messages import Do, Done, Peers, ProductTask, TraceTask, WorkerSpec
from paceline.processes.control import ControlServer
from paceline.processes.messages import Ready
from paceline.processes.roles import Loss, Role
from paceline.processes.supervisor import Limits, Supervisor
from paceline.telemetry.records import AnyRecord
from paceline.wire.frames import CAPS, Kind
from paceline.wire.handshake import new_token
from paceline.wire.server import Server

# How long a lost worker's tasks wait for its successor.
TAKE_OVER_SECONDS = 15.0
# When no worker is left, the job waits this long for one to come back.
BACK_SECONDS = 40.0
LIMITS = Limits(start_seconds=60.0, ready_seconds=60.0, back_seconds=BACK_SECONDS)


@dataclass
class PoolWorker:
    """A worker's role, the tasks that wait for it, and the one that it works on."""

    role: Role
    tasks: deque[int] = field(default_factory=deque)
    task: int | None = None


class WorkerPool:
    """The workers of one job."""

    def __init__(self, engine: ClusterEngine, work: TraceTask | ProductTask, homes: list[int], may_move: bool) -> None:
        """`homes` are the workers that tasks are meant for; with `may_move`, any idle worker may take them."""
        self._may_move, self._num_tasks = may_move, len(homes)
        self._finished: set[int] = set()
        self._heard: list[Done] = []
        self.workers = [PoolWorker(Role("worker", rank)) for rank in range(engine.num_processes)]
        for task, home in enumerate(homes):
            self.workers[home].tasks.append(task)
        token = new_token()
        server = Server(engine.host, 0, token, None)
        roles, most_bytes = [worker.role for worker in self.workers], CAPS[Kind.MESSAGE]
        self.control = ControlServer(server, roles, engine.name_of, [Done], most_message_bytes=most_bytes)
        spec = partial(WorkerSpec, token=token, work=work)
        self.supervisor = Supervisor(engine, self.control, spec, LIMITS)

    def wait_until_ready(self) -> None:
        """Wait until all workers are there; raise if one takes too long."""
        self.supervisor.wait_until_ready(self._handle_events)

    def run(self, done: set[int]) -> Iterator[tuple[float, list[Done], list[AnyRecord]]]:
        """Do all tasks except those in `done`.

        Yields many times per second: the share that is done, the tasks that were finished since, and new records.
        """
        self.supervisor.started = True
        self._finished = set(done)
        for worker in self.workers:
            worker.tasks = deque(task for task in worker.tasks if task not in done)
        while len(self._finished) < self._num_tasks:
            self._hand_out()
            self._handle_events()
            heard, self._heard = self._heard, []
            yield len(self._finished) / self._num_tasks, heard, self.control.take_records()
            if lost := self.supervisor.cluster_lost:
                raise RunError(lost, "run the same command again when Ray runs again")
            if len(self.supervisor.overdue()) == len(self.workers):
                why = self.supervisor.why_away(self.workers[0].role)
                lost = f"all workers were lost and none came back in {BACK_SECONDS:g} s{': ' + why if why else ''}"
                raise RunError(lost, "run the same command again when the cluster has room")
        yield 1.0, [], self.control.take_records()

    def account(self) -> dict[str, Any]:
        """What `result.json` says about the workers."""
        roles = self.supervisor.roles
        return {
            "workers": len(roles),
            "nodes": len({role.node for role in roles}),
            "restarts": dict(self.supervisor.restarts),
            "recoveries": self.supervisor.recoveries,
            "peak_memory_bytes": max(role.peak_memory_bytes for role in roles),
        }

    def _hand_out(self) -> None:
        """Give each idle worker a task: its own, else one whose worker has been away for long or that may move."""
        for worker in self.workers:
            if not worker.role.ready or worker.task is not None:
                continue
            task = worker.tasks.popleft() if worker.tasks else self._take_from_others()
            if task is not None:
                worker.task = task
                sharing = sum(other.role.node == worker.role.node for other in self.workers)
                self.control.say(worker.role, Do(task=task, sharing=sharing))

    def _take_from_others(self) -> int | None:
        long_ago = time.monotonic() - TAKE_OVER_SECONDS
        others = [
            worker
            for worker in self.workers
            if worker.tasks and (self._may_move or (worker.role.lost and worker.role.away_since < long_ago))
        ]
        return max(others, key=lambda worker: len(worker.tasks)).tasks.pop() if others else None

    def _handle_events(self) -> None:
        for role, what in self.supervisor.events():
            worker = self.workers[role.rank]
            match what:
                case Loss():
                    # What it was doing is done again.
                    if worker.task is not None and worker.task not in self._finished:
                        worker.tasks.appendleft(worker.task)
                    worker.task = None
                    self._tell_addresses()
                case Ready():
                    self._tell_addresses()
                case Done(task=task):
                    if worker.task == task:
                        worker.task = None
                    # A task may be done twice if its worker was lost after reporting it.
                    if task not in self._finished:
                        self._finished.add(task)
                        self._heard.append(what)

    def _tell_addresses(self) -> None:
        roles = self.supervisor.roles
        addresses = [role.address if role.ready else "" for role in roles]
        for role in roles:
            if role.ready:
                self.control.say(role, Peers(addresses=addresses))
