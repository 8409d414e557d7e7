"""tools/release: a checkout that is not fit to be released fails at the step that says so."""

from __future__ import annotations

import datetime
import json
import os
import re
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

CHECKOUT = Path(__file__).parents[2]
VERSION: str = tomllib.loads((CHECKOUT / "pyproject.toml").read_text())["project"]["version"]
#: Those that take neither a build nor minutes.
QUICK = ("tree", "version", "changelog", "tag")

Release = Callable[..., dict[str, Any]]


@pytest.fixture(scope="module")
def pristine(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What is tracked here, as a checkout of its own, of which the changelog is of today."""
    folder = tmp_path_factory.mktemp("release") / "checkout"
    listed = ["git", "-C", CHECKOUT, "ls-files", "-z"]
    tracked = subprocess.run(listed, capture_output=True, text=True, check=True).stdout
    for path in filter(None, tracked.split("\0")):
        if (CHECKOUT / path).is_file():
            (folder / path).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(CHECKOUT / path, folder / path)
    changelog = folder / "CHANGELOG.md"
    heading = re.search(r"^## .*$", changelog.read_text(), re.MULTILINE)
    assert heading is not None
    edit(changelog, heading[0], f"## {VERSION} - {today()}")
    run_git(folder, "init", "-q")
    run_git(folder, "add", "--all", "--force")
    run_git(folder, "commit", "-q", "-m", "all")
    return folder


@pytest.fixture
def copy(pristine: Path) -> Iterator[Path]:
    """That checkout, which is put right again after the test."""
    (commit,) = run_git(pristine, "rev-parse", "HEAD").split()
    yield pristine
    run_git(pristine, "reset", "-q", "--hard", commit)
    run_git(pristine, "clean", "-q", "-fdx")
    for tag in run_git(pristine, "tag").split():
        run_git(pristine, "tag", "--delete", tag)


def today() -> datetime.date:
    return datetime.datetime.now(datetime.UTC).date()


def run_git(folder: Path, *words: str) -> str:
    identity = ["-c", "user.name=tester", "-c", "user.email=tester@example.org"]
    command = ["git", *identity, *words]
    return subprocess.run(command, cwd=folder, check=True, capture_output=True, text=True).stdout


def edit(path: Path, old: str, new: str) -> None:
    text = path.read_text()
    assert old in text
    path.write_text(text.replace(old, new, 1))


@pytest.fixture
def release(copy: Path) -> Release:
    """Takes steps there; the status and what is told of each."""

    def release(*steps: str) -> dict[str, Any]:
        done = subprocess.run(
            [sys.executable, copy / "tools/release", "--json", "--only", *steps],
            env=os.environ,
            capture_output=True,
            text=True,
            check=False,
        )
        told = json.loads(done.stdout)
        failed = {step["step"]: step["told"] for step in told["steps"] if not step["passed"]}
        assert done.returncode == bool(failed)
        assert not told["ready"]  # not every step was taken
        assert told["left"] == []
        return failed

    return release


class TestRelease:
    def test_passes_what_is_fit(self, release: Release) -> None:
        assert release(*QUICK) == {}

    def test_sees_what_is_not_committed(self, copy: Path, release: Release) -> None:
        (copy / "README.md").write_text("changed")
        (copy / "new").touch()
        assert release(*QUICK) == {"tree": "not committed:\n M README.md\n?? new"}

    def test_sees_a_tag_of_this_version(self, copy: Path, release: Release) -> None:
        run_git(copy, "tag", f"v{VERSION}")
        assert release("tag") == {
            "tag": f"the tag v{VERSION} is there already: raise the version in pyproject.toml"
        }

    def test_sees_a_version_that_others_do_not_state(self, copy: Path, release: Release) -> None:
        edit(copy / "pyproject.toml", f'version = "{VERSION}"', 'version = "99.0.0"')
        run_git(copy, "commit", "-qam", "raise the version")
        failed = release(*QUICK)
        assert set(failed) == {"version", "changelog"}
        assert "3 failed, 5 passed" in failed["version"]

    def test_sees_a_version_that_is_none(self, copy: Path, release: Release) -> None:
        edit(copy / "pyproject.toml", f'version = "{VERSION}"', 'version = "0.1"')
        told = release("version")["version"]
        assert told == "pyproject.toml: '0.1' is no version of a release"

    def test_sees_a_changelog_of_another_day(self, copy: Path, release: Release) -> None:
        edit(copy / "CHANGELOG.md", f"## {VERSION} - {today()}", f"## {VERSION} - 2001-02-03")
        assert release("changelog") == {
            "changelog": f"CHANGELOG.md begins with '## {VERSION} - 2001-02-03', "
            f"not with '## {VERSION} - {today()}'"
        }

    def test_sees_figures_that_their_data_does_not_give(self, copy: Path, release: Release) -> None:
        edit(copy / "README.md", "<!-- end -->", "and more\n<!-- end -->")
        assert set(release("figures")) == {"figures"}

    def test_sees_wheels_that_need_a_later_c_library(
        self, copy: Path, dist, release: Release
    ) -> None:
        (copy / "dist").mkdir()
        for file in (dist.sdist, dist.x86_64):
            shutil.copy(file, copy / "dist")
        shutil.copy(dist.aarch64, copy / "dist" / dist.aarch64.name.replace("2_28", "2_17"))
        failed = release("metadata", "platforms")
        assert set(failed) == {"platforms"}
        assert failed["platforms"].startswith(
            f"gdrpy-{VERSION}-cp311-abi3-manylinux_2_17_aarch64.whl:"
        )

    def test_sees_that_nothing_was_built_or_of_another_version(
        self, copy: Path, release: Release
    ) -> None:
        assert release("metadata") == {"metadata": "dist/ has no packages: run the step dist"}
        (copy / "dist").mkdir()
        (copy / "dist/gdrpy-0.0.9.tar.gz").touch()
        told = f"dist/ has gdrpy-0.0.9.tar.gz, which is not of {VERSION}"
        assert release("metadata", "contract") == {"metadata": told, "contract": told}


class TestHelp:
    def test_names_every_step(self, checkout: Path) -> None:
        command = [sys.executable, checkout / "tools/release", "--help"]
        said = subprocess.run(command, capture_output=True, text=True, check=True).stdout
        assert all(f"\n  {step} " in said for step in (*QUICK, "lint", "docs", "dist", "contract"))

    def test_refuses_a_step_that_there_is_not(self, checkout: Path) -> None:
        command = [sys.executable, checkout / "tools/release", "--only", "cake"]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        assert done.returncode == 2
        assert "invalid choice: 'cake'" in done.stderr
