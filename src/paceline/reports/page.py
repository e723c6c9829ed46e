"""What did a run look like? One page that says the verdict in words and draws what led to it.

The page is one file: it fetches nothing, runs nothing, and reads as well on a phone, in the dark and on paper. What a
run did not record is said in one line where it would stand.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from paceline.files import replace_file
from paceline.reports.charts import Line, box_legend, line_chart, line_legend, quantity, stacked_bar
from paceline.reports.curves import LINE_NAMES, curves_of_one
from paceline.reports.layout import charts, document, facts, missing, note, prose, section, table
from paceline.reports.markup import Markup, element
from paceline.reports.phases import PHASES, WorkerTime, leads, phase_shares, phases_of, steps_of, time_by_worker
from paceline.run_folder import TRAIN, Run
from paceline.telemetry.recorder import Telemetry
from paceline.telemetry.records import LeftOut, NodeProbe, StepSample, WorkerChunk

MOST_BARS = 40
MOST_NODES = 28
MOST_LEADS = 28
NUM_MOMENTS = 3
SAMPLES_A_MOMENT = 4


def write_report(run: Run, diagnosis: dict[str, Any], out: Path) -> None:
    """Write the page of a run, running or ended. `diagnosis` is as in `diagnosis.json`, or empty."""
    if run.job != TRAIN:
        from paceline.reports.matrices import write_job_report

        write_job_report(run, diagnosis, out)
        return
    telemetry = Telemetry(run.path)
    result, chunks = run.result, telemetry.read(WorkerChunk)
    workers = time_by_worker(chunks)
    name = run_name(run)
    page = document(
        f"{name} – paceline",
        element("h1", name),
        _summary(result),
        verdict(diagnosis, result, recorded=bool(chunks)),
        _glance(result),
        section("Learning", *_learning(run.metrics)),
        section("Where a step’s time goes", *_phases(workers)),
        section("Nodes", *nodes(telemetry.read(NodeProbe), telemetry.read(LeftOut))),
        section("Staleness", *_staleness(result, chunks)),
        section("Single steps", *_timeline(telemetry.read(StepSample))),
        section("Configuration", element("pre", (run.path / "config.toml").read_text("utf-8", "replace"))),
        section("Result and environment", *environment(result)),
    )
    replace_file(out, page)


def run_name(run: Run) -> str:
    """What a run's folder is called."""
    return run.path.resolve().name


def _summary(result: dict[str, Any]) -> Markup:
    if not result:
        return note("No result yet: the run goes on, or was killed.")
    ended = {"done": "Done", "interrupted": "Interrupted", "failed": "Failed"}.get(result["status"], result["status"])
    said = f"{ended}: {result['model']}, pace {result['pace']}, {_count(result['workers'], 'worker')}"
    cause = f" {result['error']}" if result.get("error") else ""
    return note(f"{said}, batches of {result['batch_size']:,}, engine {result['engine']}.{cause}")


def verdict(diagnosis: dict[str, Any], result: dict[str, Any], *, recorded: bool) -> Markup:
    """What held the run back, in words, and what speaks for it."""
    if not diagnosis:
        why = "its workers recorded no telemetry" if not recorded else "it was not diagnosed"
        return missing(f"No verdict on this run: {why}{'' if result else ', and it has not ended'}.")
    sentence = str(diagnosis.get("sentence") or diagnosis.get("bottleneck", ""))
    parts = [element("p", *prose(sentence[:1].upper() + sentence[1:]), class_="sentence")]
    recommendation = diagnosis.get("recommendation")
    if recommendation and recommendation not in sentence:
        parts.append(element("p", element("b", "What to do: "), *prose(recommendation)))
    if evidence := diagnosis.get("evidence"):
        parts.append(element("ul", *(element("li", *prose(_in_words(entry))) for entry in evidence)))
    return element("div", *parts, class_="verdict")


def _in_words(entry: Any) -> str:
    return "; ".join(f"{key}: {value}" for key, value in entry.items()) if isinstance(entry, dict) else str(entry)


def _glance(result: dict[str, Any]) -> Markup:
    if not result:
        return Markup("")
    pairs = [
        ("rows", f"{result['rows']:,}"),
        ("rows/s", f"{result['rows_per_second']:,.0f}"),
        ("seconds", f"{result['train_seconds']:,.2f}"),
    ]
    names = {"loss": "test loss", "error": "test error", "accuracy": "test accuracy", "auc": "test AUC"}
    test = result.get("test", {})
    pairs += [(name, f"{test[key]:.5f}") for key, name in names.items() if test.get(key) is not None]
    if a_row := result.get("wire", {}).get("bytes_per_row"):
        pairs.append(("wire bytes a row", f"{a_row:,.0f}"))
    return facts(pairs)


def _learning(metrics: Sequence[dict[str, Any]]) -> list[Markup]:
    if not metrics:
        return [missing("No evaluation yet: metrics.jsonl is empty or not there.")]
    parts: list[Markup] = []
    drawn = list(LINE_NAMES)
    if all(line.get("test_loss") is None for line in metrics):
        drawn = [LINE_NAMES[0]]
        parts.append(missing("No test rows: the dataset has none, so only the training loss is known."))
    if len(metrics) == 1:
        measured = {name: value for name, value in metrics[0].items() if isinstance(value, float) and "_" in name}
        told = facts(
            [(name.replace("_", " ").replace("auc", "AUC"), f"{value:.5f}") for name, value in measured.items()]
        )
        return [
            *parts,
            note("One evaluation, at the end; ", element("code", "--test-every ROWS"), " draws curves."),
            told,
        ]
    return [*parts, line_legend(drawn), charts(curves_of_one(metrics))]


def _phases(workers: Sequence[WorkerTime]) -> list[Markup]:
    if not workers:
        return [missing("Not known: the workers recorded no telemetry.")]
    bars = []
    if len(workers) > 1:
        bars.append(stacked_bar("all workers", phase_shares(workers), 1.0, ""))
    for worker in _slowest(workers, MOST_BARS):
        speed = quantity(worker.rows / worker.seconds, "rows") + "/s" if worker.seconds > 0 else ""
        bars.append(stacked_bar(_worker_name(worker.rank, worker.node), worker.phases, sum(worker.phases.values()),
                                speed.replace("thousand ", "k ").replace("million ", "M ")))  # fmt: skip
    parts = [box_legend(PHASES), element("div", *bars, class_="bars")]
    if len(workers) > MOST_BARS:
        parts.append(note(f"The {MOST_BARS} slowest of {len(workers):,} workers."))
    return parts


def _slowest(workers: Sequence[WorkerTime], most: int) -> list[WorkerTime]:
    kept = sorted(workers, key=lambda worker: worker.rows / worker.seconds if worker.seconds else 0.0)[:most]
    return sorted(kept, key=lambda worker: worker.rank)


def nodes(probes: Sequence[NodeProbe], left_out: Sequence[LeftOut]) -> list[Markup]:
    """Processor, memory, network and disk over time, one colour a node."""
    if not probes:
        return [missing("Not known: no node was probed."), *_left_out(left_out)]
    by_node: dict[str, list[NodeProbe]] = {}
    for probe in probes:
        by_node.setdefault(probe.node, []).append(probe)
    nodes = sorted(by_node)
    parts = [line_legend([_node_name(node, by_node[node][-1]) for node in nodes[:MOST_NODES]])]
    if len(nodes) > MOST_NODES:
        parts.append(note(f"The first {MOST_NODES} of {len(nodes):,} nodes."))
    drawn = {node: by_node[node] for node in nodes[:MOST_NODES]}
    figures = [
        _node_chart("Processor, all cores", drawn, "%", "processor"),
        _node_chart("Memory in use", drawn, "B", "memory_bytes"),
        _node_chart("Network, sent", drawn, "B/s", "network_sent_bytes_per_second"),
        _node_chart("Network, received", drawn, "B/s", "network_received_bytes_per_second"),
        _node_chart("Disk, read", drawn, "B/s", "disk_read_bytes_per_second"),
        _node_chart("Disk, written", drawn, "B/s", "disk_written_bytes_per_second"),
    ]
    return [*parts, charts(figures), *_left_out(left_out)]


def _node_chart(title: str, by_node: dict[str, list[NodeProbe]], unit: str, name: str) -> Markup:
    lines = []
    for style, (node, probes) in enumerate(by_node.items()):
        ordered = sorted(probes, key=lambda probe: probe.time)
        values = [_processor(probe) if name == "processor" else getattr(probe, name) for probe in ordered]
        if any(value is not None for value in values):
            # A probe tells of the seconds before it: the line begins where the first one's do.
            began = max(0.0, ordered[0].time - ordered[0].seconds)
            lines.append(Line(node, style, [began, *(probe.time for probe in ordered)], [values[0], *values]))
    if not lines:
        return element("figure", element("figcaption", title), missing("Not measured on any node."))
    return line_chart(title, lines, "s", unit, y_low=0.0)


def _processor(probe: NodeProbe) -> float | None:
    return sum(probe.cores) / len(probe.cores) if probe.cores else None


def _node_name(node: str, probe: NodeProbe) -> str:
    return f"{node} ({_count(len(probe.cores), 'core')}, {quantity(probe.memory_total_bytes, 'B')})"


def _left_out(records: Sequence[LeftOut]) -> list[Markup]:
    told = dict.fromkeys(f"{record.name} on {record.node}: {record.reason}" for record in records)
    if not told:
        return []
    return [note("Not measured:"), element("ul", *(element("li", line) for line in told), class_="faint")]


def _staleness(result: dict[str, Any], chunks: Sequence[WorkerChunk]) -> list[Markup]:
    if result:
        seen = (
            f"At most {_count(result['max_staleness'], 'clock')} ahead of the slowest worker (pace {result['pace']})."
        )
        parts = [element("p", seen)]
    else:
        parts = [missing("The largest lead is known when the run has ended.")]
    apart = leads(chunks)
    if result.get("pace") == "sync":
        return [*parts, note("In sync all workers make each update together.")]
    if apart is None:
        said = "no telemetry was recorded" if not chunks else "one worker trains alone"
        return [*parts, missing(f"No leads over time: {said}.")]
    shown = range(min(len(apart.ranks), MOST_LEADS))
    lines = [Line(f"worker {apart.ranks[i]}", i, apart.times.tolist(), apart.steps[i].tolist()) for i in shown]
    if len(apart.ranks) > MOST_LEADS:
        parts.append(note(f"The first {MOST_LEADS} of {len(apart.ranks):,} workers."))
    return [
        *parts,
        line_legend([line.name for line in lines]),
        charts([line_chart("Ahead of the slowest worker", lines, "s", "steps", y_low=0.0)]),
        note("Reckoned between records, which workers make after some steps each: near leads may be off by those."),
    ]


def _timeline(samples: Sequence[StepSample]) -> list[Markup]:
    """A few sampled steps, from early, middle and late in the run, drawn to one scale."""
    if not samples:
        return [missing("No step was sampled.")]
    chosen = _moments(sorted(samples, key=lambda sample: (sample.time, sample.rank)))
    longest = max(sample.seconds for sample in chosen)
    bars = [
        stacked_bar(f"worker {sample.rank}, {steps_of(sample)}, at {sample.time:,.2f} s", phases_of(sample), longest,
                    quantity(sample.seconds, "s").replace("milliseconds", "ms").replace("microseconds", "µs"), "s")
        for sample in chosen
    ]  # fmt: skip
    told = f"{len(chosen)} of {_count(len(samples), 'sample')}, drawn to one scale from where each began."
    return [note(told), box_legend(PHASES), element("div", *bars, class_="bars")]


def _moments(samples: Sequence[StepSample]) -> list[StepSample]:
    """Some samples around a few moments of the run, in order."""
    if len(samples) <= NUM_MOMENTS * SAMPLES_A_MOMENT:
        return list(samples)
    chosen: list[int] = []
    for moment in range(NUM_MOMENTS):
        first = moment * (len(samples) - SAMPLES_A_MOMENT) // (NUM_MOMENTS - 1)
        chosen += range(first, first + SAMPLES_A_MOMENT)
    return [samples[i] for i in sorted(set(chosen))]


def environment(result: dict[str, Any]) -> list[Markup]:
    if not result:
        return [missing("The run has no result.json yet.")]
    rows = [(key, text) for key, text in _flat(result) if text]
    return [table(("what", "value"), rows)]


def _flat(tree: dict[str, Any], prefix: str = "") -> list[tuple[str, str]]:
    """Names with dots, and values as text."""
    found: list[tuple[str, str]] = []
    for key, value in tree.items():
        if isinstance(value, dict):
            found += _flat(value, f"{prefix}{key}.")
        elif isinstance(value, list):
            found += [(f"{prefix}{key}", _in_words(entry)) for entry in value]
        else:
            found.append((f"{prefix}{key}", f"{value:,}" if isinstance(value, int) else str(value)))
    return found


def _worker_name(rank: int, node: str) -> str:
    return f"worker {rank}" + (f" on {node}" if node else "")


def _count(number: int, noun: str) -> str:
    return f"{number:,} {noun}" + ("" if number == 1 else "s")
