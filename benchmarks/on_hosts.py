"""What does a command do on a cluster with slow links? Runs it on the first of several temporary hosts.

    python benchmarks/on_hosts.py [--hosts 5] [--bandwidth 1.8Gbit] -- paceline sweep RECIPE.toml --address auto

The hosts are network namespaces with rate-limited links and a Ray node of one processor each (`benchmarks/hosts.py`);
`RAY_ADDRESS` and Ray's token are set for the command. Exits with the command's exit code and removes everything it
started. Needs Linux, `ip`, `tc` and root.
"""

from __future__ import annotations

import argparse
import signal
import sys

from cluster import RAY_PORT, environment, lab


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--hosts", type=int, default=5)
    parser.add_argument("--bandwidth", default="1.8Gbit", help="bandwidth of each host's link, in tc's notation")
    parser.add_argument("command", nargs="+", help="after --, what to run on the first host")
    arguments = parser.parse_args()
    with lab(arguments.hosts, arguments.bandwidth) as (hosts, env):
        address = {"RAY_ADDRESS": f"{hosts.addresses[0]}:{RAY_PORT}"}
        process = hosts.start(0, arguments.command, env=environment(env | address))
        while True:
            try:
                code = process.wait()
                break
            except KeyboardInterrupt:
                # It runs in a session of its own, which a terminal's Ctrl-C does not reach.
                process.send_signal(signal.SIGINT)
    sys.exit(code if code >= 0 else 128 - code)


if __name__ == "__main__":
    main()
