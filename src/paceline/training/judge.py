"""Is what a run leaves behind any good? Its loss, against that of the best constant prediction (decision 0036)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any, NamedTuple

from paceline.errors import DivergedError
from paceline.models.losses import PLAIN
from paceline.models.model import Model
from paceline.settings import RunConfig
from paceline.training.best import Best, BestModel

Metrics = Mapping[str, Any]

# A loss is far above that of a constant prediction if it is this many times as high.
TIMES_WORSE = 10
# A run may begin there, if nobody knows how good its first values are, and get better. Beyond this, it may not.
TIMES_WORSE_AT_ALL = 1_000
# By the training loss alone, a model is worse than a constant if its loss is higher by more than this share.
ROUGHLY = 0.3
# The training loss of an overfitted model is below its loss by more than this share of the size of losses.
FAR_BELOW = 0.1
# The rows by which a run is judged: the first of which it has a loss.
JUDGED = ("test", "validation", "train")


class Beginning(NamedTuple):
    """The loss of scores of 0 or of the best constant, and whether training begins with these scores; and the unit of
    losses, if labels are numbers: those of `poisson` may be 0 by chance.
    """

    loss: float
    is_known: bool = True
    unit: float = 0.0

    @staticmethod
    def of(model: Model, *, goes_on: bool) -> Beginning:
        """That of a model, which `goes_on` if its values are those of another run."""
        scales = model.label_units.scales
        unit = 0.0 if scales == PLAIN else scales.score * scales.slope / 2
        return Beginning(model.start_loss, model.knows_start and not goes_on, unit)

    def size(self, baseline: float) -> float:
        """How large losses are. Some are below 0, and a constant prediction has none if all labels are the same."""
        return max(abs(baseline), abs(self.loss), self.unit)


class Standing(NamedTuple):
    """What is known about a model when it is judged: on which rows, its loss there, that of the best constant
    prediction, and the loss in training, if there are other rows.
    """

    rows: str
    loss: float
    baseline: float
    training: float | None = None

    def __str__(self) -> str:
        name = "mean training" if self.rows == "train" else self.rows
        return f"the {name} loss is {self.loss:.5g}; the best constant prediction has {self.baseline:.5g}"

    @property
    def is_worse(self) -> bool:
        """Whether a constant prediction is better: clearly better, by the training loss. That includes the first rows,
        and the statistics of labels tell the baselines of `quantile` and `huber` only roughly.
        """
        return self.loss > self.baseline + (ROUGHLY * abs(self.baseline) if self.rows == "train" else 0)

    def is_overfitted(self, size: float) -> bool:
        """Whether it is much better on its training rows, and there better than a constant; losses are that large."""
        training = self.training
        return training is not None and training < self.baseline and self.loss - training > FAR_BELOW * size


def found_in(line: Metrics, start: float) -> Standing | None:
    """What a line of `metrics.jsonl` says about the model; None without any loss. Older runs have no baseline."""
    rows = next((rows for rows in JUDGED if line.get(f"{rows}_loss") is not None), None)
    if rows is None:
        return None
    baseline = line.get(f"{rows}_baseline_loss")
    training = None if rows == "train" else line.get("train_loss")
    return Standing(rows, line[f"{rows}_loss"], start if baseline is None else baseline, training)


def has_diverged(losses: Sequence[float], baseline: float, began: Beginning) -> bool:
    """Whether a run with these losses at its evaluations has diverged: it ends far above a constant prediction.

    If nobody knows the loss that it began with, it may have begun far above, and still be getting better: then its loss
    must have fallen at every evaluation, to below `TIMES_WORSE_AT_ALL` times that of a constant.

    >>> zero, unknown = Beginning(0.7), Beginning(0.7, is_known=False)
    >>> has_diverged([526.0], 0.6, zero), has_diverged([600.0, 526.0], 0.6, zero), has_diverged([3.0], 0.6, zero)
    (True, True, False)
    >>> has_diverged([600.0, 526.0], 0.6, unknown), has_diverged([600.0, 610.0, 526.0], 0.6, unknown)
    (False, True)
    """
    size = began.size(baseline)
    above = (losses[-1] - baseline) / size if size else 0.0
    if above <= TIMES_WORSE - 1:
        return False
    falls = len(losses) > 1 and all(later < loss for loss, later in pairwise(losses))
    return began.is_known or not falls or above > TIMES_WORSE_AT_ALL - 1


def refuse_diverged(metrics: Sequence[Metrics], model: Model, config: RunConfig) -> None:
    """Raise if the loss of a run has ended far above that of a constant prediction."""
    found = found_in(metrics[-1], model.start_loss) if metrics else None
    if found is None:
        return
    losses = [loss for line in metrics if (loss := line.get(f"{found.rows}_loss")) is not None]
    if has_diverged(losses, found.baseline, Beginning.of(model, goes_on=bool(config.start_from))):
        rate = config.optimizer.learning_rate
        raise DivergedError(f"the run has diverged: {found}, learning rate {rate:g}", _slower(rate))


def is_good(best: Best | None, model: Model) -> bool:
    """Whether the best model so far is better than a constant prediction, by the rows on which it was chosen."""
    if best is None:
        return False
    found = found_in({f"validation_{name}": value for name, value in best.validation.items()}, model.start_loss)
    return found is not None and not found.is_worse


def why_worse(metrics: Sequence[Metrics], best: BestModel | None, model: Model, rate: float) -> str:
    """If the model that a run keeps is worse than a constant prediction: how much, and what to try."""
    rows = None if best is None or best.found is None else best.found.rows
    kept = [line for line in metrics if rows is None or line["rows"] == rows]
    found = found_in(kept[-1], model.start_loss) if kept else None
    if found is None or not found.is_worse:
        return ""
    # The mean includes the first rows, for which nothing had been learned yet.
    told = f"this model {'may be' if found.rows == 'train' else 'is'} worse than a constant: {found}"
    if not found.is_overfitted(Beginning.of(model, goes_on=False).size(found.baseline)):
        return f"{told}. Try more --epochs, or {_slower(rate)}"
    hold_out = "" if best else ", or --early-stopping on validation rows (`paceline prepare --validation-fraction 0.1`)"
    return (
        f"{told}. It has overfitted: the training loss is {found.training:.5g}. "
        f"Try fewer --epochs, a higher --l2, --learning-rate {rate / 10:g}{hold_out}"
    )


def _slower(rate: float) -> str:
    """What to try if a learning rate is too high."""
    return f"--learning-rate {rate / 10:g}, or another --optimizer; check the data for huge values"
