"""Blocks from other workers: what may be asked for, and what happens when nobody answers."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from paceline.errors import DataError
from paceline.matrices.cluster import blocks as module
from paceline.matrices.cluster import worker
from paceline.matrices.cluster.blocks import Blocks, BlockService
from paceline.matrices.cluster.messages import Fetch, ProductTask
from paceline.matrices.cluster.placement import LEFT, RIGHT, Rectangle
from paceline.matrices.plan import Plan
from paceline.matrices.product_file import Heading
from paceline.matrices.sources import fingerprint, open_matrix
from paceline.processes.messages import encode
from paceline.wire.connection import connect
from paceline.wire.frames import Kind, WireError
from paceline.wire.handshake import new_token
from paceline.wire.server import Server

TOKEN = new_token()


@pytest.fixture
def work(tmp_path: Path) -> ProductTask:
    """Two workers, one above the other: columns of the right factor live on both by turns."""
    rng = np.random.default_rng(0)
    paths: list[str] = []
    for name in ("A", "B"):
        np.save(tmp_path / f"{name}.npy", rng.normal(size=(40, 40)).astype(np.float32))
        paths.append(str(tmp_path / f"{name}.npy"))
    seen = [fingerprint(open_matrix(path)) for path in paths]
    halves = [Rectangle(0, 2, 0, 4), Rectangle(2, 4, 0, 4)]
    heading = Heading(seen[0], seen[1], (40, 40), "float32", Plan(10, 10, 10))
    return ProductTask(paths[0], paths[1], str(tmp_path / "C.npy"), heading, halves, halves)


@pytest.fixture
def address(work: ProductTask) -> Iterator[str]:
    """Worker 1, serving its blocks."""
    server = Server("127.0.0.1", 0, TOKEN, None)
    thread = threading.Thread(target=server.serve, args=(BlockService(Blocks(1, TOKEN, work)), 0.5))
    thread.start()
    yield server.address
    server.stop()
    thread.join()
    server.close()


def test_every_block_comes_from_somewhere(work: ProductTask, address: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "PIECE_BYTES", 3 * 10 * 4)
    blocks = Blocks(0, TOKEN, work)
    blocks.addresses = ["", address]
    right = np.load(work.right)
    out = np.empty((10, 10), np.float32)
    for inner in range(4):
        for outer in range(4):
            blocks.fill(RIGHT, outer, inner, out)
            assert np.array_equal(out, right[10 * inner : 10 * inner + 10, 10 * outer : 10 * outer + 10])
    assert blocks.counts["bytes_read"] == 8 * 400
    assert 8 * 400 < blocks.counts["bytes_fetched"] < 8 * 400 + 16 * 4 * 8 * 10
    assert blocks.counts["blocks_read_for_others"] == 0


def test_nobody_answers(work: ProductTask) -> None:
    blocks = Blocks(0, TOKEN, work)
    out, left = np.empty((10, 10), np.float32), np.load(work.left)
    for addresses in ([], ["", ""], ["", "127.0.0.1:1"]):
        blocks.addresses = addresses
        blocks.fill(LEFT, 3, 1, out)
        assert np.array_equal(out, left[30:40, 10:20])
    assert blocks.counts["blocks_read_for_others"] == 3


@pytest.mark.parametrize(
    "change", [{"side": 2}, {"side": -1}, {"outer": 4}, {"outer": -1}, {"inner": 4}, {"start": -1}, {"stop": 11},
               {"start": 5, "stop": 5}]
)  # fmt: skip
def test_what_is_not_there_hangs_up(address: str, change: dict[str, int]) -> None:
    asked: dict[str, Any] = {"side": LEFT, "outer": 0, "inner": 0, "start": 0, "stop": 10, **change}
    with connect(address, TOKEN, None) as connection:
        connection.send(Kind.MESSAGE, 0, encode(Fetch(**asked)))
        with pytest.raises(WireError):
            connection.receive(5)


def test_a_block_that_cannot_be_read_hangs_up_on_who_asked(
    work: ProductTask, address: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And on nobody else: the server goes on."""
    blocks = Blocks(0, TOKEN, work)
    blocks.addresses = ["", address]
    read, failures = Blocks.read, [DataError("`A.npy` became shorter while it was read", "")]

    def fail(self: Blocks, *arguments: Any) -> None:
        if self is not blocks and failures:
            raise failures.pop()
        read(self, *arguments)

    monkeypatch.setattr(Blocks, "read", fail)
    out, left = np.empty((10, 10), np.float32), np.load(work.left)
    blocks.fill(LEFT, 3, 1, out)
    assert np.array_equal(out, left[30:40, 10:20])
    assert (blocks.counts["blocks_read_for_others"], failures) == (1, [])
    other = Blocks(0, TOKEN, work)
    other.addresses = ["", address]
    other.fill(LEFT, 3, 1, out)
    assert np.array_equal(out, left[30:40, 10:20])
    assert other.counts["blocks_read_for_others"] == 0


def test_serving_that_fails_is_heard_of(work: ProductTask) -> None:
    def fail(*_: Any) -> None:
        raise ZeroDivisionError("division by zero")

    said: list[Any] = []
    server, lifeline = SimpleNamespace(serve=fail), SimpleNamespace(say=said.append)
    worker._serve(server, Blocks(0, TOKEN, work), lifeline)  # type: ignore[arg-type]
    assert "ZeroDivisionError: division by zero" in said[0].message


def test_a_stranger_is_refused(address: str) -> None:
    with pytest.raises(WireError):
        connect(address, new_token(), None)
