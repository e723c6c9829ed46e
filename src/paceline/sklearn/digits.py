"""Which numbers differ too little for training, which reads them in float32?"""

from __future__ import annotations

import warnings

import numpy as np
import scipy.sparse

from paceline.data.sparse.scaling import CONSTANT, Scaling
from paceline.sklearn.learned import Numbers
from paceline.sklearn.sample import Sample

# Relative to their mean, labels of this deviation are mostly rounded away in float32.
LOST = 1e-7
COLUMNS_NAMED = 5
SAMPLE_ROWS = 1 << 16  # copies of all rows would take memory


def warn_of_lost_digits(rows: Sample, scaling: Scaling) -> None:
    """Warn of columns, and of targets, that are nearly constant in float32, although they are not."""
    if rows.labels.kind == "numbers" and _differ_little(rows.targets, LOST):
        warnings.warn(
            f"y differs from its mean, {rows.targets.mean():g}, too little for float32; subtract the mean",
            UserWarning,
            stacklevel=2,
        )
    if scipy.sparse.issparse(rows.matrix):
        return
    # From others, a centre is subtracted.
    centred = {key for key, centre in zip(scaling.keys, scaling.centres, strict=True) if centre}
    found = [key for key in range(rows.matrix.shape[1])
             if key not in centred and _differ_little(rows.matrix[:, key], CONSTANT)]  # fmt: skip
    if found:
        named = ", ".join(map(str, found[:COLUMNS_NAMED])) + (", …" if len(found) > COLUMNS_NAMED else "")
        warnings.warn(
            f"numbers in column{'s' * (len(found) > 1)} {named} of X differ from their mean too little for float32, "
            "and nothing is learned from them; put a StandardScaler in front",
            UserWarning,
            stacklevel=2,
        )


def _differ_little(numbers: Numbers, share: float) -> bool:
    """Whether numbers are not all the same, but deviate from their mean by at most this share of it."""
    numbers = numbers[:: -(-len(numbers) // SAMPLE_ROWS)].astype(np.float64)
    mean = float(numbers.mean())
    return bool(np.ptp(numbers) > 0 and (numbers - mean).std() <= share * abs(mean))
