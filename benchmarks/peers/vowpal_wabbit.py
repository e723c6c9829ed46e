"""How fast is Vowpal Wabbit on the same rows, from text and from its cache?  (called as described in rows.py)

The setting has `rate` and `input`, `text` or `cache`. Each point of the curve is a separate run over that many rows,
including reading, because Vowpal Wabbit reads while it learns. Several passes need the cache; the seconds do not
include writing it.
"""

from __future__ import annotations

import tempfile
import time
from pathlib import Path

import numpy as np
import vowpalwabbit

from rows import answer, asked, log_loss, steady_rate, tenths


def run(words: str) -> float:
    """Read all the rows and learn, or score; the seconds it took, without the model's writing at the end."""
    began = time.perf_counter()
    workspace = vowpalwabbit.Workspace(f"--quiet {words}")
    seconds = time.perf_counter() - began
    workspace.finish()
    return seconds


def main() -> None:
    folder, setting = asked()
    labels = np.load(folder / "test" / "labels.npy")
    num_rows = len(np.load(folder / "train" / "labels.npy", mmap_mode="r"))
    with tempfile.TemporaryDirectory(dir=folder) as temporary:
        model, cache, out = (Path(temporary, name) for name in ("model", "cache", "scores"))
        learning = f"--loss_function logistic -b 25 -l {setting['rate']} --holdout_off"
        text = f"-d {folder / 'train.vw'}"
        run(f"{text} {learning} --examples 1")
        first_step_at, source, curve = time.time(), text, []
        if setting["input"] == "cache":
            source = f"{text} --cache_file {cache}"
            run(f"{source} {learning}")

        def add_point(count: int, words: str) -> None:
            seconds = run(f"{source} {learning} {words} -f {model}")
            run(f"-t -i {model} -d {folder / 'test.vw'} -r {out}")
            curve.append([count, seconds, log_loss(np.loadtxt(out), labels)])

        for count in tenths(num_rows, setting):
            add_point(count, f"--examples {count}")
        for passes in range(2, setting["passes"] + 1):
            add_point(passes * num_rows, f"--passes {passes}")
    answer(
        rows_per_second=steady_rate(curve), first_step_at=first_step_at, curve=curve, version=vowpalwabbit.__version__
    )


if __name__ == "__main__":
    main()
