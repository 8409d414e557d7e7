"""The limits in use, which decide the path of a copy by its size: measured or built in.

``gdrpy tune`` measures limits on this machine and stores them, for each GPU model, in
``$XDG_CACHE_HOME`` (``~/.cache``) under ``gdrpy/``. They are used only with the GPU, driver and CPU
that they were measured on. With ``GDRPY_TUNING=0`` no stored limits are read.
"""

from __future__ import annotations

import functools
import os

from gdrpy.copies import kept
from gdrpy.copies.limits import BUILT_IN, Limits


def limits(device: int | None) -> Limits:
    """The limits for a device's memory; the built-in ones for None, without a GPU view."""
    return BUILT_IN if device is None else _of_device(device)


@functools.cache
def _of_device(device: int) -> Limits:
    if os.environ.get("GDRPY_TUNING") == "0":
        return BUILT_IN
    return kept.load(device) or BUILT_IN


def forget() -> None:
    """Read the stored limits again, for regions that have not copied yet."""
    _of_device.cache_clear()
