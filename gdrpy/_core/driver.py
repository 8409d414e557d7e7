"""NVIDIA's kernel driver: its version, and whether the nvrm backend was checked against it."""

from __future__ import annotations

import warnings

from gdrpy._core.calls import ffi, lib, text
from gdrpy.errors import UntestedDriver

#: The oldest and newest driver whose interface was checked against the one that nvrm uses.
TESTED_DRIVERS = (text(lib.CORE_RM_TESTED_MIN), text(lib.CORE_RM_TESTED_MAX))


def driver_version() -> str | None:
    """The version of the NVIDIA kernel driver, or None if it is not loaded."""
    version = ffi.new("char[32]")
    lib.core_driver_version(version)
    return text(version) or None


def is_tested(version: str) -> bool:
    """Whether a driver version lies in the tested range."""
    return bool(lib.core_driver_tested(version.encode()))


_told = False


def warn_if_untested() -> None:
    """Warn once per process about a driver outside the tested range, which nvrm still uses."""
    global _told
    if _told:
        return
    _told = True
    version = driver_version()
    if version is None or is_tested(version):
        return
    warnings.warn(
        f"NVIDIA driver {version} is outside the range that the nvrm backend was checked against "
        f"({TESTED_DRIVERS[0]} to {TESTED_DRIVERS[1]}); going on, since a changed interface is "
        f"refused, not misread",
        UntestedDriver,
        stacklevel=2,
    )
