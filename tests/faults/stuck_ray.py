"""The command `paceline`, with a Ray that does not end when it is asked to."""

import atexit
import threading

from paceline.cli import main
from paceline.engines import ray as ray_engine

if __name__ == "__main__":
    import ray

    atexit.unregister(ray.shutdown)
    ray.shutdown = threading.Event().wait
    atexit.register(ray.shutdown)
    ray_engine.CLOSE_SECONDS = 1.0
    main()
