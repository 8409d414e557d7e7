"""What becomes of live objects at fork, at exit and when nobody refers to them any more."""

from __future__ import annotations

import gc
import json
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


#: What becomes of a call in a forked child; one that never returns is ended by a signal.
IN_CHILD = """
import json, os, signal, threading

def begin(use):
    told, tell = os.pipe()
    child = os.fork()
    if child == 0:
        signal.alarm(10)
        try:
            answer = repr(use())
        except BaseException as error:
            answer = type(error).__name__
        os.write(tell, answer.encode())
        os._exit(0)
    os.close(tell)
    return told, child

def end(told, child):
    os.waitpid(child, 0)
    with open(told) as pipe:
        return pipe.read() or "hangs"

def in_child(use):
    return end(*begin(use))
"""

FORK_UNDER_LOCKS = (
    CREATE_EVERYTHING
    + IN_CHILD
    + """
import contextlib, sys
from gdrpy.memory import page_locked as pinnedpool
from gdrpy.memory.node import own_node

host = gdrpy.alloc(4096, device="cpu")
arena = gdrpy.Arena(gdrpy.alloc(4096))
owners = [region, pin, gdr, host, arena, region._memory, pin._memory, host._memory]

def hold():
    with contextlib.ExitStack() as locks:
        for owner in (*owners, pinnedpool, own_node):
            locks.enter_context(owner._lock)
        held.set()
        done.wait()

held, done = threading.Event(), threading.Event()
holder = threading.Thread(target=hold)
holder.start()
held.wait()
uses = [
    f"{name}.{call}"
    for name in ("region", "host")
    for call in (
        "write(b'x')", "read(1)", "readinto(bytearray(1))", "fill(0)", "map()", "export()",
        "revoked", "array(1, 'U8')", "mirror()",
    )
]
uses += [
    "pin.map()", "pin.export()", "pin.revoked", "gdr.pin(region)", "gdr.pin(1, 1)", "gdr.events()",
    "arena.allocate(1)", "arena.free(1)", "region._memory.hold(1)",
    "region._memory.map(0, 1, False)", "region._memory.revoked",
    "region._memory.export()", "pin._memory.share(False)", "pinnedpool.borrow(1, 0)",
    "gdrpy.alloc(1)", "gdrpy.open().pin(1, 1)",
]
begun = {use: begin(lambda: eval(use)) for use in uses}
print(json.dumps({use: end(*child) for use, child in begun.items()}))
done.set()
holder.join()
"""
)

FORK_UNDER_FIRST_USE = (
    IN_CHILD
    + """
import gdrpy
from gdrpy import cuda

def load():
    begun.set()
    done.wait()
    return real_load()

real_load, cuda._load = cuda._load, load
begun, done = threading.Event(), threading.Event()
first = threading.Thread(target=cuda.driver)
first.start()
begun.wait()
print(in_child(cuda.device_count))
done.set()
first.join()
cuda.device_count()
"""
)

FORK_BEFORE_FIRST_USE = (
    IN_CHILD
    + """
from gdrpy import cuda

def hold():
    with cuda._lock:
        held.set()
        done.wait()

held, done = threading.Event(), threading.Event()
holder = threading.Thread(target=hold)
holder.start()
held.wait()
print(in_child(cuda.device_count))
done.set()
holder.join()
"""
)

FORK_AMONG_BUSY_THREADS = (
    CREATE_EVERYTHING
    + IN_CHILD
    + """
def work():
    while not done.is_set():
        region.write(b"x")
        region.readinto(bytearray(100000))
        region.map().close()
        os.close(region.export())
        gdr.pin(region).close()
        with gdrpy.alloc(1, device="cpu") as host:
            host.write(b"x")
        gdrpy.alloc(1).close()

def use_all():
    told = set()
    for use in (
        lambda: region.write(b"x"), lambda: region.read(1), region.map, region.export, pin.map,
        lambda: gdr.pin(region), lambda: gdrpy.alloc(1), lambda: mapping.read(1),
    ):
        try:
            use()
        except gdrpy.Forked:
            continue
        return "not told"
    raise gdrpy.Forked("as all were told")

done = threading.Event()
workers = [threading.Thread(target=work) for _ in range(4)]
for worker in workers:
    worker.start()
told = [in_child(use_all) for _ in range(40)]
done.set()
for worker in workers:
    worker.join()
print(json.dumps(told))
"""
)


#: Of GPU and host memory: what a process has open, and what it has mapped.
HELD = """
import os

def held():
    found = []
    for fd in os.listdir("/proc/self/fd"):
        try:
            found.append(os.readlink(f"/proc/self/fd/{fd}"))
        except FileNotFoundError:
            continue
    with open("/proc/self/maps") as lines:
        found += [line.split(maxsplit=5)[-1].strip() for line in lines]
    names = "/memfd:gdrpy-", "/dev/nvidia", "/dev/gdrdrv", "/dev/gpustandin"
    return sorted(one for one in found if one.startswith(names))
"""

FORK_WITH_MEMORY = (
    CREATE_EVERYTHING
    + IN_CHILD
    + HELD
    + """
exported = region.export()
host = gdrpy.alloc(4096, device="cpu")
opened = [gdrpy.Region.from_fd(exported, gpu=gpu) for gpu in (True, False)]
bare = gdrpy.alloc(1, cpu=False)
mapped = gdrpy.alloc(1).map()  # keeps the memory of a region that is gone
assert len(held()) > 10
print(in_child(held))
"""
)

FORK_WHILE_THREADS_OPEN = (
    CREATE_EVERYTHING
    + IN_CHILD
    + HELD
    + """
exported = gdrpy.alloc(4096, device="cpu").export()

def work():
    while not done.is_set():
        gdrpy.alloc(1).close()
        gdrpy.alloc(1, device="cpu").close()
        gdrpy.Region.from_fd(exported).close()
        gdr.pin(region).close()

done = threading.Event()
workers = [threading.Thread(target=work) for _ in range(4)]
for worker in workers:
    worker.start()
print(*{in_child(held) for _ in range(40)}, sep="\\n")
done.set()
for worker in workers:
    worker.join()
"""
)

FORK_AMID_AN_EXPORT = (
    IN_CHILD
    + HELD
    + """
import gdrpy
from gdrpy.memory import vmm

def alone(lock, export, *args):
    def exporting():
        made = export(*args)
        exported.set()
        forking.wait()
        return made

    return real_alone(lock, exporting)

gdrpy.alloc(1).close()
real_alone, vmm.alone = vmm.alone, alone
exported, forking = threading.Event(), threading.Event()
allocating = threading.Thread(target=lambda: gdrpy.alloc(1).close())
allocating.start()
exported.wait()
os.register_at_fork(before=forking.set)
print(in_child(held))
allocating.join()
"""
)


class TestInterpreterExit:
    @pytest.mark.parametrize("end", ["", "import sys; sys.exit(0)", "import gc; gc.collect()"])
    def test_with_live_objects_is_quiet(self, end):
        done = run(CREATE_EVERYTHING + end)
        assert (done.returncode, done.stdout, done.stderr) == (0, "", "")

    def test_by_an_exception_shows_that_exception_alone(self):
        done = run(CREATE_EVERYTHING + "raise SystemExit('the end')")
        assert (done.returncode, done.stderr) == (1, "the end\n")

    def test_is_quiet_for_objects_that_outlive_the_names_of_modules(self):
        done = run(
            """
import gdrpy
import gdrpy.broker.client.connection as connection
import gdrpy.common.resource as resource
from gdrpy.broker import temporary

with temporary() as path:
    broker = gdrpy.connect(path)
    broker.put("x", b"abc").close()
    region = broker.get("x")
    held = [region, region.array(), region.numpy(), gdrpy.Arena(gdrpy.alloc(4096))]
    del region
    resource.sys = connection.sys = None  # as the interpreter leaves them at its exit
    held.clear()
    broker.close()
"""
        )
        assert (done.returncode, done.stderr) == (0, "")


#: Blocks that end while their views are in use.
END_BLOCKS = """
import gdrpy
with gdrpy.alloc(1 << 20) as region:
    array, capsule = region.numpy(), region.__dlpack__()
with gdrpy.alloc(4096, "cpu") as host:
    view = memoryview(host)
with gdrpy.open() as gdr, gdrpy.alloc(4096) as pinned, gdr.pin(pinned) as pin:
    pages = pin.cpu.numpy()
"""


class TestBlockWithViews:
    @pytest.mark.parametrize("end", ["", "import sys; sys.exit(0)", "import gc; gc.collect()"])
    def test_is_told_of_once_up_to_the_end_of_the_interpreter(self, end):
        done = run(END_BLOCKS + end)
        assert (done.returncode, done.stdout) == (0, "")
        lines = [line for line in done.stderr.splitlines() if "StillInUse" in line]
        assert [line.partition(": <")[0] for line in lines] == [
            "<string>:3: StillInUse",
            "<string>:5: StillInUse",
            "<string>:7: StillInUse",
        ]
        assert "Error" not in done.stderr.replace("BufferError", "")

    def test_leaves_a_forked_child_none_of_its_memory(self):
        done = run(
            IN_CHILD
            + HELD
            + END_BLOCKS
            + """
def use():
    global view, array, capsule, pages
    del view, array, capsule, pages  # which releases nothing of the parent's
    return held(), region.closed
assert held()
print(in_child(use))
array[:5] = pages[:5] = 1
view[:5] = bytes(array[:5])
print(sum(array[:5]), sum(view[:5]), sum(pages[:5]))
before = len(held())
del view, array, capsule, pages
print(len(held()) < before)
"""
        )
        assert done.stdout == "([], True)\n5 5 5\nTrue\n"


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

    def test_is_told_so_whatever_lock_another_thread_held(self):
        done = run(FORK_UNDER_LOCKS)
        assert done.stderr == ""
        assert set(json.loads(done.stdout).values()) == {"Forked"}, done.stdout

    def test_of_a_process_that_begins_to_use_cuda_is_told_so(self):
        done = run(FORK_UNDER_FIRST_USE)
        assert (done.stdout, done.stderr) == ("Forked\n", "")

    def test_of_a_process_that_has_not_begun_to_use_cuda_uses_it(self):
        done = run(FORK_BEFORE_FIRST_USE)
        assert (done.stdout, done.stderr) == ("1\n", "")

    def test_of_busy_threads_is_told_so(self):
        done = run(FORK_AMONG_BUSY_THREADS)
        assert done.stderr == ""
        assert json.loads(done.stdout) == ["Forked"] * 40

    def test_keeps_nothing_of_its_parents_memory_but_what_was_exported(self, backend):
        done = run(FORK_WITH_MEMORY)
        assert (done.stdout, done.stderr) == ("['/memfd:gdrpy-sim-dev0 (deleted)']\n", "")

    def test_keeps_nothing_of_what_threads_open_at_the_fork(self, backend):
        done = run(FORK_WHILE_THREADS_OPEN)
        assert (done.stdout, done.stderr) == ("['/memfd:gdrpy-host (deleted)']\n", "")

    def test_keeps_nothing_that_cuda_is_exporting_at_the_fork(self):
        done = run(FORK_AMID_AN_EXPORT)
        assert (done.stdout, done.stderr) == ("[]\n", "")

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
region, word = gdrpy.alloc(1 << 20), gdrpy.page_locked(4096)
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
