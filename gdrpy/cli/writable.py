"""Whether a file can be written, asked before the work whose outcome goes there."""

from __future__ import annotations

import os
from pathlib import Path


def why_not_writable(file: Path, *, replaced: bool = False) -> str | None:
    """What is in the way of writing ``file``, after making the folders above it; None if nothing.

    ``replaced`` says that another file is to take its place.
    """
    there = os.access(file, os.F_OK)
    if there and file.is_dir():
        return f"{str(file)!r} is a folder"
    if there and not replaced:
        return None if os.access(file, os.W_OK) else f"{str(file)!r} may not be written"
    folder = next(one for one in file.absolute().parents if os.access(one, os.F_OK))
    if not folder.is_dir():
        return f"{str(folder)!r} is no folder"
    if not os.access(folder, os.W_OK | os.X_OK):
        return f"nothing may be written into {str(folder)!r}"
    return None
