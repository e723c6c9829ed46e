"""How does paceline compare with its peers on the same rows?

    python benchmarks/peers.py [--rows 1000000] [--folder DIR] [--environments DIR] [--only PART_OF_A_NAME] [--write]

TensorFlow's parameter server, PyTorch's sparse embeddings, scikit-learn, Vowpal Wabbit, LIBLINEAR and Spark MLlib, each
in its own environment: rows per second, seconds to a given test log loss, peak memory, seconds to the first step, bytes
per row. An existing environment is used without changes. A peer that cannot be installed is listed with the reason.

Each case is tuned on rows with another seed and measured. Right after it, the paceline case that it is compared with is
measured. Results are kept in the folder and not measured again unless `--only` names them, so a stopped run continues
where it was. Prints one JSON line per case and the page; `--write` keeps the page and the chart under
benchmarks/results/, and puts the table into README.md.
"""

from __future__ import annotations

import argparse
import itertools
import json
import math
import os
import re
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from cluster import environment, session
from embedded import FEATURES, machine
from paceline.files import replace_file
from peers_page import About, Record, chart, in_readme, page

if TYPE_CHECKING:
    from peer_rows import Data

HERE = Path(__file__).parent
TARGET = 0.5
PASSES = 3
MOST_SECONDS = 90.0
GIVE_UP_SECONDS = 280.0
SPEED_SECONDS = 4.0
# How often to measure cases that take only seconds; the median counts.
ROUNDS = 3
LOOK_SECONDS = 0.25


class Environment(NamedTuple):
    """What a peer needs: the module to import, and what pip installs."""

    module: str
    requirements: list[str]


ENVIRONMENTS = {
    "tensorflow": Environment("tensorflow", ["tensorflow-cpu==2.21.*", "numpy"]),
    "pytorch": Environment("torch", ["torch==2.13.0", "numpy"]),
    "scikit-learn": Environment("sklearn", ["scikit-learn==1.9.*", "scipy", "numpy"]),
    "vowpal-wabbit": Environment("vowpalwabbit", ["vowpalwabbit==9.11.*", "numpy"]),
    "liblinear": Environment("liblinear", ["liblinear-official==2.50.*", "scipy", "numpy"]),
    "spark": Environment("pyspark", ["pyspark==4.3.*", "numpy"]),
}


class Case(NamedTuple):
    """A line of the table. `environment` names a peer's, or is empty for paceline; `grid` is what is tuned."""

    name: str
    environment: str
    script: str
    setting: dict[str, Any]
    grid: dict[str, list[Any]]
    against: str = ""


def ours(name: str, rates: list[float], paces: Sequence[str | int] = (), **flags: Any) -> Case:
    """A case of paceline's; its flags are those of `paceline train`."""
    grid: dict[str, list[Any]] = {"learning_rate": rates, **({"pace": list(paces)} if paces else {})}
    return Case(f"paceline, {name}", "", "", {"optimizer": "sgd", **flags}, grid)


ONE_WORKER, TWO_WORKERS, ADAGRAD = "async, 1 worker", "async, 2 workers", "async, AdaGrad, 1 worker"
SYNC, RAY_ASYNC, RAY_SYNC = "sync, batch 1,000", "Ray, async or pace 1, batch 1,000", "Ray, sync, batch 1,000"
SMALL_RATES, ADAGRAD_RATES, BATCH_RATES = [0.01, 0.02, 0.05], [0.05, 0.1, 0.2], [0.5, 1.0, 2.0, 3.0, 5.0]
ONE_BY_ONE: dict[str, Any] = {"pace": "async", "batch_size": 1}
BATCHES: dict[str, Any] = {"workers": 2, "batch_size": 1000}

CASES = [
    ours(TWO_WORKERS, SMALL_RATES, workers=2, **ONE_BY_ONE),
    ours(ONE_WORKER, SMALL_RATES, workers=1, **ONE_BY_ONE),
    ours(ADAGRAD, ADAGRAD_RATES, workers=1, **{**ONE_BY_ONE, "optimizer": "adagrad"}),
    ours(SYNC, BATCH_RATES, pace="sync", **BATCHES),
    ours(RAY_ASYNC, BATCH_RATES, ["async", 1], engine="ray", **BATCHES),
    ours(RAY_SYNC, BATCH_RATES, pace="sync", engine="ray", **BATCHES),
    *(
        Case(
            f"TensorFlow parameter server, {pace}, batch 1,000", "tensorflow", "tensorflow_server.py",
            {"pace": pace, "batch_size": 1000}, {"rate": [rate / 1000 for rate in BATCH_RATES]}, f"paceline, {against}",
        )
        for pace, against in (("async", RAY_ASYNC), ("sync", RAY_SYNC))
    ),
    *(
        Case(
            f"PyTorch sparse EmbeddingBag, batch {batch_size:,}", "pytorch", "pytorch_embedding.py",
            {"batch_size": batch_size}, {"rate": BATCH_RATES}, f"paceline, {SYNC}",
        )
        for batch_size in (1000, 10_000)
    ),
    *(
        Case(
            f"scikit-learn SGDClassifier{words}", "scikit-learn", "scikit_learn.py", {"shuffle": shuffle},
            {"rate": SMALL_RATES}, f"paceline, {ONE_WORKER}",
        )
        for words, shuffle in (("", True), (", shuffling off", False))
    ),
    *(
        Case(
            f"Vowpal Wabbit, {source}", "vowpal-wabbit", "vowpal_wabbit.py", {"input": source, "passes": passes},
            {"rate": [0.25, 0.5, 1.0, 2.0]}, f"paceline, {ADAGRAD}",
        )
        for source, passes in (("text", 1), ("cache", PASSES))
    ),
    Case(
        "LIBLINEAR", "liblinear", "liblinear_solver.py", {},
        {"solver": [0, 7], "C": [0.05, 0.1, 0.2, 0.5]}, f"paceline, {ONE_WORKER}",
    ),
    Case(
        "Spark MLlib LogisticRegression", "spark", "spark_mllib.py",
        {"iterations": [3], "regularization": 0.0, "memory": "12g"}, {}, f"paceline, {SYNC}",
    ),
]  # fmt: skip


class NotInstalledError(Exception):
    """A peer that cannot be had here; its text says why."""


class FailedError(Exception):
    """A command that failed or did not end."""


# -- environments


def python_of(folder: Path, name: str) -> str:
    """The Python of a peer's environment, which is created if it does not exist."""
    module, requirements = ENVIRONMENTS[name]
    python = folder / name / "bin" / "python"
    if not imports(python, module):
        if not python.exists():
            made = subprocess.run([sys.executable, "-m", "venv", str(folder / name)], capture_output=True, text=True)
            if made.returncode:
                raise NotInstalledError(why_not_installed(made.stderr or made.stdout, "venv"))
        command = [str(python), "-m", "pip", "install", "--quiet", "--disable-pip-version-check", *requirements]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode or not imports(python, module):
            raise NotInstalledError(why_not_installed(done.stderr, module))
    return str(python)


def imports(python: Path, module: str) -> bool:
    if not python.exists():
        return False
    return subprocess.run([str(python), "-c", f"import {module}"], capture_output=True, check=False).returncode == 0


def why_not_installed(said: str, module: str) -> str:
    """The line of pip's output that names the reason, without addresses.

    >>> why_not_installed("WARNING: old\\nERROR: No matching distribution found for torch==9", "torch")
    'No matching distribution found for torch==9'
    >>> why_not_installed("", "torch")
    'it was installed, but `import torch` fails'
    """
    lines = [line.strip() for line in said.splitlines() if line.strip() and not line.startswith(("WARNING", "[notice"))]
    errors = [line.removeprefix("ERROR: ") for line in lines if line.startswith("ERROR: ")] or lines
    reason = errors[-1] if errors else f"it was installed, but `import {module}` fails"
    return without_places(reason)


def without_places(text: str) -> str:
    """A message without the addresses and paths of this machine, and fit for a table.

    >>> without_places("cannot read /home/me/x | see http://host/y")
    'cannot read … , see …'
    """
    return re.sub(r"\w+://\S+|(?<!\S)['\"]?/\S+", "…", text).replace("|", ",")


# -- running


class Finished(NamedTuple):
    """What a command printed, when it started (time of day), and the sum of the memory peaks of its processes."""

    printed: str
    began: float
    peak_memory_bytes: int


def run(command: list[str]) -> Finished:
    """Run a command to its end, in its own session, which ends with it."""
    with tempfile.TemporaryDirectory(prefix="plb") as folder:
        out, log = Path(folder, "out"), Path(folder, "log")
        began, peaks = time.time(), dict[int, int]()
        with (
            out.open("wb") as printed,
            log.open("wb") as errors,
            session(command, environment(), stdout=printed, stderr=errors) as process,
        ):
            while process.poll() is None and time.time() - began < GIVE_UP_SECONDS:
                peaks |= memory_of_session(process.pid)
                time.sleep(LOOK_SECONDS)
        if process.returncode:
            lines = log.read_text(errors="replace").strip().splitlines() or ["it said nothing"]
            print("\n".join(lines[-20:]), file=sys.stderr)
            raise FailedError(
                without_places(lines[-1]) if time.time() - began < GIVE_UP_SECONDS else "it did not end in time"
            )
        return Finished(out.read_text(), began, sum(peaks.values()))


def memory_of_session(leader: int) -> dict[int, int]:
    """The peak resident memory so far (VmHWM) of each process in a session."""
    peaks = {}
    for pid in map(int, filter(str.isdecimal, os.listdir("/proc"))):
        try:
            found = re.search(r"VmHWM:\s+(\d+) kB", Path(f"/proc/{pid}/status").read_text())
            # A process that has ended and is not yet waited for has no memory.
            if found and os.getsid(pid) == leader:
                peaks[pid] = 1024 * int(found[1])
        except (ProcessLookupError, FileNotFoundError):
            continue
    return peaks


def train_paceline(data: Path, setting: dict[str, Any], **flags: Any) -> Record:
    """A run of `paceline train`, as a record."""
    with tempfile.TemporaryDirectory(prefix="plb") as folder:
        command = [sys.executable, "-m", "paceline", "train", "--data", str(data), "--run", f"{folder}/run"]
        for name, value in {"checkpoint_every": 0, **setting, **flags}.items():
            command += [f"--{name.replace('_', '-')}", str(value)]
        finished = run(command)
        result = json.loads(Path(folder, "run", "result.json").read_text())
        metrics = [json.loads(line) for line in Path(folder, "run", "metrics.jsonl").read_text().splitlines()]
    record = {
        "rows_per_second": result["rows_per_second"],
        "startup_seconds": result["startup_seconds"],
        "curve": [[line["rows"], line["seconds"], line["test_loss"]] for line in metrics],
        "peak_memory_bytes": finished.peak_memory_bytes,
    }
    return record | ({"bytes_per_row": result["wire"]["bytes_per_row"]} if setting.get("engine") == "ray" else {})


def train_peer(case: Case, python: str, data: Data, setting: dict[str, Any]) -> Record:
    """A run of a peer's script, as a record."""
    script = str(HERE / "peers" / case.script)
    setting = {"features": FEATURES, "passes": PASSES, "most_seconds": MOST_SECONDS, **setting}
    if case.environment == "tensorflow":
        finished = run([python, script, *tensorflow_words(data.exported, setting)])
    else:
        finished = run([python, script, str(data.exported), json.dumps(setting)])
    try:
        found = json.loads(finished.printed.splitlines()[-1])
    except (IndexError, ValueError):
        raise FailedError(f"{case.script} printed no record") from None
    kept = {name: found[name] for name in ("rows_per_second", "curve", "version", "bytes_per_row") if name in found}
    # One that trains for a time may have made more passes than all others.
    kept["curve"] = [point for point in kept["curve"] if point[0] <= PASSES * data.num_rows]
    return kept | {
        "startup_seconds": found["first_step_at"] - finished.began,
        "peak_memory_bytes": finished.peak_memory_bytes,
    }


def tensorflow_words(exported: Path, setting: dict[str, Any], evaluated: bool = True) -> list[str]:
    """The command line of tensorflow_server.py, which trains for a given time, not for a number of passes."""
    seconds = 5.0 if setting["tune"] else 20.0
    tests = ["--test", str(exported / "test"), "--test-every", "50"] if evaluated else []
    return [
        str(exported / "train"), "--features", str(setting["features"]), "--pace", setting["pace"],
        "--batch-size", str(setting["batch_size"]), "--rate", str(setting["rate"]), "--seconds", str(seconds), *tests,
    ]  # fmt: skip


def tensorflow_speed(case: Case, python: str, data: Data, setting: dict[str, Any]) -> Record:
    """Rows per second and bytes per row of TensorFlow's server without evaluations, as for paceline."""
    words = tensorflow_words(data.exported, {"features": FEATURES, **setting, "tune": True}, evaluated=False)
    found = json.loads(run([python, str(HERE / "peers" / case.script), *words]).printed.splitlines()[-1])
    return {name: found[name] for name in ("rows_per_second", "bytes_per_row")}


# -- measuring


def tune(case: Case, python: str, data: Data) -> dict[str, Any]:
    """The setting with the lowest loss on held-out tuning rows after one pass; among equals, the fastest."""
    found_at: list[tuple[float, float, dict[str, Any]]] = []
    for values in itertools.product(*case.grid.values()):
        tried = dict(zip(case.grid, values, strict=True))
        try:
            if case.environment:
                found = train_peer(case, python, data, {**case.setting, **tried, "tune": True, "passes": 1})
            else:
                found = train_paceline(data.dataset, {**case.setting, **tried}, epochs=1)
        except FailedError as error:
            say({"tuning": case.name, **tried, "failed": str(error)})
            continue
        _, seconds, loss = found["curve"][-1]
        if not math.isfinite(loss):
            continue
        found_at.append((round(loss, 4), seconds, tried))
        say({"tuning": case.name, **tried, "loss": round(loss, 5), "seconds": round(seconds, 2)})
    if not found_at:
        raise FailedError("it failed or diverged at every setting that was tried")
    return min(found_at, key=lambda one: one[:2])[2]


def measure(case: Case, python: str, data: Data, tuned: dict[str, Any]) -> Record:
    """The record of a case: the round whose training took the median time."""
    setting = {**case.setting, **tuned}
    if case.environment:
        found = median([train_peer(case, python, data, {**setting, "tune": False}) for _ in range(num_rounds(case))])
        return found | (tensorflow_speed(case, python, data, setting) if case.environment == "tensorflow" else {})
    flags = {"epochs": PASSES, "test_every": data.num_rows // 10}
    learned = median([train_paceline(data.dataset, setting, **flags) for _ in range(num_rounds(case))])
    return learned | {"rows_per_second": speed(case, data, tuned)}


def median(rounds: list[Record]) -> Record:
    return sorted(rounds, key=lambda record: record["curve"][-1][1])[len(rounds) // 2]


def num_rounds(case: Case) -> int:
    quick = case.environment == "scikit-learn" or (not case.environment and "engine" not in case.setting)
    return ROUNDS if quick else 1


def speed(case: Case, data: Data, tuned: dict[str, Any]) -> float:
    """Rows per second of a paceline case without evaluations."""
    setting = {**case.setting, **tuned}
    rounds = [train_paceline(data.dataset, setting, seconds=SPEED_SECONDS) for _ in range(num_rounds(case))]
    return float(statistics.median(record["rows_per_second"] for record in rounds))


def take(case: Case, records: dict[str, Record], folders: argparse.Namespace, data: Data, tuning: Data) -> Record:
    """Install, tune and measure a case; if that fails, the reason is its record."""
    record: Record = {"case": case.name, "against": case.against, "date": f"{datetime.now(UTC):%Y-%m-%d}"}
    try:
        python = python_of(folders.environments, case.environment) if case.environment else sys.executable
        tuned = tune(case, python, tuning) if case.grid else {}
        record |= {"setting": {**case.setting, **tuned}, "grid": case.grid}
        record |= measure(case, python, data, tuned)
    except NotInstalledError as error:
        return record | {"left_out": f"could not be installed: {error}"}
    except FailedError as error:
        return record | {"left_out": f"failed: {error}"}
    if case.against in records and "setting" in records[case.against]:
        ours_now = next(one for one in CASES if one.name == case.against)
        rates = {name: records[case.against]["setting"][name] for name in ours_now.grid}
        record["paceline_rows_per_second"] = speed(ours_now, data, rates)
    return record


def say(line: dict[str, Any]) -> None:
    print(json.dumps(line), flush=True)


def machine_name() -> str:
    """This machine in a file name."""
    cores, _, model = machine().partition(" cores (")
    words = re.sub(r"\(R\)|\(TM\)|CPU|Processor|@.*", " ", model.partition("),")[0])
    return "-".join([cores, "cores", *re.findall(r"[a-z0-9]+", words.lower())])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--folder", type=Path, default=Path("build/peers"), help="where data and measurements are kept")
    parser.add_argument(
        "--environments", type=Path, help="a folder of the peers' environments, in --folder if left out"
    )
    parser.add_argument("--only", help="measure the cases with this in their name, again if they were")
    parser.add_argument("--target", type=float, default=TARGET, help="the test log loss to reach")
    parser.add_argument("--write", action="store_true", help="keep page and chart, and the table in README.md")
    flags = parser.parse_args()
    folder = flags.folder.resolve()
    flags.environments = (flags.environments or folder / "environments").absolute()
    for path in (folder, flags.environments):
        path.mkdir(parents=True, exist_ok=True)
    kept = folder / f"measured-{flags.rows}.json"
    records: dict[str, Record] = json.loads(kept.read_text()) if kept.exists() else {}
    chosen = [case for case in CASES if (flags.only in case.name if flags.only else not is_measured(case, records))]
    if not chosen and flags.only:
        sys.exit(f"error: no case has `{flags.only}` in its name\nhint: {', '.join(case.name for case in CASES)}")
    if chosen:
        from peer_rows import make_data

        data, tuning = make_data(folder, flags.rows)
    for case in chosen:
        records[case.name] = take(case, records, flags, data, tuning)
        say(records[case.name])
        replace_file(kept, json.dumps(records, indent=1).encode())
    show([records.get(case.name, {"case": case.name, "left_out": "not measured yet"}) for case in CASES], flags)


def is_measured(case: Case, records: dict[str, Record]) -> bool:
    """Whether a case is already measured; one that was left out is tried again."""
    return case.name in records and "left_out" not in records[case.name]


def show(records: list[Record], flags: argparse.Namespace) -> None:
    """Print the page; on request, keep it and the chart."""
    name = f"{datetime.now(UTC):%Y-%m-%d}-{machine_name()}"
    about = About(machine(), flags.rows, FEATURES, PASSES, ROUNDS)
    text = page(records, about, flags.target, f"{name}-peers.svg")
    print(text)
    if flags.write:
        (HERE / "results" / f"{name}.md").write_text(text)
        title = f"Rows per second, {flags.rows:,} click rows, log scale"
        (HERE / "results" / f"{name}-peers.svg").write_text(chart(records, title))
        readme = HERE.parent / "README.md"
        replace_file(readme, in_readme(readme.read_text(), records, about, flags.target, name).encode())


if __name__ == "__main__":
    main()
