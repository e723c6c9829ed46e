"""Workers of matrix jobs that misbehave once, in their own processes."""

from __future__ import annotations

import os
import signal
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec

from paceline.matrices.cluster import blocks, worker
from paceline.matrices.cluster.messages import ProductTask, WorkerSpec
from paceline.matrices.trace import RandomPairs


def marker(token: bytes) -> Path:
    """Says that a worker of the job with this token has misbehaved."""
    return Path(tempfile.gettempdir()) / f"paceline-fault-{token.hex()[:16]}"


def _misbehave(content: bytes, node: str, host: str, signal_number: signal.Signals) -> None:
    """Worker 1 sends itself a signal in the middle of its first task; its successor does not."""
    spec = msgspec.msgpack.decode(content, type=WorkerSpec)
    if spec.rank == 1 and not marker(spec.token).exists():
        marker(spec.token).touch()
        _after(3, RandomPairs, "sum_of", signal_number)
        _after(12, blocks.Blocks, "fill", signal_number)
    worker.run_worker(content, node, host)


def _after(calls: int, owner: Any, name: str, signal_number: signal.Signals) -> None:
    original: Callable[..., Any] = getattr(owner, name)
    seen = [0]

    def counted(*arguments: Any) -> Any:
        seen[0] += 1
        if seen[0] == calls:
            os.kill(os.getpid(), signal_number)
        return original(*arguments)

    setattr(owner, name, counted)


def killed(content: bytes, node: str, host: str) -> None:
    """As `kill -9` does it."""
    _misbehave(content, node, host, signal.SIGKILL)


def stopped(content: bytes, node: str, host: str) -> None:
    """The process is there, and does nothing more."""
    _misbehave(content, node, host, signal.SIGSTOP)


def blind(content: bytes, node: str, host: str) -> None:
    """Worker 1 sees another file under the name of the left factor."""
    spec = msgspec.msgpack.decode(content, type=WorkerSpec)
    if spec.rank == 1:
        assert isinstance(spec.work, ProductTask)
        heading = msgspec.structs.replace(spec.work.heading, left="another file")
        work = msgspec.structs.replace(spec.work, heading=heading)
        content = msgspec.msgpack.encode(msgspec.structs.replace(spec, work=work))
    worker.run_worker(content, node, host)


def broken(content: bytes, node: str, host: str) -> None:
    """Worker 1 has a bug."""

    def fail(*_: Any) -> None:
        raise ZeroDivisionError("division by zero")

    if msgspec.msgpack.decode(content, type=WorkerSpec).rank == 1:
        RandomPairs.sum_of = fail  # type: ignore[method-assign, assignment]
    worker.run_worker(content, node, host)


def slow(content: bytes, node: str, host: str) -> None:
    """Every block takes its time."""
    fill = blocks.Blocks.fill

    def slowly(*arguments: Any) -> None:
        time.sleep(0.03)
        fill(*arguments)

    blocks.Blocks.fill = slowly  # type: ignore[method-assign, assignment]
    worker.run_worker(content, node, host)
