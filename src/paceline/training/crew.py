"""What does the coordinator ask of those who train? A *crew* is all workers and shards of a run, wherever they live.

`embedded.py` and `dense.py` have the crews of one process, `cluster/crew.py` the one whose roles are processes on a
cluster.
"""

from __future__ import annotations

import enum
from collections.abc import Callable
from typing import Any, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from paceline.errors import RunError
from paceline.models.dense import ClassQuality, DenseModel
from paceline.models.logistic import Quality
from paceline.telemetry.records import AnyRecord
from paceline.training.checkpoint import Handed, Progress


class Tally(NamedTuple):
    """How far a crew is: rows and clocks handed out, and in this leg the `losses` of `rows` rows.

    `largest_lead` is the most clocks that a worker was ahead of the slowest when it began one.
    """

    position: int
    clock: int
    losses: float
    rows: int
    largest_lead: int


class Snapshot(NamedTuple):
    """One consistent cut: the tally then, all `states` [keys, width] in the blocks' order, and which work is open."""

    tally: Tally
    states: NDArray[np.float32]
    handed: Handed


class Due(enum.Enum):
    """What a look around during a leg may call for."""

    NOTHING = enum.auto()
    SNAPSHOT = enum.auto()
    STOP = enum.auto()


AnyQuality = Quality | ClassQuality
Look = Callable[[Tally], Due]
Keep = Callable[[Snapshot], None]


class LostShardError(RunError):
    """Parameters are gone: the run must return to its last checkpoint."""


class Crew(Protocol):
    """All workers and shards of one run."""

    @property
    def model(self) -> DenseModel | None:
        """What is trained, where that is a dense model; to look at its tensors."""

    def restore(self, progress: Progress, states: NDArray[np.float32] | None) -> None:
        """Go on from there; `states` [keys, width] are in the blocks' order, None for those a run begins with.

        Before `make_ready`, or after a `LostShardError`.
        """

    def make_ready(self) -> None:
        """Start all roles and compile their loops; returns when the first step can begin."""

    def run_leg(self, until: int, look: Look, keep: Keep) -> Tally:
        """Train up to the first boundary at or after position `until`; blocks. All workers are paused then.

        `look` is called every so often: on STOP the leg ends at a near boundary, on SNAPSHOT `keep` gets one, during
        the leg or at its end, maybe on another thread.
        """

    def snapshot(self) -> Snapshot:
        """The state between two legs; valid until the next leg."""

    def evaluate(self, rows: int, stop: Callable[[], bool]) -> AnyQuality | None:
        """How good the model is on the held-out rows, of which there are some, between two legs and after `rows` rows;
        None where `stop` said so on the way.
        """

    def weights(self, rows: int) -> NDArray[np.float32]:
        """A copy of all weights, the bias last, in the blocks' order; between two legs."""

    def roles(self) -> list[dict[str, Any]]:
        """Who runs where, as `roles.json` has it."""

    def waits(self) -> list[str]:
        """What each role does or waits for, in words, where that can be told."""

    def account(self) -> dict[str, Any]:
        """What the run cost so far: `wire`, `restarts`, `recoveries`, and `peak_memory_bytes` of other processes."""

    def records(self) -> list[AnyRecord]:
        """What was recorded of roles and nodes since the last time; times are those of `time.perf_counter`."""

    def close(self) -> None:
        """End all roles. Also after a failure, and more than once."""
