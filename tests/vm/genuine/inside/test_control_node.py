"""/dev/nvidiactl of NVIDIA's own driver, against the structures that the nvrm backend uses."""

from __future__ import annotations

import errno
import json
import os
import re
import struct
import subprocess
import sys
from collections.abc import Iterator

import pytest
from kernels import CHECKOUT
from resource_manager import (
    ALLOC,
    CARD_INFO,
    CHECK_VERSION,
    CONTROL,
    DUP,
    EXPORT_INFO,
    FREE,
    IMPORT,
    MAP,
    UNMAP,
    ControlNode,
)

from machine import Machine

#: Of a control's parameters: those of another size, and, among others, a descriptor that is none.
INVALID_ARGUMENT, INVALID_PARAMETER = 0x1F, 0x3B
#: What each release answers, in bytes; everything else is the same in both.
EXPORT_INFO_SIZE = {"535": 76, "550": 80}
SIZES = {"alloc": 32, "free": 16, "control": 32, "dup": 28, "map": 56, "unmap": 32, "import": 652}
#: What gdrpy gets wrong, and so is refused: on 535 it cannot take in exported memory.
KNOWN_WRONG = {"535": {"export_info": 80}, "550": {}}


@pytest.fixture
def node(machine: Machine) -> Iterator[ControlNode]:
    machine.load_driver()
    with ControlNode() as node:
        yield node


def gdrpys_sizes() -> dict[str, int]:
    """Those of the structures in its description of the interface."""
    text = (CHECKOUT / "gdrpy/_core/nvrm_abi.h").read_text()
    found = re.findall(r"_Static_assert\(sizeof\(struct nvrm_(\w+)\) == (\d+)", text)
    return {name: int(size) for name, size in found}


class TestAnswers:
    def test_version_is_the_drivers(self, node: ControlNode, machine: Machine) -> None:
        argument = bytearray(72)
        argument[0] = ord("2")  # asks without a version of its own
        assert node.ioctl(CHECK_VERSION, argument) == 0
        version = argument[8:].rstrip(b"\0").decode()
        assert version == machine.driver.version.partition("-")[0]

    def test_other_version_is_refused(self, node: ControlNode) -> None:
        assert node.ioctl(CHECK_VERSION, bytearray(72)) == errno.EINVAL

    def test_card_is_the_gpu_on_the_bus(self, node: ControlNode) -> None:
        argument = bytearray(32 * 72)
        assert node.ioctl(CARD_INFO, argument) == 0
        valid, *card = struct.unpack_from("=B3x I BBxx HH", argument)
        assert (valid, card) == (1, [1, 0, 0, 0x10DE, 0x2330])
        assert argument[72] == 0  # the second card's


class TestSizes:
    @pytest.mark.parametrize(
        ("number", "name"),
        [
            (ALLOC, "alloc"),
            (FREE, "free"),
            (CONTROL, "control"),
            (DUP, "dup"),
            (MAP, "map"),
            (UNMAP, "unmap"),
        ],
    )
    def test_call_is_answered_at_its_size_alone(
        self, node: ControlNode, number: int, name: str
    ) -> None:
        size = SIZES[name]
        answers = {n: node.ioctl(number, bytearray(n)) for n in (size - 4, size, size + 4)}
        assert answers == {size - 4: errno.EINVAL, size: 0, size + 4: errno.EINVAL}

    def test_alloc_is_answered_with_rights_too(self, node: ControlNode) -> None:
        assert node.ioctl(ALLOC, bytearray(48)) == 0

    @pytest.mark.parametrize("name", ["export_info", "import"])
    def test_control_is_answered_at_its_size_alone(
        self, node: ControlNode, machine: Machine, name: str
    ) -> None:
        size = SIZES.get(name) or EXPORT_INFO_SIZE[machine.driver.release]
        command = {"export_info": EXPORT_INFO, "import": IMPORT}[name]
        client = node.client()
        answers = {}
        for given in (size - 4, size, size + 4):
            parameters = bytearray(given)
            struct.pack_into("i", parameters, 0, -1)
            answers[given] = node.control(client, command, parameters)
        assert answers == {
            size - 4: INVALID_ARGUMENT,
            size: INVALID_PARAMETER,
            size + 4: INVALID_ARGUMENT,
        }

    def test_gdrpys_are_these_but_for_what_is_known(self, machine: Machine) -> None:
        release = machine.driver.release
        right = SIZES | {"export_info": EXPORT_INFO_SIZE[release]}
        theirs = gdrpys_sizes()
        wrong = {name: theirs[name] for name, size in right.items() if theirs[name] != size}
        assert wrong == KNOWN_WRONG[release]


class TestGdrpyInfo:
    """A driver, a GPU that does not start, and no libcuda."""

    def info(self, **environment: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", "gdrpy", "info", "--json"]
        return subprocess.run(
            command, capture_output=True, text=True, env=os.environ | environment, check=True
        )

    def test_names_the_driver_and_what_is_missing(
        self, node: ControlNode, machine: Machine
    ) -> None:
        found = json.loads(self.info(GDRPY_SIM="0").stdout)
        assert found["header"]["nvidia_driver"] == machine.driver.version.partition("-")[0]
        assert "there is no libcuda.so.1" in found["cuda_problem"]

    def test_tells_that_the_gpu_is_a_simulated_one(self, node: ControlNode) -> None:
        ended = self.info()
        assert "an NVIDIA kernel driver runs here, but its libcuda.so.1 does not load" in (
            ended.stderr
        )
        assert [device["simulated"] for device in json.loads(ended.stdout)["devices"]] == [True]
