"""Where are the dense values that workers of one process train?"""

from __future__ import annotations

from paceline.parameters.dense import DenseStore, check_room
from paceline.parameters.layout import DenseLayout
from paceline.parameters.store import DenseValues


def make_dense_store(layout: DenseLayout, device: str, num_workers: int) -> DenseValues:
    """A store for `num_workers` workers of this process: in memory, with its loops loaded, or on a GPU."""
    if device == "cpu":
        check_room(4 * layout.num_values * (layout.width + 2 * num_workers), layout.num_values)
        store = DenseStore(layout)
        store.warm_up()
        return store
    from paceline.torch.store import TorchStore

    return TorchStore(layout, device)
