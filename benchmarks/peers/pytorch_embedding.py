"""How fast does PyTorch train a sparse EmbeddingBag on the same rows?  (called as described in rows.py)

The setting has `batch_size` and `rate`. One process, with PyTorch's default threads. An EmbeddingBag of width 1
that sums is the linear model; with `sparse=True` its gradient covers only the keys of the batch. It needs no bias,
because each row has exactly one key of every categorical column.
"""

from __future__ import annotations

import time

from torch.nn.functional import binary_cross_entropy_with_logits

import torch
from rows import answer, asked, load, log_loss, scores, segments, steady_rate


def main() -> None:
    folder, setting = asked()
    train, test = (load(folder / split) for split in ("train", "test"))
    keys, values, labels = (torch.from_numpy(array) for array in train)
    model = torch.nn.EmbeddingBag(setting["features"], 1, mode="sum", sparse=True)
    torch.nn.init.zeros_(model.weight)
    optimizer = torch.optim.SGD(model.parameters(), lr=setting["rate"])
    first_step_at, num_rows, seconds, curve = 0.0, 0, 0.0, []
    for segment in segments(len(labels), setting):
        began = time.perf_counter()
        for first in range(segment.start, segment.stop, setting["batch_size"]):
            batch = slice(first, min(segment.stop, first + setting["batch_size"]))
            odds = model(keys[batch], per_sample_weights=values[batch]).squeeze(1)
            optimizer.zero_grad()
            binary_cross_entropy_with_logits(odds, labels[batch]).backward()  # type: ignore[no-untyped-call]
            optimizer.step()
            first_step_at = first_step_at or time.time()
        seconds += time.perf_counter() - began
        num_rows += segment.stop - segment.start
        weights = model.weight.detach().numpy()[:, 0]
        curve.append([num_rows, seconds, log_loss(scores(test, weights), test.labels)])
    answer(rows_per_second=steady_rate(curve), first_step_at=first_step_at, curve=curve, version=torch.__version__)


if __name__ == "__main__":
    main()
