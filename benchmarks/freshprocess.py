"""What a script of this folder finds in a fresh interpreter."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any


def found_by(script: Path, *arguments: object, inherit: Sequence[int] = ()) -> dict[str, Any]:
    """The JSON object that it prints; it inherits these descriptors. Raises RuntimeError."""
    done = subprocess.run(
        [sys.executable, str(script), *map(str, arguments)],
        pass_fds=inherit,
        check=False,
        capture_output=True,
        text=True,
        timeout=60,
    )
    if done.returncode:
        raise RuntimeError(f"{script.name} failed:\n{done.stderr}")
    found: dict[str, Any] = json.loads(done.stdout)
    return found
