"""A specification of the Container Device Interface for a broker's socket and the module's node.

Its format: https://github.com/cncf-tags/container-device-interface/blob/main/SPEC.md.
"""

from __future__ import annotations

import json
import re
from pathlib import PurePath

from gdrpy.broker import place
from gdrpy.cli.exits import UNUSABLE, CommandError

#: The first release of the format that runtimes still read: nothing newer is used.
_VERSION = "0.3.0"
#: The folder in a container, whatever it is on the machine: the image expects it there.
_INSIDE = PurePath(place.SYSTEM).parent
_CLASS = re.compile("[A-Za-z]([A-Za-z0-9_-]*[A-Za-z0-9])?")


def text(socket: str) -> str:
    """The specification for the broker at a socket's absolute path, as JSON.

    Its kind is named after the socket's folder, so that several brokers may have one each. Raises
    CommandError if the folder's name cannot be part of a kind.
    """
    path = PurePath(socket)
    name = path.parent.name
    if not _CLASS.fullmatch(name):
        raise CommandError(
            f"--print-cdi: {name!r}, the folder of {path}, cannot be the class of a device: choose "
            "a --socket in a folder whose name begins with a letter and has only letters, digits, "
            "- and _ after it",
            UNUSABLE,
        )
    devices = [
        {"name": "client", "containerEdits": _edits(path, "ro")},
        {"name": "broker", "containerEdits": _edits(path, "rw")},
        {"name": "gdrdrv", "containerEdits": {"deviceNodes": [{"path": "/dev/gdrdrv"}]}},
    ]
    return json.dumps(
        {"cdiVersion": _VERSION, "kind": f"gdrpy/{name}", "devices": devices}, indent=2
    )


def _edits(path: PurePath, access: str) -> dict[str, object]:
    """Mounts the folder, not the socket: a restarted broker makes a new one."""
    folder, inside = str(path.parent), str(_INSIDE)
    options = ["bind", access, "nosuid", "nodev", "noexec"]
    return {
        "env": [f"{place.VARIABLE}={_INSIDE / path.name}"],
        "mounts": [{"hostPath": folder, "containerPath": inside, "options": options}],
    }
