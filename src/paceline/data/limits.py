"""Which numbers may a setting have?"""

from __future__ import annotations

from paceline.errors import ConfigError

NO_LIMIT = (1 << 62) - 1


def check_limits(*settings: tuple[str, int | None, int, int, str]) -> None:
    """Raise for the first setting outside its limits: (name, value or None, least, most, hint).

    >>> check_limits(("rows", 5, 1, NO_LIMIT, "--rows 1"), ("size", None, 1, 4096, "--size 256"))
    """
    for name, value, least, most, hint in settings:
        if value is not None and not least <= value <= most:
            limit = f"at least {least}" if most == NO_LIMIT and value < least else f"{least} to {most}"
            raise ConfigError(f"`{name}` is `{value}`; it must be {limit}", hint)
