"""What does the coordinator know about a process that it supervises?"""

from __future__ import annotations

from typing import NamedTuple

from paceline.processes.messages import Beat, Hello
from paceline.wire.server import Peer


class Loss(NamedTuple):
    """A role is lost: since when (`time.monotonic`), why, and whether its process may still be there."""

    since: float
    because: str
    silent: bool


class Role:
    """A process as the coordinator knows it, over all its incarnations."""

    def __init__(self, role: str, rank: int) -> None:
        self.role = role
        self.rank = rank
        self.node = self.address = ""
        self.pid = 0
        self.incarnation = -1
        self.peer: Peer | None = None
        self.doing = "has not started"
        self.silent_seconds = 0.0
        # These three belong to the coordinator's main thread.
        self.ready = False
        self.lost: Loss | None = None
        self.away_since = 0.0
        self.peak_memory_bytes = self.refused = 0
        self._bytes = (0, 0)
        self._bytes_before = (0, 0)

    @property
    def name(self) -> str:
        """The role's name for people."""
        return f"{self.role} {self.rank}" + (f" on node {self.node}" if self.node else "")

    @property
    def num_bytes(self) -> tuple[int, int]:
        """Bytes sent and received, by all incarnations."""
        return self._bytes_before[0] + self._bytes[0], self._bytes_before[1] + self._bytes[1]

    def begin(self, hello: Hello, node: str, peer: Peer) -> None:
        """A new incarnation has connected."""
        self._bytes_before, self._bytes = self.num_bytes, (0, 0)
        self.incarnation += 1
        self.peer, self.node, self.pid = peer, node, hello.pid
        self.silent_seconds, self.doing, self.refused = 0.0, "starts", 0

    def beat(self, beat: Beat) -> None:
        self.doing, self.refused = beat.doing, beat.refused
        self._bytes = (beat.bytes_sent, beat.bytes_received)
        self.peak_memory_bytes = max(self.peak_memory_bytes, beat.memory_bytes)
