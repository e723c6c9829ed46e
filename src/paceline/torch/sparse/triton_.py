"""Triton, or the error that it is missing; and the GPU, or the error that there is none."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from paceline.errors import ConfigError, UsageError
from paceline.torch.model import has_gpu, torch

# Versions have different defaults, on which speed and bits depend. Triton reads it when it is imported.
os.environ.setdefault("TRITON_DEFAULT_FP_FUSION", "1")
# In older ones, what an atomic operation returns may be wrong.
LEAST_TRITON = 3, 5

try:
    import triton
    import triton.language as tl
except ImportError:
    raise UsageError(
        "sparse rows on a GPU need Triton, which is not installed", "pip install triton, or --device cpu"
    ) from None

__all__ = ["check_version", "find_device", "free_memory", "interpreted", "tl", "triton", "using"]


def check_version(version: str) -> None:
    """Refuse a Triton that is too old.

    >>> check_version("3.6.0+cu128")
    """
    if (found := re.match(r"(\d+)\.(\d+)", version)) and (int(found[1]), int(found[2])) < LEAST_TRITON:
        least = ".".join(map(str, LEAST_TRITON))
        raise UsageError(
            f"sparse rows on a GPU need Triton {least} or newer; this is {version}",
            "a newer PyTorch, which brings it (2.9 or newer), or --device cpu",
        )


check_version(triton.__version__)


def interpreted() -> bool:
    """Whether Triton's interpreter runs the kernels, on the CPU."""
    return os.environ.get("TRITON_INTERPRET") == "1"


def find_device() -> Any:
    """The device that the kernels run on; `ConfigError` if PyTorch finds no GPU."""
    if interpreted():
        return torch.device("cpu")
    if not has_gpu():
        raise ConfigError("`device` is `cuda`, but PyTorch finds no GPU here", "--device cpu, or see `nvidia-smi`")
    return torch.device("cuda", torch.cuda.current_device())


@contextmanager
def using(device: Any) -> Iterator[None]:
    """Launches in this context go to a device, whichever the thread would use; it is one line if memory is short."""
    if device.type != "cuda":
        yield
        return
    try:
        with torch.cuda.device(device):
            yield
    except torch.cuda.OutOfMemoryError as error:
        raise ConfigError(
            f"the memory of {torch.cuda.get_device_name(device)} is full: {str(error).splitlines()[0]}",
            "a smaller --batch-size, --set resident=0, or --device cpu",
        ) from None


def free_memory(device: Any) -> int:
    """Bytes on a GPU that nobody uses, including those that PyTorch keeps for later."""
    kept = torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
    return int(torch.cuda.mem_get_info(device)[0] + kept)
