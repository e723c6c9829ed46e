"""What the embedded backend says of itself, and what its workers see of each other."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np

from paceline.config import read_config
from paceline.data.rows import Piece
from paceline.kernels.gate import GONE
from paceline.models.inputs import open_for
from paceline.models.registry import find
from paceline.training.embedded.backend import EmbeddedBackend


def test_roles_name_everyone(clicks: Path) -> None:
    config = read_config(None, {"data": str(clicks), "workers": 5}, ())
    backend = EmbeddedBackend(config, open_for(config), find(config.model))
    roles = backend.roles()
    backend.close()
    assert [(r["role"], r["rank"]) for r in roles] == [
        ("coordinator", 0), ("shard", 0), *(("worker", rank) for rank in range(5)),
    ]  # fmt: skip
    assert all(set(r) == {"role", "rank", "node", "address", "pid", "incarnation"} for r in roles)
    assert {r["pid"] for r in roles} == {os.getpid()}


def test_at_pace_n_no_worker_is_said_to_be_further_than_others_can_see(clicks: Path) -> None:
    """A worker keeps changes of hot keys to itself for a while; until the table has them, its clock stays."""
    flags = {"data": str(clicks), "workers": 2, "pace": 8, "batch_size": 64}
    config = read_config(None, flags, ())
    backend = EmbeddedBackend(config, open_for(config), find(config.model))
    backend.make_ready()
    assert backend._table is not None
    gate, table, loop = backend._gate, backend._table.states, backend._loops[0]
    gate.enter(0)

    def train(first: int, last: int) -> tuple[int, int]:
        """Train worker 0 on some batches: its clock, and how many of the hottest keys have moved in the table."""
        loop.steps.read(Piece(64 * first, 64 * last))
        assert loop.steps.advance()[0]
        return int(gate.clocks[0, 0]), int(np.count_nonzero(table[:64, 0]))

    assert train(0, 3) == (0, 0)
    clock, moved = train(3, 4)
    assert clock == 4
    assert moved > 0
    before = table.copy()
    assert train(4, 6)[0] == 4
    assert (table[:64] == before[:64]).all()
    loop.leave()
    assert gate.clocks[:, 0].tolist() == [GONE, 0]
    assert (table[:64] != before[:64]).any()
    backend.close()
