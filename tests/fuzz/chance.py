"""Which cases are tried? FUZZ_MINUTES (for all fuzzers together) and FUZZ_SEED say so; `make fuzz` sets them."""

from __future__ import annotations

import os
import random

MINUTES = float(os.environ.get("FUZZ_MINUTES", "0"))
SEED = int(os.environ.get("FUZZ_SEED", random.SystemRandom().randrange(1 << 40) if MINUTES else 0))
