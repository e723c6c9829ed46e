"""Everything that imports PyTorch."""

from __future__ import annotations

import os

# PyTorch's threads (libgomp) spin at the end of every operation until all are there, a millisecond or more. If other
# programs use the cores, the one that is missing waits for a core that another one spins on. A short spin is enough.
SPINS = "1000"
if not {"OMP_WAIT_POLICY", "GOMP_SPINCOUNT"} & os.environ.keys():
    os.environ["GOMP_SPINCOUNT"] = SPINS
