"""What the environment makes of the simulated driver, and several devices."""

from __future__ import annotations

import subprocess
from collections.abc import Callable

import pytest

Run = Callable[..., subprocess.CompletedProcess[str]]

INIT = "print(driver.cuInit(0)[0].name)\n"


class TestMemory:
    @pytest.mark.parametrize(
        ("text", "size"),
        [
            ("64M", 64 << 20),
            ("2097152", 2 << 20),
            ("4096K", 4 << 20),
            ("80G", 80 << 30),
            ("1T", 1 << 40),
        ],
    )
    def test_a_size_is_what_the_device_has(self, fresh_process: Run, text: str, size: int) -> None:
        done = fresh_process(INIT + "print(driver.cuDeviceTotalMem(0)[1])", GDRPY_SIM_MEMORY=text)
        assert done.stdout.split() == ["CUDA_SUCCESS", str(size)]

    def test_the_default_is_16_gib_on_one_device(self, fresh_process: Run) -> None:
        done = fresh_process(
            INIT + "print(driver.cuDeviceTotalMem(0)[1], driver.cuDeviceGetCount()[1])"
        )
        assert done.stdout.split() == ["CUDA_SUCCESS", str(16 << 30), "1"]


MALFORMED = pytest.mark.parametrize(
    ("variable", "value"),
    [
        ("GDRPY_SIM_MEMORY", ""),
        ("GDRPY_SIM_MEMORY", "0"),
        ("GDRPY_SIM_MEMORY", "1M"),
        ("GDRPY_SIM_MEMORY", "-2M"),
        ("GDRPY_SIM_MEMORY", "64m"),
        ("GDRPY_SIM_MEMORY", "64MB"),
        ("GDRPY_SIM_MEMORY", "65T"),
        ("GDRPY_SIM_MEMORY", "99999999999999999999"),
        ("GDRPY_SIM_DEVICES", ""),
        ("GDRPY_SIM_DEVICES", "0"),
        ("GDRPY_SIM_DEVICES", "17"),
        ("GDRPY_SIM_DEVICES", "two"),
        ("GDRPY_SIM_DEVICES", "2x"),
        ("GDRPY_SIM_FABRIC", ""),
        ("GDRPY_SIM_FABRIC", "2"),
        ("GDRPY_SIM_FABRIC", "no channel"),
        ("GDRPY_SIM_PEERS", ""),
        ("GDRPY_SIM_PEERS", "2"),
        ("GDRPY_SIM_FAULT", "cuMemCreate"),
        ("GDRPY_SIM_FAULT", "cuNothing:1"),
    ],
)


class TestMalformedValues:
    @MALFORMED
    def test_the_package_does_not_load_the_driver(
        self, fresh_process: Run, variable: str, value: str
    ) -> None:
        done = fresh_process("", **{variable: value})
        assert done.returncode == 1
        assert done.stderr.splitlines()[-1].startswith(
            f"gdrpy.sim.BadEnvironment: {variable}={value!r} is not "
        )

    @MALFORMED
    def test_the_driver_says_so_in_one_line_and_does_not_start(
        self, preloaded_process: Run, variable: str, value: str
    ) -> None:
        done = preloaded_process(
            INIT + "print(driver.cuDeviceGetCount()[0].name)", **{variable: value}
        )
        assert done.stdout.split() == ["CUDA_ERROR_INVALID_VALUE", "CUDA_ERROR_NOT_INITIALIZED"]
        (line,) = done.stderr.splitlines()
        assert line.startswith(f"gdrpy simulated GPU: {variable}='{value}' is not ")


class TestFaults:
    def test_the_call_that_is_named_fails_once(self, fresh_process: Run) -> None:
        done = fresh_process(
            """
driver.cuInit(0)
for _ in range(3):
    print(driver.cuDeviceGetCount()[0].name)
""",
            GDRPY_SIM_FAULT="cuDeviceGetCount:2:999",
        )
        names = ["CUDA_SUCCESS", "CUDA_ERROR_UNKNOWN", "CUDA_SUCCESS"]
        assert done.stdout.split() == names

    def test_initialization_can_fail_too(self, fresh_process: Run) -> None:
        done = fresh_process(INIT, GDRPY_SIM_FAULT="cuInit:1:100")
        assert done.stdout.split() == ["CUDA_ERROR_NO_DEVICE"]


class TestSeveralDevices:
    #: A context on each of two devices, the first one current, and memory of the second one.
    PREAMBLE = """
import sys
sys.path.insert(0, {folder!r})
from contextlib import ExitStack
from cuda_calls import GRANULE, Cuda
driver.cuInit(0)
cuda = Cuda(driver, ExitStack())
first, second = (cuda("cuDevicePrimaryCtxRetain", i) for i in range(2))
cuda("cuCtxSetCurrent", second)
"""

    @pytest.fixture
    def run(self, fresh_process: Run) -> Callable[..., list[str]]:
        from pathlib import Path

        def run(code: str, **environment: str) -> list[str]:
            preamble = self.PREAMBLE.format(folder=str(Path(__file__).parent))
            done = fresh_process(preamble + code, GDRPY_SIM_DEVICES="2", **environment)
            assert done.returncode == 0, done.stderr
            return done.stdout.splitlines()

        return run

    def test_each_has_a_name_to_tell_it_by(self, run: Callable[..., list[str]]) -> None:
        uuids, bus_ids = run("""
print(len({str(cuda("cuDeviceGetUuid", i)) for i in range(2)}))
print([cuda("cuDeviceGetPCIBusId", 13, i).rstrip(b"\\0").decode() for i in range(2)])
""")
        assert uuids == "2"
        assert bus_ids == "['0000:01:00.0', '0000:02:00.0']"

    def test_memory_is_counted_by_device(self, run: Callable[..., list[str]]) -> None:
        assert run("""
pointer = cuda.allocate(4 << 20)
handle = cuda.create(device=1)
free = []
for context in (first, second):
    cuda("cuCtxSetCurrent", context)
    free.append(cuda("cuMemGetInfo")[1] - cuda("cuMemGetInfo")[0])
print(free)
print(cuda.pointer_attribute("DEVICE_ORDINAL", pointer))
""") == [f"[0, {6 << 20}]", "1"]

    def test_access_is_by_device(self, run: Callable[..., list[str]]) -> None:
        assert run("""
pointer = cuda.reserve()
cuda("cuMemMap", pointer, GRANULE, 0, cuda.create(device=1), 0)
cuda("cuMemSetAccess", pointer, GRANULE, [cuda.access(device=1)], 1)
cuda.write(pointer, b"abcd")
cuda("cuCtxSetCurrent", first)
print(cuda.error("cuMemcpyDtoH", bytearray(4), pointer, 4))
print(cuda("cuMemGetAccess", cuda.location(0), pointer))
cuda("cuMemSetAccess", pointer, GRANULE, [cuda.access(1, device=0)], 1)
print(cuda.read(pointer, 4), cuda.error("cuMemcpyHtoD", pointer, b"abcd", 4))
print(cuda("cuMemGetAccess", cuda.location(1), pointer))
""") == ["INVALID_VALUE", "0", "b'abcd' INVALID_VALUE", "3"]

    def test_copies_go_from_one_to_the_other(self, run: Callable[..., list[str]]) -> None:
        assert run("""
source = cuda.allocate(16)
cuda.write(source, b"sixteen bytes...")
cuda("cuCtxSetCurrent", first)
target = cuda.allocate(16)
cuda("cuMemcpyPeer", target, first, source, second, 16)
print(cuda.read(target, 16))
""") == ["b'sixteen bytes...'"]

    def test_peer_access_is_enabled_once(self, run: Callable[..., list[str]]) -> None:
        assert run("""
print(cuda("cuDeviceCanAccessPeer", 0, 1))
print([cuda.error("cuCtxEnablePeerAccess", first, 0) for _ in range(2)])
print([cuda.error("cuCtxDisablePeerAccess", first) for _ in range(2)])
print(cuda.error("cuCtxEnablePeerAccess", second, 0))
""") == [
            "1",
            "['CUDA_SUCCESS', 'PEER_ACCESS_ALREADY_ENABLED']",
            "['CUDA_SUCCESS', 'PEER_ACCESS_NOT_ENABLED']",
            "INVALID_CONTEXT",
        ]

    def test_one_that_cannot_reach_the_other_gets_no_access(
        self, run: Callable[..., list[str]]
    ) -> None:
        assert run(
            """
print(cuda("cuDeviceCanAccessPeer", 0, 1), cuda.error("cuCtxEnablePeerAccess", first, 0))
pointer = cuda.reserve()
cuda("cuMemMap", pointer, GRANULE, 0, cuda.create(device=1), 0)
for accesses in ([cuda.access(device=0)], [cuda.access(device=1), cuda.access(1, device=0)]):
    print(cuda.error("cuMemSetAccess", pointer, GRANULE, accesses, len(accesses)))
print([int(cuda("cuMemGetAccess", cuda.location(device), pointer)) for device in range(2)])
accesses = [cuda.access(device=1), cuda.access(0, device=0)]
print(cuda.error("cuMemSetAccess", pointer, GRANULE, accesses, 2))
""",
            GDRPY_SIM_PEERS="0",
        ) == ["0 PEER_ACCESS_UNSUPPORTED", *["INVALID_DEVICE"] * 2, "[0, 0]", "CUDA_SUCCESS"]
