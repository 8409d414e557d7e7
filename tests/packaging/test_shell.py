"""The shell scripts that users run as root have nothing that shellcheck warns of."""

from __future__ import annotations

import subprocess
from collections.abc import Callable
from pathlib import Path


class TestScripts:
    def test_satisfy_shellcheck(self, driver: Path, need: Callable[..., None]) -> None:
        need("shellcheck")
        packaging = driver / "packaging"
        scripts = [
            driver.parent / "insmod.sh",
            driver.parent / "packaging/deb",
            packaging / "build",
        ]
        scripts += [*driver.glob("*.sh"), *packaging.glob("*.sh")]
        command = ["shellcheck", *scripts]
        ended = subprocess.run(command, capture_output=True, text=True, check=False)
        assert (ended.returncode, ended.stdout) == (0, "")
