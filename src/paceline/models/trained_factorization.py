"""How are factorization machines loaded from their files?"""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from paceline.errors import DataError
from paceline.models import factorization, field_weighted
from paceline.models.loss_entries import LOSSES_OF_ONE_SCORE
from paceline.models.model import Model
from paceline.models.registry import Entry
from paceline.models.trained import Loaded, SparseInfo, Tensors, check_shapes, check_types, load_sparse
from paceline.settings import FactorsConfig, LossConfig, RunConfig


class FactorsInfo(SparseInfo, frozen=True, kw_only=True):
    """Fields of `model.json` for factorization machines."""

    dim: int
    fields: tuple[str, ...] = ()
    loss: LossConfig


def load_fm(entry: Entry, content: bytes, tensors: Tensors) -> Loaded:
    """A factorization machine from its file."""
    return _load(content, tensors, factorization.build_for, blocks_of=lambda _: ())


def load_ffm(entry: Entry, content: bytes, tensors: Tensors) -> Loaded:
    """A field-aware factorization machine from its file."""
    return _load(content, tensors, factorization.build_field_aware_for, blocks_of=lambda fields: (len(fields),))


def load_fwfm(entry: Entry, content: bytes, tensors: Tensors) -> Loaded:
    """A field-weighted factorization machine from its file."""
    return _load(content, tensors, field_weighted.build_for, blocks_of=lambda _: ())


def _load(content: bytes, tensors: Tensors, build: Callable[[RunConfig, int, tuple[str, ...]], Model],
          blocks_of: Callable[[tuple[str, ...]], tuple[int, ...]]) -> Loaded:  # fmt: skip
    info = msgspec.json.decode(content, type=FactorsInfo)
    blocks = blocks_of(info.fields)
    if not 1 <= info.dim <= factorization.MOST_FACTORS or 0 in blocks or info.loss.name not in LOSSES_OF_ONE_SCORE:
        said = f"the loss `{info.loss.name}`, {info.dim} factors and {len(info.fields)} fields"
        raise DataError(f"`model.json` has {said}", "train again")
    shapes = {"weight": (info.features,), "bias": (1,), "factors": (info.features, *blocks, info.dim)}
    check_shapes(tensors, shapes)
    check_types(tensors, dict.fromkeys(shapes, "float32"))
    model = build(RunConfig(factors=FactorsConfig(dim=info.dim), loss=info.loss), info.features, info.fields)
    return load_sparse(model, factorization.table_of(tensors), tensors, info, info.fields)
