"""How fast does PyTorch train a factorization machine on the same rows?  (called as described in rows.py)

The setting has `dim`, `batch_size` and `rate`. One process, with PyTorch's default threads. Weights and factors are
sparse embeddings, whose gradients cover only the keys of the batch, trained by AdaGrad.
"""

from __future__ import annotations

import time
from typing import Any

from torch.nn.functional import binary_cross_entropy_with_logits

import torch
from rows import answer, asked, load, log_loss, segments, steady_rate


def main() -> None:
    folder, setting = asked()
    train, test = (load(folder / split) for split in ("train", "test"))
    keys, values, labels = (torch.from_numpy(array) for array in train)
    weights = torch.nn.Embedding(setting["features"], 1, sparse=True)
    factors = torch.nn.Embedding(setting["features"], setting["dim"], sparse=True)
    torch.nn.init.zeros_(weights.weight)
    torch.nn.init.normal_(factors.weight, std=0.01)
    optimizer = torch.optim.Adagrad([weights.weight, factors.weight], lr=setting["rate"])

    def score(keys: Any, values: Any) -> Any:
        scaled = factors(keys) * values[..., None]
        both = scaled.sum(1)
        pairs = (both * both).sum(1) - (scaled * scaled).sum((1, 2))
        return (weights(keys)[..., 0] * values).sum(1) + 0.5 * pairs

    first_step_at, num_rows, seconds, curve = 0.0, 0, 0.0, []
    for segment in segments(len(labels), setting):
        began = time.perf_counter()
        for first in range(segment.start, segment.stop, setting["batch_size"]):
            batch = slice(first, min(segment.stop, first + setting["batch_size"]))
            optimizer.zero_grad()
            loss = binary_cross_entropy_with_logits(score(keys[batch], values[batch]), labels[batch])
            loss.backward()  # type: ignore[no-untyped-call]
            optimizer.step()
            first_step_at = first_step_at or time.time()
        seconds += time.perf_counter() - began
        num_rows += segment.stop - segment.start
        with torch.no_grad():
            found = score(torch.from_numpy(test.keys), torch.from_numpy(test.values)).double().numpy()
        curve.append([num_rows, seconds, log_loss(found, test.labels)])
    answer(rows_per_second=steady_rate(curve), first_step_at=first_step_at, curve=curve, version=torch.__version__)


if __name__ == "__main__":
    main()
