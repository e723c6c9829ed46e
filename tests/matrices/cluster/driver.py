"""The command `paceline`, with slow workers whose tasks are taken over soon: `python driver.py matmul …`."""

from paceline.__main__ import main
from paceline.matrices.cluster import jobs, pool

if __name__ == "__main__":
    pool.TAKE_OVER_SECONDS = 1.0
    jobs.ENTRY = "tests.matrices.cluster.roles:slow"
    main()
