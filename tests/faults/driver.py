"""The command `paceline`, with roles that begin at another entry: `python driver.py ENTRY train …`."""

import sys

from paceline.cli import main
from paceline.training.cluster import crew

if __name__ == "__main__":
    crew.ENTRY = sys.argv.pop(1)
    main()
