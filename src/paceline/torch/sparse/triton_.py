"""Triton, or the error that it is missing; and the GPU, or the error that there is none."""

from __future__ import annotations

import os
from typing import Any

from paceline.errors import ConfigError, UsageError
from paceline.torch.model import has_gpu, torch

try:
    import triton
    import triton.language as tl
except ImportError:
    raise UsageError(
        "sparse rows on a GPU need Triton, which is not installed", "pip install triton, or --device cpu"
    ) from None

__all__ = ["find_device", "interpreted", "tl", "triton"]


def interpreted() -> bool:
    """Whether Triton's interpreter runs the kernels, on the CPU."""
    return os.environ.get("TRITON_INTERPRET") == "1"


def find_device() -> Any:
    """Where the kernels run; `ConfigError` if there is no GPU."""
    if interpreted():
        return torch.device("cpu")
    if not has_gpu():
        raise ConfigError("`device` is `cuda`, but PyTorch finds no GPU here", "--device cpu, or see `nvidia-smi`")
    return torch.device("cuda")
