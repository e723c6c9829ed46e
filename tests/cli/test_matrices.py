"""`paceline trace` and `paceline matmul` as a user meets them, on this machine."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import paceline
from paceline.errors import DataError
from tests.conftest import Command


def test_trace(command: Command, tmp_path: Path) -> None:
    done = command("trace", "--size", 1000, "--blocks", 7, "--seed", 1024, "--run", tmp_path / "run")
    assert done.code == 0, done.err
    A = paceline.BlockMatrix.random(1_000, blocks=7, seed=1024)
    expected = (A @ A).trace()
    assert repr(expected) in done.out
    assert f"run: {tmp_path / 'run'}" in done.out
    result = paceline.Run(tmp_path / "run").result
    assert result["status"] == "done"
    assert result["trace"] == expected == float.fromhex(result["trace_bits"])
    # 21 pairs and the diagonal's 7, two blocks each.
    assert (result["blocks_made"], result["bytes_moved"]) == (56, 0)
    assert result["seconds"] > 0
    assert result["elements_per_second"] > 0
    dense = A.to_numpy().astype(np.float64)
    assert expected == pytest.approx(np.trace(dense @ dense), rel=1e-12)


def test_matmul(command: Command, tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    a, b = rng.normal(size=(70, 50)), rng.normal(size=(50, 90)).astype(np.float32)
    np.save(tmp_path / "A.npy", a)
    paceline.BlockMatrix.from_numpy(b, blocks=3).to_blocks(tmp_path / "B")
    done = command("matmul", tmp_path / "A.npy", tmp_path / "B", "--out", tmp_path / "C.npy", "--run", tmp_path / "run")
    assert done.code == 0, done.err
    np.testing.assert_allclose(np.load(tmp_path / "C.npy"), a @ b, rtol=1e-12, atol=1e-12)
    run = paceline.Run(tmp_path / "run")
    assert run.result["status"] == "done"
    assert (run.result["rows"], run.result["inner"], run.result["columns"]) == (70, 50, 90)
    assert run.result["bytes_read"] == 70 * 50 * 8 + 50 * 90 * 8
    assert set(run.diagnosis["phases"]) == {"input", "pull", "compute", "push", "wait", "other"}
    assert sum(run.diagnosis["phases"].values()) == pytest.approx(1)


def test_its_run_folder_is_known_elsewhere(command: Command, tmp_path: Path) -> None:
    command("trace", "--size", 300, "--blocks", 2, "--run", tmp_path / "run")
    assert command("report", tmp_path / "run").code == 0
    page = (tmp_path / "run" / "report.html").read_text()
    for part in ("Where the time went", "blocks made", "size = 300", "None: everything ran in one process."):
        assert part in page
    assert command("diagnose", tmp_path / "run").code == 0
    for words in (["resume"], ["plan"], ["evaluate", "--data", "x"], ["predict", "--data", "x", "--out", "y.csv"]):
        done = command(words[0], tmp_path / "run", *words[1:])
        assert done.code == 2, words
        assert done.err.startswith("error: ")
        assert len(done.err.splitlines()) == 2
    with pytest.raises(DataError, match="is a run of `trace`, not of `train`"):
        _ = paceline.Run(tmp_path / "run").config


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["trace", "--size", "0", "--blocks", "1"], "`size` is 0"),
        (["trace", "--size", "10", "--blocks", "11"], "10 × 10 can be cut into 1 to 10"),
        (
            ["trace", "--size", "9999", "--blocks", "2001"],
            "`blocks` is 2,001; a product has at most 2,000 per side",
        ),
        (["trace", "--size", "10", "--blocks", "-1"], "`blocks` is -1"),
        (["trace", "--size", "10", "--blocks", "2", "--seed", "-3"], "`seed` is -3"),
        (["trace", "--size", "x", "--blocks", "2"], "'x' is not a valid integer"),
        (["trace", "--size", "10", "--blocks", "2", "--engine", "spark"], "`engine` is `spark`"),
        (["trace", "--size", "10", "--blocks", "2", "--address", "auto"], "but the engine is local"),
        (["trace", "--size", "10", "--blocks", "2", "--workers", "2"], "but the engine is local"),
        (["matmul", "A.npy", "A.npy", "--out", "C.npy"], "cannot multiply 20 × 10 by 20 × 10"),
        (["trace", "--size", "10", "--blocks", "2", "--set", "wire.mac=true"], "No such option '--set'"),
        (["sweep", "trace.toml", "--set", "wire.mac=true"], "unknown setting `wire`"),
        (["matmul", "A.npy", "B.npy", "--out", "C.npy"], "`B.npy` is not a matrix"),
        (["matmul", "A.npy", "gone.npy", "--out", "C.npy"], "no such file: `gone.npy`"),
        (["matmul", "A.npy", "T.npy", "--out", "C.npy", "--memory", "1MB"], "`memory` is 1MB, too little for tiles"),
        (["matmul", "A.npy", "T.npy", "--out", "C.npy", "--memory", "much"], "`memory` is `much`"),
        (["matmul", "A.npy", "T.npy", "--out", "C.npy", "--block", "-1"], "`block` is -1"),
        (["matmul", "L.npy", "R.npy", "--out", "C.npy", "--block", "1"], "2,001 blocks; the limit is 2,000"),
        (["matmul", "A.npy", "T.npy", "--out", "A.npy"], "`A.npy` exists already"),
    ],
)
def test_bad_input(
    command: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, words: list[str], says: str
) -> None:
    """One line, a hint, exit code 2, and nothing left behind."""
    monkeypatch.chdir(tmp_path)
    np.save("A.npy", np.ones((20, 10)))
    np.save("T.npy", np.ones((10, 20)))
    np.save("L.npy", np.ones((1, 2001)))
    np.save("R.npy", np.ones((2001, 1)))
    Path("B.npy").write_text("no matrix")
    Path("trace.toml").write_text('job = "trace"\nsize = 10\nblocks = 2\n[sweep]\nseed = [1, 2]\n')
    before = sorted(tmp_path.iterdir())
    done = command(*words)
    assert done.code == 2
    first, hint = done.err.splitlines()
    assert says in first
    assert hint.startswith("hint: ")
    assert sorted(tmp_path.iterdir()) == before
