"""How do the workers of an allreduce run become a process group of PyTorch? They find each other by notes."""

from __future__ import annotations

import os
from datetime import timedelta
from typing import Any, NamedTuple

import psutil

from paceline.torch.model import torch


class ProcessGroup(NamedTuple):
    """A process group of PyTorch, and the store of its members' notes, which must live as long as the group."""

    group: Any
    store: Any


def make_group(notes: Any, rank: int, size: int, host: str, seconds: float, device: str) -> ProcessGroup:
    """A process group of PyTorch. Its members find each other by `notes` (`set`, `get`, `find`) and wait `seconds` for
    each other. It uses gloo at this host's address, or NCCL for tensors on GPUs.
    """
    distributed = torch.distributed

    class NoteStore(distributed.Store):  # type: ignore[misc, name-defined]
        """The notes, as PyTorch asks for them."""

        def set(self, key: str, value: Any) -> None:
            notes.set(key, value if isinstance(value, bytes) else bytes(value, "utf-8"))

        def get(self, key: str) -> bytes:
            return bytes(notes.get(key))

        def wait(self, keys: list[str], timeout: Any = None) -> None:
            for key in keys:
                notes.get(key)

        def check(self, keys: list[str]) -> bool:
            return all(notes.find(key) is not None for key in keys)

    store = NoteStore()
    if device == "cuda":
        if interface := _interface_of(host):
            os.environ.setdefault("NCCL_SOCKET_IFNAME", f"={interface}")
        # The workers handle faults themselves; NCCL's own watchdog would end the process.
        os.environ.setdefault("TORCH_NCCL_ASYNC_ERROR_HANDLING", "0")
        os.environ.setdefault("TORCH_NCCL_ENABLE_MONITORING", "0")
        nccl = distributed.ProcessGroupNCCL.Options()
        nccl._timeout = timedelta(seconds=seconds)
        return ProcessGroup(distributed.ProcessGroupNCCL(store, rank, size, nccl), store)
    options = distributed.ProcessGroupGloo._Options()
    options._timeout = timedelta(seconds=seconds)
    options._devices = [distributed.ProcessGroupGloo.create_device(hostname=host)]
    return ProcessGroup(distributed.ProcessGroupGloo(store, rank, size, options), store)


def _interface_of(host: str) -> str:
    """The network interface that has this address; empty if none does.

    >>> _interface_of("127.0.0.1")
    'lo'
    """
    found = (name for name, places in psutil.net_if_addrs().items() if any(place.address == host for place in places))
    return next(found, "")
