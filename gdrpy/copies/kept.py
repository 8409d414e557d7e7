"""Limits that were measured on this machine: a file for each kind of GPU."""

from __future__ import annotations

import errno
import json
import os
import re
import stat
import warnings
from pathlib import Path
from typing import Any

from gdrpy import cuda
from gdrpy._core._mapping import Undo
from gdrpy._core.driver import driver_version
from gdrpy.common.cpu import cpu_model
from gdrpy.copies.limits import Limits

#: More than any file of limits has.
_MOST_BYTES = 1 << 16


def path(device: int) -> Path:
    """Where the limits of a device's kind are kept. Raises FileNotFoundError without a home."""
    name = re.sub(r"[^a-z0-9]+", "-", _gpu(device).lower()).strip("-")
    return _cache() / "gdrpy" / f"limits-{name}.json"


def origin(device: int) -> dict[str, Any]:
    """What limits belong to: others of another origin say nothing here."""
    return {
        "gpu": _gpu(device),
        "driver": None if cuda.simulated() else driver_version(),
        "cpu": cpu_model(),
        "cpus": len(os.sched_getaffinity(0)),
    }


def load(device: int) -> Limits | None:
    """The limits kept for a device, None if this process may see none that hold here.

    A file that cannot be understood is told of, and not used.
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
            f"{file} cannot be used ({type(error).__name__}: {error}): built-in limits are taken; "
            f"run gdrpy tune again, or delete it",
            RuntimeWarning,
            stacklevel=2,
        )
        return None
    return limits


def save(device: int, limits: Limits, **details: Any) -> Path:
    """Keep limits, with how they were found; returns the file. Raises ValueError, OSError."""
    limits.check()
    file = path(device)
    file.parent.mkdir(parents=True, exist_ok=True)
    text = json.dumps(
        {"origin": origin(device), "limits": limits._asdict(), **details}, indent=1, allow_nan=False
    )
    # Another process reads the old file or the new one, never a part.
    draft = file.with_suffix(f".{os.getpid()}")
    with Undo() as undo:
        undo.callback(draft.unlink, True)
        draft.write_text(text + "\n")
        draft.replace(file)
    return file


def _cache() -> Path:
    given = Path(os.environ.get("XDG_CACHE_HOME", ""))
    if given.is_absolute():  # a relative one is to be ignored, says its specification
        return given
    try:
        return Path.home() / ".cache"
    except RuntimeError:
        why = "this user has no home folder: set XDG_CACHE_HOME"
        raise FileNotFoundError(errno.ENOENT, why, "~/.cache") from None


def _read(file: Path) -> bytes:
    """The beginning of a regular file; a pipe in its place is not waited for."""
    with os.fdopen(os.open(file, os.O_RDONLY | os.O_NONBLOCK), "rb") as opened:
        if not stat.S_ISREG(os.fstat(opened.fileno()).st_mode):
            raise ValueError("not a regular file")
        return opened.read(_MOST_BYTES)


def _gpu(device: int) -> str:
    name: bytes = cuda.call("cuDeviceGetName", 128, cuda.device(device))
    return name.split(b"\0")[0].decode()
