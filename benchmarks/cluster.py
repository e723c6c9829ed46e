"""How fast is training over Ray, compared with TensorFlow's parameter server, and over hosts with slow links?

    python benchmarks/cluster.py --hosts 1 [--tensorflow-python PYTHON_WITH_TENSORFLOW] [--rounds 3] [--write]
    python benchmarks/cluster.py --hosts 5 [--bandwidth 1.8Gbit] [--rounds 3] [--write]    (as root)

One host: two workers and a shard on this machine. Right after each case, TensorFlow trains on the same rows with two
workers and a server. Measures rows per second, bytes per row and seconds to the first step. Five hosts: a shard and
four workers, each in a network namespace with its own Ray node and its own rate-limited link. Measures rows per second,
and what each host sends, receives and computes.

Prints one JSON line per measurement, then a line and a table of the medians; `--write` keeps the table under
benchmarks/results/. Everything that was started is ended: Ray, TensorFlow, namespaces.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import secrets
import shutil
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from embedded import FEATURES, machine
from hosts import Hosts, Sampler, bits_per_second, exit_on_signals, measure_links, uninterrupted

HERE = Path(__file__).parent
SECONDS = 5.0
# Over slow links the whole model takes seconds per step: 135 MB for each worker.
SLOW_SECONDS = 12.0
GIVE_UP_SECONDS = 300.0
MARGIN_SECONDS = 0.5

# (pace, batch size, the least ratio to TensorFlow's rows per second)
SPEED_CASES = [("async", 100, 20.0), ("async", 1000, 12.0), ("async", 10_000, 6.0), ("sync", 1000, 8.0)]
# name → (settings, most bytes per row)
BYTES_CASES: dict[str, tuple[list[str], float | None]] = {
    "default settings": ([], 140.0),
    "key deltas": (["wire.key_deltas=true"], 115.0),
    "key deltas, float16": (["wire.key_deltas=true", 'wire.values="float16"'], 70.0),
    "key deltas, bfloat16": (["wire.key_deltas=true", 'wire.values="bfloat16"'], None),
    "whole model": (['wire.pull="all"'], None),
}
BYTES_BATCH_SIZE = 1000
FIRST_STEP_SECONDS = {"Ray running": 3.0, "starting Ray": 12.0}
RAY_PORT = 6379
PULLS = ("keys", "all")


def make_data(folder: Path, rows: int) -> Path:
    """The dataset of generated clicks, kept in the folder."""
    from paceline.data.synthetic import generate_clicks

    data = folder / f"clicks-{rows}"
    if not data.exists():
        generate_clicks(data, rows=rows, features=FEATURES, test_rows=rows // 10, seed=0, progress=lambda _: None)
    return data


def export_rows(data: Path) -> Path:
    """The training rows for TensorFlow, with the input's keys: keys.npy, values.npy, labels.npy in a sibling folder."""
    from paceline.data.sparse.dataset import SparseDataset

    out = data.with_name(f"{data.name}-arrays")
    if out.exists():
        return out
    dataset = SparseDataset(data)
    blocks = [dataset.block("train", i) for i in range(len(dataset.split("train").blocks))]
    input_key = dataset.key_order.to_blocks(np.arange(dataset.features, dtype=np.int32))
    num_rows = sum(block.num_rows for block in blocks)
    partial = data.with_name(f"{out.name}-partial")
    shutil.rmtree(partial, ignore_errors=True)
    partial.mkdir()
    keys = np.concatenate([input_key[block.keys] for block in blocks])
    np.save(partial / "keys.npy", keys.astype(np.int64).reshape(num_rows, -1))
    values = np.concatenate([block.values for block in blocks])
    np.save(partial / "values.npy", values.astype(np.float32).reshape(num_rows, -1))
    np.save(partial / "labels.npy", np.concatenate([block.labels for block in blocks]).astype(np.float32))
    partial.rename(out)
    return out


def end_session(process: subprocess.Popen[Any]) -> None:
    """End a process that leads its own session, and every process in that session."""
    if process.poll() is None:
        process.send_signal(signal.SIGTERM)
        try:
            process.wait(10)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
    while left := [pid for pid in map(int, filter(str.isdecimal, os.listdir("/proc"))) if in_session(pid, process.pid)]:
        for pid in left:
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                continue
        time.sleep(0.05)


def in_session(pid: int, session: int) -> bool:
    try:
        ended = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] in "ZX"
        return not ended and os.getsid(pid) == session
    except (ProcessLookupError, FileNotFoundError):
        return False


@contextmanager
def session(command: Sequence[str], env: dict[str, str], **streams: Any) -> Iterator[subprocess.Popen[Any]]:
    """A command in its own session; the whole session ends with the context."""
    process = subprocess.Popen(command, env=env, stdin=subprocess.DEVNULL, start_new_session=True, **streams)
    try:
        yield process
    finally:
        with uninterrupted():
            end_session(process)


def wait_for(process: subprocess.Popen[Any], log: Path) -> None:
    """Wait until a command is done. If it fails or does not end, stop the benchmark and show the end of its log."""
    try:
        status = f"ended with {process.wait(GIVE_UP_SECONDS)}"
    except subprocess.TimeoutExpired:
        status = f"was not done after {GIVE_UP_SECONDS:g} seconds"
    if process.returncode != 0:
        sys.exit(f"error: {process.args!r} {status}\n{log.read_text(errors='replace')[-4000:]}")


def train_command(data: Path, run: Path, flags: dict[str, Any], settings: Iterable[str] = ()) -> list[str]:
    command = [sys.executable, "-m", "paceline", "train", "--data", str(data), "--run", str(run), "--engine", "ray",
               "--optimizer", "sgd", "--learning-rate", "0.02", "--checkpoint-every", "0"]  # fmt: skip
    for name, value in flags.items():
        command += [f"--{name.replace('_', '-')}", str(value)]
    for setting in settings:
        command += ["--set", setting]
    return command


def train(
    data: Path, flags: dict[str, Any], settings: Iterable[str] = (), env: dict[str, str] | None = None
) -> dict[str, Any]:
    """Train on this machine with two workers and a shard; return the result. Without `address`, start a Ray."""
    with tempfile.TemporaryDirectory(prefix="plb") as folder:
        run, log = Path(folder, "run"), Path(folder, "log")
        command = train_command(data, run, {"workers": 2, "shards": 1, **flags}, settings)
        with log.open("wb") as out, session(command, environment(env), stdout=out, stderr=out) as process:
            wait_for(process, log)
        return dict(json.loads((run / "result.json").read_text()))


def train_tensorflow(python: str, rows: Path, pace: str, batch_size: int) -> dict[str, Any]:
    """TensorFlow on the same rows: `rows_per_second`, and `startup_seconds` to the first step of every worker."""
    command = [python, str(HERE / "peers" / "tensorflow_server.py"), str(rows), "--features", str(FEATURES),
               "--pace", pace, "--batch-size", str(batch_size), "--seconds", str(SECONDS)]  # fmt: skip
    with tempfile.TemporaryDirectory(prefix="plb") as folder:
        log, out = Path(folder, "log"), Path(folder, "out")
        began = time.time()
        with (
            log.open("wb") as errors,
            out.open("wb") as answer,
            session(command, environment(), stdout=answer, stderr=errors) as process,
        ):
            wait_for(process, log)
        found = json.loads(out.read_text())
    return {"rows_per_second": found["rows_per_second"], "startup_seconds": found["first_step_at"] - began}


def environment(more: dict[str, str] | None = None) -> dict[str, str]:
    """The environment of this process, without the address of any Ray that is already running."""
    return {name: value for name, value in os.environ.items() if name != "RAY_ADDRESS"} | (more or {})


def ray_command(address: str, folder: Path, num_cpus: int, head: str | None = None) -> list[str]:
    """The command that runs a Ray node. `head` is the address of the head, or None if the node is the head."""
    ip, _, port = address.partition(":")
    place = [f"--address={head}"] if head else ["--head", f"--port={port}", "--include-dashboard=false"]
    return [sys.executable, "-m", "ray.scripts.scripts", "start", "--block", *place, f"--node-ip-address={ip}",
            f"--temp-dir={folder}", f"--num-cpus={num_cpus}", f"--object-store-memory={512 << 20}",
            "--include-log-monitor=false", "--disable-usage-stats"]  # fmt: skip


def ray_token(folder: Path) -> dict[str, str]:
    """The environment of nodes and drivers that share a new token, in a file that only its owner reads."""
    path = folder / "token"
    path.touch(mode=0o600)
    path.write_text(secrets.token_hex(32))
    return {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN_PATH": str(path)}


def wait_for_ray(process: subprocess.Popen[Any], log: Path) -> None:
    deadline = time.monotonic() + 60
    while "Ray runtime started" not in log.read_text(errors="replace"):
        if process.poll() is not None or time.monotonic() > deadline:
            sys.exit(f"error: Ray did not start\n{log.read_text(errors='replace')[-4000:]}")
        time.sleep(0.1)


@contextmanager
def running_ray() -> Iterator[tuple[str, dict[str, str]]]:
    """A Ray node on the loopback: (its address, the environment that a driver needs)."""
    # Ray replaces 127.0.0.1 by the machine's network address, but keeps other addresses in 127.0.0.0/8.
    with socket.create_server(("127.0.0.2", 0)) as free:
        address = f"127.0.0.2:{free.getsockname()[1]}"
    with tempfile.TemporaryDirectory(prefix="plb", ignore_cleanup_errors=True) as folder:
        env, log = ray_token(Path(folder)), Path(folder, "log")
        with (
            log.open("wb") as out,
            session(ray_command(address, Path(folder, "ray"), 4), environment(env), stdout=out, stderr=out) as node,
        ):
            wait_for_ray(node, log)
            yield address, env


def say(line: dict[str, Any]) -> None:
    print(json.dumps(line), flush=True)


def measure_speed(data: Path, python: str | None, rounds: int) -> tuple[list[dict[str, Any]], list[float]]:
    """The lines of the speed cases, and TensorFlow's seconds to the first step."""
    rows = export_rows(data) if python else data
    rates: dict[str, list[float]] = {}
    ratios: dict[str, list[float]] = {}
    startups = []
    for _ in range(rounds):
        for pace, batch_size, _ in SPEED_CASES:
            name = f"{pace}, batch {batch_size:,}"
            rate = train(data, {"pace": pace, "batch_size": batch_size, "seconds": SECONDS})["rows_per_second"]
            rates.setdefault(name, []).append(rate)
            measured = {"measured": name, "rows_per_second": round(rate)}
            if python:
                peer = train_tensorflow(python, rows, pace, batch_size)
                rates.setdefault(f"TensorFlow, {name}", []).append(peer["rows_per_second"])
                ratios.setdefault(name, []).append(rate / peer["rows_per_second"])
                startups.append(peer["startup_seconds"])
                measured["tensorflow_rows_per_second"] = round(peer["rows_per_second"])
            say(measured)
    lines = []
    for pace, batch_size, at_least in SPEED_CASES:
        name = f"{pace}, batch {batch_size:,}"
        line = {"case": name, "rows_per_second": round(statistics.median(rates[name]))}
        if name in ratios:
            ratio = statistics.median(ratios[name])
            line |= {"tensorflow_rows_per_second": round(statistics.median(rates[f"TensorFlow, {name}"])),
                     "ratio": round(ratio, 1), "at_least": at_least, "holds": ratio >= at_least}  # fmt: skip
        lines.append(line)
    return lines, startups


def measure_bytes(data: Path, address: str, env: dict[str, str]) -> list[dict[str, Any]]:
    lines = []
    for name, (settings, at_most) in BYTES_CASES.items():
        flags = {"pace": "async", "batch_size": BYTES_BATCH_SIZE, "address": address, "seconds": SECONDS}
        result = train(data, flags, settings, env)
        value = result["wire"]["bytes_per_row"]
        line = {"case": f"bytes per row, {name}", "value": round(value, 1),
                "rows_per_second": round(result["rows_per_second"])}  # fmt: skip
        lines.append(line | ({} if at_most is None else {"at_most": at_most, "holds": value <= at_most}))
        say(lines[-1])
    return lines


def measure_first_step(data: Path, flags: dict[str, Any], env: dict[str, str] | None, rounds: int) -> float:
    """Seconds from the command to its first step, the median."""
    flags = {"pace": "sync", "batch_size": BYTES_BATCH_SIZE, "steps": 1, **flags}
    return statistics.median(float(train(data, flags, (), env)["startup_seconds"]) for _ in range(rounds))


def one_host(data: Path, python: str | None, rounds: int) -> list[dict[str, Any]]:
    """Every case on this machine alone, as rows of the table."""
    train(data, {"pace": "async", "batch_size": 1000, "steps": 10})  # compiles everything
    lines, tensorflow_startups = measure_speed(data, python, rounds)
    startups = {"starting Ray": measure_first_step(data, {}, None, rounds)}
    with running_ray() as (address, env):
        startups["Ray running"] = measure_first_step(data, {"address": address}, env, rounds)
        lines += measure_bytes(data, address, env)
    for name, at_most in FIRST_STEP_SECONDS.items():
        lines.append({"case": f"command to first step, {name}, seconds", "value": round(startups[name], 2),
                      "at_most": at_most, "holds": startups[name] <= at_most})  # fmt: skip
    if tensorflow_startups:
        value = round(statistics.median(tensorflow_startups), 2)
        lines.append({"case": "command to first step, TensorFlow, seconds", "value": value})
    return lines


def one_host_markdown(lines: list[dict[str, Any]], rows: int, rounds: int) -> str:
    """The table, with date and machine."""
    out = (
        f"# Training over Ray, {datetime.now(UTC):%Y-%m-%d}\n\n"
        f"{machine()}. {rows:,} click rows, {FEATURES:,} features, 2 workers and 1 shard on this machine, SGD, "
        f"{SECONDS:g} seconds per measurement, medians of {rounds} rounds; TensorFlow's parameter server with "
        f"2 workers and 1 server on the same rows, each time right after. Bytes per row are measured in async at batch "
        f"{BYTES_BATCH_SIZE:,}. `python benchmarks/cluster.py --hosts 1`.\n\n"
        f"| case | figure | rows/s | TensorFlow, rows/s | ratio | required | holds |\n|---|---|---|---|---|---|---|\n"
    )
    for line in lines:
        peer = f"{line['tensorflow_rows_per_second']:,}" if "tensorflow_rows_per_second" in line else ""
        rate = f"{line['rows_per_second']:,}" if "rows_per_second" in line else ""
        figure = f"{line['value']:,}" if "value" in line else ""
        asked = (
            f"≥ {line['at_least']:g}" if "at_least" in line else f"≤ {line['at_most']:g}" if "at_most" in line else ""
        )
        holds = ("yes" if line["holds"] else "**no**") if "holds" in line else ""
        out += f"| {line['case']} | {figure} | {rate} | {peer} | {line.get('ratio', '')} | {asked} | {holds} |\n"
    return out


class LabCase(NamedTuple):
    """A training run over the hosts; `pull` says whether a worker asks for its batch's keys or for the whole model."""

    pace: str
    batch_size: int
    pull: str

    @property
    def name(self) -> str:
        pace = f"pace {self.pace}" if self.pace.isdecimal() else self.pace
        return f"{pace}, batch {self.batch_size:,}, {'whole model' if self.pull == 'all' else 'keys'}"


LAB_CASES = [
    LabCase(pace, batch_size, pull)
    for pull in PULLS
    for pace in ("sync", "async", "4")
    for batch_size in (100, 1000, 10_000)
]


@contextmanager
def lab(num_hosts: int, bandwidth: str) -> Iterator[tuple[Hosts, dict[str, str]]]:
    """Hosts with a Ray node of one processor each, host 0 the head; and the environment that a driver needs."""
    with Hosts(num_hosts, bandwidth) as hosts:
        env = ray_token(hosts.folder)
        started = []
        for i, folder in enumerate(hosts.folders):
            head = f"{hosts.addresses[0]}:{RAY_PORT}" if i else None
            command = ray_command(f"{hosts.addresses[i]}:{RAY_PORT}", folder / "ray", 1, head)
            with (folder / "log").open("wb") as out:
                started.append((hosts.start(i, command, env=environment(env), stdout=out, stderr=out), folder / "log"))
            if not head:
                wait_for_ray(*started[0])
        for node, log in started:
            wait_for_ray(node, log)
        yield hosts, env


def train_in_lab(hosts: Hosts, env: dict[str, str], data: Path, case: LabCase) -> dict[str, Any]:
    """One run with its command on host 0: speed, bytes, and what the host of each role used."""
    run, log = hosts.folder / f"run-{time.monotonic_ns()}", hosts.folder / "log"
    flags = {"pace": case.pace, "batch_size": case.batch_size, "workers": len(hosts.names) - 1, "shards": 1,
             "address": f"{hosts.addresses[0]}:{RAY_PORT}",
             "seconds": SLOW_SECONDS if case.pull == "all" else SECONDS}  # fmt: skip
    command = train_command(data, run, flags, [f'wire.pull="{case.pull}"'] if case.pull == "all" else [])
    with log.open("wb") as out, Sampler(hosts) as sampler:
        asked = time.monotonic()
        process = hosts.start(0, command, env=environment(env), stdout=out, stderr=out)
        roles = wait_for_roles(process, run / "roles.json", len(hosts.names))
        wait_for(process, log)
    result = json.loads((run / "result.json").read_text())
    began = asked + result["startup_seconds"]
    # Stop before the very end, when the trained model travels to host 0.
    margin = min(MARGIN_SECONDS, result["train_seconds"] / 4)
    used = sampler.rates(began + margin, began + result["train_seconds"] - margin)
    places = places_of_roles(roles, hosts.addresses)
    shutil.rmtree(run)
    return {
        "measured": case.name,
        "rows_per_second": round(result["rows_per_second"], 1),
        "step_seconds": round(result["train_seconds"] / result["steps"], 5),
        "bytes_per_row": round(result["wire"]["bytes_per_row"], 1),
        "startup_seconds": round(result["startup_seconds"], 2),
        "roles": [
            {"role": role, "host": f"host {i}", "sent_megabytes_per_second": round(used[i].sent_bytes / 1e6, 2),
             "received_megabytes_per_second": round(used[i].received_bytes / 1e6, 2),
             "processor_share": round(used[i].cpu_seconds, 3)}
            for role, i in places
        ],
    }  # fmt: skip


def wait_for_roles(process: subprocess.Popen[Any], path: Path, count: int) -> list[dict[str, Any]]:
    """The shards and workers of a run as soon as roles.json has them all; it is empty again when the run is over."""
    roles: list[dict[str, Any]] = []
    deadline = time.monotonic() + GIVE_UP_SECONDS
    while len(roles) < count and process.poll() is None and time.monotonic() < deadline:
        time.sleep(0.1)
        if path.exists():
            roles = [role for role in json.loads(path.read_text()) if role["role"] in ("shard", "worker")]
    return roles


def places_of_roles(roles: list[dict[str, Any]], addresses: list[str]) -> list[tuple[str, int]]:
    """(for instance `worker 2`, its host) for shards and then workers, by the addresses in roles.json."""
    found = []
    for role in sorted(roles, key=lambda role: (role["role"], role["rank"])):
        ip = re.findall(r"\d+\.\d+\.\d+\.\d+", f"{role['node']} {role['address']}")[0]
        found.append((f"{role['role']} {role['rank']}", addresses.index(ip)))
    return found


def over_hosts(data: Path, num_hosts: int, bandwidth: str, rounds: int) -> tuple[list[dict[str, Any]], str]:
    """Every case over the hosts, as rows of the tables; and what the links were measured to pass."""
    with lab(num_hosts, bandwidth) as (hosts, env):
        links = measure_links(hosts)
        for link in links:
            say(link)
        measured: dict[str, list[dict[str, Any]]] = {}
        for _ in range(rounds):
            for case in LAB_CASES:
                measured.setdefault(case.name, []).append(train_in_lab(hosts, env, data, case))
                say(measured[case.name][-1])
    passed = ", ".join(f"{link['bits_per_second'] / 1e9:.2f}" for link in links)
    return [medians(results) for results in measured.values()], passed


def medians(results: list[dict[str, Any]]) -> dict[str, Any]:
    """One table row per case: the medians over its rounds, and every host that a role ran on."""
    line: dict[str, Any] = {}
    for name, value in results[0].items():
        each = [result[name] for result in results]
        if isinstance(value, str):
            line["case" if name == "measured" else name] = " or ".join(dict.fromkeys(each))
        elif isinstance(value, list):
            line[name] = [medians(list(of_role)) for of_role in zip(*each, strict=True)]
        else:
            line[name] = statistics.median(each)
    return line


def over_hosts_markdown(lines: list[dict[str, Any]], passed: str, rows: int, rounds: int, bandwidth: str) -> str:
    """The tables, with date and machine."""
    roles = [each["role"] for each in lines[0]["roles"]]
    num_hosts = len(roles)
    out = (
        f"# Training over {num_hosts} hosts, {datetime.now(UTC):%Y-%m-%d}\n\n"
        f"{num_hosts} network namespaces of one machine, each with a link of {bandwidth} both ways "
        f"({bits_per_second(bandwidth) / 8e6:,.0f} MB/s; measured with TCP one way, the other, and two hosts to one: "
        f"{passed} Gbit/s) and a Ray node with a token. **All hosts share the processors of the machine**: "
        f"{machine()}. If the processors are the limit, separate machines would be faster.\n\n"
        f"{rows:,} click rows, {FEATURES:,} features, {num_hosts - 1} workers and 1 shard, SGD, {SECONDS:g} seconds "
        f"per measurement, {SLOW_SECONDS:g} if the whole model is pulled, medians of {rounds} rounds; the command runs "
        f"on host 0. `python benchmarks/cluster.py --hosts {num_hosts} --bandwidth {bandwidth}`.\n\n"
        f"| case | rows/s | step, ms | bytes per row | start-up, s |\n|---|---|---|---|---|\n"
    )
    for line in lines:
        out += (
            f"| {line['case']} | {line['rows_per_second']:,.0f} | {1e3 * line['step_seconds']:,.2f} "
            f"| {line['bytes_per_row']:,.1f} | {line['startup_seconds']:.1f} |\n"
        )
    out += (
        f"\nWhat the host of each role sent and received through its link (MB/s) and its share of one processor, while "
        f"training. Ray chooses which host a role goes to.\n\n"
        f"| case | {' | '.join(roles)} |\n|---|{'---|' * num_hosts}\n"
    )
    for line in lines:
        cells = [
            f"{each['host']}: {each['sent_megabytes_per_second']:,.1f} sent, "
            f"{each['received_megabytes_per_second']:,.1f} received, {each['processor_share']:.0%}"
            for each in line["roles"]
        ]
        out += f"| {line['case']} | {' | '.join(cells)} |\n"
    return out


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--hosts", type=int, default=1, help="1 for this machine alone, more for network namespaces")
    parser.add_argument("--bandwidth", default="1.8Gbit", help="bandwidth of each host's link, in tc's notation")
    parser.add_argument("--tensorflow-python", help="a Python that has tensorflow, to compare with")
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--rounds", type=int, default=3, help="how often to measure; the medians count")
    parser.add_argument("--folder", type=Path, help="where the data is kept; default: a temporary folder")
    parser.add_argument("--write", action="store_true", help="keep the table under benchmarks/results/")
    arguments = parser.parse_args()
    if arguments.hosts < 1:
        sys.exit(f"error: `hosts` is {arguments.hosts}; it is 1 or more\nhint: --hosts 5 is a shard and four workers")
    exit_on_signals()
    with tempfile.TemporaryDirectory() as temporary:
        folder = arguments.folder or Path(temporary)
        folder.mkdir(parents=True, exist_ok=True)
        data = make_data(folder.resolve(), arguments.rows)
        if arguments.hosts == 1:
            lines = one_host(data, arguments.tensorflow_python, arguments.rounds)
            table = one_host_markdown(lines, arguments.rows, arguments.rounds)
        else:
            lines, passed = over_hosts(data, arguments.hosts, arguments.bandwidth, arguments.rounds)
            table = over_hosts_markdown(lines, passed, arguments.rows, arguments.rounds, arguments.bandwidth)
    for line in lines:
        say(line)
    print(table)
    if arguments.write:
        name = "cluster" if arguments.hosts == 1 else f"cluster-{arguments.hosts}-hosts"
        (HERE / "results" / f"{datetime.now(UTC):%Y-%m-%d}-{name}.md").write_text(table)


if __name__ == "__main__":
    main()
