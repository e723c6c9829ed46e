"""How is a run's state kept so that nothing promised is lost?

A checkpoint is a folder `checkpoints/<rows>`: `states.safetensors`, the states of all keys in the input's order, and
`checkpoint.json` with their checksum and everything else that the rest of the run depends on. It is written under a
temporary name, flushed to the disk and renamed; only then does `latest` name it. The two newest are kept, and loading
falls back from one that is damaged to the one before.
"""

from __future__ import annotations

import shutil
from pathlib import Path

import msgspec
import numpy as np
import safetensors.numpy
import xxhash
from numpy.typing import NDArray
from safetensors import SafetensorError

from paceline.errors import DataError
from paceline.files import replace_file, sync_to_disk, translated_disk_errors

KEPT = 2


class Progress(msgspec.Struct, frozen=True, kw_only=True):
    """Where a run stands: what has been trained on and for how long, and the losses since the last evaluation.

    `tested` is the position of that evaluation: one that was due when the run was stopped is made up for.
    """

    position: int = 0
    tested: int = 0
    clock: int = 0
    train_seconds: float = 0.0
    losses: float = 0.0
    loss_rows: int = 0
    largest_lead: int = 0


class CheckpointInfo(msgspec.Struct, frozen=True, kw_only=True):
    """`checkpoint.json`."""

    progress: Progress
    checksum: str


def save_checkpoint(folder: Path, progress: Progress, states: NDArray[np.float32]) -> None:
    """Write a checkpoint below `folder`; `states` [keys, width] are in the input's order."""
    name = f"{progress.position:015d}"
    temporary, final = folder / f".{name}.partial", folder / name
    shutil.rmtree(temporary, ignore_errors=True)
    try:
        with translated_disk_errors(final):
            temporary.mkdir(parents=True)
            safetensors.numpy.save_file({"states": states}, temporary / "states.safetensors")
            sync_to_disk(temporary / "states.safetensors")
        info = CheckpointInfo(progress=progress, checksum=_checksum(states))
        replace_file(temporary / "checkpoint.json", msgspec.json.encode(info))
        shutil.rmtree(final, ignore_errors=True)
        with translated_disk_errors(final):
            temporary.rename(final)
            sync_to_disk(folder)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)
    replace_file(folder / "latest", name.encode())
    for old in _names(folder)[:-KEPT]:
        shutil.rmtree(folder / old)


def load_checkpoint(folder: Path) -> tuple[Progress, NDArray[np.float32]]:
    """The newest checkpoint that is whole: its progress and states."""
    damage = []
    for name in reversed(_names(folder)):
        try:
            return _load(folder / name)
        except DataError as error:
            damage.append(error.message)
    if damage:
        raise DataError("; ".join(damage), "no checkpoint is left to go on from: train again")
    raise DataError(f"`{folder.parent}` has no checkpoint to go on from", "train again; --checkpoint-every saves more")


def _load(path: Path) -> tuple[Progress, NDArray[np.float32]]:
    try:
        info = msgspec.json.decode((path / "checkpoint.json").read_bytes(), type=CheckpointInfo)
        states = safetensors.numpy.load_file(path / "states.safetensors")["states"]
    except (OSError, msgspec.DecodeError, SafetensorError, KeyError) as error:
        raise DataError(f"checkpoint `{path}` does not read: {error}") from None
    if _checksum(states) != info.checksum:
        raise DataError(f"checkpoint `{path}` has a wrong checksum")
    return info.progress, states


def _checksum(states: NDArray[np.float32]) -> str:
    return xxhash.xxh3_64_hexdigest(np.ascontiguousarray(states).data)


def _names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.glob("[0-9]*") if path.is_dir())
