"""What did a run look like? One page that gives the verdict in words and draws the evidence.

The page is one file without scripts that fetches nothing. It also works on a phone, in dark mode and on paper. Where a
run did not record something, one line says so.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from paceline.errors import counted
from paceline.files import read_file, replace_file
from paceline.reports.charts import DWARFING, MOST_LINES, Line, bars, has_curve, line_chart, line_legend, stacked_bar
from paceline.reports.commands import repeat
from paceline.reports.curves import curves_of_one, legend_of_one, with_choice
from paceline.reports.gains import gain_bars
from paceline.reports.header import data_of, title_of, when_and_where
from paceline.reports.layout import (
    charts,
    command_line,
    document,
    facts,
    folded,
    fragment,
    missing,
    note,
    prose,
    section,
    table,
)
from paceline.reports.markup import Markup, element
from paceline.reports.measures import glance, label_of, movement
from paceline.reports.nodes import nodes_section
from paceline.reports.phases import PHASES, WorkerTime, label_of_steps, leads, phase_shares, phases_of, time_by_worker
from paceline.reports.quality import quality_of
from paceline.reports.units import quantity
from paceline.run_folder import REMOVE, TRAIN, RunFolder, flat
from paceline.telemetry.recorder import Telemetry
from paceline.telemetry.records import StepSample, WorkerChunk

MOST_BARS = 40
NUM_MOMENTS = 3
SAMPLES_PER_MOMENT = 4
MOST_COMMANDS = 2


def write_report(run: RunFolder, out: Path) -> None:
    """Write the page of a run, running or ended."""
    replace_file(out, document(title_of(run), *_body(run, "axis")))


def report_fragment(run: RunFolder, key: str) -> str:
    """The same page to be shown within another one, on which no other fragment has the same key."""
    return fragment(*_body(run, f"axis-{key}"))


def _body(run: RunFolder, group: str) -> list[Markup]:
    result, is_training = run.result, run.job == TRAIN
    settings = read_file(run.path / "config.toml", REMOVE).decode("utf-8", "replace")
    told = " · ".join(part for part in (data_of(run), when_and_where(run)) if part)
    return [
        element("h1", run.path.resolve().name),
        *([note(told)] if told else []),
        note(_summary(result, is_training)),
        facts(glance(result)),
        _verdict(run),
        *(_training_sections(run, group) if is_training else _job_sections(run)),
        element("section", folded("Configuration", element("pre", settings)),
                folded("Result and environment", *_environment(result)), class_="appendix"),
    ]  # fmt: skip


def _training_sections(run: RunFolder, group: str) -> list[Markup]:
    telemetry = Telemetry(run.path)
    chunks = telemetry.read(WorkerChunk)
    return [
        section("Learning", *_learning(run.metrics, group)),
        section("Where a step’s time goes", *_phases(time_by_worker(chunks)), *_together(run.result)),
        nodes_section(run),
        *([] if run.result.get("pace") == "sync" else [section("Staleness", *_staleness(run.result, chunks))]),
        section("Single steps", *_timeline(telemetry.read(StepSample))),
    ]


def _job_sections(run: RunFolder) -> list[Markup]:
    """What the page of a matrix job shows, besides what all pages show."""
    bar = stacked_bar("all processes", run.saved_diagnosis.get("phases", {}), 1.0, "")
    phases = bars([bar], PHASES) if run.saved_diagnosis else [missing("Not known: the job has not ended.")]
    moved = movement(run.result)
    bytes_moved = element("p", moved) if moved else missing("None: everything ran in one process.")
    return [
        section("Where the time went", *phases), section("Bytes between processes", bytes_moved), nodes_section(run)
    ]  # fmt: skip


def _summary(result: dict[str, Any], is_training: bool) -> str:
    if not result:
        return "No result yet: still running, or killed."
    done = f"{result['status'].capitalize()}: "
    if is_training:
        workers = counted(result["workers"], "worker")
        done += f"{result['model']}, pace {result['pace']}, {workers}, batches of {result['batch_size']:,}"
    else:
        done += result["job"]
    return f"{done}, engine {result['engine']}. {result.get('error', '')}".rstrip()


def _verdict(run: RunFolder) -> Markup:
    """What limited the run, in words, what to try, and the evidence."""
    diagnosis = run.saved_diagnosis
    if not diagnosis:
        return missing(f"No verdict: too little was recorded{'' if run.result else ', and the run has not ended'}.")
    sentence, recommendation = diagnosis["sentence"], diagnosis["recommendation"]
    parts = [element("p", *prose(sentence[:1].upper() + sentence[1:]), class_="sentence")]
    if recommendation and recommendation not in sentence:
        parts.append(element("p", element("b", "What to do: "), *prose(recommendation)))
    parts += _commands(run, diagnosis.get("advice", []))
    parts += gain_bars(_named_numbers(diagnosis.get("gains")), _named_numbers(diagnosis.get("gains_if_doubled")))
    # The gains are drawn above.
    evidence = [told for entry in diagnosis["evidence"] if not (told := _in_words(entry)).startswith("gains if")]
    if evidence:
        parts.append(element("ul", *(element("li", *prose(told)) for told in evidence), class_="evidence"))
    return element("div", *parts, class_="verdict")


def _commands(run: RunFolder, advice: Any) -> list[Markup]:
    """What to try, as commands to copy."""
    found = [one for one in advice if isinstance(one, dict)] if isinstance(advice, list) else []
    flags = [str(one["flags"]) for one in found if one.get("flags")][:MOST_COMMANDS]
    # Each in a folder of its own, so that all of them can be pasted.
    return [
        command_line(repeat(run, told, f"{run.path}-next{f'-{number}' if number > 1 else ''}"))
        for number, told in enumerate(flags, 1)
    ]


def _named_numbers(found: Any) -> dict[str, Any]:
    return found if isinstance(found, dict) else {}


def _in_words(entry: Any) -> str:
    """A value of a JSON file as text."""
    if isinstance(entry, dict):
        return "; ".join(f"{key}: {value}" for key, value in entry.items())
    return f"{entry:,}" if isinstance(entry, int) else str(entry)


def _learning(metrics: Sequence[dict[str, Any]], group: str) -> list[Markup]:
    if not metrics:
        return [missing("No evaluation yet: metrics.jsonl is empty or missing.")]
    tested = any(line.get(f"{rows}_loss") is not None for line in metrics for rows in ("test", "validation"))
    parts = [] if tested else [missing("The dataset has no test rows, so only the training loss is known.")]
    if quality := quality_of(metrics):
        parts.append(element("p", quality.sentence, class_="quality"))
    if figures := curves_of_one(metrics):
        return [*parts, legend_of_one(metrics), with_choice(figures, group)]
    measured = {name: value for name, value in metrics[-1].items() if isinstance(value, float) and "_" in name}
    return [
        *parts,
        facts([(label_of(name), f"{value:.5f}") for name, value in measured.items()]),
        note("One evaluation, at the end; ", element("code", "--test-every ROWS"), " draws curves."),
    ]


def _phases(workers: Sequence[WorkerTime]) -> list[Markup]:
    if not workers:
        return [missing("Not known: the workers recorded no telemetry.")]
    drawn = [stacked_bar("all workers", phase_shares(workers), 1.0, "")] if len(workers) > 1 else []
    slowest = sorted(workers, key=lambda worker: worker.rows / worker.seconds if worker.seconds else 0.0)[:MOST_BARS]
    rows = sum(worker.rows for worker in workers)
    for worker in sorted(slowest, key=lambda worker: worker.rank):
        name = f"worker {worker.rank}" + (f" on {worker.node}" if worker.node else "")
        share = f"{worker.rows / rows:.0%} of the rows" if rows > 0 and len(workers) > 1 else ""
        drawn.append(stacked_bar(name, worker.phases, sum(worker.phases.values()), share))
    parts = bars(drawn, PHASES)
    if len(workers) > MOST_BARS:
        parts.append(note(f"The {MOST_BARS} slowest of {len(workers):,} workers."))
    return parts


def _together(result: dict[str, Any]) -> list[Markup]:
    """Why there is nothing to say about staleness."""
    return [note("In sync, all workers make each update together.")] if result.get("pace") == "sync" else []


def _staleness(result: dict[str, Any], chunks: Sequence[WorkerChunk]) -> list[Markup]:
    if result:
        lead = counted(result["max_staleness"], "step")
        seen = f"At most {lead} ahead of the slowest worker (pace {result['pace']})."
        parts = [element("p", seen)]
    else:
        parts = [missing("The largest lead is known when the run has ended.")]
    apart = leads(chunks)
    if apart is None:
        said = "no telemetry was recorded" if not chunks else "one worker trains alone"
        return [*parts, missing(f"No leads over time: {said}.")]
    shown = range(min(len(apart.ranks), MOST_LINES))
    lines = [Line(f"worker {apart.ranks[i]}", i, apart.times.tolist(), apart.steps[i].tolist()) for i in shown]
    if not has_curve(lines) or not apart.steps.any():
        return [*parts, note("No worker was ever ahead when they recorded their steps.")]
    if len(apart.ranks) > MOST_LINES:
        parts.append(note(f"The first {MOST_LINES} of {len(apart.ranks):,} workers."))
    return [
        *parts,
        line_legend([line.name for line in lines]),
        charts([line_chart("Ahead of the slowest worker", lines, "s", "steps", y_low=0.0)]),
        note("Interpolated between records, which workers make every few steps: small leads may be off by that many."),
    ]


def _timeline(samples: Sequence[StepSample]) -> list[Markup]:
    """A few sampled steps from early, middle and late in the run, drawn to one scale."""
    if not samples:
        return [missing("No step was sampled.")]
    chosen = _moments(sorted(samples, key=lambda sample: (sample.time, sample.rank)))
    # A sample may cover many steps; what is drawn is the mean of them.
    lasted = [max(sample.seconds / sample.steps, 1e-9) for sample in chosen]
    is_log = max(lasted) > DWARFING / 2 * sorted(lasted)[len(lasted) // 2]
    drawn = []
    for sample, seconds in zip(chosen, lasted, strict=True):
        parts = {name: size / sample.steps for name, size in phases_of(sample).items()}
        text = quantity(seconds, "s").replace("milliseconds", "ms").replace("microseconds", "µs")
        length = _log_length(seconds, min(lasted), max(lasted)) if is_log else None
        drawn.append(stacked_bar(label_of_steps(sample), parts, max(lasted), text, "s", length))
    to_scale = (
        "drawn to a logarithmic scale, because some take far longer than others; colours are shares of the step"
        if is_log else "drawn to the same scale, each from its start"
    )  # fmt: skip
    per_step = " Where a sample covers several steps, their mean is drawn." if any(s.steps > 1 for s in chosen) else ""
    return [note(f"{len(chosen)} of {counted(len(samples), 'sample')}, {to_scale}.{per_step}"), *bars(drawn, PHASES)]


def _log_length(seconds: float, least: float, most: float) -> float:
    """The length of a bar on a logarithmic scale on which the shortest one is still visible."""
    return 0.05 + 0.95 * math.log(seconds / least) / math.log(most / least)


def _moments(samples: Sequence[StepSample]) -> list[StepSample]:
    """Some samples around a few moments of the run, in order."""
    if len(samples) <= NUM_MOMENTS * SAMPLES_PER_MOMENT:
        return list(samples)
    firsts = (moment * (len(samples) - SAMPLES_PER_MOMENT) // (NUM_MOMENTS - 1) for moment in range(NUM_MOMENTS))
    return [sample for first in firsts for sample in samples[first : first + SAMPLES_PER_MOMENT]]


def _environment(result: dict[str, Any]) -> list[Markup]:
    if not result:
        return [missing("The run has no result.json yet.")]
    lists = {key: value if isinstance(value, list) else [value] for key, value in flat(result).items()}
    entries = [(key, _in_words(entry)) for key, values in lists.items() for entry in values]
    return [table(("what", "value"), [(key, text) for key, text in entries if text])]
