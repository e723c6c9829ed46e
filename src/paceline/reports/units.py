"""How are numbers written with their units?"""

from __future__ import annotations

import math

PREFIXES = {
    "rows": ((1e9, "billion rows"), (1e6, "million rows"), (1e3, "thousand rows"), (1, "rows")),
    "B": ((1e12, "TB"), (1e9, "GB"), (1e6, "MB"), (1e3, "kB"), (1, "B")),
    "B/s": ((1e9, "GB/s"), (1e6, "MB/s"), (1e3, "kB/s"), (1, "B/s")),
    "s": ((1, "seconds"), (1e-3, "milliseconds"), (1e-6, "microseconds")),
    "%": ((0.01, "%"),),
}


def prefix_of(value: float, unit: str) -> tuple[float, str]:
    """The factor and the name of the unit in which a value is written."""
    prefixes = PREFIXES.get(unit, ((1, unit),))
    return next((prefix for prefix in prefixes if abs(value) >= prefix[0]), prefixes[-1])


def quantity(value: float, unit: str) -> str:
    """A number with its unit, in three or four digits.

    >>> quantity(1_234_567.0, "B/s"), quantity(0.0042, "s"), quantity(0.5, "%")
    ('1.23 MB/s', '4.20 milliseconds', '50.0 %')
    """
    factor, name = prefix_of(value, unit)
    scaled = value / factor
    digits = max(0, 2 - (math.floor(math.log10(abs(scaled))) if scaled else 0)) if unit in PREFIXES else 4
    return f"{scaled:,.{min(digits, 4)}f} {name}".strip()
