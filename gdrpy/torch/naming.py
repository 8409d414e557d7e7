"""Names of regions for the weights of models that libraries load by a path, or by a hub's name."""

from __future__ import annotations

import hashlib
import json
from contextlib import suppress
from pathlib import Path
from typing import Any

import torch

from gdrpy.broker.client.broker import Broker, BrokerRegion
from gdrpy.errors import PermissionDenied


def check_owner(broker: Broker, region: BrokerRegion) -> None:
    """Raise PermissionDenied for a region that another user has given a name of ours.

    Root's regions are trusted.
    """
    uid, owner = broker.status()["uid"], region.info().uid
    if owner not in (uid, 0):
        raise PermissionDenied(
            f"region {region.name!r} is that of user {owner}, and not of {uid}: pass its name if "
            f"you trust that user"
        )


def name_of(library: str, version: str, model: str, *parts: object) -> str:
    """``LIBRARY/MODEL/ID``: ID is a digest of all that decides on the weights' values and places.

    A folder or a file goes by its path however that is spelled. Its files are known by their sizes
    and modification times. A model of a hub is known by its name alone: pass its revision and its
    commit in ``parts``.
    """
    path = Path(model).resolve()
    files = _files(path)
    known = [version, torch.__version__, str(path) if files else model, files, *parts]
    digest = hashlib.sha256(json.dumps(known, default=str).encode()).hexdigest()
    shown = path.name.encode(errors="replace")[:100].decode(errors="ignore")
    return f"{library}/{shown}/{digest[:16]}"


def settings_of(config: Any) -> dict[str, Any]:
    """All that a configuration of transformers says, but for where it was read."""
    said: dict[str, Any] = json.loads(config.to_json_string(use_diff=False))
    said.pop("_name_or_path", None)
    return said


def commit_of(model: str, revision: str | None, cache: str | None = None) -> str | None:
    """The commit that a revision of a hub's model meant when this machine last asked the hub.

    None for a folder and for a commit. ``cache`` is the folder of the hub's library, if not the
    usual one.
    """
    from huggingface_hub.constants import HF_HUB_CACHE

    folder = f"models--{model.replace('/', '--')}"
    try:
        return Path(cache or HF_HUB_CACHE, folder, "refs", revision or "main").read_text()
    except OSError:
        return None


def _files(path: Path) -> list[tuple[str, int, int]]:
    """The name, size and modification time of a model's files, if they are on this machine."""
    try:
        files = list(path.iterdir()) if path.is_dir() else [path]
    except OSError:
        return []
    found = []
    for file in files:
        with suppress(OSError):  # nothing is there, as behind some links
            state = file.stat()
            found.append((file.name, state.st_size, state.st_mtime_ns))
    return sorted(found)
