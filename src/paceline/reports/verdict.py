"""What held a run back? The one place in which reports ask for a diagnosis."""

from __future__ import annotations

from typing import Any

from paceline.diagnosis import diagnose
from paceline.errors import DataError
from paceline.run_folder import TRAIN, Run


def diagnosis_of(run: Run) -> dict[str, Any]:
    """The fields of `diagnosis.json`, as of now; empty where too little was recorded."""
    try:
        return diagnose(run) if run.job == TRAIN else run.diagnose()
    except DataError:
        return {}
