"""What the page on other processes shows."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path


class TestProgramsOfThePage:
    def test_print_what_they_say(self, checkout: Path, tmp_path: Path) -> None:
        page = (checkout / "docs" / "processes.md").read_text()
        programs = re.findall(r"(?<! -->\n)```python\n(.*?)```", page, re.DOTALL)
        assert len(programs) == 3
        for code in programs[:2]:  # the third continues the second, beside a broker
            program = tmp_path / "program.py"
            program.write_text(code)
            done = subprocess.run(
                [sys.executable, program], capture_output=True, text=True, check=False, timeout=60
            )
            (said,) = re.findall(r"print\(.*\)  # (.+)", code)
            assert (done.stdout, done.stderr) == (f"{said}\n", "")
