"""Where the parts of a product go, and what moves for it."""

from __future__ import annotations

from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from paceline.errors import ConfigError
from paceline.matrices.cluster import jobs
from paceline.matrices.cluster.placement import (
    Grid,
    Owners,
    fetched_elements,
    grid_of,
    least_elements,
    moved_elements,
    naive_elements,
    place,
    share_out,
    tile_bytes,
)
from paceline.matrices.plan import OVERHEAD_BYTES, Shape, parse_bytes, room_in
from tests.conftest import Command

sides = st.integers(1, 60)
grids = st.builds(lambda rows, inner, columns, block: grid_of(Shape(rows, inner, columns), block), sides, sides, sides,
                  st.integers(1, 20))  # fmt: skip


@given(grids, st.integers(1, 30))
def test_every_block_is_computed_once(grid: Grid, workers: int) -> None:
    rectangles = place(grid, workers)
    assert 1 <= len(rectangles) <= workers
    covered = np.zeros((grid.num_blocks[0], grid.num_blocks[2]), int)
    for one in rectangles:
        assert one.area > 0
        covered[one.top : one.bottom, one.left : one.right] += 1
    assert (covered == 1).all()


@given(grids, st.integers(1, 30))
def test_what_is_planned_is_what_is_fetched(grid: Grid, workers: int) -> None:
    rectangles = place(grid, workers)
    assert moved_elements(grid, rectangles) == fetched_elements(
        grid, Owners(grid, rectangles), [[one] for one in rectangles]
    )


@given(st.integers(1, 40), st.integers(1, 40))
def test_the_bound_is_one(side: int, workers: int) -> None:
    """Where all get an equal share, no placement beats it; alone nothing moves."""
    grid = grid_of(Shape(side * workers, 7, side * workers), side)
    rectangles = place(grid, workers)
    if len({one.area for one in rectangles}) == 1 and len(rectangles) == workers:
        assert least_elements(grid, workers) <= moved_elements(grid, rectangles) * (1 + 1e-9)
    assert least_elements(grid, 1) == 0
    assert moved_elements(grid, place(grid, 1)) == 0


def test_five_workers_on_ten_by_ten_blocks() -> None:
    grid = grid_of(Shape(20_000, 20_000, 20_000), 2_000)
    rectangles = place(grid, 5)
    moved, least = moved_elements(grid, rectangles), least_elements(grid, 5)
    assert moved <= 1.2 * least
    assert moved <= 0.7 * naive_elements(grid, 5)
    assert max(one.area for one in rectangles) <= 25


@given(grids, st.integers(1, 30))
def test_without_regard_is_counted_as_it_would_be_done(grid: Grid, workers: int) -> None:
    rows, inner, columns = grid.num_blocks
    wanted = set()
    for number, (i, j) in enumerate(product(range(rows), range(columns))):
        for k in range(inner):
            height, width, depth = (edges[n + 1] - edges[n] for edges, n in zip(
                (grid.rows, grid.columns, grid.inner), (i, j, k), strict=True))  # fmt: skip
            wanted.add((number % workers, (i * inner + k) % workers, "left", i, k, height * depth))
            wanted.add((number % workers, (k * columns + j) % workers, "right", k, j, depth * width))
    moved = sum(elements for worker, home, *_, elements in wanted if worker != home)
    assert naive_elements(grid, workers) == moved


def test_a_block_that_does_not_fit_is_refused_before_a_cluster_is_asked(
    command: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def start(*_: Any) -> None:
        raise AssertionError("an engine was started")

    monkeypatch.setattr(jobs, "open_engine", start)
    np.save(tmp_path / "A.npy", np.ones((300, 300)))
    words = ["matmul", tmp_path / "A.npy", tmp_path / "A.npy", "--out", tmp_path / "C.npy", "--engine", "ray"]
    for flags in (["--block", 300], []):
        done = command(*words, "--memory", "49MB", *flags)
        assert done.code == 2
        assert "too little for a block and its factors" in done.err
    assert sorted(tmp_path.iterdir()) == [tmp_path / "A.npy"]


def test_four_workers_are_a_square() -> None:
    rectangles = place(grid_of(Shape(80, 80, 80), 10), 4)
    assert sorted(rectangles) == [(0, 4, 0, 4), (0, 4, 4, 8), (4, 8, 0, 4), (4, 8, 4, 8)]


@given(grids, st.integers(1, 8), st.integers(0, 40))
def test_tiles_cover_their_rectangles_and_fit(grid: Grid, workers: int, kilobytes: int) -> None:
    shape, memory = Shape(grid.rows[-1], grid.inner[-1], grid.columns[-1]), OVERHEAD_BYTES + 1_000 * kilobytes
    try:
        shares = share_out(shape, 4, workers, memory, grid.rows[1])
    except ConfigError as error:
        enough = parse_bytes(error.hint.split()[1].rstrip("`"))
        shares = share_out(shape, 4, workers, enough, grid.rows[1])
        memory = enough
    covered = np.zeros((shape.rows, shape.columns), int)
    for some in shares.tiles:
        for tile in some:
            assert tile_bytes(shares.grid, tile, 4) <= room_in(memory)
            rows, columns = shares.grid.rows, shares.grid.columns
            covered[rows[tile.top] : rows[tile.bottom], columns[tile.left] : columns[tile.right]] += 1
    assert (covered == 1).all()
    assert len(set(shares.starts)) == len(shares.homes)
