"""paceline in scikit-learn: estimators for pipelines, searches and cross-validation.

>>> import numpy as np
>>> from sklearn.model_selection import cross_val_score
>>> from sklearn.pipeline import make_pipeline
>>> from sklearn.preprocessing import StandardScaler
>>> X = np.random.default_rng(0).normal(size=(300, 5))
>>> y = np.where(X[:, 0] > X[:, 1], "left", "right")
>>> pipeline = make_pipeline(StandardScaler(), PacelineClassifier(random_state=0))
>>> bool(cross_val_score(pipeline, X, y, cv=3).mean() > 0.9)
True
"""

from __future__ import annotations

try:
    import sklearn as sklearn
except ImportError:
    raise ImportError("paceline.sklearn needs scikit-learn: pip install 'paceline[sklearn]'") from None

from paceline.sklearn.factorization import FMClassifier, FMRegressor
from paceline.sklearn.linear import PacelineClassifier, PacelineRegressor

__all__ = ["FMClassifier", "FMRegressor", "PacelineClassifier", "PacelineRegressor"]
