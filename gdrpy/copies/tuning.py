"""Which way a copy takes: the sizes from which each is the faster one, measured or built in.

``gdrpy tune`` measures them on this machine and keeps them, for each GPU, in ``$XDG_CACHE_HOME``
(``~/.cache``) under ``gdrpy/``. They count as long as GPU, driver and CPU are the ones they were
measured on. ``GDRPY_TUNING=0`` has none read.
"""

from __future__ import annotations

import functools
import os

from gdrpy.copies import kept
from gdrpy.copies.limits import BUILT_IN, Limits


def limits(device: int | None) -> Limits:
    """What holds for a device's memory; for None, without GPU view, what is built in."""
    return BUILT_IN if device is None else _of_device(device)


@functools.cache
def _of_device(device: int) -> Limits:
    if os.environ.get("GDRPY_TUNING") == "0":
        return BUILT_IN
    return kept.load(device) or BUILT_IN


def forget() -> None:
    """Have the stored limits read again, by regions that copy for the first time."""
    _of_device.cache_clear()
