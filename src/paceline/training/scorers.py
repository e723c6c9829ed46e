"""Where does a trained model score rows: on the CPU, or on a GPU?"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple, cast

from paceline.config import CHOICES
from paceline.errors import ConfigError, one_of
from paceline.models.images import ImageClassifier
from paceline.models.model import Floats, Model, Output, Parameters
from paceline.models.trained import TrainedModel
from paceline.training.evaluate import Scorer


class Scoring(NamedTuple):
    """What scores rows, and the parameters that it does so with."""

    scorer: Scorer
    parameters: Parameters


class GpuScorer(NamedTuple):
    """Scores rows on the GPU, as they are after `trained` rows. `scorer` is a `torch.sparse.scoring.SparseScorer`."""

    output: Output
    scorer: Any
    trained: int = 0
    scoring_threads: bool = True

    def scores(self, _parameters: Parameters, rows: Any) -> Floats:
        scores: Floats = self.scorer.scores(rows, self.trained)
        return scores


def scoring_on(device: str, trained: TrainedModel) -> Callable[[Parameters], Scoring]:
    """What brings the parameters of a trained model to a device; `ConfigError` if the model is not for it, or if there
    is no such device.
    """
    if device not in CHOICES["device"]:
        raise ConfigError(f"`device` is `{device}`; it must be {one_of(CHOICES['device'])}", "the default is `cpu`")
    entry = trained.entry
    if device not in entry.devices:
        message = f"`device` is `{device}`; the model `{entry.name}` takes {one_of(entry.devices)}"
        raise ConfigError(message, f"--device {entry.devices[0]}, or leave it out")
    if device == "cpu":
        return partial(Scoring, trained.model)
    if entry.network:
        return _with_module(cast(ImageClassifier, trained.model), device)
    return _with_table(trained.model)


def _with_table(model: Model) -> Callable[[Parameters], Scoring]:
    from paceline.torch.sparse.scoring import open_scorer

    load = open_scorer(model)

    def bring(parameters: Parameters) -> Scoring:
        assert parameters.table is not None
        return Scoring(GpuScorer(model.output, load(parameters.table)), Parameters())

    return bring


def _with_module(model: ImageClassifier, device: str) -> Callable[[Parameters], Scoring]:
    from paceline.torch.model import to_device

    moved = model.on(device)
    return lambda parameters: Scoring(moved, Parameters(dense=to_device(parameters.dense, device)))
