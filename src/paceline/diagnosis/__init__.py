"""Why is a run not faster? Replay, verdict and plan: pure functions of a run's folder."""
