"""Products from disk to disk: equal to NumPy's, within the memory given, and continued after a kill."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from paceline.errors import ConfigError, DataError, UsageError
from paceline.matrices.matrix import BlockMatrix
from paceline.matrices.plan import Plan, Shape, memory_for, parse_bytes, plan_product, room_in
from paceline.matrices.product import PreparedProduct, Work, multiply_to_file, prepare_product
from paceline.matrices.product_file import Heading, ProductFile, product_file, read_journal
from paceline.matrices.sources import RandomSource, array_source, open_matrix
from tests.conftest import Command

sizes = st.integers(1, 30)


def multiply(a: Any, b: Any, out: Path, tiles: tuple[int, int, int]) -> Work:
    shape, dtype = (a.shape[0], b.shape[1]), np.result_type(a, b)
    heading = Heading("a", "b", shape, str(dtype), Plan(*tiles))
    return multiply_to_file(PreparedProduct(array_source(a), array_source(b), out, heading))


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=60)
@given(sizes, sizes, sizes, st.tuples(sizes, sizes, sizes), st.sampled_from(["ff", "dd", "fd"]), st.booleans())
def test_equal_to_numpy(
    tmp_path: Path, rows: int, inner: int, columns: int, tiles: Any, types: str, fortran: bool
) -> None:
    """Within 1e-5 (float32) or 1e-14 (float64) of the product of absolute values, in any tiles."""
    rng = np.random.default_rng(rows)
    a = rng.normal(size=(rows, inner)).astype(types[0])
    b = rng.normal(size=(inner, columns)).astype(types[1])
    b = np.asfortranarray(b) if fortran else b
    out = tmp_path / "C.npy"
    tiles = tuple(min(tile, side) for tile, side in zip(tiles, (rows, inner, columns), strict=True))
    work = multiply(a, b, out, tiles)
    c = np.load(out)
    out.unlink()
    assert c.dtype == np.result_type(a, b)
    wide = a.astype(np.float64), b.astype(np.float64)
    tolerance = 1e-5 if c.dtype == np.float32 else 1e-14
    assert (np.abs(c - wide[0] @ wide[1]) <= tolerance * (np.abs(wide[0]) @ np.abs(wide[1]))).all()
    assert work.bytes_written == c.nbytes
    assert not list(tmp_path.glob(".C.npy*"))


class TestPlans:
    @given(st.integers(1, 50_000), st.integers(1, 50_000), st.integers(1, 50_000), st.integers(50, 4_000))
    def test_they_fit(self, rows: int, inner: int, columns: int, megabytes: int) -> None:
        shape, memory = Shape(rows, inner, columns), megabytes * 10**6
        plan = plan_product(shape, 4, memory)
        assert plan.num_bytes(shape, 4) <= room_in(memory)
        assert all(1 <= tile <= side for tile, side in zip(plan, shape, strict=True))

    def test_the_inner_side_is_whole_where_there_is_room(self) -> None:
        plan = plan_product(Shape(12_000, 12_000, 12_000), 4, 10**9)
        assert (plan.inner, plan.columns) == (12_000, 12_000)

    def test_too_little_memory_says_what_would_do(self) -> None:
        shape = Shape(5_000, 5_000, 5_000)
        with pytest.raises(ConfigError, match="too little for tiles of 2,000 × 2,000") as caught:
            plan_product(shape, 8, 10**8, block=2_000)
        enough = caught.value.hint.split()[1].rstrip("`")
        assert plan_product(shape, 8, parse_bytes(enough), block=2_000) == Plan(2_000, 2_000, 2_000)

    @given(st.integers(1, 10**10))
    def test_what_would_do_does_and_less_does_not(self, num_bytes: int) -> None:
        enough = memory_for(num_bytes)
        assert room_in(enough) >= num_bytes > room_in(enough - 2)

    @pytest.mark.parametrize("text", ["", "x", "-4GB", "0", "4XB", "GB", "1e3"])
    def test_text_that_is_not_a_size_of_memory_is_refused(self, text: str) -> None:
        with pytest.raises(ConfigError, match="`memory` is"):
            parse_bytes(text)


MEASURE = """
import sys
from pathlib import Path
import numpy as np
from paceline.matrices.jobs import run_matmul
from paceline.matrices.settings import MatmulSettings
from paceline.matrices.product import multiply_to_file, prepare_product
from paceline.matrices.sources import open_matrix

def peak():
    status = Path("/proc/self/status").read_text()
    return 1024 * int(status.partition("VmHWM:")[2].split()[0])

folder, memory = Path(sys.argv[1]), int(sys.argv[2])
baseline = peak()
left, right = open_matrix(folder / "A.npy"), open_matrix(folder / "B.npy")
multiply_to_file(prepare_product(left, right, folder / "C.npy", memory))
print(peak() - baseline, peak())
"""


@pytest.mark.parametrize("fortran", [False, True])
def test_memory_stays_under_the_limit(tmp_path: Path, fortran: bool) -> None:
    """The peak of all resident memory, mapped files included, over what the imports alone take."""
    rng = np.random.default_rng(0)
    a, b = rng.random((4_000, 3_000), np.float32), rng.random((3_000, 4_000), np.float32)
    np.save(tmp_path / "A.npy", np.asfortranarray(a) if fortran else a)
    np.save(tmp_path / "B.npy", b)
    # Both factors and the result are 160 MB.
    memory = 100_000_000
    done = subprocess.run([sys.executable, "-c", MEASURE, tmp_path, str(memory)], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert 20_000_000 < int(done.stdout.split()[0]) < memory
    np.testing.assert_allclose(np.load(tmp_path / "C.npy"), a @ b, rtol=1e-4)


MEASURE_SUM = """
import sys
from pathlib import Path
import numpy as np
from paceline import BlockMatrix

def peak():
    return 1024 * int(Path("/proc/self/status").read_text().partition("VmHWM:")[2].split()[0])

folder, memory = Path(sys.argv[1]), int(sys.argv[2])
a, b = (BlockMatrix.from_npy(folder / name) for name in ("A.npy", "B.npy"))
c = BlockMatrix.random(4_000, blocks=4, seed=3)
np.ones((500, 500), np.float32) @ np.ones((500, 500), np.float32)  # the library's own threads and buffers
BlockMatrix.random(8, blocks=1, seed=1).to_numpy()  # on a machine's first run this compiles, which takes memory, too
baseline = peak()
((a @ b).T + 2 * c).to_npy(folder / "C.npy", memory=memory)
print(peak() - baseline)
np.testing.assert_allclose(
    np.load(folder / "C.npy"), (np.load(folder / "A.npy") @ np.load(folder / "B.npy")).T + 2 * c.to_numpy(), rtol=1e-3
)
"""


def test_memory_of_sums_and_products_stays_under_the_limit(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    np.save(tmp_path / "A.npy", rng.random((4_000, 3_000), np.float32))
    np.save(tmp_path / "B.npy", rng.random((3_000, 4_000), np.float32))
    memory = 100_000_000
    done = subprocess.run([sys.executable, "-c", MEASURE_SUM, tmp_path, str(memory)], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert 20_000_000 < int(done.stdout.split()[0]) < memory


def test_too_little_memory_for_one_element_is_said(tmp_path: Path) -> None:
    a = BlockMatrix.random(5_000, blocks=5, seed=1)
    with pytest.raises(ConfigError, match="`memory` is 1KB, too little to compute a single element") as caught:
        (a @ a + a).to_npy(tmp_path / "out.npy", memory=1000)
    assert caught.value.hint.startswith('memory="')
    assert not list(tmp_path.iterdir())


def test_all_memory_of_the_process_stays_under_a_larger_limit(tmp_path: Path) -> None:
    """A limit of 440 MB or more includes what Python and its libraries take."""
    rng = np.random.default_rng(0)
    # The result alone is 400 MB.
    a, b = rng.random((10_000, 400), np.float32), rng.random((400, 10_000), np.float32)
    np.save(tmp_path / "A.npy", a)
    np.save(tmp_path / "B.npy", b)
    memory = 500_000_000
    done = subprocess.run([sys.executable, "-c", MEASURE, tmp_path, str(memory)], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert 200_000_000 < int(done.stdout.split()[1]) < memory
    c = np.load(tmp_path / "C.npy", mmap_mode="r")
    np.testing.assert_allclose(c[::999], a[::999] @ b, rtol=1e-4)
    (tmp_path / "C.npy").unlink()


class TestResuming:
    @pytest.fixture
    def factors(self, tmp_path: Path) -> tuple[Path, Path]:
        BlockMatrix.random((1_500, 1_500), seed=1).to_npy(tmp_path / "A.npy")
        BlockMatrix.random((1_500, 1_500), seed=2).to_npy(tmp_path / "B.npy")
        return tmp_path / "A.npy", tmp_path / "B.npy"

    def test_after_a_kill(self, factors: tuple[Path, Path], tmp_path: Path, command: Command) -> None:
        flags = ["--memory", "70MB", "--block", "100"]
        whole = command("matmul", *factors, "--out", tmp_path / "whole.npy", "--run", tmp_path / "run-0", *flags)
        assert whole.code == 0, whole.err
        out, journal = tmp_path / "C.npy", tmp_path / ".C.npy.journal"
        words: list[Any] = [sys.executable, "-m", "paceline", "matmul", *factors, "--out", out, *flags, "--run"]
        process = subprocess.Popen([*words, tmp_path / "run-1"])
        deadline = time.monotonic() + 60
        while not journal.exists() or len(journal.read_bytes().splitlines()) < 4:
            assert process.poll() is None
            assert time.monotonic() < deadline
            time.sleep(0.001)
        os.kill(process.pid, signal.SIGKILL)
        process.wait()
        assert not out.exists()
        found = read_journal(out)
        assert found is not None
        assert 3 <= len(found[1]) < 225
        again = command("matmul", *factors, "--out", out, *flags, "--run", tmp_path / "run-2")
        assert again.code == 0, again.err
        assert "tiles were finished by an earlier attempt" in again.err
        result = json.loads((tmp_path / "run-2" / "result.json").read_text())
        assert 3 <= result["tiles_found"] < result["tiles"] == 225
        assert out.read_bytes() == (tmp_path / "whole.npy").read_bytes()
        assert not list(tmp_path.glob(".C.npy*"))

    def test_other_factors_start_over(self, factors: tuple[Path, Path], tmp_path: Path) -> None:
        out = tmp_path / "C.npy"
        left, right = map(open_matrix, factors)
        prepared = prepare_product(left, right, out, 10**9, block=500)
        with product_file(out, prepared.heading) as file:
            file.finish_tile(0, 0)
        assert prepare_product(left, right, out, 10**9, block=500).heading == prepared.heading
        # Without a block given, the tiles of the earlier attempt are as good as any that fit.
        assert prepare_product(left, right, out, 10**9).heading == prepared.heading
        assert prepare_product(left, right, out, 10**9, block=400).heading != prepared.heading
        assert prepare_product(right, left, out, 10**9, block=500).heading != prepared.heading
        os.utime(factors[0], (1, 1))
        other = prepare_product(left, right, out, 10**9, block=500)
        with product_file(out, prepared.heading) as file:
            assert file.done == {(0, 0)}
        with product_file(out, other.heading) as file:
            assert not file.done

    def test_other_tiles_start_over_and_it_is_said(
        self, factors: tuple[Path, Path], tmp_path: Path, command: Command
    ) -> None:
        out = tmp_path / "C.npy"
        prepared = prepare_product(open_matrix(factors[0]), open_matrix(factors[1]), out, 10**9, block=500)
        for heading in (prepared.heading, msgspec.structs.replace(prepared.heading, engine="ray 1")):
            with product_file(out, heading) as file:
                file.finish_tile(0, 0)
            done = command("matmul", *factors, "--out", out, "--block", "750", "--run", tmp_path / heading.engine)
            assert done.code == 0, done.err
            assert "1 tiles of an earlier attempt have other sizes and are computed again" in done.err
            out.unlink()

    def test_what_is_left_of_an_earlier_attempt_writes_into_its_own_file(self, tmp_path: Path) -> None:
        out = tmp_path / "C.npy"
        first, second = (Heading(name, "b", (2, 2), "float64", Plan(2, 2, 2)) for name in "ax")
        with product_file(out, first) as file:
            file.finish_tile(0, 0)
        left_over = ProductFile(out, first, set())
        with product_file(out, second) as file:
            assert read_journal(out) == (second, set())
            file.write(0, 0, np.full((2, 2), 2.0))
            left_over.write(0, 0, np.full((2, 2), 1.0))
            file.finish_tile(0, 0)
            file.finish()
        left_over.close()
        assert (np.load(out) == 2).all()

    def test_a_beginning_cut_short_names_no_tiles(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        out = tmp_path / "C.npy"
        first, second = (Heading(name, "b", (2, 2), "float64", Plan(2, 2, 2)) for name in "ax")
        for step in range(4):
            with product_file(out, first) as file:
                file.finish_tile(0, 0)
            steps = iter(range(4))

            def cut(_: Any, step: int = step, steps: Any = steps) -> None:
                if next(steps) == step:
                    raise KeyboardInterrupt

            with monkeypatch.context() as patched:
                patched.setattr("paceline.matrices.product_file.os.fsync", cut)
                with pytest.raises(KeyboardInterrupt), product_file(out, second):
                    pass
            assert read_journal(out) in (None, (second, set()))

    def test_a_journal_cut_short(self, factors: tuple[Path, Path], tmp_path: Path) -> None:
        out = tmp_path / "C.npy"
        prepared = prepare_product(open_matrix(factors[0]), open_matrix(factors[1]), out, 10**9, block=500)
        with product_file(out, prepared.heading) as file:
            file.finish_tile(0, 0)
        with (tmp_path / ".C.npy.journal").open("ab") as journal:
            journal.write(b"[500, 5")
        for line in (b"[1000, 0]\n", b"garbage\n"):
            assert read_journal(out) is not None
            with product_file(out, prepared.heading):
                pass
            with (tmp_path / ".C.npy.journal").open("ab") as journal:
                journal.write(line)
        found = read_journal(out)
        assert found is not None
        assert found[1] == {(0, 0), (1000, 0)}
        (tmp_path / ".C.npy.partial").write_bytes(b"")
        assert read_journal(out) is None

    @pytest.mark.parametrize(
        ("before", "after"),
        [
            (b'"float64"', b'"fload64"'),
            (b'"float64"', b'"int64"'),
            (b'"float64"', b'"(2,"'),
            (b"[30,30]", b"[-30,-30]"),
            (b"[10,10,10]", b"[0,10,10]"),
            (b"[10,10,10]", b"[10,-1,10]"),
            (b"[0,0]", b"[0,30]"),
            (b"[0,0]", b"[-10,0]"),
        ],
    )
    def test_a_damaged_journal_is_not_used(self, tmp_path: Path, before: bytes, after: bytes) -> None:
        factor, out = RandomSource((30, 30), 1, np.dtype(np.float64)), tmp_path / "C.npy"
        with product_file(out, prepare_product(factor, factor, out, 10**9, block=10).heading) as file:
            file.finish_tile(0, 0)
        journal = tmp_path / ".C.npy.journal"
        assert before in journal.read_bytes()
        journal.write_bytes(journal.read_bytes().replace(before, after))
        assert multiply_to_file(prepare_product(factor, factor, out, 10**9)).tiles_found == 0
        whole = np.empty(factor.shape, factor.dtype)
        factor.fill(0, 0, whole)
        np.testing.assert_allclose(np.load(out), whole @ whole)

    def test_a_damaged_partial_file_is_not_used(self, tmp_path: Path) -> None:
        factor, out = RandomSource((30, 30), 1, np.dtype(np.float64)), tmp_path / "C.npy"
        with product_file(out, prepare_product(factor, factor, out, 10**9, block=10).heading) as file:
            file.finish_tile(0, 0)
        assert read_journal(out) is not None
        with (tmp_path / ".C.npy.partial").open("r+b") as partial:
            partial.write(b"garbage")
        assert read_journal(out) is None

    def test_two_at_once(self, factors: tuple[Path, Path], tmp_path: Path) -> None:
        prepared = prepare_product(open_matrix(factors[0]), open_matrix(factors[1]), tmp_path / "C.npy", 10**9)
        with (
            product_file(prepared.out, prepared.heading),
            pytest.raises(UsageError, match="another process"),
            product_file(prepared.out, prepared.heading),
        ):
            pass


class TestFilesThatOthersPlanted:
    """Beside `--out` there may be links to any file of this user, and pipes that nobody reads or writes."""

    @pytest.fixture
    def factor(self, tmp_path: Path) -> Path:
        BlockMatrix.random(100).to_npy(tmp_path / "A.npy")
        return tmp_path / "A.npy"

    @pytest.mark.parametrize("plant", [os.mkfifo, Path.mkdir, lambda path: path.symlink_to("precious")])
    def test_a_journal_that_is_not_a_file_is_refused(
        self, factor: Path, tmp_path: Path, command: Command, plant: Any
    ) -> None:
        (tmp_path / "precious").write_text("years of work")
        plant(tmp_path / ".C.npy.journal")
        done = command("matmul", factor, factor, "--out", tmp_path / "C.npy", "--run", tmp_path / "run")
        assert done.code == 2
        assert f"`{tmp_path / '.C.npy.journal'}` is not a regular file\nhint: remove it" in done.err
        assert (tmp_path / "precious").read_text() == "years of work"

    def test_a_link_in_place_of_the_partial_file_is_replaced(self, factor: Path, tmp_path: Path) -> None:
        out, precious = tmp_path / "C.npy", tmp_path / "precious"
        prepared = prepare_product(open_matrix(factor), open_matrix(factor), out, 10**9, block=50)
        with product_file(out, prepared.heading) as file:
            file.finish_tile(0, 0)
        (tmp_path / ".C.npy.partial").rename(precious)
        before = precious.read_bytes()
        (tmp_path / ".C.npy.partial").symlink_to(precious)
        with pytest.raises(UsageError, match="not a regular file"):
            ProductFile(out, prepared.heading, set())
        multiply_to_file(prepared)
        assert not out.is_symlink()
        assert precious.read_bytes() == before


class TestWhatCannotBeWritten:
    def test_a_node_that_does_not_see_the_folder(self, tmp_path: Path) -> None:
        with pytest.raises(DataError, match="cannot be written here: No such file") as caught:
            ProductFile(tmp_path / "elsewhere" / "C.npy", Heading("a", "b", (2, 2), "float64", Plan(2, 2, 2)), set())
        assert "every node must see the folder" in caught.value.hint

    def test_a_full_disk(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        BlockMatrix.random(100).to_npy(tmp_path / "A.npy")
        usage = type("Usage", (), {"free": 1_000})
        monkeypatch.setattr("paceline.matrices.product_file.shutil.disk_usage", lambda _: usage)
        node = open_matrix(tmp_path / "A.npy")
        with pytest.raises(UsageError, match=r"needs .* but its disk has 1KB free") as caught:
            prepare_product(node, node, tmp_path / "C.npy", 10**9)
        assert caught.value.exit_code == 2

    def test_names(self, tmp_path: Path) -> None:
        node = array_source(np.ones((3, 3)))
        (tmp_path / "folder.npy").mkdir()
        for out, says in (
            (tmp_path / "C.txt", "does not end in .npy"),
            (tmp_path / "nowhere" / "C.npy", "no such folder"),
            (tmp_path / "folder.npy", "is a folder"),
        ):
            with pytest.raises(UsageError, match=says):
                prepare_product(node, node, out, 10**9)
        (tmp_path / "C.npy").touch()
        with pytest.raises(UsageError, match="exists already"):
            prepare_product(node, node, tmp_path / "C.npy", 10**9)
