"""For how long does each fuzzer run? A second or three, or all together for FUZZ_MINUTES."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.fuzz.chance import MINUTES


@pytest.fixture
def fuzz_seconds(request: pytest.FixtureRequest) -> float:
    """The seconds of one fuzzer: its share of FUZZ_MINUTES, or 0 if that is not set."""
    here = Path(__file__).parent
    return MINUTES * 60 / sum(item.path.parent == here for item in request.session.items)
