"""What did a matrix job come to? Its lines in the terminal."""

from __future__ import annotations

from paceline.reports.matrices import movement
from paceline.reports.measures import glance
from paceline.reports.terminal import print_table
from paceline.run_folder import RunFolder


def print_job(run: RunFolder) -> None:
    """The result of a job, and what it took."""
    result = run.result
    told = dict(glance(result))
    if "out" in result:
        print(f"product: {result['out']} ({told.pop('rows')} × {result['columns']:,} {result['dtype']})")
    print_table(list(told), [list(told.values())])
    for line in movement(result):
        print(line)
    print(run.saved_diagnosis["sentence"])
    print(f"run: {run.path}")
