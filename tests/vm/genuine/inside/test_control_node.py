"""/dev/nvidiactl of NVIDIA's own driver, against the table that the nvrm backend is tested with."""

from __future__ import annotations

import errno
import json
import os
import struct
import subprocess
import sys
from collections.abc import Iterator

import pytest
from resource_manager import (
    ALLOC,
    CARD_INFO,
    CHECK_VERSION,
    CONFIDENTIAL,
    CONTROL,
    DUP,
    EXPORT_INFO,
    FREE,
    IMPORT,
    MAP,
    UNMAP,
    ControlNode,
)

import releases
from machine import Machine

#: Of a control's parameters: those of another size, and, among others, a descriptor that is none.
INVALID_ARGUMENT, INVALID_PARAMETER = 0x1F, 0x3B
#: Of a control that wants the lock of all GPUs: no GPU starts here, so there is no such lock.
INVALID_LOCK_STATE = 0x2F


@pytest.fixture
def node(machine: Machine) -> Iterator[ControlNode]:
    machine.load_driver()
    with ControlNode() as node:
        yield node


@pytest.fixture
def sizes(machine: Machine) -> dict[str, int]:
    """By the name of the structure, of the latest release in the table up to this driver's."""
    version = releases.version_key(machine.driver.version.partition("-")[0])
    rows = [one for one in releases.read() if releases.version_key(one.first) <= version]
    latest = max(rows, key=lambda row: releases.version_key(row.first))
    sizes = {name[5:]: value for name, value in latest.facts.items() if name.startswith("size.")}
    return {name: int(value) for name, value in sizes.items()}


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
        self, node: ControlNode, sizes: dict[str, int], number: int, name: str
    ) -> None:
        size = sizes[name]
        answers = {n: node.ioctl(number, bytearray(n)) for n in (size - 4, size, size + 4)}
        assert answers == {size - 4: errno.EINVAL, size: 0, size + 4: errno.EINVAL}

    def test_alloc_is_answered_with_rights_too(self, node: ControlNode) -> None:
        assert node.ioctl(ALLOC, bytearray(48)) == 0

    @pytest.mark.parametrize("name", ["export_info", "import"])
    def test_control_is_answered_at_its_size_alone(
        self, node: ControlNode, sizes: dict[str, int], name: str
    ) -> None:
        size = sizes[name]
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

    def test_of_confidential_computing_is_the_only_one_answered(
        self, node: ControlNode, sizes: dict[str, int]
    ) -> None:
        size = sizes["confidential"]
        client = node.client()
        target = node.confidential(client)
        answers = {
            given: node.control(client, CONFIDENTIAL, bytearray(given), target)
            for given in (size - 1, size, size + 1)
        }
        assert answers == {
            size - 1: INVALID_ARGUMENT,
            size: INVALID_LOCK_STATE,
            size + 1: INVALID_ARGUMENT,
        }


class TestGdrpy:
    def test_asks_at_the_size_that_the_driver_takes(self, node: ControlNode) -> None:
        """A pipe is refused as no export, and not for the size of the question."""
        code = "import os, gdrpy; gdrpy.Region.from_fd(os.pipe()[0], gpu=False)"
        ended = subprocess.run(
            [sys.executable, "-c", code],
            capture_output=True,
            text=True,
            env=os.environ | {"GDRPY_BACKEND": "nvrm"},
        )
        last = ended.stderr.splitlines()[-1]
        assert "InvalidHandle: " in last
        assert f"driver status {INVALID_PARAMETER:#x}" in last


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
