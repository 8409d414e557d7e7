"""insmod.sh loads, unloads and tells about the real module; each test leaves it loaded."""

from __future__ import annotations

import os
import stat
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from gdrdrv import PERSISTENT, Gdrdrv
from standin import View

CHECKOUT = Path(__file__).parents[3]
NODE = Path("/dev/gdrdrv")
LOADED = Path("/sys/module/gdrdrv")
FAILED, ANOTHER, IN_USE = 1, 7, 8

Insmod = Callable[..., "subprocess.CompletedProcess[str]"]


@pytest.fixture
def insmod(module: Path) -> Iterator[Insmod]:
    def run(*arguments: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [CHECKOUT / "insmod.sh", *arguments],
            env=os.environ | {"GDRDRV_MODULE": str(module)},
            capture_output=True,
            text=True,
            check=False,
        )

    yield run
    if not NODE.exists() or parameter("mode") != str(0o666):
        subprocess.run(["rmmod", "gdrdrv"], stderr=subprocess.DEVNULL, check=False)
        subprocess.run(["insmod", module], check=True)


def lines(ended: subprocess.CompletedProcess[str]) -> list[str]:
    """What was printed by a run that did as it was asked."""
    assert (ended.returncode, ended.stderr) == (0, "")
    return ended.stdout.splitlines()


def refusal(ended: subprocess.CompletedProcess[str]) -> tuple[int, str]:
    (line,) = ended.stderr.splitlines()
    return ended.returncode, line.removeprefix("insmod.sh: ")


def status(insmod: Insmod) -> dict[str, str]:
    pairs = (line.partition(":") for line in lines(insmod("--status")))
    return {name: value.strip() for name, _, value in pairs}


def permissions() -> int:
    return stat.S_IMODE(NODE.stat().st_mode)


def parameter(name: str) -> str:
    return (LOADED / "parameters" / name).read_text().strip()


class TestLoading:
    def test_again_does_nothing(self, insmod: Insmod) -> None:
        assert lines(insmod()) == ["gdrdrv is loaded already"]

    def test_follows_unloading(self, insmod: Insmod) -> None:
        assert lines(insmod("--unload")) == ["gdrdrv is unloaded"]
        assert not LOADED.exists()
        assert not NODE.exists()
        assert lines(insmod("--unload")) == ["gdrdrv is not loaded"]
        assert lines(insmod())[0].startswith("gdrdrv is loaded: ")
        assert permissions() == 0o666

    def test_passes_parameters_on(self, insmod: Insmod) -> None:
        insmod("--unload")
        lines(insmod("mode=0640", "max_pinned_mib=8", "use_persistent_mapping=0"))
        assert permissions() == 0o640
        assert parameter("max_pinned_mib") == "8"
        assert parameter("use_persistent_mapping") == "N"
        assert lines(insmod("mode=0640", "use_persistent_mapping=N")) == [
            "gdrdrv is loaded already"
        ]

    def test_with_other_parameters_is_refused(self, insmod: Insmod) -> None:
        reason = "gdrdrv is loaded with mode=0666: sudo ./insmod.sh --unload, then again"
        assert refusal(insmod("mode=0600")) == (ANOTHER, reason)

    def test_with_a_wrong_value_is_refused(self, insmod: Insmod) -> None:
        insmod("--unload")
        code, reason = refusal(insmod("mode=01777"))
        assert code == FAILED
        assert ": Invalid parameters; the kernel says: " in reason

    def test_makes_a_missing_node(self, insmod: Insmod) -> None:
        insmod("--unload")
        lines(insmod("mode=0640"))
        before = NODE.stat().st_rdev
        NODE.unlink()
        assert lines(insmod())[0] == "made /dev/gdrdrv, which no devtmpfs had made"
        assert (NODE.stat().st_rdev, permissions()) == (before, 0o640)
        os.close(os.open(NODE, os.O_RDWR))

    def test_replaces_a_node_of_another_number(self, insmod: Insmod) -> None:
        right = NODE.stat().st_rdev
        NODE.unlink()
        os.mknod(NODE, 0o600 | stat.S_IFCHR, os.makedev(1, 3))
        lines(insmod())
        assert NODE.stat().st_rdev == right


class TestUnloading:
    def refused_for_this_process(self, insmod: Insmod) -> None:
        name = Path("/proc/self/comm").read_text().strip()
        reason = f"gdrdrv is in use by {os.getpid()} ({name}): end them first"
        assert refusal(insmod("--unload")) == (IN_USE, reason)
        assert LOADED.exists()

    def test_names_who_has_the_node_open(self, insmod: Insmod) -> None:
        with Gdrdrv():
            self.refused_for_this_process(insmod)

    def test_names_who_has_a_share_descriptor(self, insmod: Insmod, view: View) -> None:
        with Gdrdrv() as node:
            share = node.share(node.pin(view.address, view.size, PERSISTENT))
        with os.fdopen(share):
            self.refused_for_this_process(insmod)

    def test_names_who_has_a_mapping(self, insmod: Insmod, view: View) -> None:
        with Gdrdrv() as node:
            mapped = node.map(node.pin(view.address, view.size, PERSISTENT), view.size)
        with mapped:
            self.refused_for_this_process(insmod)


class TestStatus:
    def test_of_a_loaded_module(self, insmod: Insmod, module: Path) -> None:
        found = status(insmod)
        limit = Path("/sys/module/gdrdrv/parameters/max_pinned_mib").read_text().strip()
        assert found.pop("kernel").startswith(f"Linux {os.uname().release}, ")
        assert found == {
            "module": "gdrpy's gdrdrv 2.6 is loaded",
            "parameters": f"max_pinned_mib={limit} mode=0666 use_persistent_mapping=Y",
            "node": "/dev/gdrdrv, 666 root:root",
            "NVIDIA": "gpustandin of no version",
            "built": f"{module} is for this kernel and driver",
            "signatures": "not enforced",
            "next": "none: gdrdrv is ready",
        }

    def test_of_an_unloaded_module(self, insmod: Insmod, module: Path) -> None:
        insmod("--unload")
        found = status(insmod)
        assert found["module"] == "not loaded"
        assert found["node"] == "/dev/gdrdrv is missing"
        assert found["next"].startswith(f"sudo ./insmod.sh would load {module}; ")

    def test_of_a_missing_node(self, insmod: Insmod) -> None:
        NODE.unlink()
        found = status(insmod)
        assert found["node"] == "/dev/gdrdrv is missing"
        assert found["next"] == "sudo ./insmod.sh would make the node"
