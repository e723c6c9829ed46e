"""An entry of the registry declares what its model is."""

from __future__ import annotations

from pathlib import Path

import pytest

from paceline.data.sparse.dataset import SparseDataset
from paceline.models.registry import MODELS
from paceline.settings import RunConfig


def test_an_entry_that_is_wrong_about_its_table_is_refused(clicks: Path) -> None:
    entry = MODELS["logistic"]._replace(keyed=False)
    with pytest.raises(RuntimeError, match="the entry of `logistic` has keyed=False"):
        entry.build(RunConfig(), SparseDataset(clicks), 1)
