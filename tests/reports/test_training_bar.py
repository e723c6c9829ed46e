"""What people see while a model trains."""

from __future__ import annotations

import pytest

from paceline.reports.training_bar import training_bar
from paceline.training.coordinator import Status


def test_a_log_tells_speed_and_loss(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    now = [100.0]
    monkeypatch.setattr("time.monotonic", lambda: now[0])
    with training_bar("train") as watch:
        for second, loss in ((1, 0.0), (6, 0.0), (12, 0.5), (18, 0.25)):
            now[0] = 100.0 + second
            watch(Status(second * 1000, second, second / 20, loss, None))
    # Before the first loss there is nothing to tell.
    assert capsys.readouterr().err.splitlines() == [
        "train: 60%, 1,000 rows/s, loss 0.5000, 12,000 rows",
        "train: 90%, 1,000 rows/s, loss 0.2500, 18,000 rows, 2 s left",
    ]
