"""Short runs of the programs that tests/vm/stress/README.md describes."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest
import standin

VM = Path(__file__).parent.parent
PROGRAMS = VM.parent.parent / ".vm/stress"


@pytest.fixture(scope="module")
def programs() -> Path:
    """Where they are. Built on the host they are up to date, and this does nothing."""
    subprocess.run(["make", "-s", "-C", VM / "stress"], check=True)
    return PROGRAMS


def run(program: Path, *options: str) -> dict[str, Any]:
    """What a program found, if it found nothing wrong."""
    ended = subprocess.run([program, "--json", *options], capture_output=True, text=True)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    return json.loads(ended.stdout.splitlines()[-1])


def total(results: dict[str, int]) -> int:
    return sum(results.values())


@pytest.fixture(scope="module")
def storm(programs: Path) -> dict[str, Any]:
    return run(programs / "storm", "--operations", "10000", "--kill-every", "2000")


@pytest.fixture(scope="module")
def fuzz(programs: Path) -> dict[str, Any]:
    return run(programs / "fuzz", "--calls", "20000")


class TestStorm:
    def test_every_operation_happened(self, storm: dict[str, Any]) -> None:
        assert storm["operations"] >= 10000
        never = {name for name, results in storm["results"].items() if not total(results)}
        assert never == {"lost_worker"}

    def test_every_operation_that_may_succeed_did(self, storm: dict[str, Any]) -> None:
        failed = {name for name, results in storm["results"].items() if not results.get("ok")}
        assert failed - {"shrink"} == {
            "grow",
            "unload",
            "stranger_ioctl",
            "stranger_map",
            "stranger_read",
            "child_touch",
            "lost_worker",
        }

    def test_mappings_were_seen_to_be_revoked(self, storm: dict[str, Any]) -> None:
        assert storm["callbacks"] > 0
        assert storm["results"]["touch"]["SIGBUS"] > 0

    def test_nothing_is_left(self, storm: dict[str, Any]) -> None:
        assert storm["pinned_pages_left"] == 0
        assert standin.live() == (0, 0, 0, 0)

    def test_with_a_wrong_option_is_refused(self, programs: Path) -> None:
        ended = subprocess.run([programs / "storm", "--workers", "0"], capture_output=True)
        assert ended.returncode == 2
        assert ended.stderr.startswith(b"usage: storm")


class TestFuzzer:
    def test_every_command_succeeded_and_was_refused(self, fuzz: dict[str, Any]) -> None:
        assert fuzz["calls"] >= 20000
        commands = list(fuzz["results"].items())[:12]
        assert [name for name, results in commands if not results["ok"]] == []
        assert [name for name, results in commands if not results["EFAULT"]] == []

    def test_a_stranger_was_refused_every_command(self, fuzz: dict[str, Any]) -> None:
        for results in list(fuzz["strangers"].values())[:12]:
            assert results.keys() == {"EACCES"}

    def test_nothing_is_left(self, fuzz: dict[str, Any]) -> None:
        assert fuzz["pinned_pages_left"] == 0
        assert standin.live() == (0, 0, 0, 0)


#: What shows that the node was closed in the target's way.
SIGNS = {
    "fork": "outlived_owner",
    "rights": "outlived_owner",
    "uring": "outlived_owner",
    "proc": "read_owner",
    "kill": "kill",
    "unload": "load",
}


@pytest.fixture(scope="module", params=list(SIGNS))
def closes(
    request: pytest.FixtureRequest, programs: Path, module: Path
) -> tuple[str, dict[str, Any]]:
    """A target and what its run found."""
    name = request.param
    options = ["--target", name, "--operations", "3000", "--module", str(module)]
    result = run(programs / "closes", *options)["targets"][name]
    if result["skipped"]:
        pytest.skip("this kernel has no io_uring")
    return name, result


class TestCloses:
    def test_the_node_was_closed_in_this_way(self, closes: tuple[str, dict[str, Any]]) -> None:
        name, result = closes
        assert result["operations"] >= 3000
        assert result["events"][SIGNS[name]]["ok"] > 0

    def test_each_witness_saw_the_last_close(self, closes: tuple[str, dict[str, Any]]) -> None:
        _, result = closes
        assert result["events"]["last_close"].keys() == {"ok"}
        assert result["results"]["touch_after"].keys() == {"SIGBUS"}

    def test_nothing_is_left(self, closes: tuple[str, dict[str, Any]]) -> None:
        _, result = closes
        assert result["pinned_pages_left"] == 0
        assert result["pins_left"] == 0
        assert standin.live() == (0, 0, 0, 0)

    def test_without_a_target_is_refused(self, programs: Path) -> None:
        ended = subprocess.run([programs / "closes"], capture_output=True)
        assert ended.returncode == 2
        assert ended.stderr.startswith(b"usage: closes")
