"""What becomes of live objects at fork, at exit and when nobody refers to them any more."""

from __future__ import annotations

import gc
import subprocess
import sys
import weakref

import pytest

import gdrpy
from gdrpy import cuda

CREATE_EVERYTHING = """
import gdrpy
region = gdrpy.alloc(1 << 20)
array = region.numpy()
gdr = gdrpy.open()
pin = gdr.pin(region.ptr, 100)
mapping = pin.map()
flag = region.flag()
flag.set(1)
"""


def run(code: str) -> subprocess.CompletedProcess[str]:
    # From Python 3.12 on it warns of forks beside the threads of the simulated driver.
    quiet = "ignore:This process:DeprecationWarning"
    command = (sys.executable, "-X", "dev", "-W", quiet, "-c", code)
    return subprocess.run(command, capture_output=True, text=True, check=False)


class TestInterpreterExit:
    @pytest.mark.parametrize("end", ["", "import sys; sys.exit(0)", "import gc; gc.collect()"])
    def test_with_live_objects_is_quiet(self, end):
        done = run(CREATE_EVERYTHING + end)
        assert (done.returncode, done.stdout, done.stderr) == (0, "", "")

    def test_by_an_exception_shows_that_exception_alone(self):
        done = run(CREATE_EVERYTHING + "raise SystemExit('the end')")
        assert (done.returncode, done.stderr) == (1, "the end\n")


class TestForkedChild:
    @pytest.mark.parametrize(
        "use",
        [
            "region.write(b'x')",
            "region.read(1)",
            "region.ptr",
            "region.export()",
            "region.map()",
            "region.cpu",
            "mapping.write(b'x')",
            "mapping.read(1)",
            "mapping.address",
            "memoryview(mapping)",
            "flag.set(1)",
            "flag.get()",
            "flag.wait(1)",
            "pin.map()",
            "pin.info",
            "gdr.pin(1, 1)",
            "gdrpy.alloc(4096)",
        ],
    )
    def test_is_told_that_the_objects_are_its_parents(self, use):
        done = run(
            CREATE_EVERYTHING
            + f"""
import os, sys
child = os.fork()
if child == 0:
    try:
        {use}
    except gdrpy.Forked as error:
        assert "fork" in str(error), error
        sys.exit(7)
    sys.exit(8)
status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
region.write(b"the parent goes on")
assert region.read(18) == b"the parent goes on"
sys.exit(status)
"""
        )
        assert (done.returncode, done.stderr) == (7, "")

    def test_closes_and_exits_without_touching_its_parents_objects(self):
        done = run(
            CREATE_EVERYTHING
            + """
import os
if os.fork() == 0:
    del array
    mapping.close(); region.close(); pin.close(); gdr.close()
    raise SystemExit(0)
assert os.wait()[1] == 0
region.write(b"alive")
assert (region.read(5), mapping.read(5)) == (b"alive", b"alive")
"""
        )
        assert (done.returncode, done.stderr) == (0, "")

    def test_may_open_the_region_anew_from_its_descriptor(self):
        done = run(
            """
import gdrpy, os
region = gdrpy.alloc(4096)
fd = region.export()
if os.fork() == 0:
    with gdrpy.Region.from_fd(fd, gpu=False) as mine:
        mine.write(b"child")
    raise SystemExit(0)
assert os.wait()[1] == 0
assert region.read(5) == b"child"
"""
        )
        assert (done.returncode, done.stderr) == (0, "")


#: A region, a DLPack capsule of it, and work on the GPU that waits.
QUEUE_WORK = """
import gdrpy, os
from gdrpy import cuda
region, word = gdrpy.alloc(1 << 20), gdrpy.pinned(4096)
capsule = region.__dlpack__()
cuda.call("cuCtxSetCurrent", cuda.primary_context(0))
stream = cuda.call("cuStreamCreate", 1)
word.flag().set(0)
word.flag().stream_wait(stream, 1)
"""


class TestMemoryDroppedUnderWork:
    def test_is_left_alone_by_a_forked_child(self):
        done = run(
            QUEUE_WORK
            + """
spare = gdrpy.alloc(4)
del spare
if os.fork() == 0:
    del region, capsule
    try:
        gdrpy.alloc(4)
    except gdrpy.Forked:
        os._exit(0)
    os._exit(1)
assert os.wait()[1] == 0
region.write(b"parent")
word.flag().set(1)
"""
        )
        assert (done.returncode, done.stderr) == (0, "")

    def test_is_left_at_interpreter_exit(self):
        done = run(QUEUE_WORK + "del region, capsule; word.flag().set(1)")
        assert (done.returncode, done.stderr) == (0, "")


class TestUnreferencedObject:
    @pytest.fixture(autouse=True)
    def _(self, backend, nothing_leaks):
        gc.disable()
        yield
        gc.enable()

    def test_gives_its_memory_back_at_once(self):
        def free() -> int:
            with cuda.context(0):
                return cuda.call("cuMemGetInfo")[0]

        before = free()
        region = gdrpy.alloc(64 << 20)
        assert free() == before - (64 << 20)
        del region
        assert free() == before

    def test_region_lives_on_in_its_arrays(self):
        region = gdrpy.alloc(4096)
        pointer, array = region.ptr, region.numpy()
        gone = weakref.ref(region)
        del region
        assert gone() is None
        array[:2] = [1, 2]
        buffer = bytearray(2)
        with cuda.context(0):
            cuda.call("cuMemcpyDtoH", buffer, pointer, 2)
        assert buffer == b"\x01\x02"

    def test_pin_lives_on_in_its_mappings(self):
        with gdrpy.alloc(4096) as region:
            region.write(b"pinned")
            mapping = gdrpy.open().pin(region.ptr, 100).map()
            assert mapping.read(6) == b"pinned"
            mapping.close()

    def test_with_statement_closes_even_when_the_body_raises(self):
        with pytest.raises(RuntimeError, match="body"), gdrpy.alloc(4096) as region:
            raise RuntimeError("body")
        assert region.closed


class TestDescriptorLimit:
    def test_reached_at_any_step_is_an_error_and_leaks_nothing(self, backend):
        done = run(
            """
import os, resource, gdrpy
gdrpy.alloc(4096).close()
opened = len(os.listdir("/proc/self/fd"))
refused = 0
for room in range(8):
    resource.setrlimit(resource.RLIMIT_NOFILE, (opened - 1 + room, 4096))
    try:
        gdrpy.alloc(4096).close()
    except (gdrpy.Error, OSError):
        refused += 1
    resource.setrlimit(resource.RLIMIT_NOFILE, (4096, 4096))
    assert len(os.listdir("/proc/self/fd")) == opened, room
print(refused)
"""
        )
        assert (done.returncode, done.stderr) == (0, "")
        # The memory's own descriptor, the exported one, and the backend's.
        assert int(done.stdout) == 3
