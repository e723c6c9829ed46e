"""The command `paceline`, with roles that begin at another entry: `python driver.py ENTRY train …`."""

import sys

from paceline.__main__ import main
from paceline.engines import ray, ray_head
from paceline.training.cluster import placement

if __name__ == "__main__":
    placement.ENTRY = sys.argv.pop(1)
    if placement.ENTRY.endswith(":under_an_impatient_coordinator"):
        ray_head.PAUSE_SECONDS, ray_head.ANSWER_SECONDS = 0.3, 1.0
    if placement.ENTRY.endswith(":on_one_gpu"):
        ray.share_of_gpus = lambda *_: 0.5
    main()
