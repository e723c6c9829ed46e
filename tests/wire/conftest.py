"""Connections take as long as the machine is busy: hypothesis must not take that for a slow test."""

from __future__ import annotations

import pytest
from hypothesis import settings

from paceline.wire.tls import Tls, make_tls

settings.register_profile("wire", deadline=None)
settings.load_profile("wire")


@pytest.fixture(scope="session")
def run_tls() -> Tls:
    """The certificate of a run."""
    return make_tls()


@pytest.fixture(params=["plain", "tls"])
def tls(request: pytest.FixtureRequest, run_tls: Tls) -> Tls | None:
    """How the connections of a test are made: each test runs with both."""
    return run_tls if request.param == "tls" else None
