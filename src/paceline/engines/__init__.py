"""Where roles live: threads of this process, or processes that a cluster places, starts and restarts."""

from __future__ import annotations

from typing import Any, Protocol


class ClusterEngine(Protocol):
    """What starts the processes of a run and keeps them. It knows nothing of what they do."""

    host: str
    """The address of this process's machine at which the roles can reach it."""
    loopback: bool
    """Whether all nodes are this machine, so that nothing needs to be reachable from elsewhere."""

    def start(self, entry: str, contents: list[bytes]) -> None:
        """One process a content, spread over the nodes, each of which calls `entry` ("module:function") with its
        content, the name of its node, and that node's address. A process that ends is started again.
        """

    def restart(self, number: int, pid: int) -> None:
        """End a process that no longer answers, so that it is started again."""

    def why_not_running(self, number: int) -> str:
        """Why a process is not running, as far as the cluster knows; empty if it does not."""

    def name_of(self, node: str) -> str:
        """How a person would call a node."""

    def own_place(self) -> dict[str, Any]:
        """`node`, `address` and `pid` of this process."""

    def close(self) -> None:
        """End all processes that were started, and leave the cluster as it was found. More than once does no harm."""
