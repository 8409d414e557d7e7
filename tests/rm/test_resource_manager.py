"""The simulated resource manager keeps the contract of the driver's."""

import ctypes
import errno
import fcntl
import mmap as python_mmap
import os
import random
import socket
import stat
import struct
import subprocess
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

import rmclient as rm
from rmclient import BLOCK, PAGE, counts, session

pytestmark = pytest.mark.preloaded

# The number and the size of each call that the driver knows.
CALLS = (
    (0x29, 16),
    (0x2A, 32),
    (0x2B, 32),
    (0x2B, 48),
    (0x34, 28),
    (0x4E, 56),
    (0x4F, 32),
    (200, 2304),
    (210, 72),
)


def raises_errno(error: int, function: Callable[..., object], *arguments: object) -> None:
    with pytest.raises(OSError, match=f"Errno {error}]"):
        function(*arguments)


def open_descriptors() -> set[str]:
    """Which files are open, without the directory that the answer is read from."""
    entries = Path("/proc/self/fd").iterdir()
    return {f"{entry.name}: {entry.readlink()}" for entry in entries if entry.exists()}


def permissions(view: int) -> str:
    """What /proc/self/maps says of the range that starts there."""
    lines = Path("/proc/self/maps").read_text().splitlines()
    (line,) = (line for line in lines if line.startswith(f"{view:x}-"))
    return line.split()[1]


def in_child(function: Callable[[], object]) -> bytes:
    """The repr of what the function returns in a forked child."""
    reader, writer = os.pipe()
    pid = os.fork()
    if not pid:
        try:
            os.write(writer, repr(function()).encode())
        finally:
            os._exit(0)
    os.close(writer)
    with os.fdopen(reader, "rb") as pipe:
        text = pipe.read()
    os.waitpid(pid, 0)
    return text


class TestWholeSequence:
    def test_import_map_write_and_tear_down(self) -> None:
        block = rm.memory_block()
        os.pwrite(block, b"from the GPU", 3 * PAGE)
        with session() as s:
            memory = s.import_fd(block)
            linear, view = s.map(memory)
            assert ctypes.string_at(view + 3 * PAGE, 12) == b"from the GPU"
            ctypes.memmove(view, b"from the CPU", 12)
            assert os.pread(block, 12, 0) == b"from the CPU"
            assert counts() == {
                "clients": 1,
                "devices": 1,
                "objects": 1,
                "mappings": 1,
                "views": 1,
                "files": 1,
            }

            rm.munmap(view, BLOCK)
            assert s.unmap(memory, linear) == rm.OK
            assert s.free(memory) == rm.OK
            assert rm.free(s.ctl, s.client, s.client, s.device) == rm.OK
        assert counts() == {}

    def test_python_mmap_takes_a_mapping_descriptor(self) -> None:
        block = rm.memory_block()
        with session() as s:
            memory = s.import_fd(block)
            mfd = rm.open_minor(s.minor)
            _, linear = rm.map_memory(s.ctl, s.client, s.device, memory, mfd)
            with python_mmap.mmap(mfd, BLOCK) as view:
                os.close(mfd)
                view[8:12] = b"abcd"
            assert os.pread(block, 4, 8) == b"abcd"
            assert s.unmap(memory, linear) == rm.OK
        assert counts() == {}

    def test_range_at_an_offset(self) -> None:
        block = rm.memory_block()
        os.pwrite(block, b"here", 5 * PAGE)
        with session() as s:
            memory = s.import_fd(block)
            linear, view = s.map(memory, 5 * PAGE, 2 * PAGE)
            assert ctypes.string_at(view, 4) == b"here"
            ctypes.memmove(view + 2 * PAGE - 4, b"last", 4)
            assert os.pread(block, 4, 7 * PAGE - 4) == b"last"
            rm.munmap(view, 2 * PAGE)
            assert s.unmap(memory, linear) == rm.OK
        assert counts() == {}

    def test_import_holds_the_memory_when_the_descriptor_is_closed(self) -> None:
        block = rm.memory_block()
        os.pwrite(block, b"kept", 0)
        with session() as s:
            memory = s.import_fd(block)
            os.close(block)
            linear, view = s.map(memory)
            assert ctypes.string_at(view, 4) == b"kept"
            rm.munmap(view, BLOCK)
            assert s.unmap(memory, linear) == rm.OK
        assert counts() == {}

    def test_import_takes_no_descriptor(self) -> None:
        block = rm.memory_block()
        with session() as s:
            before = open_descriptors()
            memory = s.import_fd(block)
            assert open_descriptors() == before
            assert s.free(memory) == rm.OK

    @pytest.mark.parametrize("size", [PAGE, BLOCK, 3 * BLOCK, 5 << 30])
    def test_size_of_the_memory_is_told(self, size: int) -> None:
        with session() as s:
            memory = s.import_fd(rm.memory_block(size=size))
            assert rm.surface_size(s.ctl, s.client, memory) == (rm.OK, size, size)

    def test_48_byte_form_of_alloc(self) -> None:
        ctl = rm.open_control()
        data = rm.call(ctl, 0x2B, struct.pack("<IIIIQQIIII", 0, 0, 0, 0x41, *[0] * 6))
        fields = struct.unpack("<IIIIQQIIII", data)
        client, status = fields[2], fields[8]
        assert (status, rm.count("clients")) == (rm.OK, 1)
        params = rm.device_params(0, share=client)
        address = ctypes.addressof(params)
        data = struct.pack("<IIIIQQIIII", client, client, 0, 0x80, address, 0, 56, 0, 0, 0)
        fields = struct.unpack("<IIIIQQIIII", rm.call(ctl, 0x2B, data))
        assert (fields[8], rm.count("devices")) == (rm.OK, 1)
        assert fields[2] not in (0, client)
        assert rm.free(ctl, client, 0, client) == rm.OK

    def test_two_mappings_of_one_object(self) -> None:
        block = rm.memory_block()
        with session() as s:
            memory = s.import_fd(block)
            first, view = s.map(memory, 0, PAGE)
            second, other = s.map(memory, 0, 2 * PAGE)
            ctypes.memmove(view, b"seen", 4)
            assert ctypes.string_at(other, 4) == b"seen"
            assert first != second
            rm.munmap(view, PAGE)
            rm.munmap(other, 2 * PAGE)
            assert s.unmap(memory, first) == rm.OK
            assert s.unmap(memory, second) == rm.OK
        assert counts() == {}


@pytest.mark.preloaded(FAKE_RM_DEVICES="3")
class TestSeveralDevices:
    def test_join_of_card_and_instance(self) -> None:
        with session() as s:
            gpus = [gpu for _, gpu, _ in rm.cards(s.ctl)]
            assert [minor for _, _, minor in rm.cards(s.ctl)] == [0, 1, 2]
            assert gpus == [0x300, 0x200, 0x100]
            found = [rm.instance_of_gpu(s.ctl, s.client, gpu) for gpu in gpus]
            assert found == [(rm.OK, 2), (rm.OK, 1), (rm.OK, 0)]
            assert rm.instance_of_gpu(s.ctl, s.client, 0x400)[0] == rm.INVALID_ARGUMENT

    def test_proc_tells_the_same_minors(self) -> None:
        for bus, _, minor in rm.cards(rm.open_control()):
            with Path(f"/proc/driver/nvidia/gpus/0000:{bus:02x}:00.0/information").open() as file:
                assert f"Device Minor: \t {minor}\n" in file.read()

    @pytest.mark.parametrize("instance", [0, 1, 2])
    def test_memory_is_on_the_device_that_its_name_says(self, instance: int) -> None:
        block = rm.memory_block(instance)
        os.pwrite(block, b"mine", 0)
        with session(instance) as s:
            assert rm.export_info(s.ctl, s.client, block) == (rm.OK, instance, 0xFFFFFFFF)
            assert s.minor == 2 - instance
            memory = s.import_fd(block)
            linear, view = s.map(memory)
            assert ctypes.string_at(view, 4) == b"mine"
            rm.munmap(view, BLOCK)
            assert s.unmap(memory, linear) == rm.OK
        assert counts() == {}

    def test_mapping_descriptor_of_another_minor_is_refused(self) -> None:
        with session(0) as s:
            memory = s.import_fd(rm.memory_block(0))
            for minor in (0, 1):
                mfd = rm.open_minor(minor)
                status, _ = rm.map_memory(s.ctl, s.client, s.device, memory, mfd)
                assert status == rm.INVALID_ARGUMENT
            assert rm.count("mappings") == 0

    def test_import_below_another_device_is_refused(self) -> None:
        with session(0) as s:
            status, _ = rm.import_fd(s.ctl, s.client, s.device, rm.memory_block(1))
            assert (status, rm.count("objects")) == (rm.INVALID_OBJECT_PARENT, 0)

    def test_memory_of_a_device_that_is_not_there_is_refused(self) -> None:
        with session() as s:
            assert rm.export_info(s.ctl, s.client, rm.memory_block(3))[0] == rm.INVALID_PARAMETER

    def test_no_node_beyond_the_last(self) -> None:
        raises_errno(errno.ENOENT, rm.open_minor, 3)


class TestWrongDescriptor:
    @pytest.mark.parametrize("path", ["/dev/null", "/dev/nvidiactl", "/proc/self/maps"])
    def test_import_is_refused(self, path: str) -> None:
        fd = os.open(path, os.O_RDONLY)
        with session() as s:
            assert rm.import_fd(s.ctl, s.client, s.device, fd)[0] == rm.INVALID_PARAMETER
            assert rm.export_info(s.ctl, s.client, fd)[0] == rm.INVALID_PARAMETER
            assert rm.count("objects") == 0

    @pytest.mark.parametrize("number", [-1, 987])
    def test_import_of_no_descriptor_is_refused(self, number: int) -> None:
        with session() as s:
            assert rm.import_fd(s.ctl, s.client, s.device, number)[0] == rm.INVALID_PARAMETER

    @pytest.mark.parametrize("name", ["gdrpy-sim-device", "gdrpy-sim-dev00", "gdrpy-sim-dev0x"])
    def test_import_of_another_memfd_is_refused(self, name: str) -> None:
        fd = os.memfd_create(name)
        os.ftruncate(fd, BLOCK)
        with session() as s:
            assert rm.import_fd(s.ctl, s.client, s.device, fd)[0] == rm.INVALID_PARAMETER

    @pytest.mark.parametrize("path", ["/dev/nvidiactl", "/dev/null"])
    def test_mapping_is_refused(self, path: str) -> None:
        fd = os.open(path, os.O_RDWR)
        with session() as s:
            memory = s.import_fd(rm.memory_block())
            status, _ = rm.map_memory(s.ctl, s.client, s.device, memory, fd)
            assert (status, rm.count("mappings")) == (rm.INVALID_ARGUMENT, 0)

    def test_device_node_serves_no_calls(self) -> None:
        raises_errno(errno.EINVAL, rm.alloc_client, rm.open_minor(0))

    def test_second_mapping_on_one_descriptor_is_refused(self) -> None:
        with session() as s:
            memory = s.import_fd(rm.memory_block())
            mfd = rm.open_minor(s.minor)
            _, linear = rm.map_memory(s.ctl, s.client, s.device, memory, mfd)
            again = rm.map_memory(s.ctl, s.client, s.device, memory, os.dup(mfd))
            assert again[0] == rm.STATE_IN_USE
            assert s.unmap(memory, linear) == rm.OK
            again = rm.map_memory(s.ctl, s.client, s.device, memory, mfd)
            assert again[0] == rm.STATE_IN_USE


class TestWrongCall:
    def test_another_size_is_einval_and_touches_nothing(self) -> None:
        ctl = rm.open_control()
        for number, size in CALLS:
            for wrong in (size - 8, size - 4, size + 4, size + 8):
                buffer = bytearray(b"\x5a" * wrong)
                raises_errno(errno.EINVAL, fcntl.ioctl, ctl, rm.request(number, wrong), buffer)
                assert buffer == b"\x5a" * wrong

    def test_unknown_number_is_einval(self) -> None:
        raises_errno(errno.EINVAL, rm.call, rm.open_control(), 0x30, bytes(32))

    def test_bad_pointer_is_efault(self) -> None:
        ctl = rm.open_control()
        for number, size in CALLS:
            request = ctypes.c_ulong(rm.request(number, size))
            assert rm.libc.ioctl(ctl, request, ctypes.c_void_p(0x1000)) == -1
            assert ctypes.get_errno() == errno.EFAULT

    def test_bad_params_pointer_is_a_status(self) -> None:
        with session() as s:
            data = struct.pack("<IIIIQII", s.client, s.client, 0x205, 0, 0x1000, 32, 0)
            status = struct.unpack("<IIIIQII", rm.call(s.ctl, 0x2A, data))[6]
            assert status == rm.INVALID_ADDRESS

    def test_unknown_class_is_refused(self) -> None:
        with session() as s:
            data = struct.pack("<IIIIQII", s.client, s.device, 0, 0x2081, 0, 0, 0)
            status = struct.unpack("<IIIIQII", rm.call(s.ctl, 0x2B, data))[6]
            assert status == rm.INVALID_CLASS

    def test_device_fields_that_mean_nothing_here_must_be_zero(self) -> None:
        def ask(at: int) -> int:
            params = rm.device_params(0)
            struct.pack_into("<I", params, at, 7)
            address = ctypes.addressof(params)
            data = struct.pack("<IIIIQII", s.client, s.client, 0, 0x80, address, 56, 0)
            return int(struct.unpack("<IIIIQII", rm.call(s.ctl, 0x2B, data))[6])

        fillers = (20, 52)
        with session() as s:
            for at in range(4, 56, 4):
                expected = rm.OK if at in fillers else rm.INVALID_ARGUMENT
                assert (at, ask(at)) == (at, expected)

    def test_device_that_is_not_there_is_refused(self) -> None:
        with session() as s:
            assert rm.alloc_device(s.ctl, s.client, 1, 0xD1)[0] == rm.INVALID_ARGUMENT

    def test_control_refusals(self) -> None:
        with session() as s:
            ask = rm.control
            params = struct.pack("<I28x", 0x100)
            assert ask(s.ctl, s.client, 0x205, params)[0] == rm.OK
            assert ask(s.ctl, s.client + 1, 0x205, params)[0] == rm.INVALID_CLIENT
            assert ask(s.ctl, s.client, 0x205, params, target=99)[0] == rm.OBJECT_NOT_FOUND
            assert ask(s.ctl, s.client, 0x205, params, target=s.device)[0] == rm.NOT_SUPPORTED
            assert ask(s.ctl, s.client, 0x206, params)[0] == rm.NOT_SUPPORTED
            assert ask(s.ctl, s.client, 0x205, params[:28])[0] == rm.INVALID_ARGUMENT
            assert ask(s.ctl, s.client, 0x205, params, flags=1)[0] == rm.INVALID_ARGUMENT

    def test_import_refusals(self) -> None:
        block = rm.memory_block()
        with session() as s:
            ask = rm.import_many_params
            for params, status in [
                (ask(block, s.device, 0xE0, number=2), rm.OUT_OF_RANGE),
                (ask(block, s.device, 0xE0, index=1), rm.OUT_OF_RANGE),
                (ask(block, s.device, 0xE0, number=129), rm.INVALID_PARAMETER),
                (ask(block, s.client, 0xE0), rm.INVALID_OBJECT_PARENT),
                (ask(block, 99, 0xE0), rm.INVALID_OBJECT_PARENT),
                (ask(block, s.device, s.client), rm.INVALID_OBJECT_HANDLE),
                (ask(block, s.device, s.device), rm.INSERT_DUPLICATE_NAME),
            ]:
                assert rm.control(s.ctl, s.client, 0x3D0C, params)[0] == status
            assert rm.count("objects") == 0

    def test_map_refusals(self) -> None:
        with session() as s:
            memory = s.import_fd(rm.memory_block())
            mfd = rm.open_minor(s.minor)

            def ask(offset: int, length: int, **other: int) -> int:
                call = {
                    "client": s.client,
                    "device": s.device,
                    "memory": memory,
                    "mfd": mfd,
                    **other,
                }
                return rm.map_memory(s.ctl, **call, offset=offset, length=length)[0]

            assert ask(0, PAGE, client=s.client + 1) == rm.INVALID_CLIENT
            assert ask(0, PAGE, device=99) == rm.OBJECT_NOT_FOUND
            assert ask(0, PAGE, memory=99) == rm.OBJECT_NOT_FOUND
            assert ask(0, PAGE, mfd=99) == rm.INVALID_ARGUMENT
            assert ask(0, PAGE, flags=1) == rm.INVALID_FLAGS
            assert ask(BLOCK, PAGE) == rm.INVALID_BASE
            assert ask(8, PAGE) == rm.INVALID_BASE
            assert ask(0, 0) == rm.INVALID_LIMIT
            assert ask(0, 8) == rm.INVALID_LIMIT
            assert ask(PAGE, BLOCK) == rm.INVALID_LIMIT
            assert ask(PAGE, 2**64 - PAGE) == rm.INVALID_LIMIT
            assert rm.count("mappings") == 0
            assert ask(BLOCK - PAGE, PAGE) == rm.OK

    def test_free_names_the_right_parent(self) -> None:
        with session() as s:
            memory = s.import_fd(rm.memory_block())
            assert rm.free(s.ctl, s.client, s.client, memory) == rm.INVALID_OBJECT_PARENT
            assert rm.free(s.ctl, s.client, 0, s.device) == rm.INVALID_OBJECT_PARENT
            assert rm.free(s.ctl, s.client, s.device, 99) == rm.OBJECT_NOT_FOUND
            assert rm.free(s.ctl, 99, s.device, memory) == rm.INVALID_CLIENT
            assert s.free(memory) == rm.OK
            assert s.free(memory) == rm.OBJECT_NOT_FOUND

    def test_client_lives_on_the_file_that_made_it(self) -> None:
        with session() as s:
            other = rm.open_control()
            assert rm.alloc_device(other, s.client, 0, 0xD1)[0] == rm.INVALID_CLIENT
            assert rm.alloc_device(os.dup(s.ctl), s.client, 0, 0xD1)[0] == rm.OK


class TestMmap:
    def test_refusals(self) -> None:
        with session() as s:
            memory = s.import_fd(rm.memory_block())
            unused, mfd = rm.open_minor(s.minor), rm.open_minor(s.minor)
            status, linear = rm.map_memory(s.ctl, s.client, s.device, memory, mfd, 0, 2 * PAGE)
            assert status == rm.OK
            raises_errno(errno.EINVAL, rm.mmap, unused, PAGE)
            raises_errno(errno.EINVAL, rm.mmap, s.ctl, PAGE)
            raises_errno(errno.ENXIO, rm.mmap, mfd, PAGE)
            raises_errno(errno.ENXIO, rm.mmap, mfd, 3 * PAGE)
            raises_errno(errno.EINVAL, lambda: rm.mmap(mfd, 2 * PAGE, offset=PAGE))
            raises_errno(errno.EINVAL, lambda: rm.mmap(mfd, 2 * PAGE, flags=2))
            assert s.unmap(memory, linear) == rm.OK
            raises_errno(errno.EINVAL, rm.mmap, mfd, 2 * PAGE)
        assert rm.violations() == []

    def test_protection_is_the_one_asked_for(self) -> None:
        with session() as s:
            memory = s.import_fd(rm.memory_block())
            mfd = os.open(f"/dev/nvidia{s.minor}", os.O_RDONLY)
            _, linear = rm.map_memory(s.ctl, s.client, s.device, memory, mfd)
            raises_errno(errno.EACCES, rm.mmap, mfd, BLOCK)
            view = rm.mmap(mfd, BLOCK, protection=1)
            assert permissions(view) == "r--s"
            rm.munmap(view, BLOCK)
            assert s.unmap(memory, linear) == rm.OK

    def test_munmap_in_pieces(self) -> None:
        with session() as s:
            memory = s.import_fd(rm.memory_block())
            linear, view = s.map(memory, 0, 4 * PAGE)
            rm.munmap(view + PAGE, PAGE)
            assert rm.count("views") == 2
            rm.munmap(view, PAGE)
            assert rm.count("views") == 1
            rm.munmap(view, 4 * PAGE)
            assert rm.count("views") == 0
            assert s.unmap(memory, linear) == rm.OK
        assert rm.violations() == []


class TestDuplicate:
    def test_memory_of_another_process_by_pid_and_descriptor(self) -> None:
        owner = subprocess.Popen(
            [
                sys.executable,
                "-c",
                "import rmclient, os\n"
                "fd = rmclient.memory_block()\n"
                "os.pwrite(fd, b'theirs', 4096)\n"
                "print(fd, flush=True)\n"
                "input()\n",
            ],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, "PYTHONPATH": str(Path(__file__).parent)},
        )
        assert owner.stdout
        source = (owner.pid, int(owner.stdout.readline()))
        with session() as s:
            memory = 0xE2
            assert rm.dup_object(s.ctl, s.client, s.device, source, memory) == rm.OK
            owner.communicate("done\n")
            linear, view = s.map(memory, PAGE, PAGE)
            assert ctypes.string_at(view, 6) == b"theirs"
            rm.munmap(view, PAGE)
            assert s.unmap(memory, linear) == rm.OK
            gone = rm.dup_object(s.ctl, s.client, s.device, source, 0xE3)
            assert gone == rm.INVALID_CLIENT
        assert counts() == {}

    def test_memory_of_the_own_process(self) -> None:
        block = rm.memory_block()
        with session() as s:
            source = (os.getpid(), block)
            assert rm.dup_object(s.ctl, s.client, s.device, source) == rm.OK
            os.close(block)
            assert rm.surface_size(s.ctl, s.client, 0xE2) == (rm.OK, BLOCK, BLOCK)

    def test_memory_of_another_client_of_the_process(self) -> None:
        block = rm.memory_block()
        os.pwrite(block, b"theirs", 4096)
        with session() as s:
            with session() as other:
                source = (other.client, other.import_fd(block))
                assert rm.dup_of_client(s.ctl, s.client, s.device, source) == rm.OK
                missing = rm.dup_of_client(s.ctl, s.client, s.device, (other.client, 0xE9), 0xE3)
                assert missing == rm.OBJECT_NOT_FOUND
            linear, view = s.map(0xE2, PAGE, PAGE)
            assert ctypes.string_at(view, 6) == b"theirs"
            rm.munmap(view, PAGE)
            assert s.unmap(0xE2, linear) == rm.OK
        assert counts() == {}

    def test_refusals(self) -> None:
        block, me = rm.memory_block(), os.getpid()
        with session() as s:
            ask = rm.dup_object
            pipe, _ = os.pipe()
            for status, source in [
                (rm.OBJECT_NOT_FOUND, (me, 987)),
                (rm.OBJECT_NOT_FOUND, (me, pipe)),
                (rm.INVALID_CLIENT, (0xFFFFFF, block)),
                (rm.INVALID_CLIENT, (me | 0x02000000, block)),
            ]:
                assert ask(s.ctl, s.client, s.device, source) == status
            source = (me, block)
            assert ask(s.ctl, s.client, s.device, source, flags=1) == rm.INVALID_FLAGS
            assert ask(s.ctl, s.client, s.client, source) == rm.INVALID_OBJECT_PARENT
            assert ask(s.ctl, s.client, s.device, source, s.device) == rm.INSERT_DUPLICATE_NAME
            assert ask(s.ctl, s.client + 1, s.device, source) == rm.INVALID_CLIENT
            assert rm.count("objects") == 0


class TestViolation:
    """Each rule of tearing down is broken once, and the ledger says so."""

    def test_unmap_before_munmap(self) -> None:
        with session() as s:
            memory = s.import_fd(rm.memory_block())
            linear, view = s.map(memory)
            assert s.unmap(memory, linear) == rm.OK
            assert rm.violations() == [
                f"mapping {linear:#x} unmapped in RM before munmap of {view:#x}"
            ]
            assert counts()["views"] == 1
            rm.munmap(view, BLOCK)
            assert "views" not in counts()

    def test_each_view_is_reported_once(self) -> None:
        with session() as s:
            memory = s.import_fd(rm.memory_block())
            mfd = rm.open_minor(s.minor)
            _, linear = rm.map_memory(s.ctl, s.client, s.device, memory, mfd)
            rm.mmap(mfd, BLOCK)
            rm.mmap(mfd, BLOCK)
            assert s.unmap(memory, linear) == rm.OK
            assert rm.count("violations") == 2
            linear, view = s.map(memory)
            rm.munmap(view, BLOCK)
            assert s.unmap(memory, linear) == rm.OK
            assert rm.count("violations") == 2

    def test_munmap_of_a_part_only(self) -> None:
        with session() as s:
            memory = s.import_fd(rm.memory_block())
            linear, view = s.map(memory)
            rm.munmap(view, BLOCK - PAGE)
            assert s.unmap(memory, linear) == rm.OK
            assert rm.count("violations") == 1

    def test_free_of_a_mapped_object(self) -> None:
        with session() as s:
            memory = s.import_fd(rm.memory_block())
            linear, view = s.map(memory)
            rm.munmap(view, BLOCK)
            assert s.free(memory) == rm.OK
            assert rm.violations() == [f"object 0xe0 freed with mapping {linear:#x} on it"]

    def test_free_of_a_client_with_a_mapped_object(self) -> None:
        with session() as s:
            s.map(s.import_fd(rm.memory_block()))
        assert rm.count("violations") == 2
        assert counts() == {"views": 1, "violations": 2}

    def test_close_of_the_control_file_with_a_client_on_it(self) -> None:
        ctl = rm.open_control()
        _, client = rm.alloc_client(ctl)
        again = os.dup(ctl)
        os.close(ctl)
        assert counts() == {"clients": 1, "files": 1}
        os.close(again)
        assert rm.violations() == [f"control file closed with client {client:#x} on it"]
        assert rm.count("clients") == 0

    def test_control_file_replaced_by_dup2(self) -> None:
        ctl = rm.open_control()
        rm.alloc_client(ctl)
        os.dup2(0, ctl)
        assert counts() == {"violations": 1}

    def test_descriptor_left_open(self) -> None:
        fd = rm.open_minor(0)
        assert counts() == {"files": 1}
        os.close(fd)
        assert counts() == {}

    def test_unknown_word_is_not_counted(self) -> None:
        assert rm.count("unicorns") == -1
        assert rm.violation(0) is None


class TestFork:
    def test_child_is_refused_its_parents_client(self) -> None:
        with session() as s:

            def ask() -> tuple[int, int, int]:
                free = rm.free(s.ctl, s.client, 0, s.client)
                imported, _ = rm.import_fd(s.ctl, s.client, s.device, rm.memory_block())
                return free, imported, rm.dup_object(s.ctl, s.client, s.device, (os.getpid(), 0))

            assert in_child(ask) == repr((rm.INVALID_CLIENT,) * 3).encode()
            assert counts() == {"clients": 1, "devices": 1, "files": 1}

    def test_child_starts_empty_and_makes_its_own(self) -> None:
        block = rm.memory_block()
        with session() as s:
            memory = s.import_fd(block)

            def work() -> dict[str, int]:
                assert counts() == {"files": 1}
                with session() as own:
                    assert own.client != s.client
                    own.import_fd(block)
                return counts()

            assert in_child(work) == b"{'files': 1}"
            assert s.free(memory) == rm.OK

    def test_inherited_view_is_a_violation_in_the_child(self) -> None:
        with session() as s:
            memory = s.import_fd(rm.memory_block())
            linear, view = s.map(memory)
            expected = repr([f"view {view:#x} inherited by a forked child"])
            assert in_child(rm.violations) == expected.encode()

            dont_fork = 10
            assert rm.libc.madvise(ctypes.c_void_p(view), ctypes.c_size_t(BLOCK), dont_fork) == 0
            assert in_child(rm.violations) == b"[]"
            rm.munmap(view, BLOCK)
            assert s.unmap(memory, linear) == rm.OK
        assert counts() == {}

    def test_subprocess_leaves_the_parents_ledger_alone(self) -> None:
        with session() as s:
            subprocess.run([sys.executable, "-c", ""], check=True)
            assert counts() == {"clients": 1, "devices": 1, "files": 1}
            assert rm.surface_size(s.ctl, s.client, s.import_fd(rm.memory_block()))[0] == rm.OK

    def test_descriptor_is_a_node_in_whatever_process_gets_it(self) -> None:
        ours, theirs = socket.socketpair()

        def work() -> tuple[int, int]:
            _, (fd,), _, _ = socket.recv_fds(theirs, 1, 1)
            return rm.alloc_client(fd)[0], rm.count("clients")

        with ours, theirs:
            socket.send_fds(ours, [b"x"], [rm.open_control()])
            assert in_child(work) == b"(0, 1)"


class TestNodes:
    def test_stat_says_character_device(self) -> None:
        assert stat.S_ISCHR(Path("/dev/nvidiactl").stat().st_mode)
        assert Path("/dev/nvidia0").stat().st_rdev == os.makedev(195, 0)
        assert os.fstat(rm.open_control()).st_rdev == os.makedev(195, 255)
        assert os.access("/dev/nvidia0", os.R_OK | os.W_OK)

    @pytest.mark.parametrize(
        "path", ["/dev/nvidia", "/dev/nvidia1", "/dev/nvidia00", "/dev/nvidia-uvm", "/dev/nvidia-1"]
    )
    def test_no_other_node_exists(self, path: str) -> None:
        raises_errno(errno.ENOENT, os.open, path, os.O_RDWR)
        raises_errno(errno.ENOENT, os.stat, path)
        assert not os.access(path, os.F_OK)

    def test_close_on_exec_as_asked(self) -> None:
        assert not os.get_inheritable(rm.open_control())
        library = ctypes.CDLL(None)
        assert os.get_inheritable(library.open(b"/dev/nvidiactl", os.O_RDWR))
        assert not os.get_inheritable(library.open(b"/dev/nvidiactl", os.O_RDWR | os.O_CLOEXEC))

    @pytest.mark.preloaded(FAKE_RM_VERSION="550.54.14")
    def test_version(self) -> None:
        with Path("/proc/driver/nvidia/version").open() as file:
            assert file.readline().split("  ")[1] == "550.54.14"
        ctl = rm.open_control()
        reply = rm.call(ctl, 210, struct.pack("<II64x", ord("2"), 0))
        assert struct.unpack("<II64s", reply)[1:] == (1, b"550.54.14".ljust(64, b"\0"))
        rm.call(ctl, 210, struct.pack("<II64s", 0, 0, b"550.54.14"))
        raises_errno(errno.EINVAL, rm.call, ctl, 210, struct.pack("<II64s", 0, 0, b"550.54.15"))

    def test_version_is_read_only(self) -> None:
        raises_errno(errno.EACCES, os.open, "/proc/driver/nvidia/version", os.O_RDWR)

    @pytest.mark.preloaded(FAKE_RM_NO_NODES="1")
    def test_machine_without_the_driver(self) -> None:
        for path in ("/dev/nvidiactl", "/dev/nvidia0", "/proc/driver/nvidia/version"):
            raises_errno(errno.ENOENT, os.open, path, os.O_RDONLY)
            assert not Path(path).exists()

    @pytest.mark.preloaded(FAKE_RM_DEVICES="many")
    def test_bad_number_of_devices_is_one(self) -> None:
        assert len(rm.cards(rm.open_control())) == 1

    @pytest.mark.preloaded(GDRPY_SIM_DEVICES="2")
    def test_as_many_devices_as_the_simulated_cuda_has(self) -> None:
        assert len(rm.cards(rm.open_control())) == 2

    def test_other_files_are_left_alone(self) -> None:
        with Path(__file__).open("rb") as file:
            with python_mmap.mmap(file.fileno(), 0, prot=python_mmap.PROT_READ) as view:
                assert view[:3] == b'"""'
            assert os.fstat(file.fileno()).st_size == Path(__file__).stat().st_size
        block = rm.memory_block()
        assert stat.S_ISREG(os.fstat(block).st_mode)
        raises_errno(errno.ENOTTY, fcntl.ioctl, block, rm.request(0x2B, 32), bytearray(32))


class TestFault:
    def test_the_second_call_from_now_answers_the_status_once(self) -> None:
        with session() as s:
            memory = s.import_fd(rm.memory_block())
            assert rm.set_fault("RM_MAP_MEMORY:2:0x51") == 0
            statuses = []
            for _ in range(4):
                mfd = rm.open_minor(s.minor)
                statuses.append(rm.map_memory(s.ctl, s.client, s.device, memory, mfd)[0])
            assert statuses == [rm.OK, rm.NO_MEMORY, rm.OK, rm.OK]
            assert rm.count("mappings") == 3

    @pytest.mark.preloaded(FAKE_RM_FAULT="DEVICE:1:0x1B")
    def test_from_the_environment(self) -> None:
        ctl = rm.open_control()
        _, client = rm.alloc_client(ctl)
        assert rm.alloc_device(ctl, client, 0)[0] == 0x1B
        assert counts() == {"clients": 1, "files": 1}
        assert rm.alloc_device(ctl, client, 0)[0] == rm.OK

    def test_one_control_command(self) -> None:
        with session() as s:
            memory = s.import_fd(rm.memory_block())
            rm.set_fault("GET_SURFACE_INFO:1:0x56")
            assert rm.export_info(s.ctl, s.client, rm.memory_block())[0] == rm.OK
            assert rm.surface_size(s.ctl, s.client, memory)[0] == rm.NOT_SUPPORTED
            assert rm.surface_size(s.ctl, s.client, memory)[0] == rm.OK

    def test_errno_of_open_until_it_is_cleared(self) -> None:
        rm.set_fault("open:/dev/nvidia0:13,open:/proc/driver/nvidia/version:24")
        raises_errno(errno.EACCES, rm.open_minor, 0)
        raises_errno(errno.EACCES, rm.open_minor, 0)
        raises_errno(errno.EMFILE, os.open, "/proc/driver/nvidia/version", os.O_RDONLY)
        rm.open_control()
        rm.set_fault("")
        rm.open_minor(0)

    def test_errno_of_ioctl_and_mmap(self) -> None:
        with session() as s:
            memory = s.import_fd(rm.memory_block())
            mfd = rm.open_minor(s.minor)
            rm.set_fault("ioctl:1:4,mmap:1:12,munmap:1:12")
            raises_errno(errno.EINTR, rm.free, s.ctl, s.client, s.device, memory)
            _, linear = rm.map_memory(s.ctl, s.client, s.device, memory, mfd)
            raises_errno(errno.ENOMEM, rm.mmap, mfd, BLOCK)
            view = rm.mmap(mfd, BLOCK)
            raises_errno(errno.ENOMEM, rm.munmap, view, BLOCK)
            assert rm.count("views") == 1
            rm.munmap(view, BLOCK)
            assert s.unmap(memory, linear) == rm.OK
        assert rm.violations() == []

    def test_malformed_changes_nothing(self) -> None:
        rm.set_fault("open:/dev/nvidiactl:13")
        for malformed in (
            "RM_MAP_MEMORY",
            "RM_MAP_MEMORY:1",
            "RM_MAP_MEMORY:0:1",
            "RM_MAP_MEMORY:1:0",
            "RM_MAP_MEMORY:one:1",
            "RM_MAP_MEMORY:1:1:1",
            "RM_MOP_MEMORY:1:1",
            "open:/dev/nvidiactl:x",
            "open:" + "a" * 80 + ":13",
            "mmap:1:12," * 17,
        ):
            assert (malformed, rm.set_fault(malformed)) == (malformed, -errno.EINVAL)
            raises_errno(errno.EACCES, rm.open_control)


class TestThreadsAndGarbage:
    def test_threads_on_one_client(self) -> None:
        block = rm.memory_block()

        def work(number: int) -> None:
            memory = s.import_fd(block, 0x1000 + number)
            linear, view = s.map(memory, number * PAGE, PAGE)
            ctypes.memmove(view, struct.pack("<I", number), 4)
            rm.munmap(view, PAGE)
            assert s.unmap(memory, linear) == rm.OK
            assert s.free(memory) == rm.OK

        with session() as s, ThreadPoolExecutor(8) as pool:
            list(pool.map(work, range(256)))
        assert counts() == {}
        numbers = [os.pread(block, 4, number * PAGE) for number in range(256)]
        assert numbers == [struct.pack("<I", number) for number in range(256)]

    @pytest.mark.parametrize("seed", [1, 2])
    def test_garbage_crashes_nothing(self, seed: int) -> None:
        chance = random.Random(seed)
        ctl = rm.open_control()
        refused: set[tuple[int, int | None]] = set()
        for _ in range(3000):
            number, size = chance.choice(CALLS)
            words = [
                chance.choice([0, 1, 0x41, 0x80, ctl, chance.getrandbits(32)])
                for _ in range(size // 4)
            ]
            try:
                rm.call(ctl, number, struct.pack(f"<{len(words)}I", *words))
            except OSError as error:
                refused.add((number, error.errno))
        os.close(ctl)
        assert refused == {(210, errno.EINVAL)}
        assert {*counts()} <= {"violations"}
