"""What the copy engine does when something fails, dies or forks."""

from __future__ import annotations

import errno
import json
import os
import random
import signal
import subprocess
import sys
import threading
from contextlib import suppress
from pathlib import Path
from types import SimpleNamespace

import pytest

import gdrpy
import rmclient as rm
from gdrpy import cuda
from gdrpy._core._mapping import engine_status
from gdrpy.memory import engine
from gdrpy.memory.backends import Status

ON_NVRM = {"GDRPY_SIM": "1", "GDRPY_BACKEND": "nvrm"}
MIB = 1 << 20
#: Such copies go to the second channel.
LARGE = MIB + 70_000

pytestmark = pytest.mark.preloaded(**ON_NVRM)


def descriptors() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))


def refused(match: str) -> None:
    """A copy by the engine tells why not; one without ``via`` is made another way."""
    with gdrpy.alloc(MIB) as region:
        region.write(b"before")
        with pytest.raises(gdrpy.BackendUnavailable, match=match):
            region.write(b"beyond", via="engine")
        assert region.read(6) == b"before"


class TestUnavailable:
    @pytest.mark.preloaded(GDRPY_SIM="1", FAKE_RM_NO_NODES="1")
    def test_without_a_driver_says_so(self) -> None:
        refused(r"Region.write: open /dev/nvidiactl: no NVIDIA kernel driver: /dev/nvidiactl is")

    @pytest.mark.preloaded(**ON_NVRM, FAKE_RM_NO_COPY="1")
    def test_without_a_copy_class_says_so(self) -> None:
        refused("the copy engine cannot be used: this GPU is older than Turing, or not known")

    @pytest.mark.preloaded(GDRPY_SIM="1", FAKE_RM_CONFIDENTIAL="1")
    def test_with_confidential_computing_says_so(self) -> None:
        refused("the copy engine cannot be used: confidential computing is on")

    @pytest.mark.preloaded(GDRPY_SIM="1", FAKE_RM_GUEST="1")
    def test_on_a_virtual_gpu_says_so(self) -> None:
        refused("the copy engine cannot be used: this is a virtual GPU")

    @pytest.mark.preloaded(**ON_NVRM, FAKE_RM_MIG="3")
    def test_on_a_split_gpu_says_so(self) -> None:
        refused("the copy engine cannot be used: the GPU is split into MIG instances")

    def test_if_the_channel_dies_in_the_self_check_says_so(self) -> None:
        rm.set_fault("ENGINE:1:31")
        for _ in range(2):
            refused(r"cannot be used: its self-check failed: .* channel died \(Xid 31, see dmesg\)")
        assert rm.count("xids") == 1

    def test_for_host_memory_says_so(self) -> None:
        with (
            gdrpy.alloc(MIB, device="cpu") as region,
            pytest.raises(gdrpy.BackendUnavailable, match=r"Region.read: .* this is host memory"),
        ):
            region.read(1, via="engine")

    def test_for_an_array_of_a_gpu_says_so(self) -> None:
        with gdrpy.alloc(MIB) as region, gdrpy.alloc(MIB) as other:
            shown = {"shape": (4,), "typestr": "|u1", "data": (other.ptr, False), "version": 3}
            array = SimpleNamespace(__cuda_array_interface__=shown)
            with pytest.raises(ValueError, match="via='engine' copies host memory"):
                region.write(array, via="engine")


def after_a_refusal(fd: int, fault: str, nbytes: int, lost: bool = False) -> dict[str, int]:
    """What lives in a child whose engine met a fault in one copy, and then made the next."""
    ours, theirs = os.pipe()
    child = os.fork()
    if not child:
        try:
            os.sched_setaffinity(0, [min(os.sched_getaffinity(0))])  # one thread, and one lane
            region = gdrpy.Region.from_fd(fd, gpu=False)
            if lost:
                region.write(b"x", via="engine")
                rm.set_fault("ENGINE:1:31")
            region.fill(5, 0, 8, via="engine")  # takes only the first channel, and no lane
            rm.set_fault(fault)
            with suppress(gdrpy.Error):
                region.write(bytes(nbytes), via="engine")
            rm.set_fault("")
            content = random.Random(9).randbytes(nbytes)
            region.write(content, 100, via="engine")
            assert region.cpu.read(nbytes, 100) == content
            alive = {**rm.counts(), "xids": rm.count("xids")}
            os.write(theirs, json.dumps(alive).encode())
        finally:
            os._exit(0)
    os.close(theirs)
    with os.fdopen(ours, "rb") as pipe:
        told = pipe.read()
    assert os.waitpid(child, 0)[1] == 0
    return dict(json.loads(told))


class TestRefusedCall:
    #: Every call that an engine and its memory take.
    CALLS = (
        *("RM_ALLOC", "RM_CONTROL", "RM_ALLOC_MEMORY", "RM_MAP_MEMORY", "RM_MAP_MEMORY_DMA"),
        *("CARD_INFO", "REGISTER_FD", "mmap"),
    )

    @pytest.mark.parametrize("call", CALLS)
    def test_at_any_step_leaves_nothing_and_the_next_try_succeeds(self, call: str) -> None:
        with gdrpy.alloc(MIB) as region:
            region.write(b"content")
            before = {what: rm.count(what) for what in ("clients", "objects", "mappings", "views")}
            files = descriptors()
            status = 12 if call in ("CARD_INFO", "REGISTER_FD", "mmap") else 0x51
            for nth in range(1, 100):
                rm.set_fault(f"{call}:{nth}:{status}")
                with suppress(gdrpy.Error):
                    assert region.read(7, via="engine") == b"content"
                if rm.count("clients") > before["clients"]:
                    break
                after = {what: rm.count(what) for what in before}
                assert (after, descriptors()) == (before, files), nth
            assert nth > 1
            rm.set_fault("")
            assert region.read(7, via="engine") == b"content"
        assert rm.violations() == []

    @pytest.mark.parametrize(
        ("fault", "match"),
        [
            (f"open:/dev/nvidia0:{errno.EMFILE}", "Too many open files"),
            ("RM_ALLOC:2:0x40", r"driver status 0x40"),
        ],
    )
    def test_of_the_first_copy_is_raised_and_forgotten(self, fault: str, match: str) -> None:
        with gdrpy.alloc(MIB) as region:
            region.cpu.write(b"content")
            rm.set_fault(fault)
            with pytest.raises(gdrpy.Error, match=match):
                region.read(7, via="engine")
            rm.set_fault("")
            assert region.read(7, via="engine") == b"content"
        assert rm.violations() == []

    @pytest.mark.parametrize(
        ("call", "calls"),
        [
            *(("RM_ALLOC", 4), ("RM_CONTROL", 3), ("RM_MAP_MEMORY", 1), ("RM_MAP_MEMORY_DMA", 3)),
            *(("RM_ALLOC_MEMORY", 2), ("mmap", 1)),
        ],
    )
    def test_for_the_channel_of_large_copies_is_forgotten(self, call: str, calls: int) -> None:
        status = 12 if call == "mmap" else 0x51
        with gdrpy.alloc(2 * MIB) as region:
            fd = region.export()
            unharmed = after_a_refusal(fd, "", LARGE)
            assert unharmed["channels"] == 2
            for nth in range(1, calls + 1):
                assert after_a_refusal(fd, f"{call}:{nth}:{status}", LARGE) == unharmed, nth

    def test_of_a_second_channel_for_good_leaves_the_first_and_nothing_else(self) -> None:
        with gdrpy.alloc(2 * MIB) as region:
            fd = region.export()
            small = after_a_refusal(fd, "", 5)
            for call, calls in (("RM_ALLOC", 4), ("RM_CONTROL", 3)):
                for nth in range(1, calls + 1):
                    fault = f"{call}:{nth}:0x56"
                    assert after_a_refusal(fd, fault, LARGE) == small, fault

    @pytest.mark.parametrize("lost", [False, True])
    @pytest.mark.parametrize("call", ["RM_ALLOC_MEMORY", "RM_MAP_MEMORY_DMA", "mmap"])
    def test_for_a_lane_of_a_made_engine_leaves_the_next_copy_exact(
        self, call: str, lost: bool
    ) -> None:
        with gdrpy.alloc(MIB) as region:
            fd = region.export()
            assert after_a_refusal(fd, f"{call}:1:{12 if call == 'mmap' else 0x51}", 5, lost) == (
                after_a_refusal(fd, "", 5, lost)
            )


class TestLostChannel:
    def test_is_made_anew_and_the_copy_repeated(self) -> None:
        content = random.Random(3).randbytes(3 * MIB)
        with gdrpy.alloc(3 * MIB) as region:
            region.write(b"x", via="engine")
            rm.set_fault("ENGINE:2:31")
            region.write(content, via="engine")
            assert rm.count("xids") == 1
            assert region.cpu.read() == content
            assert region.read(via="engine") == content
        assert rm.violations() == []

    def test_leaves_other_memory_and_staging_usable(self) -> None:
        with gdrpy.alloc(MIB) as one, gdrpy.alloc(MIB) as other:
            one.write(b"one", via="engine")
            other.write(b"other", via="engine")
            rm.set_fault("ENGINE:1:31")
            assert one.read(3, via="engine") == b"one"
            assert other.read(5, via="engine") == b"other"
            assert rm.count("clients") == 2  # the mappings' and the engine's

    def test_twice_ends_the_engine_with_the_reason(self) -> None:
        with gdrpy.alloc(MIB) as region, gdrpy.alloc(MIB) as another:
            region.write(b"content", via="engine")
            rm.set_fault("ENGINE:1:31")
            assert region.read(7, via="engine") == b"content"
            rm.set_fault("ENGINE:1:79")
            lost = r"channel died \(Xid 79, see dmesg\); this process lost the copy engine before"
            for one in (region, region, another):
                with pytest.raises(gdrpy.BackendUnavailable, match=lost):
                    one.read(7, via="engine")
            assert region.read(7) == b"content"
            assert rm.count("channels") == 0
        assert rm.violations() == []

    def test_that_cannot_be_made_anew_ends_the_engine_with_both_reasons(self) -> None:
        with gdrpy.alloc(MIB) as region:
            region.write(b"content", via="engine")
            rm.set_fault(f"ENGINE:1:79,open:/dev/nvidiactl:{errno.EMFILE}")
            both = r"\(Xid 79, see dmesg\); .* anew failed: open /dev/nvidiactl: Too many open"
            for _ in range(2):
                with pytest.raises(gdrpy.BackendUnavailable, match=both):
                    region.read(7, via="engine")
            assert region.read(7) == b"content"
            assert rm.count("channels") == 0
        assert rm.violations() == []

    def test_under_many_threads_is_made_anew_once(self) -> None:
        failures: list[BaseException] = []

        def work(number: int) -> None:
            try:
                data = random.Random(number).randbytes(300_000)
                for _ in range(10):
                    region.write(data, number * MIB, via="engine")
                    assert region.read(len(data), number * MIB, via="engine") == data
            except BaseException as error:
                failures.append(error)

        with gdrpy.alloc(4 * MIB) as region:
            region.write(b"x", via="engine")
            rm.set_fault("ENGINE:25:31")
            threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
        assert failures == []
        assert rm.count("xids") == 1
        assert rm.violations() == []


class TestFork:
    def test_leaves_the_child_nothing_of_the_engine(self) -> None:
        region = gdrpy.alloc(MIB)
        region.write(b"x", via="engine")
        child = os.fork()
        if not child:
            status = 1
            try:
                with pytest.raises(gdrpy.Forked):
                    region.read(1, via="engine")
                del region
                status = 2 if rm.count("files") or rm.violations() else 0
            finally:
                os._exit(status)
        assert os.waitpid(child, 0)[1] == 0
        assert region.read(1, via="engine") == b"x"
        assert rm.violations() == []

    def test_lets_the_child_make_its_own(self) -> None:
        with gdrpy.alloc(MIB) as region:
            region.write(b"parent", via="engine")
            fd = region.export()
            child = os.fork()
            if not child:
                status = 1
                try:
                    own = gdrpy.Region.from_fd(fd, gpu=False)
                    if own.read(6, via="engine") == b"parent":
                        own.write(b"child!", via="engine")
                        status = 0
                finally:
                    os._exit(status)
            assert os.waitpid(child, 0)[1] == 0
            assert region.read(6, via="engine") == b"child!"

    def test_beside_threads_that_copy_breaks_none_of_them(self) -> None:
        stop = threading.Event()
        failures: list[BaseException] = []

        def work(number: int) -> None:
            try:
                data = random.Random(number).randbytes(70_000)
                while not stop.is_set():
                    region.write(data, number * MIB, via="engine")
                    assert region.read(len(data), number * MIB, via="engine") == data
            except BaseException as error:
                failures.append(error)

        with gdrpy.alloc(3 * MIB) as region:
            region.write(b"x", via="engine")
            threads = [threading.Thread(target=work, args=(number,)) for number in range(3)]
            for thread in threads:
                thread.start()
            for _ in range(20):
                child = os.fork()
                if not child:
                    os._exit(0)
                assert os.waitpid(child, 0)[1] == 0
            stop.set()
            for thread in threads:
                thread.join()
        assert failures == []
        assert rm.violations() == []


class TestDeath:
    def test_by_sigkill_amid_copies_leaves_the_owner_its_bytes(self) -> None:
        code = (
            "import sys, gdrpy; region = gdrpy.Region.from_fd(int(sys.argv[1]), gpu=False);"
            "data = b'y' * region.nbytes; region.write(data, via='engine'); print(flush=True)\n"
            "while True: region.write(data, via='engine')"
        )
        with gdrpy.alloc(MIB) as guard, gdrpy.alloc(2 * MIB) as region:
            guard.write(b"z" * MIB)
            fd = region.export()
            child = subprocess.Popen(
                [sys.executable, "-c", code, str(fd)], pass_fds=[fd], stdout=subprocess.PIPE
            )
            assert child.stdout is not None
            child.stdout.readline()
            child.send_signal(signal.SIGKILL)
            assert child.wait() == -signal.SIGKILL
            child.stdout.close()
            assert region.read(via="engine") == b"y" * 2 * MIB
            assert guard.read(via="engine") == b"z" * MIB

    def test_of_the_owner_leaves_the_memory_readable(self) -> None:
        code = (
            "import os, sys, gdrpy; region = gdrpy.alloc(1 << 20); region.write(b'kept');"
            "import socket; s = socket.socket(fileno=int(sys.argv[1]));"
            "socket.send_fds(s, [b'x'], [region.export()]); s.recv(1)"
        )
        import socket

        ours, theirs = socket.socketpair()
        owner = subprocess.Popen(
            [sys.executable, "-c", code, str(theirs.fileno())], pass_fds=[theirs.fileno()]
        )
        theirs.close()
        _, [fd], _, _ = socket.recv_fds(ours, 1, 1)
        with gdrpy.Region.from_fd(fd, gpu=False) as region:
            assert region.read(4, via="engine") == b"kept"
            owner.kill()
            owner.wait()
            assert region.read(4, via="engine") == b"kept"
        os.close(fd)
        ours.close()


class TestStatus:
    def test_names_the_engine_that_neither_graphics_nor_cuda_copies_use(self) -> None:
        cuda.driver()
        assert engine_status(None) == "COPY4 of GPU 0000:01:00.0, self-check passed"

    @pytest.mark.preloaded(**ON_NVRM, GDRPY_SIM_DEVICES="2")
    def test_is_of_the_gpu_that_is_named(self) -> None:
        assert engine_status((0, 2, 0)) == "COPY4 of GPU 0000:02:00.0, self-check passed"
        with gdrpy.alloc(MIB, 1) as one, gdrpy.alloc(MIB, 0) as other:
            one.write(b"one", via="engine")
            other.write(b"other", via="engine")
            assert (one.cpu.read(3), other.cpu.read(5)) == (b"one", b"other")

    def test_is_what_info_tells(self) -> None:
        info = [sys.executable, "-m", "gdrpy", "info"]
        told = subprocess.run(info, capture_output=True, text=True)
        assert "copy engine: yes, COPY4 of GPU 0000:01:00.0, self-check passed\n" in told.stdout
        told = subprocess.run(
            [*info, "--json"],
            capture_output=True,
            text=True,
            env={**os.environ, "FAKE_RM_NO_COPY": "1"},
        )
        [found] = json.loads(told.stdout)["copy_engines"]
        assert not found["usable"]
        assert found["reason"].startswith("the copy engine cannot be used: this GPU is older")

    @pytest.mark.preloaded(GDRPY_SIM="1", FAKE_RM_NO_NODES="1")
    def test_names_a_missing_node_once(self) -> None:
        assert engine.status(None) == Status(
            False,
            "no NVIDIA kernel driver: /dev/nvidiactl is missing: install the driver, or pass the "
            "node into the container (--gpus, --device)",
        )

    @pytest.mark.preloaded(**ON_NVRM, FAKE_RM_NO_NODES="1")
    def test_raises_the_reason(self) -> None:
        with pytest.raises(gdrpy.BackendUnavailable, match="nvidiactl is missing"):
            engine_status(None)
