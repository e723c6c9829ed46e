"""How fast is TensorFlow's parameter server on the same rows?

    python benchmarks/peers/tensorflow_server.py ROWS --features D --pace sync|async --batch-size B [--workers 2]
        [--rate 0.005] [--test ROWS --test-every STEPS]

Runs under a Python with tensorflow and numpy; paceline is not needed. ROWS is a folder with `keys.npy` (int64
[rows, nonzeros]), `values.npy` (float32, same shape) and `labels.npy` (float32 [rows]); see benchmarks/cluster.py.

One server holds the weights. A worker gathers the distinct keys of its batch, and only their slopes go back. Timing
starts when every worker is warm. Workers continue past its end until all have reported, so that none is measured
alone. The other workers ask for their session when the first one has it; by default they would poll every 30 seconds.
Prints one JSON line. `first_step_at` is the time of day at which the last worker finished its first step, and
`bytes_per_row` counts the traffic on the loopback meanwhile. With `--test`, the first worker reads the weights of the
test rows every STEPS of its steps, which takes some milliseconds, and `curve` has [rows, seconds, test log loss]. The
rows are scored after timing has stopped.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import queue
import socket
import sys
import threading
import time
from importlib.metadata import version
from multiprocessing.queues import Queue
from multiprocessing.sharedctypes import Synchronized
from multiprocessing.synchronize import Event
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from rows import load, log_loss

WARM_STEPS = 5
CONTEXT = multiprocessing.get_context("spawn")


# (rows, seconds, weights of the test rows' distinct keys)
Look = tuple[int, float, NDArray[np.float32]]


class Report(NamedTuple):
    """What a worker found; only the first one looks at the weights."""

    rows_per_second: float
    first_step_at: float
    loopback_bytes_per_second: float
    looks: list[Look]


def loopback_bytes() -> int:
    """How much went over the loopback since the machine began, headers included (Linux; 0 elsewhere)."""
    path = Path("/sys/class/net/lo/statistics/tx_bytes")
    return int(path.read_text()) if path.exists() else 0


def free_ports(count: int) -> list[int]:
    """Ports that nobody listens on now, all different."""
    held = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    ports = [int(one.getsockname()[1]) for one in held]
    for one in held:
        one.close()
    return ports


def end_with_parent() -> None:
    """Let this process not outlive the one that started it."""
    parent = multiprocessing.parent_process()
    assert parent is not None

    def wait() -> None:
        parent.join()
        os._exit(1)

    threading.Thread(target=wait, daemon=True).start()


def start_server(job: str, rank: int, cluster: dict[str, list[str]]) -> Any:
    import tensorflow as tf  # type: ignore[import-untyped]

    tf.compat.v1.disable_eager_execution()
    tf.compat.v1.logging.set_verbosity("ERROR")
    return tf.distribute.Server(
        tf.train.ClusterSpec(cluster), job_name=job, task_index=rank, config=session_config(tf.compat.v1)
    )


def session_config(tf1: Any) -> Any:
    """Two threads of each kind: with the default of a thread a core and operation the roles crowd each other out."""
    return tf1.ConfigProto(inter_op_parallelism_threads=2, intra_op_parallelism_threads=2)


def serve(cluster: dict[str, list[str]]) -> None:
    end_with_parent()
    start_server("ps", 0, cluster).join()


def work(
    rank: int,
    cluster: dict[str, list[str]],
    flags: argparse.Namespace,
    chief_ready: Event,
    num_warm: Synchronized[int],
    out: Queue[Any],
) -> None:
    """Train until killed; put a `Report` into `out` when the seconds since everybody was warm are over."""
    end_with_parent()
    server = start_server("worker", rank, cluster)
    num_workers, batch_size = len(cluster["worker"]), flags.batch_size
    keys, values, labels = (np.load(flags.rows / f"{name}.npy", mmap_mode="r") for name in ("keys", "values", "labels"))
    first, last = rank * len(labels) // num_workers, (rank + 1) * len(labels) // num_workers
    if last - first < batch_size:
        sys.exit(f"error: a worker has {last - first} rows, fewer than a batch of {batch_size}")
    inputs, train, hooks, test_keys, test_weights = make_step(rank, cluster, flags)
    steps, row, began, first_step_at, reported, looks = 0, first, 0.0, 0.0, False, []
    if rank:
        chief_ready.wait()
    with session(server.target, rank, hooks) as running:
        chief_ready.set()
        while True:
            if row + batch_size > last:
                row = first
            rows = slice(row, row + batch_size)
            running.run(train, dict(zip(inputs, (keys[rows], values[rows], labels[rows]), strict=True)))
            row, steps = row + batch_size, steps + 1
            if steps == 1:
                first_step_at = time.time()
            if steps == WARM_STEPS:
                distinct = np.unique(load(flags.test).keys) if flags.test and rank == 0 else None
                with num_warm.get_lock():
                    num_warm.value += 1
            if not began:
                if num_warm.value == num_workers:
                    began, steps_before, bytes_before = time.perf_counter(), steps, loopback_bytes()
                continue
            elapsed = time.perf_counter() - began
            if distinct is not None and not reported and steps % flags.test_every == 0:
                looks.append(
                    (steps * batch_size * num_workers, elapsed, running.run(test_weights, {test_keys: distinct}))
                )
            if not reported and elapsed >= flags.seconds:
                rate = (steps - steps_before) * batch_size / elapsed
                out.put(Report(rate, first_step_at, (loopback_bytes() - bytes_before) / elapsed, looks))
                reported = True


def score(folder: Path, looks: list[Look]) -> list[list[float]]:
    """[rows, seconds, test log loss] of each look at the weights."""
    test = load(folder)
    place = np.unique(test.keys, return_inverse=True)[1].reshape(test.keys.shape)
    of_each = ((count, seconds, (weights[place] * test.values).sum(axis=1)) for count, seconds, weights in looks)
    return [[count, seconds, log_loss(odds, test.labels)] for count, seconds, odds in of_each]


def make_step(rank: int, cluster: dict[str, list[str]], flags: argparse.Namespace) -> Any:
    """The graph: (placeholders of keys, values and labels; a step; hooks of the session; other keys; their weights)."""
    import tensorflow as tf

    tf1, num_workers = tf.compat.v1, len(cluster["worker"])
    spec = tf.train.ClusterSpec(cluster)
    with tf1.device(tf1.train.replica_device_setter(cluster=spec, worker_device=f"/job:worker/task:{rank}")):
        clock = tf1.train.get_or_create_global_step()
        weights = tf1.get_variable("w", [flags.features], initializer=tf1.zeros_initializer(), use_resource=False)
        keys, values = tf1.placeholder(tf.int64, [None, None]), tf1.placeholder(tf.float32, [None, None])
        labels = tf1.placeholder(tf.float32, [None])
        distinct, local = tf.unique(tf.reshape(keys, [-1]))
        pulled = tf.nn.embedding_lookup(weights, distinct)
        scores = tf.reduce_sum(tf.reshape(tf.gather(pulled, local), tf.shape(keys)) * values, axis=1)
        loss = tf.reduce_sum(tf.nn.sigmoid_cross_entropy_with_logits(labels=labels, logits=scores))
        slope = tf.gradients(loss, [pulled])[0]
        if isinstance(slope, tf.IndexedSlices):
            slope = tf.math.unsorted_segment_sum(slope.values, slope.indices, tf.size(distinct))
        optimizer, hooks = tf1.train.GradientDescentOptimizer(flags.rate), []
        if flags.pace == "sync":
            optimizer = tf1.train.SyncReplicasOptimizer(optimizer, num_workers, num_workers)
            hooks = [optimizer.make_session_run_hook(rank == 0)]
        push = tf.IndexedSlices(slope, distinct, dense_shape=[flags.features])
        train = optimizer.apply_gradients([(push, weights)], global_step=clock)
        test_keys = tf1.placeholder(tf.int64, [None])
        test_weights = tf.nn.embedding_lookup(weights, test_keys)
    return (keys, values, labels), train, hooks, test_keys, test_weights


def session(target: Any, rank: int, hooks: list[Any]) -> Any:
    import tensorflow as tf

    tf1 = tf.compat.v1
    return tf1.train.MonitoredTrainingSession(
        master=target, is_chief=rank == 0, hooks=hooks, config=session_config(tf1), log_step_count_steps=None
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("rows", type=Path, help="the folder of keys.npy, values.npy and labels.npy")
    parser.add_argument("--features", type=int, required=True, help="how many keys there are")
    parser.add_argument("--pace", choices=["sync", "async"], required=True)
    parser.add_argument("--batch-size", type=int, required=True)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--rate", type=float, default=0.005, help="multiplies the sum of a batch's gradients")
    parser.add_argument("--test", type=Path, help="a folder like that of the rows")
    parser.add_argument("--test-every", type=int, default=50, help="steps of the first worker")
    parser.add_argument("--seconds", type=float, default=5.0)
    parser.add_argument("--give-up-after", type=float, default=180.0, help="seconds to the end of everything")
    flags = parser.parse_args()
    # Read when TensorFlow is imported, which only the children do.
    os.environ |= {"TF_CPP_MIN_LOG_LEVEL": "3", "CUDA_VISIBLE_DEVICES": ""}
    deadline = time.monotonic() + flags.give_up_after
    hosts = [f"127.0.0.1:{port}" for port in free_ports(1 + flags.workers)]
    cluster = {"ps": hosts[:1], "worker": hosts[1:]}
    chief_ready, num_warm, out = CONTEXT.Event(), CONTEXT.Value("i", 0), CONTEXT.Queue()
    roles = [CONTEXT.Process(target=serve, args=(cluster,), daemon=True)]
    roles += [
        CONTEXT.Process(target=work, args=(rank, cluster, flags, chief_ready, num_warm, out), daemon=True)
        for rank in range(flags.workers)
    ]
    for role in roles:
        role.start()
    try:
        reports = [out.get(timeout=max(0.0, deadline - time.monotonic())) for _ in range(flags.workers)]
    except queue.Empty:
        sys.exit(f"error: TensorFlow did not finish within {flags.give_up_after:g} seconds")
    finally:
        for role in roles:
            role.kill()
            role.join()
    answer = {"pace": flags.pace, "batch_size": flags.batch_size, "workers": flags.workers}
    rate = sum(report.rows_per_second for report in reports)
    answer |= {"rows_per_second": rate, "first_step_at": max(report.first_step_at for report in reports)}
    answer |= {"bytes_per_row": max(report.loopback_bytes_per_second for report in reports) / rate}
    if flags.test:
        looks: list[Look] = next((report.looks for report in reports if report.looks), [])
        answer |= {"curve": score(flags.test, looks), "version": version("tensorflow-cpu")}
    print(json.dumps(answer))


if __name__ == "__main__":
    main()
