"""The objects of a channel of the simulated resource manager: how they are made, and end.

Each test runs in a process of its own, behind the manager.
"""

import ctypes
import itertools
import mmap
import os
import signal
import struct
import tempfile
from pathlib import Path

import pytest

import rmclient as rm
from channelclient import (
    CLASSES,
    COPY4,
    HOST_FLAGS,
    READ_ONLY,
    Client,
    Engine,
    Host,
    eventually,
    fact,
    nothing_is_left,
    pack,
)
from rmclient import (
    BLOCK,
    INVALID_ADDRESS,
    INVALID_ARGUMENT,
    INVALID_BASE,
    INVALID_CLASS,
    INVALID_FLAGS,
    INVALID_LIMIT,
    INVALID_OBJECT_HANDLE,
    INVALID_OBJECT_PARENT,
    INVALID_STATE,
    NOT_SUPPORTED,
    OBJECT_NOT_FOUND,
    OK,
    PAGE,
    STATE_IN_USE,
)

pytestmark = pytest.mark.preloaded()


class TestUserMemory:
    def test_must_begin_with_a_page(self) -> None:
        client = Client()
        pages = Host(2 * PAGE)
        assert client.register(pages.address + 64, PAGE)[0] == NOT_SUPPORTED

    def test_must_be_there(self) -> None:
        client = Client()
        pages = Host(4 * PAGE)
        hole = pages.address + 2 * PAGE
        rm.munmap(hole, PAGE)
        assert client.register(pages.address, 4 * PAGE)[0] == INVALID_ADDRESS

    def test_that_can_only_be_read_needs_the_flag(self) -> None:
        client = Client()
        with tempfile.TemporaryFile(dir="/dev/shm") as file:
            file.truncate(PAGE)
            address = rm.mmap(file.fileno(), PAGE, protection=mmap.PROT_READ)
            assert client.register(address, PAGE)[0] == INVALID_ADDRESS
            assert client.register(address, PAGE, HOST_FLAGS | READ_ONLY)[0] == OK

    def test_of_a_file_on_disk_is_for_reading_or_private(self) -> None:
        client = Client()
        with tempfile.NamedTemporaryFile(dir=Path.cwd()) as file:
            file.truncate(PAGE)
            shared = rm.mmap(file.fileno(), PAGE)
            assert client.register(shared, PAGE)[0] == INVALID_ADDRESS
            assert client.register(shared, PAGE, HOST_FLAGS | READ_ONLY)[0] == OK
            private = rm.mmap(file.fileno(), PAGE, flags=mmap.MAP_PRIVATE)
            assert client.register(private, PAGE)[0] == OK

    def test_can_be_registered_twice(self) -> None:
        client = Client()
        pages = Host(PAGE)
        assert [client.register(pages.address, PAGE)[0] for _ in range(2)] == [OK, OK]

    @pytest.mark.parametrize("flags", [0, 0x1010, 0x40000010, 0x40001000, 0x40002010, 0x40801010])
    def test_takes_these_flags_alone(self, flags: int) -> None:
        client = Client()
        pages = Host(PAGE)
        expected = OK if flags == 0x40000010 else INVALID_FLAGS
        assert client.register(pages.address, PAGE, flags)[0] == expected

    def test_is_registered_through_a_node_that_knows_the_client(self) -> None:
        client = Client()
        pages = Host(PAGE)
        stranger = rm.open_minor(client.minor)
        assert client.register(pages.address, PAGE, node=stranger)[0] == rm.INVALID_CLIENT
        assert client.register(pages.address, PAGE, node=client.ctl)[0] == INVALID_ARGUMENT
        rm.call(stranger, 201, struct.pack("<i", client.ctl))
        assert client.register(pages.address, PAGE, node=stranger)[0] == OK

    def test_is_not_for_the_cpu_to_map(self) -> None:
        client = Client()
        pages = Host(PAGE)
        _, memory = client.register(pages.address, PAGE)
        fd = rm.open_minor(client.minor)
        status, _ = rm.map_memory(client.ctl, client.client, client.device, memory, fd, length=PAGE)
        assert status == NOT_SUPPORTED

    def test_cannot_be_a_view_of_the_gpu(self) -> None:
        engine = Engine()
        assert engine.register(engine.control_at, PAGE)[0] == INVALID_ADDRESS


class TestRegisterFd:
    def test_is_once_for_a_node_and_for_a_control_file(self) -> None:
        client = Client()
        for fd, to in [(client.node, client.ctl), (client.ctl, client.ctl), (-1, client.node)]:
            node = rm.open_minor(0) if fd == -1 else fd
            with pytest.raises(OSError, match="Invalid argument"):
                rm.call(node, 201, struct.pack("<i", to))

    def test_keeps_the_client_while_the_node_is_open(self) -> None:
        client = Client()
        os.close(client.ctl)
        assert rm.count("clients") == 1
        os.close(client.node)
        assert (rm.count("clients"), rm.count("violations")) == (0, 1)


class TestGpuAddresses:
    def test_are_below_a_tebibyte_and_apart(self) -> None:
        engine = Engine()
        blocks = [engine.block()[0] for _ in range(3)]
        assert all(a % BLOCK == 0 and a + BLOCK < 1 << 40 for a in blocks)
        assert all(b - a > BLOCK for a, b in itertools.pairwise(blocks))

    def test_are_not_given_out_again_at_once(self) -> None:
        engine = Engine()
        pages = Host(PAGE)
        memory, host = engine.host(pages.address, PAGE)
        assert engine.unmap_dma(engine.dma, memory, host) == OK
        assert engine.map_dma(engine.dma, memory, PAGE, 0x10)[1] != host

    def test_can_be_of_a_part(self) -> None:
        engine = Engine()
        pages = Host(4 * PAGE)
        pages.map[2 * PAGE : 2 * PAGE + 3] = b"abc"
        _, memory = engine.register(pages.address, 4 * PAGE)
        status, host = engine.map_dma(engine.dma, memory, PAGE, 0x10, 2 * PAGE)
        assert status == OK
        gpu, owner = engine.block()
        engine.run(engine.copy(gpu, host, 3))
        assert owner[:3] == b"abc"

    @pytest.mark.parametrize(
        ("offset", "size", "flags", "status"),
        [
            (0, PAGE, 0, INVALID_FLAGS),
            (0, PAGE, 0x12, INVALID_FLAGS),
            (64, PAGE, 0x10, INVALID_BASE),
            (PAGE, PAGE, 0x10, INVALID_BASE),
            (0, 2 * PAGE, 0x10, INVALID_BASE),
            (0, 0, 0x10, INVALID_LIMIT),
        ],
    )
    def test_are_refused_for(self, offset: int, size: int, flags: int, status: int) -> None:
        engine = Engine()
        pages = Host(PAGE)
        _, memory = engine.register(pages.address, PAGE)
        assert engine.map_dma(engine.dma, memory, size, flags, offset)[0] == status

    def test_of_read_only_pages_are_read_only(self) -> None:
        engine = Engine()
        pages = Host(PAGE)
        _, memory = engine.register(pages.address, PAGE, HOST_FLAGS | READ_ONLY)
        assert engine.map_dma(engine.dma, memory, PAGE, 0x10)[0] == INVALID_ARGUMENT
        assert engine.map_dma(engine.dma, memory, PAGE, 0x11)[0] == OK

    def test_want_a_virtual_object_and_a_memory(self) -> None:
        engine = Engine()
        assert engine.map_dma(engine.channel, engine.memory, PAGE)[0] == OBJECT_NOT_FOUND
        assert engine.map_dma(engine.dma, engine.channel, PAGE)[0] == OBJECT_NOT_FOUND
        assert engine.map_dma(engine.dma, engine.usermode, PAGE)[0] == OBJECT_NOT_FOUND
        assert engine.unmap_dma(engine.dma, engine.memory, 0x1000) == OBJECT_NOT_FOUND

    @pytest.mark.parametrize(
        ("release", "map_size", "unmap_size", "schedule_size"),
        [
            pytest.param(first, *sizes, marks=pytest.mark.preloaded(FAKE_RM_VERSION=first))
            for first, *sizes in [
                ("535.43.02", 56, 40, 2),
                ("550.40.07", 56, 48, 2),
                ("575.51.02", 56, 48, 3),
                ("595.44.02", 64, 48, 3),
            ]
        ],
    )
    def test_come_by_structures_of_the_releases_size_alone(
        self, release: str, map_size: int, unmap_size: int, schedule_size: int
    ) -> None:
        engine = Engine()
        for number, wrong in [(0x57, 120 - map_size), (0x58, 88 - unmap_size)]:
            with pytest.raises(OSError, match="Invalid argument"):
                rm.call(engine.ctl, number, bytes(wrong))
        assert engine.schedule(size=5 - schedule_size) == INVALID_ARGUMENT
        assert (fact("size.map_dma"), fact("size.unmap_dma")) == (map_size, unmap_size)


class TestClasses:
    def test_are_counted_and_listed(self) -> None:
        client = Client()
        status, answer = client.control(client.device, 0x800201, bytes(16))
        count = struct.unpack_from("<I", answer)[0]
        assert (status, count > 5) == (OK, True)
        items = (ctypes.c_uint32 * count)()
        params = struct.pack("<I4xQ", count, ctypes.addressof(items))
        assert client.control(client.device, 0x800201, params)[0] == OK
        assert {0xC86F, 0xC8B5, 0xC661} <= set(items)
        params = struct.pack("<I4xQ", count - 1, ctypes.addressof(items))
        assert client.control(client.device, 0x800201, params)[0] == INVALID_ARGUMENT

    @pytest.mark.parametrize(
        "gpu",
        [pytest.param(gpu, marks=pytest.mark.preloaded(FAKE_RM_GPU=gpu)) for gpu in CLASSES],
    )
    def test_of_another_gpu_are_its_own_and_older_ones(self, gpu: str) -> None:
        engine = Engine()
        engine.run(engine.semaphore())
        status, answer = engine.control(engine.device, 0x800201, bytes(16))
        assert status == OK
        items = (ctypes.c_uint32 * struct.unpack_from("<I", answer)[0])()
        params = struct.pack("<I4xQ", len(items), ctypes.addressof(items))
        assert engine.control(engine.device, 0x800201, params)[0] == OK
        assert [max(c for c in items if c & 0xFF == kind) for kind in (0x6F, 0xB5, 0x61)] == list(
            CLASSES[gpu]
        )
        engine.close()
        nothing_is_left()

    @pytest.mark.preloaded(FAKE_RM_NO_COPY="1")
    def test_may_lack_the_copy_class(self) -> None:
        client = Client()
        _, answer = client.control(client.device, 0x800201, bytes(16))
        items = (ctypes.c_uint32 * struct.unpack_from("<I", answer)[0])()
        params = struct.pack("<I4xQ", len(items), ctypes.addressof(items))
        assert client.control(client.device, 0x800201, params)[0] == OK
        assert 0xC8B5 not in set(items)


class TestEngines:
    def test_are_those_of_an_h100(self) -> None:
        client = Client()
        answers = [
            client.control(client.subdevice, 0x20802A03, struct.pack("<II", 9 + i, 0))
            for i in range(6)
        ]
        assert [answer[4] & 3 for status, answer in answers if status == OK] == [3, 3, 2, 2, 0]
        assert answers[5][0] == NOT_SUPPORTED

    def test_are_asked_of_the_subdevice(self) -> None:
        client = Client()
        params = struct.pack("<II", 9, 0)
        assert client.control(client.device, 0x20802A03, params)[0] == NOT_SUPPORTED
        assert client.control(client.subdevice, 0x20802A03, bytes(12))[0] == INVALID_ARGUMENT


class TestChannelAllocation:
    @pytest.mark.parametrize(
        ("changes", "status"),
        [
            ({"flags": 0}, INVALID_FLAGS),
            ({"engine": 14}, INVALID_ARGUMENT),
            ({"entries": 12}, INVALID_ARGUMENT),
            ({"entries": 0}, INVALID_ARGUMENT),
            ({"ring": 0x120000004}, INVALID_ARGUMENT),
            ({"userd": 0}, OBJECT_NOT_FOUND),
            ({"userd_offset": 256}, INVALID_ARGUMENT),
            ({"userd_offset": 1 << 30}, INVALID_ARGUMENT),
            ({"userd_offset": PAGE}, STATE_IN_USE),
            ({"error": 0xBAD}, INVALID_OBJECT_HANDLE),
            ({"address_space": 0xBAD}, OBJECT_NOT_FOUND),
            ({"context_share": 1}, INVALID_ARGUMENT),
        ],
    )
    def test_is_refused_for(self, changes: dict[str, int], status: int) -> None:
        engine = Engine()
        params = engine.channel_params(**{"userd_offset": 2 * PAGE, **changes})
        assert engine.alloc(engine.device, 0xC86F, params)[0] == status

    def test_takes_the_releases_size_or_none(self) -> None:
        engine = Engine()
        params = engine.channel_params(userd_offset=2 * PAGE)
        size = fact("size.channel_params")
        for wrong in (size - 8, size + 8):
            assert engine.alloc(engine.device, 0xC86F, params, wrong)[0] == INVALID_ARGUMENT
        status, handle = engine.alloc(engine.device, 0xC86F, params, size)
        assert status == OK
        assert engine.free(engine.device, handle) == OK

    @pytest.mark.preloaded(FAKE_RM_FAULT="CHANNEL:2:0x51")
    def test_can_be_refused_by_order(self) -> None:
        engine = Engine()
        params = engine.channel_params(userd_offset=2 * PAGE)
        assert engine.alloc(engine.device, 0xC86F, params)[0] == rm.NO_MEMORY
        engine.run(engine.semaphore())
        engine.close()

    def test_copies_only_by_an_object_of_its_engine(self) -> None:
        engine = Engine()
        for version, number in [(0, COPY4), (1, COPY4 - 1)]:
            params = struct.pack("<II", version, number)
            assert engine.alloc(engine.channel, 0xC8B5, params)[0] == INVALID_ARGUMENT
        params = struct.pack("<II", 1, COPY4)
        assert engine.alloc(engine.device, 0xC8B5, params)[0] == INVALID_OBJECT_PARENT
        assert engine.alloc(engine.channel, 0xC7B5, params)[0] == INVALID_CLASS

    def test_is_bound_to_its_engine_before_it_is_scheduled(self) -> None:
        engine = Engine()
        params = engine.channel_params(userd_offset=2 * PAGE)
        channel = engine.made(engine.device, 0xC86F, params)
        on = bytes([1]).ljust(fact("size.schedule"), b"\0")
        assert engine.control(channel, 0xA06F0103, on)[0] == INVALID_STATE
        assert engine.control(channel, 0xA06F0104, struct.pack("<I", 9))[0] == INVALID_ARGUMENT
        assert engine.control(channel, 0xA06F0104, struct.pack("<I", COPY4))[0] == OK
        assert engine.control(channel, 0xA06F0103, on)[0] == OK

    @pytest.mark.preloaded(FAKE_RM_MIG="3")
    def test_is_refused_on_a_split_gpu_without_a_subscription(self) -> None:
        with pytest.raises(AssertionError, match="0x40"):
            Engine(local=False)


class TestGroup:
    @pytest.mark.parametrize(
        "first",
        [
            pytest.param(first, marks=pytest.mark.preloaded(FAKE_RM_VERSION=first))
            for first in ("535.43.02", "595.44.02")
        ],
    )
    def test_has_a_timeslice_and_a_channel(self, first: str) -> None:
        engine = Engine(group=True)
        assert engine.control(engine.group, 0xA06C0104, bytes(8)) == (OK, struct.pack("<Q", 1024))
        assert engine.control(engine.group, 0xA06C0103, struct.pack("<Q", 50))[0] == OK
        assert engine.control(engine.group, 0xA06C0104, bytes(8)) == (OK, struct.pack("<Q", 50))
        engine.run(engine.semaphore())
        engine.close()
        nothing_is_left()

    def test_has_no_timeslice_of_0(self) -> None:
        engine = Engine(group=True)
        assert engine.control(engine.group, 0xA06C0103, bytes(8))[0] == INVALID_ARGUMENT
        assert engine.control(engine.channel, 0xA06C0103, bytes(8))[0] == NOT_SUPPORTED

    def test_gives_its_channels_the_address_space(self) -> None:
        engine = Engine(group=True)
        params = engine.channel_params(userd_offset=2 * PAGE, address_space=engine.space)
        assert engine.alloc(engine.group, 0xC86F, params)[0] == INVALID_ARGUMENT


class TestEnd:
    def test_of_the_client_leaves_nothing(self) -> None:
        engine = Engine(group=True)
        engine.block()
        engine.close()
        nothing_is_left()

    def test_of_the_descriptors_ends_the_channel(self) -> None:
        engine = Engine()
        engine.unview()
        os.close(engine.node)
        os.close(engine.ctl)
        assert (rm.count("channels"), rm.count("parts"), rm.count("dma_mappings")) == (0, 0, 0)
        assert rm.violations() == [f"control file closed with client {engine.client:#x} on it"]

    def test_of_the_userd_before_the_channel_is_a_violation(self) -> None:
        engine = Engine()
        engine.unview()
        assert engine.free(engine.device, engine.memory) == OK
        assert rm.violations() == [
            f"memory {engine.memory:#x} freed, the USERD of channel {engine.channel:#x}"
        ]

    def test_of_registered_pages_before_their_object_is_a_violation(self) -> None:
        engine = Engine()
        pages = Host(4 * PAGE)
        engine.host(pages.address, 4 * PAGE)
        rm.munmap(pages.address + PAGE, PAGE)
        assert "registered" in rm.violations()[0]

    def test_in_the_middle_of_a_copy(self) -> None:
        engine = Engine()
        size = 256 << 20
        (one, _), (two, _) = engine.block(size), engine.block(size)
        engine.submit(engine.copy(one, two, size))
        engine.close()
        nothing_is_left()

    def test_of_a_channel_leaves_the_rest(self) -> None:
        engine = Engine()
        assert engine.free(engine.device, engine.channel) == OK
        assert rm.count("channels") == 0
        assert engine.free(engine.channel, engine.copy_object) == OBJECT_NOT_FOUND
        engine.channel = engine.made(engine.device, 0xC86F, engine.channel_params())
        engine.close()
        nothing_is_left()

    def test_by_sigkill_in_the_middle_of_a_copy_leaves_the_memory_to_others(self) -> None:
        fd = rm.memory_block(0, 4 * BLOCK)
        owner = mmap.mmap(fd, 4 * BLOCK)
        for _ in range(5):
            owner[:1] = b"\0"
            child = os.fork()
            if not child:
                engine = Engine()
                gpu = engine.imported(fd, 4 * BLOCK)
                pages = Host(4 * BLOCK)
                pages.map[:] = b"\1" * 4 * BLOCK
                _, host = engine.host(pages.address, 4 * BLOCK)
                while True:
                    engine.run(engine.copy(gpu, host, 4 * BLOCK))
            assert eventually(lambda: owner[:1] == b"\1")
            os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)
            owner[:] = bytes(4 * BLOCK)
            engine = Engine()
            gpu = engine.imported(fd, 4 * BLOCK)
            engine.run(engine.transfer(gpu, gpu + 1, 1), engine.semaphore())
            assert owner[:] == bytes(4 * BLOCK)
            engine.close()

    def test_of_a_forked_child_leaves_the_parents_channel(self) -> None:
        engine = Engine()
        engine.unview()
        child = os.fork()
        if not child:
            fine = rm.count("channels") == 0
            again = Engine()
            again.run(again.semaphore())
            os._exit(0 if fine else 1)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
        engine.doorbell = engine.view(engine.usermode, 0x10000) + 0x90
        assert rm.count("channels") == 1
        engine.close()


class TestLocalMemory:
    def test_is_of_the_kind_that_the_engine_takes(self) -> None:
        client = Client()
        good = {"owner": client.client, "attributes": 2 << 27 | 1 << 23, "size": PAGE}
        for wrong in ({"owner": 1}, {"attributes": 0}, {"size": 0}, {"alignment": 64}):
            params = bytes(pack("memory_params", **{**good, **wrong}))
            assert client.alloc(client.device, 0x40, params)[0] == INVALID_ARGUMENT
        assert client.alloc(client.device, 0x40, bytes(pack("memory_params", **good)))[0] == OK
