"""The environment variables that choose how gdrpy runs, checked before anything does.

The library raises ValueError for a driver or backend that it does not know where it meets it, and
takes any GDRPY_TUNING but 0 for 1; on the command line all of them are usage.
"""

from __future__ import annotations

import os

from gdrpy.cli.exits import UNUSABLE, CommandError
from gdrpy.memory.backends import ALL

_CHOICES = {
    "GDRPY_BACKEND": ("", *ALL),
    "GDRPY_SIM": ("", "0", "1"),
    "GDRPY_TUNING": ("", "0", "1"),
}


def check_environment() -> None:
    """Raise CommandError for a value that is none of them."""
    for name, choices in _CHOICES.items():
        value = os.environ.get(name, "")
        if value not in choices:
            allowed = ", ".join(choice for choice in choices if choice)
            raise CommandError(
                f"{name} is {value!r}: unset it, or set it to one of {allowed}", UNUSABLE
            )
