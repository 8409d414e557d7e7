"""Stored limits, measured on this machine: one file for each GPU model."""

from __future__ import annotations

import errno
import json
import os
import re
import stat
import warnings
from pathlib import Path
from typing import Any

from msgspec.structs import asdict

from gdrpy import cuda
from gdrpy._core._mapping import Undo
from gdrpy._core.driver import driver_version
from gdrpy.common.cpu import cpu_model
from gdrpy.copies.limits import Limits

#: The most bytes that are read of a file; a file of limits is smaller.
_MOST_BYTES = 1 << 16


def path(device: int) -> Path:
    """The file with the limits of a device's model. Raises FileNotFoundError without a home."""
    name = re.sub(r"[^a-z0-9]+", "-", _gpu(device).lower()).strip("-")
    return _cache() / "gdrpy" / f"limits-{name}.json"


def origin(device: int) -> dict[str, Any]:
    """The hardware and driver that limits are valid for."""
    return {
        "gpu": _gpu(device),
        "driver": None if cuda.simulated() else driver_version(),
        "cpu": cpu_model(),
        "cpus": len(os.sched_getaffinity(0)),
    }


def load(device: int) -> Limits | None:
    """The stored limits of a device, None if there are none that this process can read and use.

    Warns of a file that cannot be understood.
    """
    try:
        file = path(device)
        found = json.loads(_read(file))
        if found["origin"] != origin(device):
            return None
        limits = Limits(**found["limits"])
        limits.check()
    except (FileNotFoundError, NotADirectoryError, PermissionError):
        return None
    except (OSError, ValueError, TypeError, KeyError, RecursionError) as error:
        warnings.warn(
            f"{file} cannot be used ({type(error).__name__}: {error}): using built-in limits; "
            f"run gdrpy tune again, or delete it",
            RuntimeWarning,
            stacklevel=2,
        )
        return None
    return limits


def save(device: int, limits: Limits, **details: Any) -> Path:
    """Store limits, with details of their measurement; returns the file.

    Raises ValueError, OSError.
    """
    limits.check()
    file = path(device)
    file.parent.mkdir(parents=True, exist_ok=True)
    text = json.dumps(
        {"origin": origin(device), "limits": asdict(limits), **details}, indent=1, allow_nan=False
    )
    # Another process reads the old file or the new one, never a part of one.
    draft = file.with_suffix(f".{os.getpid()}")
    with Undo() as undo:
        undo.callback(draft.unlink, True)
        draft.write_text(text + "\n")
        draft.replace(file)
    return file


def _cache() -> Path:
    given = Path(os.environ.get("XDG_CACHE_HOME", ""))
    if given.is_absolute():  # the XDG specification says to ignore a relative path
        return given
    try:
        return Path.home() / ".cache"
    except RuntimeError:
        why = "this user has no home folder: set XDG_CACHE_HOME"
        raise FileNotFoundError(errno.ENOENT, why, "~/.cache") from None


def _read(file: Path) -> bytes:
    """The beginning of a regular file. Does not wait for a pipe in its place."""
    with os.fdopen(os.open(file, os.O_RDONLY | os.O_NONBLOCK), "rb") as opened:
        if not stat.S_ISREG(os.fstat(opened.fileno()).st_mode):
            raise ValueError("not a regular file")
        return opened.read(_MOST_BYTES)


def _gpu(device: int) -> str:
    name: bytes = cuda.call("cuDeviceGetName", 128, cuda.device(device))
    return name.split(b"\0")[0].decode()
