"""Which inputs are damaged, and what is done with them?

Every format is a folder of small valid files. A case damages one of them and uses the folder: prepares it, trains on
it if it is a dataset, resumes, explains or evaluates it if it is a run. Checksums are put right again, so that what
lies behind them is reached.
"""

from __future__ import annotations

import contextlib
import gc
import random
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.ipc
import pyarrow.parquet
import xxhash

from paceline.data.blocks.manifests import seal
from paceline.data.sources import tables
from paceline.data.sources.table_process import TableProcess
from paceline.errors import BAD_TEXT
from paceline.matrices.sources import RandomSource
from tests.conftest import small_blocks
from tests.data import image_inputs, inputs
from tests.data.image_inputs import random_images, random_pixels, save_image, write_idx
from tests.fuzz.mutators import mutate

ROWS = 40
RANDOM = RandomSource((30, 30), 1, np.dtype(np.float64))


class FuzzFormat(NamedTuple):
    """How valid files are made, which of them (a glob) are damaged, and what is done with the folder.

    `mend` puts the checksums of a dataset right after one of its files was damaged. With `edit`, a value of the file is
    replaced instead of its bytes.
    """

    make: Callable[[Path], Any]
    use: Callable[[Path, Path], Any]
    damaged: str = "*"
    mend: Callable[[Path, Path], None] | None = None
    edit: Callable[[Path, random.Random], str] | None = None


def damage(format_: FuzzFormat, valid: Path, folder: Path, seed: int) -> str:
    """A copy of the valid files with one of them damaged; what was done."""
    chance = random.Random(seed)
    shutil.rmtree(folder, ignore_errors=True)
    shutil.copytree(valid, folder)
    path = chance.choice(sorted(path for path in folder.rglob(format_.damaged) if path.is_file()))
    if format_.edit is not None:
        return f"{path.name}: {format_.edit(path, chance)}"
    content, what = mutate(path.read_bytes(), chance)
    path.write_bytes(content)
    if format_.mend is not None:
        format_.mend(folder, path)
    return f"{path.relative_to(folder)}: {what}"


# -- what is done with files


def prepare_as(name: str, **settings: Any) -> Callable[[Path, Path], None]:
    """Prepare a folder in this format."""

    def use(folder: Path, scratch: Path) -> None:
        inputs.run_any(scratch, folder, format=name, **settings)

    return use


def prepare_with_weights(folder: Path, scratch: Path) -> None:
    """Prepare rows whose weights are in a file of their own."""
    inputs.run_any(scratch, folder / "a.svm", format="libsvm", weights=[folder / "weights"], skip_bad_rows=3)


def train_on(model: str) -> Callable[[Path, Path], None]:
    """Train for a few steps, and open the test rows."""

    def use(folder: Path, scratch: Path) -> None:
        import paceline

        pace = "async" if model == "logistic" else "sync"
        paceline.train(data=folder, model=model, pace=pace, batch_size=1 if model == "logistic" else 8, workers=1,
                       steps=30, run=scratch / "run", seed=1)  # fmt: skip

    return use


def train_on_names(folder: Path, scratch: Path) -> None:
    """Train on a dataset whose keys have names, and call features by them. No file but those of the run may change."""
    import paceline

    bystander = scratch / "x"
    bystander.write_text("precious")
    run = paceline.train(data=folder, pace="async", batch_size=1, workers=1, steps=30, run=scratch / "run", seed=1)
    found = sorted(path.name for path in (run.path / "model").iterdir() if path.name != "names.arrow")
    assert found == ["counts.arrow", "model.json", "model.safetensors", "optimizer.safetensors"]
    assert bystander.read_text() == "precious"
    paceline.load(run.path).top(5)


class KeptProcess(NamedTuple):
    """The reader of tables of all cases: starting one takes longer than a case."""

    read_schema: Callable[[Any], Any]
    read: Callable[[Any], Any]

    def close(self) -> None:
        pass


def prepare_tables(name: str, **settings: Any) -> Callable[[Path, Path], None]:
    """Prepare a folder of tables, with one process that reads them as long as it does not crash."""
    process = TableProcess(name)
    prepare = prepare_as(name, hash_bits=8, skip_bad_rows=3, **settings)

    def use(folder: Path, scratch: Path) -> None:
        gc.collect()  # an answer that the case before did not read to its end ends the process now, not during this one
        setattr(tables, "TableProcess", lambda _: KeptProcess(process.read_schema, process.read))  # noqa: B010
        prepare(folder, scratch)

    return use


def read_recipe(folder: Path, _scratch: Path) -> None:
    """Read settings, and the points of a sweep."""
    from paceline.config import read_config
    from paceline.sweeps.points import read_sweep

    read_sweep(folder / "sweep.toml", {}, ())
    read_config(folder / "train.toml", {})


def evaluate(folder: Path, scratch: Path) -> None:
    """Use the model of a run."""
    from paceline.predictions import evaluate_model, write_predictions

    evaluate_model(folder, data_of(folder), None)
    write_predictions(folder, data_of(folder), scratch / "scores.csv", None)


def use_of_table(folder: Path, scratch: Path) -> None:
    """Score raw rows with a model, and read its weights."""
    import pyarrow.csv

    import paceline

    paceline.load(folder).predict(pyarrow.csv.read_csv(folder / "a.csv").drop_columns("label"))
    paceline.predict(folder, folder / "a.csv", scratch / "scores.csv")
    paceline.top(folder, 5)
    paceline.export(folder, to="text", out=scratch / "weights.tsv")


def resume(folder: Path, scratch: Path) -> None:
    """Continue a run from the one checkpoint that it has."""
    from paceline.run import resume

    shutil.copytree(folder, scratch / "run")
    resume(scratch / "run", data=str(data_of(folder)))


def explain(folder: Path, scratch: Path) -> None:
    """Diagnose a run, and write its pages."""
    import paceline
    from paceline.reports.compare import compare, print_comparison, write_comparison
    from paceline.reports.terminal import result_row
    from paceline.reports.trace import write_trace

    run = paceline.Run(folder)
    print_comparison(comparison := compare([run, run]))
    write_comparison(comparison, scratch / "compare.html")
    run.report(scratch / "report.html")
    result_row("", run.result, run.facts.traits)
    write_trace(run, scratch / "trace.json")
    run.diagnose()


def multiply(folder: Path, scratch: Path) -> None:
    """Multiply a .npy file by a folder of blocks, and continue a product that was interrupted."""
    from paceline.matrices.product import multiply_to_file, prepare_product
    from paceline.matrices.sources import open_matrix

    left, right = open_matrix(folder / "a.npy"), open_matrix(folder / "blocks")
    multiply_to_file(prepare_product(left, right, scratch / "c.npy", 10**8))
    shutil.copytree(folder / "begun", scratch / "begun")
    multiply_to_file(prepare_product(RANDOM, RANDOM, scratch / "begun" / "c.npy", 10**8))


def data_of(folder: Path) -> Path:
    """The data of a run, which is beside it."""
    return folder.with_name("data")


# -- valid files


def make_table() -> pa.Table:
    count = range(ROWS)
    return pa.table({
        "label": [i % 2 for i in count],
        "age": pa.array([i if i % 5 else None for i in count], pa.int16()),
        "site": [f"s{i % 7}" for i in count],
        "app": pa.array([f"x{i % 3}" for i in count]).dictionary_encode(),
        "price": [i * 0.5 for i in count],
        "seen": [bool(i % 3) for i in count],
        "cost": pa.array(list(count), pa.decimal128(12, 2)),
        "page": pa.array([f"t{i}" for i in count], pa.large_string()),
    })  # fmt: skip


def make_arrow(folder: Path) -> None:
    for name, compression in (("a", None), ("b", "lz4")):
        options = pa.ipc.IpcWriteOptions(compression=compression)
        with pa.ipc.new_file(folder / f"{name}.arrow", make_table().schema, options=options) as writer:
            writer.write_table(make_table(), max_chunksize=15)


def make_stream(folder: Path) -> None:
    with pa.ipc.new_stream(folder / "a.arrow", make_table().schema) as writer:
        writer.write_table(make_table(), max_chunksize=15)


def make_parquet(folder: Path) -> None:
    pa.parquet.write_table(make_table(), folder / "a.parquet", row_group_size=15)
    plain = {"use_dictionary": False, "compression": "none", "data_page_version": "2.0"}
    pa.parquet.write_table(make_table(), folder / "b.parquet", row_group_size=15, **plain)


def make_times(folder: Path) -> None:
    """Times and lists, in a file and in a stream."""
    count = range(ROWS)
    table = pa.table({
        "label": [i % 2 for i in count],
        "at": pa.array([i * 10**9 if i % 5 else None for i in count], pa.timestamp("ms", "Europe/Rome")),
        "day": pa.array(count, pa.date32()),
        "hour": pa.array(count, pa.time32("s")),
        "tags": [[f"t{j}" for j in range(i % 4)] for i in count],
        "sizes": [list(range(i % 3)) for i in count],
        "age": pa.array([i / 2 for i in count]),
    })  # fmt: skip
    with pa.ipc.new_file(folder / "a.arrow", table.schema) as writer:
        writer.write_table(table, max_chunksize=15)
    with pa.ipc.new_stream(folder / "b.arrow", table.schema) as writer:
        writer.write_table(table, max_chunksize=15)


def make_timed_csv(folder: Path) -> None:
    lines = ["label,at,age,shop"] + [f"{i % 2},2026-11-18 21:{i % 60:02d}:00,{i / 3},s{i % 4}" for i in range(ROWS)]
    (folder / "a.csv").write_text("\n".join(lines) + "\n")


def make_libsvm(folder: Path) -> None:
    lines = [f"{1 - 2 * (i % 2)} {i + 1}:{i / 7} 99:1e-3 {100 + i}:-2.5 # c" for i in range(ROWS)]
    (folder / "a.svm").write_text("\n".join(lines) + "\n")


def make_weights(folder: Path) -> None:
    make_libsvm(folder)
    (folder / "weights").write_text("".join(f"{i / 8}\n" for i in range(ROWS)))


def make_libffm(folder: Path) -> None:
    lines = [f"{i % 2}:{i / 4} {i % 9}:{i + 1}:{i / 7} 99:99:1e-3 65535:{100 + i}:-2.5 # c" for i in range(ROWS)]
    (folder / "a.ffm").write_text("\n".join(lines) + "\n")


def make_names(folder: Path) -> None:
    lines = ["label,site,n,w"] + [f"{'abc'[i % 3]},s{i % 7},{i / 3},{i / 2}" for i in range(ROWS)]
    (folder / "a.csv").write_text("\n".join(lines) + "\n")


def make_criteo(folder: Path) -> None:
    rows = [inputs.criteo_row(str(i % 2), ["1", "", "-3", str(i)], ["68fd1e64", "", f"{i:08x}"]) for i in range(ROWS)]
    (folder / "a.tsv").write_text("".join(rows))


def make_csv(folder: Path) -> None:
    lines = ['label,"a,b",n'] + [f'{i % 2},"x ""{i}""",{i / 3}' for i in range(ROWS)]
    (folder / "a.csv").write_text("\n".join(lines) + "\n")


def make_tfrecord(folder: Path) -> None:
    rows = [inputs.sparse_example(i % 2, [1, i + 2, 50 + i], [1.0, -0.5, i]) for i in range(ROWS)]
    (folder / "a.tfrecord").write_bytes(b"".join(inputs.record(row) for row in rows))


def make_idx(folder: Path) -> None:
    write_idx(folder, "train", random_images(ROWS, 20, 4), 4, 5)
    write_idx(folder, "t10k", random_images(8, 20, 4, seed=1), 4, 5)


def make_cifar(folder: Path) -> None:
    images = random_images(6, 32 * 32 * 3, 10)
    (folder / "data_batch_1.bin").write_bytes(image_inputs.cifar_rows(images))


def make_images(folder: Path) -> None:
    for i in range(6):
        name = f"{'cats' if i % 2 else 'dogs'}/{i}{('.png', '.jpg', '.gif', '.webp', '.bmp', '.tiff')[i]}"
        save_image(folder / name, random_pixels(12, 9, 3, seed=i))


def make_rows(folder: Path) -> None:
    """A dataset of sparse rows."""
    _make_dataset(folder, make_libsvm)


def make_full_rows(folder: Path) -> None:
    """A dataset of sparse rows that have weights and fields, some of them for validation."""
    _make_dataset(folder, make_libffm, validation_fraction=0.2)


def _make_dataset(folder: Path, make: Callable[[Path], None], **settings: Any) -> None:
    source = folder.with_name(f"{folder.name}-source")
    source.mkdir()
    make(source)
    shutil.rmtree(folder)
    with small_blocks(25):
        made = inputs.run_any(source, *source.iterdir(), test_fraction=0.2, **settings)
    shutil.move(str(made.dataset.folder), folder)
    shutil.rmtree(source)


def make_named_rows(folder: Path) -> None:
    """A dataset of sparse rows whose keys have names."""
    _make_dataset(folder, make_names, label="w", labels="numbers", hash_bits=8)


def make_image_rows(folder: Path) -> None:
    """A dataset of images."""
    source = folder.with_name(f"{folder.name}-source")
    source.mkdir()
    make_idx(source)
    shutil.rmtree(folder)
    with small_blocks(25):
        made = inputs.run_any(folder.parent, source)
    shutil.move(str(made.dataset.folder), folder)
    shutil.rmtree(source)


def make_compressed(folder: Path) -> None:
    make_libsvm(folder)
    text = (folder / "a.svm").read_bytes()
    (folder / "a.svm").unlink()
    for suffix, codec in ((".gz", "gzip"), (".zst", "zstd")):
        with pa.CompressedOutputStream(str(folder / f"a.svm{suffix}"), codec) as file:
            file.write(text)


def make_run(folder: Path) -> None:
    """A run that is done, and has the files of one that is not."""
    import paceline

    data_of(folder).mkdir()
    make_rows(data_of(folder))
    shutil.rmtree(folder)
    paceline.train(data=data_of(folder), batch_size=1, workers=1, epochs=3, test_every=10, run=folder, seed=1,
                   checkpoint_every=1e-6).report()  # fmt: skip


def make_table_run(model: str) -> Callable[[Path], None]:
    """A run on a table with columns of all kinds, and the table, which is in the folder of the run, too."""

    def make(folder: Path) -> None:
        import paceline

        shutil.rmtree(folder)
        source = folder.with_name(f"{folder.name}-source")
        source.mkdir()
        make_timed_csv(source)
        text = (source / "a.csv").read_text().replace(",s", ",1e6,s").replace("age,shop", "age,far,shop")
        (source / "a.csv").write_text(text)
        settings: Any = CROSSED | {"hash_bits": 8, "timestamp": ["at"], "progress": False}
        paceline.prepare(source / "a.csv", source / "data", **settings)
        paceline.train(data=source / "data", model=model, workers=1, epochs=1, run=folder, seed=1, progress=False)
        shutil.move(source / "a.csv", folder)
        shutil.rmtree(source)

    return make


def make_stopped_run(folder: Path) -> None:
    make_run(folder)
    (folder / "result.json").unlink()
    shutil.rmtree(folder / "model")
    older = sorted((folder / "checkpoints").glob("0*"))[:-1]
    for path in older:
        shutil.rmtree(path)


def make_recipe(folder: Path) -> None:
    recipe = (
        'data = "x"\npace = 4\nbatch_size = 10\nseconds = 1.5\n[optimizer]\nname = "sgd"\nlearning_rate = 0.1\n'
        "[wire]\nport = 0\nmac = true\n"
    )
    (folder / "train.toml").write_text('engine = "ray"\nworkers = 2\n' + recipe)
    (folder / "sweep.toml").write_text(f'engine = "ray"\n{recipe}[sweep]\nworkers = [1, 2]\npace = ["sync", 3]\n')


def make_matrices(folder: Path) -> None:
    from paceline.matrices.matrix import BlockMatrix
    from paceline.matrices.product import prepare_product
    from paceline.matrices.product_file import product_file

    matrix = BlockMatrix.random(30, blocks=2, seed=1)
    matrix.to_npy(folder / "a.npy")
    matrix.to_blocks(folder / "blocks")
    (folder / "begun").mkdir()
    begun = prepare_product(RANDOM, RANDOM, folder / "begun" / "c.npy", 10**8, block=10)
    with product_file(begun.out, begun.heading) as file:
        file.finish_tile(0, 0)


# -- checksums that are right


def mend_checkpoint(folder: Path, path: Path) -> None:
    """Enter the checksums of what was damaged into checkpoint.json, as far as it can be read."""
    import safetensors
    import safetensors.numpy

    from paceline.training import checkpoint as module

    with contextlib.suppress(*BAD_TEXT, safetensors.SafetensorError):
        info = msgspec.json.decode((path.parent / "checkpoint.json").read_bytes(), type=module.CheckpointInfo)
        tensors = safetensors.numpy.load_file(path.parent / "states.safetensors")
        info = msgspec.structs.replace(info, states=module._checksum(tensors), header=module._header(tensors))
        info = msgspec.structs.replace(info, checksum=module._own_checksums(info)[0])
        (path.parent / "checkpoint.json").write_bytes(msgspec.json.encode(info))


def mend_checksums(folder: Path, path: Path) -> None:
    """Enter the checksum of a damaged block into the manifest, as someone would who means harm."""
    manifest = msgspec.json.decode((folder / "manifest.json").read_bytes())
    for split in ("train", "validation", "test"):
        for block in manifest[split]["blocks"]:
            if block["file"] == path.name:
                block["checksum"] = xxhash.xxh3_64_hexdigest(path.read_bytes())
    if manifest.get("names", {}).get("file") == path.name:
        manifest["names"]["checksum"] = xxhash.xxh3_64_hexdigest(path.read_bytes())
    write_manifest(folder / "manifest.json", manifest)


def write_manifest(path: Path, manifest: Any) -> None:
    manifest.pop("checksum", None)
    path.write_bytes(seal(msgspec.json.encode(manifest)))


def edit_manifest(path: Path, chance: random.Random) -> str:
    """Replace one value somewhere in a manifest."""
    manifest = msgspec.json.decode(path.read_bytes())
    done = edit_value(manifest, chance)
    write_manifest(path, manifest)
    return done


def edit_model(path: Path, chance: random.Random) -> str:
    """Replace one value somewhere in `model.json`, as often as not one that says how the data was prepared."""
    model = msgspec.json.decode(path.read_bytes())
    done = edit_value(model["source"] if chance.random() < 0.5 else model, chance)
    path.write_bytes(msgspec.json.encode(model))
    return done


def edit_value(tree: Any, chance: random.Random) -> str:
    """Replace one value somewhere in a tree; what was done."""
    node, trail = tree, []
    while True:
        keys = list(node) if isinstance(node, dict) else list(range(len(node)))
        key = chance.choice([key for key in keys if key != "checksum" or node is not tree])
        trail.append(str(key))
        if isinstance(node[key], dict | list) and node[key] and chance.random() < 0.9:
            node = node[key]
            continue
        before = node[key]
        values = [0, -1, 1, 2, 1 << 20, 1 << 31, 1 << 40, -(1 << 63), 0.5, "", None, [], {}, True, "numbers"]
        values += ["../../x", "..", "model.json", "names.arrow/../model.json", "a\\b", "a\0b", "/nowhere/x"]
        if isinstance(before, int):
            values += [before + 1, before - 1, 2 * before]
        node[key] = chance.choice(values)
        break
    return f"{'.'.join(trail)} set to {node[key]!r}"


DATASET = {"damaged": "*.arrow", "mend": mend_checksums}
MANIFEST = {"damaged": "manifest.json", "edit": edit_manifest}
CROSSED: dict[str, Any] = {"bins": {"age": 4}, "cross": [["age", "at.hour"]], "fields": True}

FORMATS: dict[str, FuzzFormat] = {
    "libsvm": FuzzFormat(make_libsvm, prepare_as("libsvm", skip_bad_rows=3)),
    "libffm": FuzzFormat(make_libffm, prepare_as("libffm", skip_bad_rows=3)),
    "weights": FuzzFormat(make_weights, prepare_with_weights),
    "names": FuzzFormat(make_names, prepare_as("csv", labels="classes", weight="w", fields=True, skip_bad_rows=3)),
    "criteo": FuzzFormat(make_criteo, prepare_as("criteo", hash_bits=8, skip_bad_rows=3)),
    "csv": FuzzFormat(make_csv, prepare_as("csv", hash_bits=8, skip_bad_rows=3)),
    "csv-times": FuzzFormat(
        make_timed_csv, prepare_as("csv", hash_bits=8, skip_bad_rows=3, timestamp=["at"], **CROSSED)
    ),
    "times": FuzzFormat(make_times, prepare_tables("arrow", **CROSSED)),
    "tfrecord": FuzzFormat(make_tfrecord, prepare_as("tfrecord", skip_bad_rows=3)),
    "parquet": FuzzFormat(make_parquet, prepare_tables("parquet")),
    "full-parquet": FuzzFormat(make_parquet, prepare_tables("parquet", weight="cost", fields=True)),
    "arrow": FuzzFormat(make_arrow, prepare_tables("arrow")),
    "arrow-stream": FuzzFormat(make_stream, prepare_tables("arrow")),
    "idx": FuzzFormat(make_idx, prepare_as("idx")),
    "cifar": FuzzFormat(make_cifar, prepare_as("cifar")),
    "images": FuzzFormat(make_images, prepare_as("images")),
    "compressed": FuzzFormat(make_compressed, prepare_as("libsvm", skip_bad_rows=3)),
    "recipe": FuzzFormat(make_recipe, read_recipe),
    "model": FuzzFormat(make_run, evaluate, "model.*"),
    "table-model": FuzzFormat(make_table_run("linear"), use_of_table, "model.json", edit=edit_model),
    "fields-model": FuzzFormat(make_table_run("ffm"), use_of_table, "model.json", edit=edit_model),
    "checkpoint": FuzzFormat(make_stopped_run, resume, "checkpoint.json", mend_checkpoint),
    "states": FuzzFormat(make_stopped_run, resume, "states.safetensors", mend_checkpoint),
    "run": FuzzFormat(make_run, explain, "*.[jt]*"),
    "matrix": FuzzFormat(make_matrices, multiply),
    "rows": FuzzFormat(make_rows, train_on("logistic"), **DATASET),  # type: ignore[arg-type]
    "rows-manifest": FuzzFormat(make_rows, train_on("logistic"), **MANIFEST),  # type: ignore[arg-type]
    "full-rows": FuzzFormat(make_full_rows, train_on("logistic"), **DATASET),  # type: ignore[arg-type]
    "full-rows-manifest": FuzzFormat(make_full_rows, train_on("logistic"), **MANIFEST),  # type: ignore[arg-type]
    "named-rows": FuzzFormat(make_named_rows, train_on_names, **DATASET),  # type: ignore[arg-type]
    "named-rows-manifest": FuzzFormat(make_named_rows, train_on_names, **MANIFEST),  # type: ignore[arg-type]
    "image-rows": FuzzFormat(make_image_rows, train_on("softmax"), **DATASET),  # type: ignore[arg-type]
    "image-rows-manifest": FuzzFormat(make_image_rows, train_on("softmax"), **MANIFEST),  # type: ignore[arg-type]
}
