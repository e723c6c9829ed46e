"""What does the coordinator need for training? A *backend*: all workers and shards of a run, wherever they are.

In `embedded/backend.py` workers are threads of this process, in `cluster/backend.py` workers and shards are processes.
A backend takes and returns keys in the input's order, whatever order it trains in.
"""

from __future__ import annotations

import enum
from collections.abc import Callable
from typing import Any, NamedTuple, Protocol

from paceline.data.blocks.dataset import Split
from paceline.errors import RunError
from paceline.models.metrics import Quality
from paceline.models.model import Model, Parameters
from paceline.telemetry.facts import GpuFacts
from paceline.telemetry.records import AnyRecord
from paceline.training.checkpoint import Handed, Progress, States


class Tally(NamedTuple):
    """How far a backend is: rows and clocks handed out, and the `losses` of the `rows` of this segment.

    `largest_lead` is the most clocks that a worker was ahead of the slowest when it began one.
    """

    position: int
    clock: int
    losses: float
    rows: int
    largest_lead: int


class Snapshot(NamedTuple):
    """One consistent cut: the tally then, all states in the input's order, and which work is open.

    Valid only during the call that it is passed to.
    """

    tally: Tally
    states: States
    handed: Handed


class Due(enum.Enum):
    """What the coordinator may ask for during a segment."""

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
        """Continue from there; None stands for the states that a run begins with. The backend takes over the arrays.

        Before `make_ready`, or after a `LostShardError`.
        """

    def make_ready(self) -> None:
        """Start all roles and compile their loops; returns when the first step can begin."""

    def run_segment(self, until: int, look: Look, keep: Keep) -> Tally:
        """Train up to the first boundary at or after position `until`; blocks. All workers are paused then.

        `look` is called regularly. On STOP the segment ends at the next boundary. On SNAPSHOT `keep` gets a snapshot,
        during the segment or at its end, possibly on another thread.
        """

    def snapshot(self, keep: Keep) -> None:
        """Give `keep` the state between two segments."""

    def evaluate(self, split: Split, rows: int, stop: Callable[[], bool]) -> Quality | None:
        """The model's metrics on a non-empty split, between two segments and after `rows` rows; None if `stop()`
        interrupts.
        """

    def parameters(self, rows: int) -> Parameters:
        """A copy of all values in the input's order; between two segments."""

    def failing(self) -> str:
        """Why the run must end soon, though its state can still be saved; empty if it need not."""

    def roles(self) -> list[dict[str, Any]]:
        """Which role runs where, as in `roles.json`."""

    def waits(self) -> list[str]:
        """What each role is doing or waiting for, in words, if that is known."""

    def gpu_facts(self) -> GpuFacts | None:
        """What is known of the GPU that trains on sparse rows, if one does; after `make_ready`."""

    def account(self) -> dict[str, Any]:
        """What the run cost so far: `wire`, `restarts`, `recoveries`, and `peak_memory_bytes` of other processes."""

    def records(self) -> list[AnyRecord]:
        """What was recorded of roles and nodes since the last call; times are those of `time.perf_counter`."""

    def close(self) -> None:
        """End all roles. Also after a failure, and more than once."""
