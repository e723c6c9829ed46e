"""The processes that a run asks an engine for."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from paceline.config import read_config
from paceline.engines import PendingEngine
from paceline.training.cluster.placement import engine_for, requests_of


def config_of(**flags: Any) -> Any:
    return read_config(None, {"data": "data", "engine": "ray", **flags}, ())


def test_shards_come_first_and_need_no_gpu() -> None:
    requests = requests_of(config_of(model="alexnet-small", workers=2, shards=3, device="cuda"))
    assert [request.gpu for request in requests] == [False, False, False, True, True]
    assert all(request.may_share_gpu for request in requests)


def test_workers_that_add_up_among_themselves_share_no_gpu() -> None:
    flags = {"model": "alexnet-small", "pace": "sync", "workers": 2, "device": "cuda", "exchange": "allreduce"}
    requests = requests_of(config_of(**flags))
    assert [request.may_share_gpu for request in requests if request.gpu] == [False, False]


@pytest.mark.parametrize(("engine", "there", "starts"), [("ray", True, 1), ("ray", False, 0), ("local", True, 0)])
def test_nothing_is_started_for_data_that_is_not_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, engine: str, there: bool, starts: int
) -> None:
    started: list[PendingEngine] = []
    monkeypatch.setattr(PendingEngine, "start", lambda engine: started.append(engine))
    if there:
        (tmp_path / "manifest.json").touch()
    engine_for(config_of(engine=engine, data=str(tmp_path)))
    assert len(started) == starts
