"""What the embedded backend says of itself."""

from __future__ import annotations

import os
from pathlib import Path

from paceline.config import read_config
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
