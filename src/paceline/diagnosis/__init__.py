"""Why is a run not faster? Replay, verdict and plan: pure functions of a run's folder."""

from paceline.diagnosis.explain import diagnose as diagnose
from paceline.diagnosis.explain import ensure_diagnosis as ensure_diagnosis
from paceline.diagnosis.explain import write_diagnosis as write_diagnosis
