"""Names of regions for the weights of models that libraries load by a path, or by a hub's name."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

import torch

from gdrpy.broker.client.broker import Broker, BrokerRegion
from gdrpy.errors import PermissionDenied


def check_owner(broker: Broker, region: BrokerRegion) -> None:
    """Raise PermissionDenied for a region that another user has given a name of ours.

    Root's regions are trusted.
    """
    with broker.allocate(None, 1, "cpu") as own:
        uid, owner = own.info().uid, region.info().uid
    if owner not in (uid, 0):
        raise PermissionDenied(
            f"region {region.name!r} is that of user {owner}, and not of {uid}: pass its name if "
            f"you trust that user"
        )


def name_of(library: str, version: str, model: str, *parts: object) -> str:
    """``LIBRARY/MODEL/ID``: ID is a digest of all that decides on the weights' values and places.

    A folder's files, or one file, are known by their sizes and modification times. A model of a
    hub is known by its name alone: pass its revision in ``parts``.
    """
    known = [version, torch.__version__, model, _files(Path(model)), *parts]
    digest = hashlib.sha256(json.dumps(known, default=str).encode()).hexdigest()
    return f"{library}/{Path(model).resolve().name[:100]}/{digest[:16]}"


def _files(path: Path) -> list[tuple[str, int, int]]:
    """The name, size and modification time of a model's files, if they are on this machine."""
    try:
        files = list(path.iterdir()) if path.is_dir() else [path]
        found = [(file.name, file.stat()) for file in files]
    except OSError:
        return []
    return sorted((name, state.st_size, state.st_mtime_ns) for name, state in found)
