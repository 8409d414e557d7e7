"""Whether a file can be written, which commands check before they begin the work."""

from __future__ import annotations

import os
from pathlib import Path


def why_not_writable(file: Path, *, replaced: bool = False) -> str | None:
    """Why ``file`` cannot be written, after making the folders above it; None if it can.

    With ``replaced`` a new file takes its place.
    """
    there = os.access(file, os.F_OK)
    if there and file.is_dir():
        return f"{str(file)!r} is a folder"
    if there and not replaced:
        return None if os.access(file, os.W_OK) else f"{str(file)!r} may not be written"
    folder = next(one for one in file.absolute().parents if os.access(one, os.F_OK))
    if not folder.is_dir():
        return f"{str(folder)!r} is not a folder"
    if not os.access(folder, os.W_OK | os.X_OK):
        return f"nothing may be written into {str(folder)!r}"
    return None
