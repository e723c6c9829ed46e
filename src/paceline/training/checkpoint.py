"""How is a run's state kept so that nothing promised is lost?

A checkpoint is a folder `checkpoints/<rows>`: `states.safetensors`, the states of all parameters, and `checkpoint.json`
with everything else that the run depends on, and checksums of both. It is written under a temporary name,
flushed to the disk and renamed; only then does `latest` name it. The two newest are kept, and loading falls back from
one that is damaged to the one before.
"""

from __future__ import annotations

import math
import shutil
from pathlib import Path
from typing import Annotated, Any, NamedTuple, TypeAlias

import msgspec
import numpy as np
import safetensors.numpy
import xxhash
from numpy.typing import NDArray
from safetensors import SafetensorError

from paceline.errors import BAD_TEXT, DataError
from paceline.files import read_file, replace_file, sync_to_disk, translated_disk_errors, write_tensors

KEPT = 2
# Rows and batches are counted in 64 bits, and counting goes on.
Count: TypeAlias = Annotated[int, msgspec.Meta(ge=0, le=1 << 62)]


class Handed(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What a snapshot of a cluster needs besides its states, because each shard takes its own at another moment.

    `applied[shard][rank]` is the last batch of a worker that a shard's states contain, and `rows[shard]` how many rows;
    `open[rank]` are the pieces (first batch, start, stop) handed out that some shard may lack, and `bases[rank]` the
    last batch before the segment that was cut. All empty for the embedded engine.
    """

    applied: list[list[Count]] = []
    rows: list[Count] = []
    bases: list[Count] = []
    open: list[list[tuple[Count, Count, Count]]] = []


class Progress(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Where a run stands: what has been trained on and for how long, and the losses since the last evaluation.

    `tested` is the position of that evaluation: one that was due when the run was stopped is made up for.
    """

    position: Count = 0
    tested: Count = 0
    clock: Count = 0
    train_seconds: float = 0.0
    losses: float = 0.0
    loss_rows: Count = 0
    largest_lead: Count = 0
    handed: Handed = Handed()

    @property
    def train_loss(self) -> float:
        """The mean loss since the last evaluation."""
        return self.losses / self.loss_rows if self.loss_rows else math.nan


class CheckpointInfo(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """`checkpoint.json`. `made_by` is what must be the same when the run continues: settings, and which data it is.

    `states` is the checksum of the numbers in `states.safetensors`, and `header` says which arrays they form. Older
    checkpoints have no `header`.
    """

    progress: Progress
    made_by: dict[str, Any]
    states: str
    header: str = ""
    checksum: str = ""


class States(NamedTuple):
    """Parameters and what optimizers remember of them: the `table`'s [keys, width] in the input's order, and the
    `dense` ones [values, width], which lie in memory number by number. None for a kind that the model does not have.
    """

    table: NDArray[np.float32] | None = None
    dense: NDArray[np.float32] | None = None


class Checkpoint(NamedTuple):
    """A checkpoint that was read, and what is wrong with newer ones."""

    progress: Progress
    made_by: dict[str, Any]
    states: States
    damaged: list[str]


def save_checkpoint(folder: Path, progress: Progress, made_by: dict[str, Any], states: States) -> None:
    """Write a checkpoint below `folder`."""
    # In their order in memory: another order would need a copy.
    given = {"states": states.table, "planes": None if states.dense is None else states.dense.T}
    tensors = {name: np.ascontiguousarray(array) for name, array in given.items() if array is not None}
    name = f"{progress.position:015d}"
    taken = _names(folder)
    if name in taken:
        # The old one stands until the new one does; numbers keep their order.
        again = sum(other.startswith(name) for other in taken)
        name = f"{name}-{again:03d}"
    temporary, final = folder / f".{name}.partial", folder / name
    # A kill may have left one that was not finished.
    for unfinished in folder.glob(".*.partial"):
        shutil.rmtree(unfinished, ignore_errors=True)
    try:
        with translated_disk_errors(final):
            temporary.mkdir(parents=True)
        write_tensors(temporary / "states.safetensors", tensors)
        info = CheckpointInfo(progress=progress, made_by=made_by, states=_checksum(tensors), header=_header(tensors))
        info = msgspec.structs.replace(info, checksum=_own_checksums(info)[0])
        replace_file(temporary / "checkpoint.json", msgspec.json.encode(info))
        with translated_disk_errors(final):
            temporary.rename(final)
            sync_to_disk(folder)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)
    replace_file(folder / "latest", name.encode())
    names = _names(folder)
    # Checkpoints beyond this one are from before the run returned to an earlier one.
    for old in [other for other in names if other > name] + [other for other in names if other <= name][:-KEPT]:
        shutil.rmtree(folder / old)


def has_checkpoint(folder: Path) -> bool:
    """Whether there is a complete checkpoint."""
    return bool(_names(folder))


def load_checkpoint(folder: Path) -> Checkpoint:
    """The newest checkpoint that is not damaged."""
    damaged: list[str] = []
    for name in reversed(_names(folder)):
        try:
            return Checkpoint(*_load(folder / name), damaged)
        except DataError as error:
            damaged.append(error.message)
    if damaged:
        raise DataError("; ".join(damaged), "no checkpoint is left to resume from: train again")
    raise DataError(
        f"`{folder.parent}` has no checkpoint to resume from", "train again; --checkpoint-every saves more often"
    )


def _load(path: Path) -> tuple[Progress, dict[str, Any], States]:
    try:
        info = msgspec.json.decode(read_file(path / "checkpoint.json", "remove it"), type=CheckpointInfo)
        tensors = safetensors.numpy.load_file(path / "states.safetensors")
    except (OSError, *BAD_TEXT, SafetensorError) as error:
        raise DataError(f"checkpoint `{path}` cannot be read: {error}") from None
    if any(array.dtype != np.float32 or array.ndim != 2 for array in tensors.values()):
        raise DataError(f"checkpoint `{path}` holds {_header(tensors)} instead of tables of float32")
    if info.checksum not in _own_checksums(info) or _checksum(tensors) != info.states:
        raise DataError(f"checkpoint `{path}` has a wrong checksum")
    if info.header not in ("", _header(tensors)):
        raise DataError(f"checkpoint `{path}` holds {_header(tensors)} instead of {info.header}")
    planes = tensors.get("planes")
    return info.progress, info.made_by, States(tensors.get("states"), None if planes is None else planes.T)


def _checksum(tensors: dict[str, NDArray[np.float32]]) -> str:
    digest = xxhash.xxh3_64()
    for name in ("states", "planes"):
        if name in tensors:
            digest.update(tensors[name].data)
    return digest.hexdigest()


def _header(tensors: dict[str, NDArray[Any]]) -> str:
    """Names, types and shapes."""
    return ", ".join(f"{name} {array.dtype} {list(array.shape)}" for name, array in sorted(tensors.items()))


def _own_checksums(info: CheckpointInfo) -> list[str]:
    """The checksum of `checkpoint.json`, and if it has no `header` the one that older versions gave it."""
    content = msgspec.to_builtins(msgspec.structs.replace(info, checksum=""))
    found = [content]
    if not content["header"]:
        found.append({name: value for name, value in content.items() if name != "header"})
    return [xxhash.xxh3_64_hexdigest(msgspec.json.encode(one, order="sorted")) for one in found]


def _names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.glob("[0-9]*") if path.is_dir())
