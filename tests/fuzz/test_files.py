"""Damaged inputs of every format end in success or in one clear error, never in a crash, a traceback or a hang.

`make fuzz MINUTES=60` tries other seeds for longer, with bounds-checked loops.
"""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

import pytest

from tests.fuzz.formats import FORMATS

MINUTES = float(os.environ.get("FUZZ_MINUTES", "0"))
FIRST_SEED = int(os.environ.get("FUZZ_SEED", random.SystemRandom().randrange(1 << 40) if MINUTES else 0))
SECONDS = MINUTES * 60 / len(FORMATS) or 3
CASES = 1 << 40 if MINUTES else 60
REPOSITORY = Path(__file__).parents[2]


@pytest.mark.parametrize("name", FORMATS)
def test_damaged_files(name: str, tmp_path: Path) -> None:
    failures: list[str] = []
    outcomes: Counter[str] = Counter()
    seed, deadline = FIRST_SEED, time.monotonic() + SECONDS
    last = FIRST_SEED + CASES
    while seed < last and (seed == FIRST_SEED or time.monotonic() < deadline):
        case: dict[str, str] = {}
        arguments = [name, seed, last - seed, max(0.0, deadline - time.monotonic()), tmp_path]
        child = subprocess.Popen(
            [sys.executable, "-m", "tests.fuzz.child", *map(str, arguments)],
            cwd=REPOSITORY, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        )  # fmt: skip
        assert child.stdout is not None
        for line in child.stdout:
            said = json.loads(line)
            if said["event"] == "case":
                case, seed = said, said["seed"] + 1
                continue
            outcomes[said["event"]] += 1
            if said["event"] == "failed":
                failures.append(f"{name}, seed {case['seed']}, {case['what']}:\n{said['why']}")
            case = {}
        errors = child.communicate()[1]
        if case:
            failures.append(f"{name}, seed {case['seed']}, {case['what']}:\nexit code {child.returncode}\n{errors}")
        else:
            assert child.returncode == 0, errors
            break
    print(f"{name}: {dict(outcomes)}")
    assert not failures, f"{len(failures)} failures of {outcomes.total()} cases\n" + "\n\n".join(failures[:5])
    assert outcomes["refused"] > 0
