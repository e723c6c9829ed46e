"""Roles that misbehave once, in their own processes. Each leaves a file beside the run's folder when it has."""

from __future__ import annotations

import os
import socket
import time
from pathlib import Path
from typing import Any

import msgspec

from paceline.errors import DataError
from paceline.processes import lifeline
from paceline.settings import RunConfig
from paceline.training.cluster import role as roles
from paceline.training.cluster.messages import RoleSpec
from paceline.training.cluster.numbered_batch import NumberedBatch
from paceline.training.cluster.worker import Worker
from paceline.wire.connection import Connection
from paceline.wire.frames import Frame, Kind, LostConnectionError, frame_buffers, views_of


def marker(spec: RoleSpec) -> Path:
    return Path(f"{_config(spec).run}.fault")


def _once(spec: RoleSpec) -> bool:
    """Whether this is the first time; notes that it was."""
    try:
        marker(spec).touch(exist_ok=False)
    except FileExistsError:
        return False
    return True


def _config(spec: RoleSpec) -> RunConfig:
    return msgspec.msgpack.decode(spec.config, type=RunConfig)


def _spec(content: bytes) -> RoleSpec:
    return msgspec.msgpack.decode(content, type=RoleSpec)


def _replace(owner: Any, name: str, by: Any) -> None:
    assert hasattr(owner, name)
    setattr(owner, name, by)


def cut_in_a_frame(content: bytes, node: str, host: str) -> None:
    """Worker 0 sends half of its 200th step and hangs up."""
    spec, sent, send = _spec(content), [0], Connection.send

    def cut(connection: Connection, kind: Kind, flags: int, *parts: Any) -> None:
        sent[0] += kind == Kind.STEP
        if sent[0] == 200 and kind == Kind.STEP and _once(spec):
            frame = b"".join(views_of(frame_buffers(kind, flags, parts, connection.peer)[0]))
            connection.stream.socket.setblocking(True)
            connection.stream.socket.sendall(frame[: len(frame) // 2])
            connection.stream.socket.shutdown(socket.SHUT_RDWR)
            connection.close()
            raise LostConnectionError("cut in a frame")
        send(connection, kind, flags, *parts)

    if spec.role == "worker" and spec.rank == 0:
        _replace(Connection, "send", cut)
    roles.run_role(content, node, host)


def lose_a_reply(content: bytes, node: str, host: str) -> None:
    """The 200th reply of shards to worker 0 never reaches it."""
    spec, received, receive = _spec(content), [0], Connection.receive

    def forget(connection: Connection, silence_seconds: float, spin_seconds: float = 0.0) -> Frame:
        frame = receive(connection, silence_seconds, spin_seconds)
        received[0] += frame.kind == Kind.VALUES
        if received[0] == 200 and frame.kind == Kind.VALUES and _once(spec):
            return receive(connection, silence_seconds, spin_seconds)
        return frame

    if spec.role == "worker" and spec.rank == 0:
        _replace(Connection, "receive", forget)
    roles.run_role(content, node, host)


def one_long_step(content: bytes, node: str, host: str, seconds: float = 7) -> None:
    """Worker 0 takes 7 s for its 200th step, longer than a role may be silent."""
    spec, steps, gradient = _spec(content), [0], NumberedBatch.gradient

    def slow(batch: NumberedBatch) -> float:
        # Batches are numbered from 1; before training there are some without a number.
        steps[0] += batch.number > 0
        if steps[0] == 200 and _once(spec):
            time.sleep(seconds)
        return gradient(batch)

    if spec.role == "worker" and spec.rank == 0:
        _replace(NumberedBatch, "gradient", slow)
    roles.run_role(content, node, host)


def one_very_long_step(content: bytes, node: str, host: str) -> None:
    """Worker 0 takes 13 s for its 200th step."""
    one_long_step(content, node, host, 13)


def under_an_impatient_coordinator(content: bytes, node: str, host: str) -> None:
    """Nothing is wrong here; driver.py lets the coordinator wait less long for Ray's head."""
    roles.run_role(content, node, host)


def slow_worker(content: bytes, node: str, host: str) -> None:
    """Worker 0 takes 5 ms longer for every step."""
    spec, gradient = _spec(content), NumberedBatch.gradient

    def slow(batch: NumberedBatch) -> float:
        time.sleep(0.005)
        return gradient(batch)

    if spec.role == "worker" and spec.rank == 0:
        _replace(NumberedBatch, "gradient", slow)
    roles.run_role(content, node, host)


def data_is_gone(content: bytes, node: str, host: str) -> None:
    """Worker 1 finds, in its 200th batch, that its data cannot be read any more."""
    spec, reads, read = _spec(content), [0], NumberedBatch.read

    def fail(batch: NumberedBatch, now: Any, number: int, *arguments: Any) -> int:
        reads[0] += number > 0
        if reads[0] == 200:
            raise DataError("block `train-00003.arrow` cannot be read: No such file or directory", "bring it back")
        return read(batch, now, number, *arguments)

    if spec.role == "worker" and spec.rank == 1:
        _replace(NumberedBatch, "read", fail)
    roles.run_role(content, node, host)


def old_paceline(content: bytes, node: str, host: str) -> None:
    """Worker 1 runs another version."""
    if _spec(content).role == "worker" and _spec(content).rank == 1:
        _replace(lifeline, "VERSION", "0.0.9")
    roles.run_role(content, node, host)


def blind_worker(content: bytes, node: str, host: str) -> None:
    """Worker 1's node does not see the data."""
    spec = _spec(content)
    if spec.role == "worker" and spec.rank == 1:
        config = msgspec.structs.replace(_config(spec), data="/nowhere/clicks")
        content = msgspec.msgpack.encode(msgspec.structs.replace(spec, config=msgspec.msgpack.encode(config)))
    roles.run_role(content, node, host)


def without_an_interpreter(content: bytes, node: str, host: str) -> None:
    """Workers look for a GPU, as they do outside of tests."""
    os.environ["TRITON_INTERPRET"] = "0"
    roles.run_role(content, node, host)


def bug_in_a_worker(content: bytes, node: str, host: str) -> None:
    """Worker 0 has a bug."""

    def broken(_worker: Worker) -> None:
        raise ZeroDivisionError("division by zero")

    if _spec(content).role == "worker" and _spec(content).rank == 0:
        _replace(Worker, "run", broken)
    roles.run_role(content, node, host)


def on_one_gpu(content: bytes, node: str, host: str) -> None:
    """Workers share a GPU over NCCL, which refuses that where it knows that they are on the same machine."""
    os.environ["NCCL_HOSTID"] = str(_spec(content).rank)
    roles.run_role(content, node, host)
