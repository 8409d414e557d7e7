"""What the README says is true of this commit."""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

TOP = Path(__file__).parent.parent
README = (TOP / "README.md").read_text()


class TestFigures:
    def test_are_what_their_data_gives(self):
        found = re.search(r"<!-- figures: python (.*?) -->\n(.*?)<!-- end -->", README, re.DOTALL)
        assert found
        command = [sys.executable, *shlex.split(found[1])]
        made = subprocess.run(command, cwd=TOP, capture_output=True, text=True, check=True)
        assert found[2] == made.stdout


class TestExamples:
    def test_the_first_one_runs(self):
        (code, *_) = re.findall(r"```python\n(.*?)```", README, re.DOTALL)
        done = subprocess.run(
            [sys.executable, "-c", code], capture_output=True, text=True, check=False
        )
        assert (done.returncode, done.stderr) == (0, "")
        assert done.stdout.startswith("b'any buffer'\n0x")


class TestLinks:
    @pytest.mark.parametrize("page", ["README.md", "CONTRIBUTING.md", *TOP.glob("docs/*.md")])
    def test_lead_to_files_of_the_project(self, page):
        text = (TOP / page).read_text()
        links = [link.split("#")[0] for link in re.findall(r"\]\(([^)]+)\)", text)]
        missing = [
            link
            for link in links
            if link and not link.startswith("http") and not ((TOP / page).parent / link).exists()
        ]
        assert missing == []
