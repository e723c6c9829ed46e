"""Which processes does a run on a cluster ask for?"""

from __future__ import annotations

from pathlib import Path

from paceline.engines import ENGINES, PendingEngine, ProcessRequest, open_engine
from paceline.models.inputs import check_manifest
from paceline.settings import RunConfig

ENTRY = "paceline.training.cluster.role:run_role"


def engine_for(config: RunConfig) -> PendingEngine:
    """The engine of a run, which opens while the caller loads the rest, or later if the data may not be there.

    `ConfigError` if the manifest of the data shows that the model cannot learn from it: then nothing starts.
    """
    check_before_start(config)
    engine = open_engine(config.engine, config.address, requests_of(config))
    if _starts_early(config):
        engine.start()
    return engine


def check_before_start(config: RunConfig) -> None:
    """Refuse data that is not for the model of a run, before anything starts, if the data is on this machine."""
    if may_be_data(config.data):
        check_manifest(config)


def _starts_early(config: RunConfig) -> bool:
    return ENGINES[config.engine].has_processes and may_be_data(config.data)


def may_be_data(path: str) -> bool:
    """Whether a dataset seems to be in a folder of this machine. It is opened and checked later."""
    return (Path(path) / "manifest.json").is_file()


def requests_of(config: RunConfig) -> list[ProcessRequest]:
    """One process per role, shards first."""
    worker = ProcessRequest(ENTRY, gpu=config.device == "cuda", may_share_gpu=config.exchange != "allreduce")
    return [ProcessRequest(ENTRY)] * config.shards + [worker] * config.workers
