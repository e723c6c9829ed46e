"""Where do dense values live that workers of one process train?"""

from __future__ import annotations

from typing import Any

from paceline.parameters.dense import DenseStore, check_room
from paceline.parameters.layout import DenseLayout


def make_dense_store(layout: DenseLayout, device: str, num_workers: int) -> Any:
    """A store for this many workers of this process: in memory, or on a GPU."""
    if device == "cpu":
        check_room(4 * layout.num_values * (layout.width + 2 * num_workers), layout.num_values)
        return DenseStore(layout)
    from paceline.torch.store import TorchStore

    return TorchStore(layout, device)
