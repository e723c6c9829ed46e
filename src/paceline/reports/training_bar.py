"""What does a person see while a model trains? A bar with speed and loss."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from paceline.models.registry import METRICS
from paceline.reports.progress_bar import meter
from paceline.training.coordinator import Status, Watch

FASTEST_IN_FULL = 100_000.0


@contextmanager
def training_bar(title: str) -> Iterator[Watch]:
    """A function that shows a run's status. Narrow terminals cut off the end of the line."""
    with meter(title) as bar:

        def watch(at: Status) -> None:
            if at.train_loss > 0:
                bar.show(at.share, status_text(at))

        yield watch


def status_text(at: Status) -> str:
    """How fast a run is, and how well it learns.

    >>> status_text(Status(3_000_000, 1.5, 0.5, 0.4312, {"loss": 0.4409, "auc": 0.7912}))
    '2.00 M rows/s, loss 0.4312, test 0.4409, AUC 0.7912, 3,000,000 rows'
    """
    speed = at.rows / at.seconds if at.seconds else 0.0
    rate = f"{speed / 1e6:.2f} M" if speed > FASTEST_IN_FULL else f"{speed:,.0f}"
    return f"{rate} rows/s, loss {at.train_loss:.4f}{quality_text(at.quality)}, {at.rows:,} rows"


def quality_text(quality: dict[str, float] | None) -> str:
    """The test loss and the last metric."""
    if quality is None:
        return ""
    name, best = list(quality.items())[-1]
    return f", test {quality['loss']:.4f}, {METRICS[name].label} {best:.4f}"
