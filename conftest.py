"""The examples in docstrings of `paceline.api` train for real: each starts in an empty folder, with some rows."""

from __future__ import annotations

import signal
from pathlib import Path
from typing import Any

import numpy as np
import pytest


@pytest.fixture(autouse=True)
def example(request: pytest.FixtureRequest) -> None:
    if not request.node.name.startswith("paceline.api."):
        return
    import paceline

    request.getfixturevalue("monkeypatch").chdir(request.getfixturevalue("tmp_path"))
    rng = np.random.default_rng(0)
    X = rng.normal(size=(1000, 20)).astype(np.float32)
    y = (X[:, 0] + X[:, 1] > 0).astype(int)
    runs = {
        name: paceline.train(data=(X, y), learning_rate=rate, run=Path("runs") / name, progress=False)
        for name, rate in (("first", 0.05), ("second", 0.5))
    }
    paceline.prepare((X, y), "data/made", progress=False)
    with pytest.raises(paceline.PacelineError):
        paceline.train(data=(X, y), epochs=1000, run="runs/stopped", progress=False, callbacks=[_Interrupt()])
    request.getfixturevalue("doctest_namespace").update(paceline=paceline, np=np, X=X, y=y, run=runs["first"], **runs)


class _Interrupt:
    """Stops a run, as Ctrl-C does, once: a second one would end the process."""

    stopped = False

    def __call__(self, _status: Any) -> None:
        if not self.stopped:
            self.stopped = True
            signal.raise_signal(signal.SIGINT)
