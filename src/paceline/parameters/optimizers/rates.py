"""What is the learning rate now?"""

from __future__ import annotations

from paceline.settings import OptimizerConfig


def rate_at(settings: OptimizerConfig, rows: int) -> float:
    """The learning rate after `rows` rows of training.

    >>> rate_at(OptimizerConfig(name="sgd", learning_rate=0.5, decay_rows=100, decay_power=1.0), 100)
    0.25
    """
    if not settings.decay_rows:
        return settings.learning_rate
    return float(settings.learning_rate * (1 + rows / settings.decay_rows) ** -settings.decay_power)
