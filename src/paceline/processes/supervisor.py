"""Who starts the processes of a run, and what happens when one is lost?

The supervisor is the coordinator's view of all roles. It lets the engine start them, waits for them, replaces those
that are lost and keeps account of it. What a loss means for the work is for its user to say, training or matrices.
"""

from __future__ import annotations

import math
import queue
import time
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

from paceline.engines import ClusterEngine
from paceline.errors import ConfigError, RunError
from paceline.processes.control import ControlServer, Event
from paceline.processes.messages import Failed, Message, ProcessSpec, Ready, encode
from paceline.processes.roles import Loss, Role

POLL_SECONDS = 0.05
MOST_RESTARTS = 10


class Limits(NamedTuple):
    """How many seconds a process may take to connect, to be ready, and to come back after a loss."""

    start_seconds: float
    back_seconds: float
    ready_seconds: float = math.inf


class Supervisor:
    """All processes of one run or job. For the coordinator's main thread."""

    def __init__(self, engine: ClusterEngine, control: ControlServer, spec: Callable[..., ProcessSpec], limits: Limits,
                 start_over: Callable[[Role, Loss], None] | None = None) -> None:  # fmt: skip
        """Start all roles of `control`. `spec` makes what a process is given, from its role, rank and coordinator.

        `start_over` is called after a loss if the engine then restarts all processes: the user returns to a checkpoint.
        """
        if engine.restarts == "all" and start_over is None:
            raise ConfigError(
                "this engine restarts all processes when one ends, and this job keeps no checkpoints", "--engine ray"
            )
        self.roles = control.roles
        self.control = control
        self.started = False
        """Whether the work itself has begun: from then on, what goes wrong is not the user's input."""
        self.restarts = {f"{role.role}s": 0 for role in reversed(self.roles)}
        self.recoveries: list[dict[str, Any]] = []
        self._engine = engine
        self._spec = spec
        self._limits = limits
        self._start_over = start_over
        for role in self.roles:
            self._begin(role)

    def close(self, farewell: Message | None = None) -> None:
        """End all processes, after sending `farewell` to those that still listen."""
        if farewell is not None:
            for role in self.roles:
                self.control.say(role, farewell)
        self._engine.close()
        self.control.close()

    def events(self, seconds: float = POLL_SECONDS) -> Iterator[Event]:
        """What has happened, waiting at most this long for something. Lost roles are being replaced already.

        Raises what a role reported as its failure.
        """
        try:
            event = self.control.events.get(timeout=seconds)
            while True:
                self._take_note(event)
                yield event
                event = self.control.events.get()
        except queue.Empty:
            pass

    def wait_until_ready(self, act: Callable[[], None]) -> None:
        """Call `act`, which handles events, until all roles are ready; raise if one takes too long."""
        began = time.monotonic()
        while not all(role.ready for role in self.roles):
            act()
            waited = time.monotonic() - began
            for number, role in enumerate(self.roles):
                connected = role.incarnation >= 0
                failure = "" if connected else self._engine.failure_of(number)
                limit = self._limits.ready_seconds if connected else self._limits.start_seconds
                if failure or (not role.ready and (waited > limit or self.cluster_lost)):
                    raise RunError(
                        f"{role.name} did not start in {waited:.0f} s: {failure or self.why_away(role)}",
                        "check that the cluster has room, and that every node has the same version of paceline",
                    )

    @property
    def cluster_lost(self) -> str:
        """Why the cluster is lost; empty if it is not."""
        return self._engine.lost()

    def overdue(self) -> list[tuple[Role, Loss]]:
        """Roles that were lost and have not come back in time; if the cluster is lost, they will not."""
        since = time.monotonic() - (0.0 if self.cluster_lost else self._limits.back_seconds)
        return [(role, role.lost) for role in self.roles if role.lost and role.away_since < since]

    def why_away(self, role: Role) -> str:
        """Why a role is not running, as far as is known; and how many connections each port of the run refused."""
        server = self.control.server
        ports = [(server.address, server.refused), *((one.address, one.refused) for one in self.roles)]
        refused = [f"{count} connections to {address} were refused" for address, count in ports if count]
        known = self._engine.why_not_running(self.roles.index(role)) or role.doing
        return "; ".join(filter(None, [known, *refused]))

    def places(self) -> list[dict[str, Any]]:
        """Who runs where, as `roles.json` has it."""
        return [
            {"role": "coordinator", "rank": 0, **self._engine.own_place(), "incarnation": 0},
            *(
                {"role": role.role, "rank": role.rank, "node": role.node, "address": role.address, "pid": role.pid,
                 "incarnation": max(0, role.incarnation)}
                for role in self.roles
            ),
        ]  # fmt: skip

    def _begin(self, role: Role) -> None:
        """Let a process be this role, as soon as it is there."""
        spec = self._spec(
            role=role.role, rank=role.rank, coordinator=self.control.server.address, loopback=self._engine.loopback
        )
        self._engine.begin(self.roles.index(role), encode(spec))

    def _take_note(self, event: Event) -> None:
        role, what = event
        if isinstance(what, Failed):
            raise what.as_error(role.name, self.started)
        if isinstance(what, Loss):
            self._replace(role, what)
        elif isinstance(what, Ready):
            role.ready = True
            if role.lost:
                loss, role.lost = role.lost, None
                self.recoveries.append(
                    {"role": role.role, "rank": role.rank, "node": role.node, "cause": loss.because,
                     "seconds": time.monotonic() - loss.since}
                )  # fmt: skip

    def _replace(self, role: Role, loss: Loss) -> None:
        """The engine restarts a process that has ended; one that is silent must be ended first."""
        all_at_once = self._engine.restarts == "all"
        if all_at_once and role.lost:
            return  # another role's loss has taken this one with it
        self.restarts[f"{role.role}s"] += 1
        if sum(self.restarts.values()) > MOST_RESTARTS + len(self.roles):
            raise RunError(
                f"{role.name} was lost ({loss.because}), after too many others", "check the nodes' logs and memory"
            )
        if loss.silent:
            self._engine.end(self.roles.index(role), role.pid)
        for one in self.roles if all_at_once else [role]:
            because = loss.because if one is role else f"{role.name} was lost, and all were restarted"
            one.ready, one.lost, one.away_since = False, loss._replace(because=because), time.monotonic()
            self._begin(one)
        if all_at_once and self._start_over is not None:
            self._start_over(role, loss)
