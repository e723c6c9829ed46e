"""Who does the tasks of a matrix job, and what happens when one of them is lost?

The crew is a list of tasks, each with the worker that it is meant for, behind the desk where workers report. A
lost worker's tasks wait for its successor for a while; then others take them.
"""

from __future__ import annotations

import queue
import time
from collections import deque
from collections.abc import Callable
from typing import Any

from paceline.engines import ClusterEngine
from paceline.errors import ConfigError, DataError, PacelineError, RunError
from paceline.matrices.cluster.desk import Desk, Event, Worker
from paceline.matrices.cluster.messages import Do, Done, Peers, ProductTask, TraceTask, WorkerSpec
from paceline.telemetry.records import AnyRecord
from paceline.training.cluster.desk import Loss
from paceline.training.cluster.messages import Failed, encode
from paceline.wire.handshake import new_token

START_SECONDS = 60.0
# So long a lost worker's tasks wait for its successor; and so long the job waits where no worker is left.
TAKE_OVER_SECONDS = 15.0
BACK_SECONDS = 40.0
POLL_SECONDS = 0.05
MOST_RESTARTS = 10


Finished = Callable[[Done], None]
Look = Callable[[float, list[AnyRecord]], None]


class Crew:
    """The workers of one job."""

    def __init__(
        self, engine: ClusterEngine, work: TraceTask | ProductTask, homes: list[int], num_workers: int, may_move: bool
    ) -> None:
        """`homes` are the workers that tasks are meant for; with `may_move` any that is idle may take them."""
        self._engine = engine
        self._work = work
        self._may_move = may_move
        self._num_tasks = len(homes)
        self._finished: set[int] = set()
        self._token = new_token()
        self.workers = [Worker(rank) for rank in range(num_workers)]
        self.restarts = 0
        self.recoveries: list[dict[str, Any]] = []
        for task, home in enumerate(homes):
            self.workers[home].tasks.append(task)
        self._desk = Desk(engine.host, self._token, self.workers, engine.name_of)
        for worker in self.workers:
            self._begin(worker)

    @property
    def message_bytes(self) -> int:
        """What tasks and their results took on the wire, without blocks."""
        return self._desk.message_bytes

    def wait_until_ready(self) -> None:
        """Wait until all workers are there, as long as is reasonable."""
        began = time.monotonic()
        while not all(worker.ready for worker in self.workers):
            self._see_to_events(None)
            waited = time.monotonic() - began
            for worker in self.workers:
                failure = self._engine.failure_of(worker.rank) if worker.incarnation < 0 else ""
                if failure or (not worker.ready and waited > START_SECONDS):
                    why = failure or self._engine.why_not_running(worker.rank) or worker.doing
                    raise RunError(
                        f"{worker.name} did not start in {waited:.0f} s: {why}",
                        "see that the cluster has room, and the same paceline on every node",
                    )

    def run(self, done: set[int], finished: Finished, look: Look) -> None:
        """Let all tasks be done but those in `done`. `finished` hears of each, `look` is called every so often."""
        self._finished = set(done)
        for worker in self.workers:
            worker.tasks = deque(task for task in worker.tasks if task not in done)
        while len(self._finished) < self._num_tasks:
            self._hand_out()
            self._see_to_events(finished)
            look(len(self._finished) / self._num_tasks, self._desk.take_records())
            self._give_up_if_nobody_is_left()
        look(1.0, self._desk.take_records())

    def roles(self) -> list[dict[str, Any]]:
        """Who runs where, as `roles.json` has it."""
        return [
            {"role": "coordinator", "rank": 0, **self._engine.own_place(), "incarnation": 0},
            *(
                {"role": "worker", "rank": worker.rank, "node": worker.node, "address": worker.address,
                 "pid": worker.pid, "incarnation": max(0, worker.incarnation)}
                for worker in self.workers
            ),
        ]  # fmt: skip

    def close(self) -> None:
        """End all workers."""
        self._engine.close()
        self._desk.close()

    def _begin(self, worker: Worker) -> None:
        spec = WorkerSpec(
            rank=worker.rank, coordinator=self._desk.address, token=self._token, loopback=self._engine.loopback,
            work=self._work,
        )  # fmt: skip
        self._engine.begin(worker.rank, encode(spec))

    def _hand_out(self) -> None:
        """Give each idle worker a task: its own, else one whose worker is away for long, or anyone's that may move."""
        for worker in self.workers:
            if not worker.ready or worker.task is not None:
                continue
            task = worker.tasks.popleft() if worker.tasks else self._take_from_others()
            if task is not None:
                worker.task = task
                sharing = sum(other.node == worker.node for other in self.workers)
                self._desk.say(worker, Do(task=task, sharing=sharing))

    def _take_from_others(self) -> int | None:
        now = time.monotonic()
        others = [
            worker
            for worker in self.workers
            if worker.tasks and (self._may_move or (worker.lost and now - worker.away_since > TAKE_OVER_SECONDS))
        ]
        return max(others, key=lambda worker: len(worker.tasks)).tasks.pop() if others else None

    def _see_to_events(self, finished: Finished | None) -> None:
        try:
            event = self._desk.events.get(timeout=POLL_SECONDS)
            while True:
                self._see_to(event, finished)
                event = self._desk.events.get_nowait()
        except queue.Empty:
            pass

    def _see_to(self, event: Event, finished: Finished | None) -> None:
        worker = event.worker
        match event.what:
            case "failed":
                raise _error_of(worker, event.detail, started=finished is not None)
            case "lost":
                self._lost(worker, event.detail)
            case "ready":
                worker.ready = True
                self._book_recovery(worker)
                self._tell_addresses()
            case "done":
                if worker.task == event.detail.task:
                    worker.task = None
                # A task may be done twice where a worker was lost after it had said so.
                if event.detail.task not in self._finished:
                    self._finished.add(event.detail.task)
                    assert finished is not None
                    finished(event.detail)

    def _lost(self, worker: Worker, loss: Loss) -> None:
        """The engine starts an ended process again. What it was doing is done again."""
        worker.ready, worker.lost, worker.away_since = False, loss, time.monotonic()
        if worker.task is not None and worker.task not in self._finished:
            worker.tasks.appendleft(worker.task)
        worker.task = None
        self.restarts += 1
        if self.restarts > MOST_RESTARTS + len(self.workers):
            raise RunError(
                f"{worker.name} was lost ({loss.because}), after too many others", "see the nodes' logs and memory"
            )
        if loss.silent:
            self._engine.end(worker.rank, worker.pid)
        self._begin(worker)
        self._tell_addresses()

    def _book_recovery(self, worker: Worker) -> None:
        if worker.lost:
            seconds = time.monotonic() - worker.away_since
            self.recoveries.append({"role": "worker", "rank": worker.rank, "node": worker.node,
                                    "cause": worker.lost.because, "seconds": seconds})  # fmt: skip
            worker.lost = None

    def _tell_addresses(self) -> None:
        addresses = [worker.address if worker.ready else "" for worker in self.workers]
        for worker in self.workers:
            if worker.ready:
                self._desk.say(worker, Peers(addresses=addresses))

    def _give_up_if_nobody_is_left(self) -> None:
        now = time.monotonic()
        if all(worker.lost and now - worker.away_since > BACK_SECONDS for worker in self.workers):
            why = self._engine.why_not_running(0)
            raise RunError(
                f"all workers were lost and none came back in {BACK_SECONDS:g} s{': ' + why if why else ''}",
                "give the command again when the cluster has room",
            )


def _error_of(worker: Worker, failed: Failed, started: bool) -> PacelineError:
    """What a worker reported, with its name. What was asked is only found wrong before the job has begun."""
    message = f"{worker.name}: {failed.message}"
    if started or failed.kind not in ("data", "config"):
        return RunError(message, failed.hint)
    return (DataError if failed.kind == "data" else ConfigError)(message, failed.hint)
