"""What the README says is true of this commit."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from serving import BrokerProcess, broker_process, start_serving

__all__ = ["broker_process", "start_serving"]

TOP = Path(__file__).parent.parent


class TestFigures:
    def test_of_the_readmes_first_sentence_is_in_its_table(self):
        text = (TOP / "README.md").read_text()
        (said,) = re.findall(r"\A# gdrpy\n\n\*\*Write 64 bytes .* in ([\d.]+ us),", text)
        assert f"| Write 64 B to GPU memory | **{said}** |" in text

    @pytest.mark.parametrize(
        ("page", "blocks"),
        [
            ("README.md", 1),
            ("docs/arrays.md", 2),
            ("docs/broker.md", 3),
            ("docs/libgdrapi.md", 3),
        ],
    )
    def test_are_what_their_data_gives(self, page, blocks):
        found = re.findall(
            r"<!-- figures: python (.*?) -->\n(.*?)<!-- end -->",
            (TOP / page).read_text(),
            re.DOTALL,
        )
        assert len(found) == blocks
        for words, shown in found:
            command = [sys.executable, *shlex.split(words)]
            made = subprocess.run(command, cwd=TOP, capture_output=True, text=True, check=True)
            assert shown == made.stdout


class TestDemo:
    def test_ends_with_the_command_that_the_quick_start_goes_on_with(self, tmp_path):
        (tmp_path / "gdrpy").write_text("#!/bin/sh\n")
        (tmp_path / "gdrpy").chmod(0o755)
        done = subprocess.run(
            ["make", "-s", "--no-print-directory", "-o", "build", "demo", f"BIN={tmp_path}"],
            cwd=TOP,
            capture_output=True,
            text=True,
            check=True,
        )
        _, sentence, typed = done.stdout.splitlines()
        assert sentence.startswith("It works. Next, ")
        (page,) = re.findall(r"docs/\S+\.md", sentence)
        command = typed.strip().removeprefix(f"source {tmp_path}/activate && ")
        first = (TOP / page).read_text().partition("## Two processes")[2].partition("$ ")[2]
        assert first.splitlines()[0] == command


#: Python blocks, but for those that say in a comment before them why they cannot run here.
RUNNABLE = re.compile(r"(?<! -->\n)```python\n(.*?)```", re.DOTALL)


def run_examples(page: str, **environment: str) -> str:
    """Run the blocks of a page one after the other, as a reader would; what they printed.

    They give the warnings that the page shows, and no others.
    """
    text = (TOP / page).read_text()
    # A file, for processes that it spawns, in a folder whose modules it finds first.
    with TemporaryDirectory() as folder:
        program = Path(folder, "program.py")
        program.write_text("\n".join(RUNNABLE.findall(text)))
        done = subprocess.run(
            [sys.executable, program],
            env=os.environ | environment,
            capture_output=True,
            text=True,
            check=False,
        )
    told, warned = re.subn(r"^/.*: StillInUse: .*\n  with .*\n", "", done.stderr, flags=re.M)
    assert (done.returncode, told, warned) == (0, "", text.count(": StillInUse: <Region"))
    return done.stdout


#: The pages of the documentation, and those of them with Python that runs.
PAGES = sorted(str(path.relative_to(TOP)) for path in TOP.glob("docs/**/*.md"))
PROGRAMS = [
    page
    for page in PAGES
    if RUNNABLE.search((TOP / page).read_text())
    and page != "docs/tutorial.md"  # whose programs are files: tests/docs/test_tutorial.py
]
REFERENCE = sorted(str(path.relative_to(TOP)) for path in TOP.glob("docs/reference/*.rst"))


class TestExamples:
    def test_of_the_readme_print_what_it_shows(self):
        shown = re.findall(r"```text\n(.*?)```", (TOP / "README.md").read_text(), re.DOTALL)
        assert [run_examples("README.md")] == shown

    @pytest.mark.parametrize("page", PROGRAMS)
    def test_of_a_page_print_what_it_says(self, page, broker_process: BrokerProcess):
        code = "".join(RUNNABLE.findall((TOP / page).read_text()))
        said = re.findall(r"^ *print\(.*\)  # (.+)$", code, re.MULTILINE)
        printed = run_examples(page, GDRPY_SOCKET=broker_process.socket)
        assert printed.splitlines() == said

    @pytest.mark.parametrize("page", REFERENCE)
    def test_of_the_reference_answer_what_it_says(self, page, broker_process: BrokerProcess):
        assert ">>> " in (TOP / page).read_text()
        done = subprocess.run(
            [sys.executable, "-m", "doctest", page],
            cwd=TOP,
            env=os.environ | {"GDRPY_SIM": "1", "GDRPY_SOCKET": broker_process.socket},
            capture_output=True,
            text=True,
            check=False,
        )
        assert (done.returncode, done.stdout, done.stderr) == (0, "", "")

    @pytest.mark.parametrize("page", ["README.md", *PAGES])
    def test_that_do_not_run_say_why(self, page):
        text = (TOP / page).read_text()
        reasons = re.findall(r"<!-- not run: needs .+ -->\n```python", text)
        assert text.count("```python") == len(RUNNABLE.findall(text)) + len(reasons)


class TestTwoProcesses:
    @pytest.mark.parametrize("page", ["README.md", "docs/quick-start.md"])
    def test_print_what_the_page_says(self, page, broker_process: BrokerProcess):
        section = (TOP / page).read_text().split("## Two processes\n")[1].split("\n## ")[0]
        lines = "".join(re.findall(r"```console\n(.*?)```", section, re.DOTALL)).splitlines()
        assert lines[0] == "$ gdrpy serve"
        commands = [line.removeprefix("$ ") for line in lines[1:] if line.startswith("$ ")]
        assert len(commands) >= 3
        done = subprocess.run(
            ["bash", "-ec", "\n".join(commands)],
            env=os.environ
            | {
                "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
                "GDRPY_SOCKET": broker_process.socket,
            },
            capture_output=True,
            text=True,
            check=False,
        )
        assert (done.returncode, done.stderr) == (0, "")
        assert done.stdout.splitlines() == [x for x in lines if not x.startswith("$ ")]


class TestQuickStart:
    def test_ends_the_broker_after_all_that_needs_it(self):
        page = (TOP / "docs/quick-start.md").read_text()
        assert 0 < page.rindex("gdrpy.connect()") < page.index("Ctrl-C")


class TestLinks:
    @pytest.mark.parametrize("page", ["README.md", "CONTRIBUTING.md", *PAGES])
    def test_lead_to_files_of_the_project(self, page):
        text = re.sub(r"```.*?```", "", (TOP / page).read_text(), flags=re.DOTALL)
        links = [link.split("#")[0] for link in re.findall(r"\]\(([^)]+)\)", text)]
        missing = [
            link
            for link in links
            if link and not link.startswith("http") and not ((TOP / page).parent / link).exists()
        ]
        assert missing == []
