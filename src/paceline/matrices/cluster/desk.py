"""Where do the workers of a matrix job report, and how is it known that one is gone?

The desk is the coordinator's server, on a thread of its own. Each worker is connected to it for as long as it lives and
beats once a second; one whose connection breaks, or that is silent for long, is lost. What the coordinator must act on
comes out as events.
"""

from __future__ import annotations

import platform
import queue
import threading
import time
from collections import deque
from collections.abc import Callable
from typing import Any, NamedTuple

from paceline.matrices.cluster.messages import Done, ToCoordinator
from paceline.telemetry.records import AnyRecord, LeftOut, NodeProbe
from paceline.training.cluster.desk import MOST_SECONDS_A_TICK, SILENCE_SECONDS, TICK_SECONDS, Loss, Role
from paceline.training.cluster.messages import Beat, Failed, Hello, Message, Ready, Report, decode, encode
from paceline.version import VERSION
from paceline.wire.frames import HEADER, BadFrameError, Frame, Kind
from paceline.wire.server import Peer, Server


class Event(NamedTuple):
    """Something to act on: `what` is one of `ready`, `done`, `lost`, `failed`."""

    what: str
    worker: Worker
    detail: Any = None


class Worker(Role):
    """A worker as the coordinator knows it, over all its incarnations."""

    def __init__(self, rank: int) -> None:
        super().__init__("worker", rank)
        self.tasks: deque[int] = deque()
        """Those that are meant for it and wait."""
        self.task: int | None = None
        """The one that it does."""


class Desk:
    """The coordinator's side of all workers' lifelines."""

    def __init__(self, host: str, token: bytes, workers: list[Worker], name_node: Callable[[str], str]) -> None:
        # No `SimpleQueue`: one that a signal interrupts may wait for ever, whatever its time limit.
        self.events: queue.Queue[Event] = queue.Queue()
        self.message_bytes = 0
        """What tasks and their results took on the wire, without blocks."""
        self._workers = workers
        self._name_node = name_node
        self._records: deque[AnyRecord] = deque()
        # By node, which worker's probes are kept: one is enough.
        self._probing: dict[str, Worker] = {}
        self._last_tick = time.monotonic()
        self._server = Server(host, 0, token, None)
        self.address = self._server.address
        self._thread = threading.Thread(target=self._serve, name="paceline-desk", daemon=True)
        self._thread.start()

    def say(self, worker: Worker, message: Message) -> None:
        """Send a message to a worker, if it is there. From any thread."""
        content = encode(message)

        def send() -> None:
            if worker.peer is not None:
                self.message_bytes += HEADER.size + len(content)
                worker.peer.send(Kind.MESSAGE, 0, content)

        self._server.call_soon(send)

    def take_records(self) -> list[AnyRecord]:
        """What workers have reported of their nodes since the last time."""
        return [self._records.popleft() for _ in range(len(self._records))]

    def close(self) -> None:
        """Hang up on all workers, which then end."""
        self._server.stop()
        self._thread.join()
        self._server.close()

    def _serve(self) -> None:
        try:
            self._server.serve(self, TICK_SECONDS)
        except Exception as error:  # noqa: BLE001 (whatever it is, the job must not wait for a desk that is closed)
            failed = Failed(kind="run", message=f"the coordinator's desk failed: {error}", hint="")
            self.events.put(Event("failed", self._workers[0], failed))

    # -- what the server calls

    def opened(self, peer: Peer) -> None:
        peer.tag = None

    def received(self, peer: Peer, frame: Frame) -> None:
        message = decode(frame, ToCoordinator)
        if isinstance(message, Hello):
            self._greet(peer, message)
            return
        worker = peer.tag
        if not isinstance(worker, Worker) or worker.peer is not peer:
            raise BadFrameError(f"a message from {peer.address}, which is no worker of this job now")
        worker.silent_seconds = 0.0
        match message:
            case Beat():
                worker.beat(message)
            case Report():
                self._keep_records(worker, message)
            case Ready():
                worker.address = message.address
                self.events.put(Event("ready", worker))
            case Done():
                self.message_bytes += HEADER.size + len(frame.body)
                self.events.put(Event("done", worker, message))
            case Failed():
                self.events.put(Event("failed", worker, message))

    def closed(self, peer: Peer) -> None:
        worker = peer.tag
        if isinstance(worker, Worker) and worker.peer is peer:
            self._lose(worker, "its process ended", silent=False)

    def tick(self) -> None:
        now = time.monotonic()
        passed, self._last_tick = min(now - self._last_tick, MOST_SECONDS_A_TICK), now
        for worker in self._workers:
            if worker.peer is not None:
                worker.silent_seconds += passed
                if worker.silent_seconds > SILENCE_SECONDS:
                    peer = worker.peer
                    self._lose(worker, f"it gave no sign of life for {SILENCE_SECONDS:g} s", silent=True)
                    peer.close()

    def _greet(self, peer: Peer, hello: Hello) -> None:
        if not 0 <= hello.rank < len(self._workers):
            raise BadFrameError(f"worker {hello.rank} is none of this job")
        worker = self._workers[hello.rank]
        before = worker.peer
        worker.begin(hello, peer)
        worker.node = self._name_node(hello.node)
        peer.tag = worker
        if before is not None:
            before.close()
        ours, theirs = (VERSION, platform.python_version()), (hello.paceline, hello.python)
        if ours != theirs:
            message = "paceline {} with Python {} is here, but paceline {} with Python {} there"
            hint = f"install the same versions on node {worker.node}"
            self.events.put(
                Event("failed", worker, Failed(kind="config", message=message.format(*ours, *theirs), hint=hint))
            )

    def _keep_records(self, worker: Worker, report: Report) -> None:
        later = time.perf_counter() - report.now
        prober = self._probing.setdefault(worker.node, worker)
        if prober.peer is None:
            prober = self._probing[worker.node] = worker
        for record in report.records:
            if prober is worker:
                record.time += later
                if isinstance(record, NodeProbe | LeftOut):
                    record.node = worker.node
                self._records.append(record)

    def _lose(self, worker: Worker, because: str, silent: bool) -> None:
        worker.peer, worker.doing = None, ""
        self.events.put(Event("lost", worker, Loss(time.monotonic() - worker.silent_seconds, because, silent)))
