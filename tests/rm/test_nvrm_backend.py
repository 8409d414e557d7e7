"""The nvrm backend, unmodified, on the simulated resource manager and the simulated GPU."""

import errno
import json
import os
import re
import subprocess
import sys
import threading
import warnings
from collections.abc import Sequence
from pathlib import Path

import pytest

import gdrpy
import releases
import rmclient as rm
from gdrpy import cuda, sim
from gdrpy._core.calls import ffi
from gdrpy._core.driver import driver_version
from gdrpy.memory.backends import ALL, Status, candidates, cuda_functions

ON_NVRM = {"GDRPY_SIM": "1", "GDRPY_BACKEND": "nvrm"}
MIB = 1 << 20

pytestmark = pytest.mark.preloaded(**ON_NVRM)

NOTHING = {"objects": 0, "mappings": 0, "violations": 0}

#: A release for each set of facts: neither the manager nor the core tells the others apart.
RELEASES = releases.read()
FACTS = [releases.mapping_facts(release.facts) for release in RELEASES]
INTERFACES = [
    release for number, release in enumerate(RELEASES) if FACTS[number] not in FACTS[:number]
]
#: Where memory is taken in, described and given back: else nothing asks for what they differ in.
DEPENDENT = ("test_adopted_region.py", "test_pin.py", "test_region.py", "test_sending.py")


def ledger() -> dict[str, int]:
    """What the manager counts, less the client and its device, which a process keeps."""
    return {name: rm.count(name) for name in NOTHING}


def descriptors() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))


def warm_driver() -> int:
    """Load the simulated driver and open the client; how many descriptors are open then."""
    cuda.driver()
    assert ALL["nvrm"].status(0).usable
    return descriptors()


def warm() -> int:
    """Open the client, its device and the pointer check; how many descriptors are open then."""
    with gdrpy.alloc(1), cuda.context(0):
        pointer = cuda.call("cuMemAlloc", 4096)
        with gdrpy.open() as gdr, gdr.pin(int(pointer), 1):
            pass
        cuda.call("cuMemFree", pointer)
    return descriptors()


class TestContract:
    @pytest.mark.parametrize(
        ("release", "tests"),
        [
            pytest.param(
                release.first,
                [""] if release in (INTERFACES[0], INTERFACES[-1]) else DEPENDENT,
                id=release.first,
                marks=pytest.mark.preloaded(
                    **ON_NVRM, GDRPY_TEST_BACKENDS="nvrm", FAKE_RM_VERSION=release.first
                ),
            )
            for release in INTERFACES
        ],
    )
    @pytest.mark.timeout(300)
    def test_is_kept_by_the_backend(self, release: str, tests: Sequence[str]) -> None:
        contract = Path(__file__).parent.parent / "contract"
        files = [str(contract / name) for name in tests]
        run = subprocess.run(
            [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *files],
            capture_output=True,
            text=True,
            check=False,
        )
        assert run.returncode == 0, run.stdout[-8000:]
        assert driver_version() == release
        assert "skipped" not in run.stdout


class TestChoice:
    """As on a real GPU, which the simulated one is taken for without the function ``on_bar``."""

    @pytest.mark.preloaded(GDRPY_SIM="1")
    def test_passes_over_one_that_refuses_the_memory(self) -> None:
        cuda_functions().on_bar = ffi.NULL
        assert candidates() == ["gdrdrv", "dmabuf", "nvrm"]
        with gdrpy.alloc(4096) as region:
            assert region.cpu.backend == "dmabuf"
        with sim.fault("cuMemGetHandleForAddressRange:1:801"), gdrpy.alloc(4096) as region:
            assert region.cpu.backend == "nvrm"
        assert ledger() == NOTHING

    @pytest.mark.preloaded(GDRPY_SIM="1", FAKE_RM_NO_NODES="1")
    def test_tells_the_reason_and_the_remedy_of_each(self) -> None:
        cuda_functions().on_bar = ffi.NULL
        refused = pytest.raises(gdrpy.InvalidHandle)
        with sim.fault("cuMemGetHandleForAddressRange:1:801"), refused as caught:
            gdrpy.alloc(4096)
        told = str(caught.value)
        assert "gdrdrv: no kernel module serves /dev/gdrdrv (load the kernel module gdrdrv)" in told
        assert re.search(r"dmabuf: the driver refuses a dma-buf .*CUDA_ERROR_NOT_SUPPORTED", told)
        assert caught.value.result == "CUDA_ERROR_NOT_SUPPORTED"
        assert re.search(r"nvrm: no NVIDIA kernel driver: .* \(install the driver", told)


class TestTeardown:
    def test_leaves_the_manager_with_nothing(self) -> None:
        region = gdrpy.alloc(MIB)
        mappings = [region.map(offset, 10) for offset in (0, 5000, MIB - 10)]
        assert rm.count("mappings") == 4
        assert rm.count("objects") == 1
        region.close()
        assert [mapping.closed for mapping in mappings] == [True] * 3
        assert ledger() == NOTHING

    def test_of_dropped_objects_leaves_the_manager_with_nothing(self) -> None:
        array = gdrpy.alloc(MIB).numpy()
        assert rm.count("mappings") == 1
        del array
        assert ledger() == NOTHING

    def test_at_interpreter_exit_with_live_objects_is_quiet(self) -> None:
        code = (
            "import gdrpy; region = gdrpy.alloc(4096); array = region.numpy();"
            "pin = gdrpy.open().pin(region); mapping = pin.map(); flag = region.flag()"
        )
        run = subprocess.run([sys.executable, "-c", code], capture_output=True, check=False)
        assert (run.returncode, run.stdout, run.stderr) == (0, b"", b"")


class TestRefusedCall:
    CALLS = ("RM_CONTROL", "RM_MAP_MEMORY", "mmap")

    def test_at_every_step_of_an_allocation_leaves_nothing(self) -> None:
        before = warm()
        statuses = (0x1A, 0x1B, 0x1F, 0x51, 0x56, 0x65)
        expected = {0x1A: gdrpy.OutOfMemory, 0x51: gdrpy.OutOfMemory, 0x1B: gdrpy.PermissionDenied}
        faults = [
            (f"{call}:{nth}:{status:#x}", expected.get(status, gdrpy.Error))
            for call, most in (("RM_CONTROL", 3), ("RM_MAP_MEMORY", 1))
            for nth in range(1, most + 1)
            for status in statuses
        ]
        faults += [(f"mmap:1:{errno.ENOMEM}", gdrpy.OutOfMemory)]
        faults += [("open:/dev/nvidia0:13", gdrpy.PermissionDenied)]
        for fault, kind in faults:
            assert rm.set_fault(fault) == 0
            with pytest.raises(kind):
                gdrpy.alloc(4096)
            rm.set_fault("")
            assert (ledger(), descriptors()) == (NOTHING, before), fault
        gdrpy.alloc(4096).close()

    def test_of_the_first_client_leaves_nothing(self) -> None:
        cuda.driver()
        before = descriptors()
        # The device is made to ask whether it is virtual, and where that fails, for the memory.
        device = "DEVICE:1:0x51,DEVICE:2:0x51"
        for fault in ("ROOT_CLIENT:1:0x51", device, "CARD_INFO:1:0x1f"):
            assert rm.set_fault(fault) == 0
            with pytest.raises(gdrpy.Error):
                gdrpy.alloc(4096, gpu=False)
            rm.set_fault("")
        assert ledger() == NOTHING
        assert descriptors() - before <= 1  # the client itself, opened in the end

    def test_of_the_release_is_told_and_loses_nothing_else(self) -> None:
        before = warm()
        region = gdrpy.alloc(4096)
        rm.set_fault("RM_UNMAP_MEMORY:1:0x1f")
        with pytest.raises(gdrpy.DriverError, match=r"unmapping: RM_UNMAP_MEMORY.*0x1f"):
            region.close()
        rm.set_fault("")
        region.close()
        assert descriptors() == before

    def test_tells_the_call_the_errno_and_the_status(self) -> None:
        warm()
        rm.set_fault("RM_MAP_MEMORY:1:0x1f")
        with pytest.raises(gdrpy.DriverError) as caught:
            gdrpy.alloc(4096)
        assert (caught.value.errno, caught.value.status) == (errno.EINVAL, 0x1F)
        assert "mapping 4096 bytes at offset 0: RM_MAP_MEMORY" in str(caught.value)


class TestDescriptor:
    @pytest.mark.parametrize(
        ("call", "kind"),
        [
            ("GET_EXPORT_OBJECT_INFO", "InvalidHandle"),
            ("DEVICE", "DriverError"),
            ("IMPORT_OBJECTS_FROM_FD", "InvalidHandle"),
            ("GET_SURFACE_INFO", "DriverError"),
        ],
    )
    def test_is_blamed_only_for_calls_that_look_at_it(self, call: str, kind: str) -> None:
        cuda.driver()
        # Where making the device fails, it is tried once more.
        assert rm.set_fault(f"{call}:1:0x1f,{call}:2:0x1f") == 0
        with pytest.raises(gdrpy.Error, match="driver status 0x1f") as caught:
            gdrpy.alloc(4096)
        assert type(caught.value).__name__ == kind
        assert ledger() == NOTHING

    def test_of_another_kind_is_refused(self) -> None:
        reader, writer = os.pipe()
        with pytest.raises(gdrpy.InvalidHandle, match="is a pipe, which the NVIDIA driver"):
            gdrpy.Region.from_fd(reader, gpu=False)
        os.close(reader)
        os.close(writer)
        assert ledger() == NOTHING

    @pytest.mark.preloaded(**ON_NVRM, FAKE_RM_VERSION="535.261.03")
    def test_of_another_kind_is_refused_by_the_oldest_driver_too(self) -> None:
        reader, _ = os.pipe()
        with pytest.raises(gdrpy.InvalidHandle, match=r"is a pipe, .*driver status 0x3b"):
            gdrpy.Region.from_fd(reader, gpu=False)


class TestPointer:
    def test_self_check_is_made_once(self) -> None:
        with cuda.context(0):
            pointer = int(cuda.call("cuMemAlloc", 4096))
            with gdrpy.open() as gdr:
                gdr.pin(pointer, 100).close()
                before = sim.call_count("cuMemAlloc")
                gdr.pin(pointer, 100).close()
                assert sim.call_count("cuMemAlloc") == before
            cuda.call("cuMemFree", pointer)

    def test_self_check_takes_no_more_memory_when_it_is_made_again(self) -> None:
        with cuda.context(0), gdrpy.open() as gdr:
            pointer = int(cuda.call("cuMemAlloc", 4096))
            free = cuda.call("cuMemGetInfo")[0]
            for call in ("cuStreamCreate", "cuMemAlloc", "cuMemcpyHtoDAsync") * 3:
                with sim.fault(f"{call}:1"), pytest.raises(gdrpy.OutOfMemory):
                    gdr.pin(pointer, 100)
            gdr.pin(pointer, 100).close()
            assert sim.call_count("cuMemAlloc") == 1 + 3 + 3  # the pointer, the faults, the check
            assert free - cuda.call("cuMemGetInfo")[0] == 4 * MIB  # the rest is in its block
            cuda.call("cuMemFree", pointer)


class TestSeveralDevices:
    @pytest.mark.preloaded(**ON_NVRM, GDRPY_SIM_DEVICES="3")
    def test_each_region_lies_on_its_own_whatever_the_minors(self) -> None:
        regions = [gdrpy.alloc(4096, device) for device in range(3)]
        assert len({region.location for region in regions}) == 3
        for number, region in enumerate(regions):
            region.write(bytes([number]) * 16)
        for number, region in enumerate(regions):
            buffer = bytearray(16)
            with cuda.context(number):
                cuda.call("cuMemcpyDtoH", buffer, region.ptr, 16)
            assert bytes(buffer) == bytes([number]) * 16
            region.close()
        assert ledger() == NOTHING

    @pytest.mark.preloaded(**ON_NVRM, GDRPY_SIM_DEVICES="3")
    def test_pointers_are_pinned_on_their_own(self) -> None:
        with gdrpy.open() as gdr:
            for device in (2, 0, 1):
                with cuda.context(device):
                    pointer = int(cuda.call("cuMemAlloc", 4 * MIB))
                    cuda.call("cuMemsetD8", pointer, device + 1, 4 * MIB)
                    cuda.call("cuCtxSynchronize")
                with gdr.pin(pointer, 4 * MIB) as pin, pin.map() as mapping:
                    assert pin.device == device
                    assert mapping.read(10, 3 * MIB) == bytes([device + 1]) * 10
        assert ledger() == NOTHING


class TestMachine:
    @pytest.mark.preloaded(**ON_NVRM, FAKE_RM_NO_NODES="1")
    def test_without_a_driver_is_unusable_with_the_reason(self) -> None:
        assert ALL["nvrm"].status() == Status(
            False,
            "no NVIDIA kernel driver: /dev/nvidiactl is missing",
            "install the driver, or pass the node into the container (--gpus, --device)",
        )
        with pytest.raises(
            gdrpy.BackendUnavailable, match=r"nvrm: no NVIDIA .* \(install the driver"
        ):
            gdrpy.alloc(4096)

    @pytest.mark.preloaded(**ON_NVRM, FAKE_RM_FAULT="open:/dev/nvidiactl:6")
    def test_whose_node_outlived_the_driver_is_unusable_with_the_reason(self) -> None:
        assert ALL["nvrm"].status() == Status(
            False,
            "no NVIDIA kernel driver is behind /dev/nvidiactl",
            "load the driver: modprobe nvidia, on the host of a container",
        )
        with pytest.raises(gdrpy.BackendUnavailable, match=r"nvrm: no NVIDIA .* \(load the driver"):
            gdrpy.alloc(4096)

    @pytest.mark.preloaded(**ON_NVRM, FAKE_RM_FAULT="open:/dev/nvidiactl:13")
    def test_without_permission_is_unusable_with_the_reason(self) -> None:
        status = ALL["nvrm"].status()
        assert not status.usable
        assert "no permission to open /dev/nvidiactl" in status.reason
        assert "ask for access" in status.remedy

    def test_without_permission_for_the_gpus_node_says_so(self) -> None:
        cuda.driver()
        rm.set_fault("open:/dev/nvidia0:13")
        with pytest.raises(
            gdrpy.PermissionDenied, match="open /dev/nvidia0: Permission denied; ask for"
        ) as caught:
            gdrpy.alloc(4096)
        assert isinstance(caught.value, PermissionError)
        assert caught.value.errno == errno.EACCES
        assert ledger() == NOTHING

    @pytest.mark.preloaded(**ON_NVRM, FAKE_RM_VERSION="999.1.2")
    def test_untested_driver_is_told_once_and_used(self) -> None:
        with warnings.catch_warnings(record=True) as told:
            warnings.simplefilter("always")
            for _ in range(2):
                gdrpy.alloc(4096).close()
        assert [one.category for one in told] == [gdrpy.UntestedDriver]
        assert "NVIDIA driver 999.1.2 is outside the range" in str(told[0].message)
        assert "untested" in ALL["nvrm"].status().reason

    def test_tested_driver_is_used_in_silence(self) -> None:
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            gdrpy.alloc(4096).close()
        assert driver_version() == "580.159.04"


class TestInterruptedOpen:
    def test_is_made_again(self) -> None:
        rm.set_fault("open:/dev/nvidiactl:4,open:/dev/nvidia0:4")
        with gdrpy.alloc(4096) as region:
            region.write(b"there")
            assert region.read(5) == b"there"
        rm.set_fault("open:/proc/driver/nvidia/version:4")
        assert driver_version() == "580.159.04"
        assert ledger() == NOTHING


class TestMigInstance:
    """All memory is in instance 3 of its GPU."""

    @pytest.mark.preloaded(**ON_NVRM, FAKE_RM_MIG="3", GDRPY_SIM_DEVICES="2")
    def test_is_subscribed_to_for_exported_memory(self) -> None:
        for device in (0, 1):
            with gdrpy.alloc(4096, device) as region, cuda.context(device):
                region.write(b"in an instance")
                buffer = bytearray(14)
                cuda.call("cuMemcpyDtoH", buffer, region.ptr, 14)
                assert bytes(buffer) == b"in an instance"
                fd = region.export()
            with gdrpy.Region.from_fd(fd, gpu=False) as other:
                assert other.read(14) == b"in an instance"
            os.close(fd)
        assert ledger() == NOTHING

    @pytest.mark.preloaded(**ON_NVRM, FAKE_RM_MIG="3")
    def test_is_subscribed_to_for_pointers(self) -> None:
        with cuda.context(0), gdrpy.open() as gdr:
            pointer = int(cuda.call("cuMemAlloc", 4096))
            with gdr.pin(pointer, 100) as pin, pin.map() as mapping:
                mapping.write(b"bytes")
            buffer = bytearray(5)
            cuda.call("cuMemcpyDtoH", buffer, pointer, 5)
            assert bytes(buffer) == b"bytes"
        assert ledger() == NOTHING

    @pytest.mark.preloaded(**ON_NVRM, FAKE_RM_MIG="3")
    def test_that_a_lack_of_memory_hides_is_looked_for_again(self) -> None:
        with cuda.context(0), gdrpy.open() as gdr:
            pointer = int(cuda.call("cuMemAlloc", 4096))
            for fault in ("cuMemCreate:1:2", "cuMemExportToShareableHandle:1:2"):
                with sim.fault(fault), pytest.raises(gdrpy.OutOfMemory, match=fault.split(":")[0]):
                    gdr.pin(pointer, 100)
            gdr.pin(pointer, 100).close()
        assert ledger() == NOTHING

    @pytest.mark.preloaded(**ON_NVRM, FAKE_RM_MIG="3")
    def test_that_may_not_be_used_is_said_to_be(self) -> None:
        before = warm_driver()
        refused = pytest.raises(gdrpy.BackendUnavailable)
        reason = "in a MIG instance of the GPU that this process may not use (give the instance"
        for fault in (
            "open:/proc/driver/nvidia/capabilities/gpu0/mig/gi3/access:2",
            "open:/dev/nvidia-caps/nvidia-cap30:13",
            "SUBDEVICE:1:0x1b",
            "SUBSCRIPTION:1:0x1f",
        ):
            assert rm.set_fault(fault) == 0
            with refused as caught:
                gdrpy.alloc(4096)
            rm.set_fault("")
            assert reason in str(caught.value), fault
            assert (ledger(), descriptors()) == (NOTHING, before), fault
        gdrpy.alloc(4096).close()

    @pytest.mark.preloaded(**ON_NVRM, FAKE_RM_MIG="3", FAKE_RM_VERSION="535.261.03")
    def test_is_out_of_reach_where_the_driver_does_not_name_it(self) -> None:
        with gdrpy.alloc(4096, backend="sim") as region:
            fd = region.export()
        reason = "the driver does not report which one holds memory"
        with pytest.raises(gdrpy.BackendUnavailable, match=reason):
            gdrpy.Region.from_fd(fd, gpu=False)
        os.close(fd)
        with pytest.raises(gdrpy.BackendUnavailable, match=reason):
            gdrpy.alloc(4096)
        assert ALL["nvrm"].status(0) == Status(
            False,
            "the GPU is split into MIG instances, and the driver does not report which one holds "
            "memory",
            "install driver 545.23.06 or newer",
        )
        assert ledger() == NOTHING


class TestConfidentialComputing:
    @pytest.mark.parametrize(
        "release",
        [
            pytest.param(
                release,
                marks=pytest.mark.preloaded(
                    **ON_NVRM, FAKE_RM_CONFIDENTIAL=mode, FAKE_RM_VERSION=release
                ),
            )
            for release, mode in (("535.261.03", "1"), ("580.159.04", "1"), ("580.159.05", "pcie"))
        ],
    )
    def test_is_told_before_and_after(self, release: str) -> None:
        with gdrpy.alloc(4096, backend="sim") as region:
            fd = region.export()
        reason = "confidential computing is on, so the CPU cannot map GPU memory"
        with pytest.raises(gdrpy.BackendUnavailable, match=rf"RM_MAP_MEMORY: {reason} \(turn it"):
            gdrpy.Region.from_fd(fd, gpu=False)
        os.close(fd)
        status = ALL["nvrm"].status(0)
        assert (status.usable, status.reason) == (False, reason)
        with pytest.raises(gdrpy.BackendUnavailable, match=f"nvrm: {reason}"):
            gdrpy.alloc(4096)
        assert ledger() == NOTHING

    @pytest.mark.preloaded(**ON_NVRM, FAKE_RM_CONFIDENTIAL="1")
    def test_makes_the_backend_unusable_in_info(self) -> None:
        command = [sys.executable, "-m", "gdrpy", "info", "--json"]
        run = subprocess.run(command, capture_output=True, text=True, check=True)
        (state,) = (one for one in json.loads(run.stdout)["backends"] if one["backend"] == "nvrm")
        assert not state["usable"]
        assert "confidential computing is on" in state["reason"]


class TestVirtualGpu:
    @pytest.mark.parametrize(
        "release",
        [
            pytest.param(
                release.first,
                marks=pytest.mark.preloaded(
                    **ON_NVRM, FAKE_RM_GUEST="1", FAKE_RM_VERSION=release.first
                ),
            )
            for release in INTERFACES
        ],
    )
    def test_is_told_before_and_after(self, release: str) -> None:
        with gdrpy.alloc(4096, backend="sim") as region:
            fd = region.export()
        reason = "this is a virtual GPU (vGPU), whose host refuses CPU mappings"
        told = re.escape(reason)
        with pytest.raises(gdrpy.BackendUnavailable, match=rf"RM_MAP_MEMORY: {told} \(pass the"):
            gdrpy.Region.from_fd(fd, gpu=False)
        os.close(fd)
        answer = Status(False, reason, "pass the whole GPU through, or copy with CUDA")
        assert (ALL["nvrm"].status(0), ALL["nvrm"].status()) == (answer, answer)
        with pytest.raises(gdrpy.BackendUnavailable, match=f"nvrm: {told}"):
            gdrpy.alloc(4096)
        assert driver_version() == release
        assert ledger() == NOTHING

    @pytest.mark.preloaded(**ON_NVRM, FAKE_RM_GUEST="1")
    def test_makes_the_backend_unusable_in_info(self) -> None:
        for environment in (os.environ, {**os.environ, "GDRPY_SIM": "0"}):
            command = [sys.executable, "-m", "gdrpy", "info", "--json"]
            run = subprocess.run(
                command, capture_output=True, text=True, check=True, env=environment
            )
            states = json.loads(run.stdout)["backends"]
            (state,) = (one for one in states if one["backend"] == "nvrm")
            assert not state["usable"]
            assert "virtual GPU" in state["reason"]

    @pytest.mark.preloaded(**ON_NVRM, FAKE_RM_FAULT="GET_VIRTUALIZATION:1:0x56")
    def test_is_not_suspected_where_the_driver_does_not_answer(self) -> None:
        assert ALL["nvrm"].status(0).usable


class TestForkedChild:
    def test_of_busy_threads_keeps_no_file_of_the_driver(self) -> None:
        warm()
        done = threading.Event()

        def work() -> None:
            while not done.is_set():
                gdrpy.alloc(4096).close()

        threads = [threading.Thread(target=work) for _ in range(4)]
        for thread in threads:
            thread.start()
        kept = []
        for _ in range(40):
            pid = os.fork()
            if not pid:
                os._exit(rm.count("files"))
            kept.append(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
        done.set()
        for thread in threads:
            thread.join()
        assert kept == [0] * 40
        assert ledger() == NOTHING

    def test_opens_a_client_of_its_own(self) -> None:
        with gdrpy.alloc(4096, gpu=False) as region:
            region.write(b"parent")
            fd = region.export()
            pid = os.fork()
            if not pid:
                status = 1
                try:
                    with gdrpy.Region.from_fd(fd, gpu=False) as mine:
                        mine.write(b"child!")
                    try:
                        region.read(1)
                    except gdrpy.Forked:
                        status = rm.count("violations")
                finally:
                    os._exit(status)
            assert os.waitpid(pid, 0)[1] == 0
            assert region.read(6) == b"child!"
            os.close(fd)
        assert ledger() == NOTHING


class TestThreads:
    def test_share_the_client(self) -> None:
        warm()
        errors = []

        def work(number: int) -> None:
            try:
                for _ in range(20):
                    with gdrpy.alloc(4096) as region:
                        region.write(bytes([number]) * 100)
                        assert region.read(100) == bytes([number]) * 100
            except Exception as error:
                errors.append(error)

        threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert errors == []
        assert ledger() == NOTHING
