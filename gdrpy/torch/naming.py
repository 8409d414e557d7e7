"""Names of regions for the weights of models that libraries load by a path, or by a hub's name."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

import torch

from gdrpy import cuda


def name_of(library: str, version: str, model: str, *parts: object) -> str:
    """``LIBRARY/MODEL/ID``: ID is a digest of all that decides on the weights' values and places.

    A folder's files are known by their sizes and modification times. A model of a hub is known by
    its name alone: pass its revision in ``parts``.
    """
    known = [version, torch.__version__, cuda.device_info(0).name, model, _files(model), *parts]
    digest = hashlib.sha256(json.dumps(known, default=str).encode()).hexdigest()
    return f"{library}/{Path(model).name}/{digest[:16]}"


def _files(folder: str) -> list[tuple[str, int, int]]:
    """The name, size and modification time of each file in a model's folder, if it is one."""
    try:
        found = [(path.name, path.stat()) for path in Path(folder).iterdir()]
    except OSError:
        return []
    return sorted((name, state.st_size, state.st_mtime_ns) for name, state in found)
