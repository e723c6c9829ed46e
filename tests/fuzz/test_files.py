"""Damaged inputs of every format end in success or in one clear error, never in a crash, a traceback or a hang.

`make fuzz MINUTES=60` tries other seeds for longer, with bounds-checked loops.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

import pytest

from tests.fuzz.chance import MINUTES, SEED
from tests.fuzz.formats import FORMATS

CASES = 1 << 40 if MINUTES else 60
REPOSITORY = Path(__file__).parents[2]


@pytest.mark.parametrize("name", FORMATS)
def test_damaged_files(name: str, tmp_path: Path, fuzz_seconds: float) -> None:
    failures: list[str] = []
    outcomes: Counter[str] = Counter()
    seed, last, deadline = SEED, SEED + CASES, time.monotonic() + (fuzz_seconds or 3)
    while seed < last and (seed == SEED or time.monotonic() < deadline):
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
