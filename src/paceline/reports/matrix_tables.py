"""What did a matrix job come to? Its lines in the terminal."""

from __future__ import annotations

from paceline.reports.matrices import movement
from paceline.reports.terminal import print_table
from paceline.run_folder import Run


def print_trace(run: Run) -> None:
    """The trace, and what it took."""
    result = run.result
    print_table(
        ("trace", "seconds", "blocks made", "elements/s", "bytes moved"),
        [
            (
                repr(result["trace"]),
                f"{result['seconds']:.2f}",
                f"{result['blocks_made']:,}",
                f"{result['elements_per_second']:,.0f}",
                f"{result['bytes_moved']:,}",
            )
        ],
    )
    _print_rest(run)


def print_product(run: Run) -> None:
    """Where the product is, and what it took."""
    result = run.result
    print_table(
        ("product", "seconds", "GFLOP/s", "tiles", "bytes moved"),
        [
            (
                f"{result['out']} ({result['rows']:,} × {result['columns']:,} {result['dtype']})",
                f"{result['seconds']:.2f}",
                f"{result['flop_per_second'] / 1e9:,.1f}",
                f"{result['tiles']:,}",
                f"{result['bytes_moved']:,}",
            )
        ],
    )
    _print_rest(run)


def _print_rest(run: Run) -> None:
    for line in movement(run.result):
        print(line)
    print(run.diagnosis["sentence"])
    print(f"run: {run.path}")
