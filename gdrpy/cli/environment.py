"""The environment variables that choose the driver and the backend, checked before anything runs.

The library raises ValueError for them where it meets them; on the command line they are usage.
"""

from __future__ import annotations

import os

from gdrpy.backends import ALL
from gdrpy.cli.exits import UNUSABLE, CommandError

_CHOICES = {"GDRPY_BACKEND": ("", *ALL), "GDRPY_SIM": ("", "0", "1")}


def check_environment() -> None:
    """Raise CommandError for a value that the library would refuse."""
    for name, choices in _CHOICES.items():
        value = os.environ.get(name, "")
        if value not in choices:
            allowed = ", ".join(choice for choice in choices if choice)
            raise CommandError(
                f"{name} is {value!r}: unset it, or set it to one of {allowed}", UNUSABLE
            )
