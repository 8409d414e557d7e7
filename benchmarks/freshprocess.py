"""Scripts of this folder in fresh interpreters, and the times that they find."""

from __future__ import annotations

import json
import subprocess
import sys
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from harness import Measurement, Session, Topic


def found_by(script: Path, *arguments: object, inherit: Sequence[int] = ()) -> dict[str, Any]:
    """The JSON object that a script prints; it inherits these descriptors. Raises RuntimeError."""
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


class Times:
    """Times that processes found, in nanoseconds by name, and whether all saw the right bytes."""

    def __init__(self, session: Session, module: str) -> None:
        self._session = session
        self._module = module
        self._taken: dict[str, list[int]] = defaultdict(list)
        self._verified: list[bool | None] = []

    def add(self, found: dict[str, Any]) -> None:
        """Keep the times of one process."""
        self._verified.append(found.pop("verified"))
        for name, times in found.items():
            self._taken[name] += times

    def report(self, name: str, operation: str, method: str, way: str = "gdrpy") -> None:
        """Add the times of one name to the session, in ms."""
        topic = Topic(self._module, operation, unit="ms")
        verified = None if None in self._verified else all(self._verified)
        samples = [topic.sample(time) for time in self._taken[name]]
        self._session.add(Measurement(topic, way, method, samples, verified=verified))
