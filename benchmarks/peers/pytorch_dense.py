"""The same steps in plain PyTorch, for benchmarks/dense.py.

    python pytorch_dense.py softmax DATA BATCH EPOCHS     softmax regression on a paceline dataset
    python pytorch_dense.py alexnet BATCH WARM_UP STEPS   AlexNet on one batch of generated images after another
    python pytorch_dense.py apart BATCH WARM_UP STEPS     two such processes at the same time, without exchange
    python pytorch_dense.py ddp BATCH WARM_UP STEPS       the same with DistributedDataParallel over gloo
    python pytorch_dense.py gpu BATCH WARM_UP STEPS       AlexNet in bfloat16 on a GPU, with images in its memory

Prints {"seconds": …}: for all epochs, or per step.
"""

from __future__ import annotations

import json
import os
import socket
import sys
import time
from typing import Any

import numpy as np

import torch
from paceline.torch.alexnet import alexnet
from torch import nn

SHAPE, CLASSES = (224, 224, 3), 1000


def softmax(data: str, batch: int, epochs: int) -> float:
    from paceline.data.images.dataset import ImageDataset

    dataset = ImageDataset(data)
    blocks = [dataset.block("train", index) for index in range(len(dataset.split("train").blocks))]
    images = torch.from_numpy(np.concatenate([block.pixels for block in blocks])).float() / 255
    labels = torch.from_numpy(np.concatenate([block.labels for block in blocks]).astype(np.int64))
    module = nn.Linear(images.shape[1], dataset.classes)
    nn.init.zeros_(module.weight)
    nn.init.zeros_(module.bias)
    optimizer = torch.optim.SGD(module.parameters(), lr=0.5)
    began = time.perf_counter()
    for _ in range(epochs):
        order = torch.randperm(len(images))
        for start in range(0, len(images), batch):
            chosen = order[start : start + batch]
            optimizer.zero_grad()
            nn.functional.cross_entropy(module(images[chosen]), labels[chosen]).backward()  # type: ignore[no-untyped-call]
            optimizer.step()
    return time.perf_counter() - began


def steps(module: nn.Module, batch: int, warm_up: int, count: int, device: str = "cpu") -> float:
    """Seconds per step: images of bytes become floats, as in paceline."""
    generator = torch.Generator().manual_seed(0)
    height, width, channels = SHAPE
    held = torch.randint(0, 256, (4 * batch, height, width, channels), dtype=torch.uint8, generator=generator)
    labels = torch.randint(0, CLASSES, (4 * batch,), generator=generator).to(device)
    held, module = held.to(device), module.to(device).train()
    optimizer = torch.optim.SGD(module.parameters(), lr=0.01, momentum=0.9, weight_decay=5e-4)
    began = 0.0
    for step in range(warm_up + count):
        if step == warm_up:
            if device != "cpu":
                torch.cuda.synchronize()
            began = time.perf_counter()
        first = step % 4 * batch
        images = held[first : first + batch].permute(0, 3, 1, 2).contiguous().float().div_(255)
        optimizer.zero_grad()
        with torch.autocast(device, torch.bfloat16, enabled=device != "cpu"):
            loss = nn.functional.cross_entropy(module(images), labels[first : first + batch])
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        if device == "cpu":
            loss.item()
    if device != "cpu":
        torch.cuda.synchronize()
    return (time.perf_counter() - began) / count


def one_of_two(rank: int, batch: int, warm_up: int, count: int, port: int, together: bool, out: Any) -> None:
    """One of two processes, on half the cores."""
    torch.set_num_threads(max(1, len(os.sched_getaffinity(0)) // 2))
    torch.distributed.init_process_group("gloo", f"tcp://127.0.0.1:{port}", world_size=2, rank=rank)
    module: nn.Module = alexnet(SHAPE, CLASSES)
    if together:
        module = nn.parallel.DistributedDataParallel(module)
    torch.distributed.barrier()
    seconds = steps(module, batch, warm_up, count)
    if rank == 0:
        out.put(seconds)


def two(batch: int, warm_up: int, count: int, together: bool) -> float:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    context = torch.multiprocessing.get_context("spawn")
    out = context.SimpleQueue()
    processes = [
        context.Process(target=one_of_two, args=(rank, batch, warm_up, count, port, together, out)) for rank in (0, 1)
    ]
    for process in processes:
        process.start()
    seconds = float(out.get())
    for process in processes:
        process.join()
    return seconds


def main() -> None:
    what, *words = sys.argv[1:]
    if what == "softmax":
        seconds = softmax(words[0], int(words[1]), int(words[2]))
    elif what in ("ddp", "apart"):
        batch, warm_up, count = map(int, words)
        seconds = two(batch, warm_up, count, together=what == "ddp")
    else:
        batch, warm_up, count = map(int, words)
        seconds = steps(alexnet(SHAPE, CLASSES), batch, warm_up, count, device="cuda" if what == "gpu" else "cpu")
    print(json.dumps({"seconds": seconds}))


if __name__ == "__main__":
    main()
