"""A small PyTorch module, and its training in plain PyTorch, for benchmarks/loaded.py.

    python pytorch_module.py DATA BATCH SECONDS

Prints {"rows_per_second": …}. `build` is what paceline trains: `--model pytorch_module:build`.
"""

from __future__ import annotations

import json
import sys
import time
from math import prod

import numpy as np

import torch
from torch import nn

HIDDEN = 128
RATE = 0.05


def build(shape: tuple[int, int, int], classes: int) -> nn.Module:
    """Two layers."""
    return nn.Sequential(nn.Flatten(), nn.Linear(prod(shape), HIDDEN), nn.ReLU(), nn.Linear(HIDDEN, classes))


def train(data: str, batch: int, seconds: float) -> float:
    """Rows per second of steps on random batches of the dataset; images of bytes become floats, as in paceline."""
    from paceline.data.images.dataset import ImageDataset

    dataset = ImageDataset(data)
    blocks = [dataset.block("train", index) for index in range(len(dataset.split("train").blocks))]
    height, width, channels = dataset.shape
    pixels = torch.from_numpy(np.concatenate([block.pixels for block in blocks]))
    pixels = pixels.view(-1, height, width, channels).permute(0, 3, 1, 2).contiguous()
    labels = torch.from_numpy(np.concatenate([block.labels for block in blocks]).astype(np.int64))
    module = build(dataset.shape, dataset.classes)
    optimizer = torch.optim.SGD(module.parameters(), lr=RATE)
    began, num_rows = time.perf_counter(), 0
    while time.perf_counter() - began < seconds:
        order = torch.randperm(len(pixels))
        for chosen in order.split(batch):  # type: ignore[no-untyped-call]
            optimizer.zero_grad()
            images = pixels[chosen].float().div_(255)
            nn.functional.cross_entropy(module(images), labels[chosen]).backward()  # type: ignore[no-untyped-call]
            optimizer.step()
            num_rows += len(chosen)
            if time.perf_counter() - began >= seconds:
                break
    return num_rows / (time.perf_counter() - began)


if __name__ == "__main__":
    print(json.dumps({"rows_per_second": train(sys.argv[1], int(sys.argv[2]), float(sys.argv[3]))}))
