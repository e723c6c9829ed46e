"""What does the coordinator ask of those who train? A *backend* is all workers and shards of a run, wherever they live.

`embedded/backend.py` has the one whose workers are threads of this process, `cluster/backend.py` the one whose workers
and shards are processes. A backend speaks in the input's order of keys; what order it trains in is its own business.
"""

from __future__ import annotations

import enum
from collections.abc import Callable
from typing import Any, NamedTuple, Protocol

from paceline.errors import RunError
from paceline.models.metrics import Quality
from paceline.models.model import Model, Parameters
from paceline.telemetry.records import AnyRecord
from paceline.training.checkpoint import Handed, Progress, States


class Tally(NamedTuple):
    """How far a backend is: rows and clocks handed out, and in this segment the `losses` of `rows` rows.

    `largest_lead` is the most clocks that a worker was ahead of the slowest when it began one.
    """

    position: int
    clock: int
    losses: float
    rows: int
    largest_lead: int


class Snapshot(NamedTuple):
    """One consistent cut: the tally then, all states in the input's order, and which work is open.

    Valid only while the function that was given it runs.
    """

    tally: Tally
    states: States
    handed: Handed


class Due(enum.Enum):
    """What may be called for during a segment."""

    NOTHING = enum.auto()
    SNAPSHOT = enum.auto()
    STOP = enum.auto()


Look = Callable[[Tally], Due]
Keep = Callable[[Snapshot], None]


class LostShardError(RunError):
    """Parameters are gone: the run must return to its last checkpoint."""


class Backend(Protocol):
    """All workers and shards of one run."""

    model: Model
    """What is trained."""

    def restore(self, progress: Progress, states: States | None) -> None:
        """Go on from there; None for the states that a run begins with. The backend takes the arrays over.

        Before `make_ready`, or after a `LostShardError`.
        """

    def make_ready(self) -> None:
        """Start all roles and compile their loops; returns when the first step can begin."""

    def run_segment(self, until: int, look: Look, keep: Keep) -> Tally:
        """Train up to the first boundary at or after position `until`; blocks. All workers are paused then.

        `look` is called every so often: on STOP the segment ends at a near boundary, on SNAPSHOT `keep` gets one,
        during the segment or at its end, maybe on another thread.
        """

    def snapshot(self, keep: Keep) -> None:
        """Give `keep` the state between two segments."""

    def evaluate(self, rows: int, stop: Callable[[], bool]) -> Quality | None:
        """How good the model is on the held-out rows, between two segments and after `rows` rows; None if `stop()`
        interrupts. There must be some held-out rows.
        """

    def parameters(self, rows: int) -> Parameters:
        """A copy of all values in the input's order; between two segments."""

    def roles(self) -> list[dict[str, Any]]:
        """Who runs where, as `roles.json` has it."""

    def waits(self) -> list[str]:
        """What each role does or waits for, in words, if that is known."""

    def account(self) -> dict[str, Any]:
        """What the run cost so far: `wire`, `restarts`, `recoveries`, and `peak_memory_bytes` of other processes."""

    def records(self) -> list[AnyRecord]:
        """What was recorded of roles and nodes since the last call; times are those of `time.perf_counter`."""

    def close(self) -> None:
        """End all roles. Also after a failure, and more than once."""
