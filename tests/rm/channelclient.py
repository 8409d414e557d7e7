"""A copy engine in plain ioctls, for the tests of the simulated resource manager.

Structures are packed by the facts of the release in releases.tsv. Nothing here is clever: each call
is one step, and a test can leave one out or spoil it.
"""

import ctypes
import itertools
import mmap
import os
import struct
import time
from collections.abc import Callable

import releases
import rmclient as rm
from rmclient import BLOCK, OK, PAGE

COPY4 = 13
HOST_FLAGS = 0x40001010
READ_ONLY = 1 << 21
ENTRIES = 16
SLOT = 1024
CONTROL_SIZE = 3 * PAGE + ENTRIES * SLOT

NON_PIPELINED = 0x182
PIPELINED = 0x181
FLUSH = 4
SEMAPHORE = 8
INTERRUPT = 0x40
LINES = 0x200
REMAP = 0x400
ACQUIRE_GEQ = 0x1003
ACQUIRE_HOLDING = 0x0003  # others do not run meanwhile
RELEASE = 0x1 | 1 << 20

CHANNEL_ERROR = 0xFFFF

MMU_FAULT = 31
PBDMA_ERROR = 32
COPY_ERROR = 71  # of COPY4

BYTES = bytes(range(251)) * (1 + BLOCK // 251)


#: The classes of channel, copy object and usermode, by FAKE_RM_GPU.
CLASSES = {
    "hopper": (0xC86F, 0xC8B5, 0xC661),
    "turing": (0xC46F, 0xC5B5, 0xC461),
    "ga100": (0xC56F, 0xC6B5, 0xC561),
    "ada": (0xC56F, 0xC7B5, 0xC561),
    "gb100": (0xC96F, 0xC9B5, 0xC661),
    "gb20x": (0xCA6F, 0xCAB5, 0xC761),
}
CHANNEL, COPY, USERMODE = CLASSES[os.environ.get("FAKE_RM_GPU", "hopper")]
#: The doorbell in BAR1, where there is a choice.
USERMODE_PARAMS = b"\1\0" if USERMODE >= 0xC661 else None


def facts_now() -> dict[str, str]:
    """The facts of the release that FAKE_RM_VERSION names exactly, or the newest of 580."""
    version = os.environ.get("FAKE_RM_VERSION", "580.65.06")
    return next(release.facts for release in releases.read() if release.first == version)


FACTS = facts_now()


def fact(name: str) -> int:
    return int(FACTS[name], 0)


def pack(structure: str, **fields: int) -> bytearray:
    """A structure of the release; what it has no place for must be 0."""
    data = bytearray(fact(f"size.{structure}"))
    for name, value in fields.items():
        wide = name in {"offset", "length", "address", "ring", "userd_offset", "size", "alignment"}
        if FACTS[f"at.{structure}.{name}"] == releases.ABSENT:
            assert value == 0
            continue
        struct.pack_into("<Q" if wide else "<I", data, fact(f"at.{structure}.{name}"), value)
    return data


def field(structure: str, name: str, data: bytes, code: str = "<I") -> int:
    return int(struct.unpack_from(code, data, fact(f"at.{structure}.{name}"))[0])


def nothing_is_left() -> None:
    assert rm.counts() == {}


def xids() -> list[str]:
    rm.libc.fakerm_xid.restype = ctypes.c_char_p
    return [rm.libc.fakerm_xid(i).decode() for i in range(rm.count("xids"))]


def eventually(condition: Callable[[], bool], seconds: float = 20) -> bool:
    """Wait for what the engine does on its own."""
    end = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > end:
            return False
        time.sleep(0.0002)
    return True


class Host:
    """Pages of this process."""

    def __init__(self, size: int) -> None:
        self.map = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        self.address = ctypes.addressof(ctypes.c_char.from_buffer(self.map))
        self.size = size


class Client:
    """A client with a device and a subdevice, and calls that return the status."""

    def __init__(self) -> None:
        self.ctl = rm.open_control()
        status, self.client = rm.alloc_client(self.ctl)
        assert status == OK
        self.minor = rm.cards(self.ctl)[0][2]
        self.node = rm.open_minor(self.minor)
        self.handles = itertools.count(0xCE000001)
        rm.call(self.node, 201, struct.pack("<i", self.ctl))
        params = bytes(rm.device_params(0, self.client))
        self.device = self.made(self.client, 0x80, params)
        self.subdevice = self.made(self.device, 0x2080, bytes(4))
        self.views: list[tuple[int, int, int, int]] = []

    def alloc(
        self, parent: int, class_id: int, params: bytes | None, size: int = 0
    ) -> tuple[int, int]:
        """(status, handle)"""
        handle = next(self.handles)
        # Longer than any release's structure, as with size 0 the kernel takes its own.
        buffer = ctypes.create_string_buffer(bytes(params or b""), 4096)
        address = ctypes.addressof(buffer) if params is not None else 0
        data = struct.pack("<IIIIQII", self.client, parent, handle, class_id, address, size, 0)
        return struct.unpack("<IIIIQII", rm.call(self.ctl, 0x2B, data))[6], handle

    def made(self, parent: int, class_id: int, params: bytes | None) -> int:
        status, handle = self.alloc(parent, class_id, params)
        assert status == OK, hex(status)
        return handle

    def control(self, target: int, command: int, params: bytes) -> tuple[int, bytes]:
        return rm.control(self.ctl, self.client, command, params, target=target)

    def free(self, parent: int, handle: int) -> int:
        return rm.free(self.ctl, self.client, parent, handle)

    def register(
        self, address: int, size: int, flags: int = HOST_FLAGS, node: int | None = None
    ) -> tuple[int, int]:
        """(status, handle) of pages of this process"""
        handle = next(self.handles)
        data = struct.pack(
            "<IIIIIIQQIIii",
            *(self.client, self.device, handle, 0x71, flags, 0),
            *(address, size - 1, 0, 0, -1, 0),
        )
        answer = rm.call(self.node if node is None else node, 0x27, data)
        return struct.unpack_from("<I", answer, 40)[0], handle

    def map_dma(
        self, dma: int, memory: int, size: int, flags: int = 0, offset: int = 0
    ) -> tuple[int, int]:
        """(status, GPU address)"""
        data = pack(
            "map_dma",
            client=self.client,
            device=self.device,
            dma=dma,
            memory=memory,
            offset=offset,
            length=size,
            flags=flags,
        )
        answer = rm.call(self.ctl, 0x57, bytes(data))
        return field("map_dma", "status", answer), field("map_dma", "address", answer, "<Q")

    def unmap_dma(self, dma: int, memory: int, address: int) -> int:
        data = pack(
            "unmap_dma",
            client=self.client,
            device=self.device,
            dma=dma,
            memory=memory,
            address=address,
        )
        return field("unmap_dma", "status", rm.call(self.ctl, 0x58, bytes(data)))

    def view(self, memory: int, size: int) -> int:
        """The address of a CPU mapping."""
        fd = rm.open_minor(self.minor)
        status, linear = rm.map_memory(self.ctl, self.client, self.device, memory, fd, length=size)
        assert status == OK
        address = rm.mmap(fd, size)
        os.close(fd)
        self.views.append((memory, linear, address, size))
        return address

    def unview(self) -> None:
        for memory, linear, address, size in self.views:
            rm.munmap(address, size)
            assert rm.unmap_memory(self.ctl, self.client, self.device, memory, linear) == OK
        self.views.clear()

    def close(self) -> None:
        self.unview()
        assert rm.free(self.ctl, self.client, 0, self.client) == OK
        os.close(self.node)
        os.close(self.ctl)


class Engine(Client):
    """A channel that is ready to copy, with what it needs in GPU memory or in host memory."""

    def __init__(
        self,
        *,
        local: bool = True,
        space: bool = True,
        group: bool = False,
        engine: int = COPY4,
        set_object: bool = True,
    ) -> None:
        super().__init__()
        self.engine = engine
        self.space = self.made(self.device, 0x90F1, bytes(128)) if space else 0
        self.dma = self.made(self.device, 0x70, struct.pack("<QQQ", 0, 0, self.space))
        self.words = Host(2 * PAGE)  # the semaphore; the notifier
        _, self.semaphore_address = self.host(self.words.address, PAGE)
        self.notifier, _ = self.host(self.words.address + PAGE, PAGE)
        if local:
            self.memory, self.base, self.control_at = self.local(CONTROL_SIZE)
        else:
            self.pages = Host(-(-CONTROL_SIZE // PAGE) * PAGE)
            self.control_at = self.pages.address
            self.memory, self.base = self.host(self.control_at, CONTROL_SIZE)
        self.group = 0
        if group:
            params = struct.pack("<IIII4x", 0, 0, self.space, engine)
            self.group = self.made(self.device, 0xA06C, params)
        self.channel = self.made(self.group or self.device, CHANNEL, self.channel_params())
        self.copy_object = self.made(self.channel, COPY, struct.pack("<II", 1, engine))
        if not group:
            assert self.control(self.channel, 0xA06F0104, struct.pack("<I", engine))[0] == OK
        assert self.schedule() == OK
        status, token = self.control(self.channel, 0xC36F0108, bytes(4))
        assert status == OK
        self.token = int(struct.unpack("<I", token)[0])
        self.usermode = self.made(self.subdevice, USERMODE, USERMODE_PARAMS)
        self.doorbell = self.view(self.usermode, 0x10000) + 0x90
        self.put = self.sequence = 0
        if set_object:
            self.run(self.method(0, COPY), self.semaphore())

    def channel_params(self, **changes: int) -> bytes:
        fields = {
            "error": self.notifier,
            "ring": self.base,
            "entries": ENTRIES,
            "flags": 1 << 7,
            "address_space": 0 if self.group else self.space,
            "userd": self.memory,
            "userd_offset": PAGE,
            "engine": self.engine,
        }
        return bytes(pack("channel_params", **{**fields, **changes}))

    def schedule(self, size: int | None = None) -> int:
        command = 0xA06C0101 if self.group else 0xA06F0103
        params = bytes([1]).ljust(size or fact("size.schedule"), b"\0")
        return self.control(self.group or self.channel, command, params)[0]

    def host(self, address: int, size: int, *, read_only: bool = False) -> tuple[int, int]:
        """(handle, GPU address) of pages of this process"""
        status, memory = self.register(address, size, HOST_FLAGS | (READ_ONLY if read_only else 0))
        assert status == OK, hex(status)
        status, mapped = self.map_dma(self.dma, memory, size, 0x10 | read_only)
        assert status == OK, hex(status)
        return memory, mapped

    def local(self, size: int) -> tuple[int, int, int]:
        """(handle, GPU address, address of a CPU mapping) of memory of the GPU"""
        params = pack(
            "memory_params",
            owner=self.client,
            attributes=2 << 27 | 1 << 23,
            size=size,
            alignment=PAGE,
        )
        memory = self.made(self.device, 0x40, bytes(params))
        status, address = self.map_dma(self.dma, memory, size)
        assert status == OK
        return memory, address, self.view(memory, -(-size // PAGE) * PAGE)

    def imported(self, fd: int, size: int = rm.BLOCK) -> int:
        """The GPU address of an exported allocation."""
        handle = next(self.handles)
        assert rm.import_fd(self.ctl, self.client, self.device, fd, handle) == (OK, 1)
        status, address = self.map_dma(self.dma, handle, size)
        assert status == OK
        return address

    def block(self, size: int = rm.BLOCK) -> tuple[int, mmap.mmap]:
        """(GPU address, the owner's view) of an exported allocation"""
        fd = rm.memory_block(0, size)
        address = self.imported(fd, size)
        owner = mmap.mmap(fd, size)
        os.close(fd)
        return address, owner

    # The method stream.

    @staticmethod
    def method(method: int, *values: int, subchannel: int = 4, kind: int = 1) -> bytes:
        header = kind << 29 | len(values) << 16 | subchannel << 13 | method >> 2
        return struct.pack(f"<{len(values) + 1}I", header, *(v & 0xFFFFFFFF for v in values))

    def payload(self, address: int | None = None, value: int | None = None) -> bytes:
        """Say where the next semaphore is, and what it shall be."""
        if address is None:
            address = self.semaphore_address
        if value is None:
            self.sequence += 1
            value = self.sequence
        return self.method(0x240, address >> 32, address, value)

    def semaphore(self, launch: int = FLUSH | SEMAPHORE) -> bytes:
        return self.payload() + self.method(0x300, launch)

    def transfer(self, to: int, source: int, size: int, launch: int = NON_PIPELINED) -> bytes:
        return (
            self.method(0x400, source >> 32, source, to >> 32, to)
            + self.method(0x418, size)
            + self.method(0x300, launch)
        )

    def copy(self, to: int, source: int, size: int) -> bytes:
        return self.payload() + self.transfer(to, source, size, NON_PIPELINED | FLUSH | SEMAPHORE)

    def push(self, *stream: bytes, entry: int | None = None) -> None:
        """Put a segment into its slot and the slot into the ring."""
        data = b"".join(stream)
        assert len(data) <= SLOT
        at = 3 * PAGE + self.put * SLOT
        ctypes.memmove(self.control_at + at, data, len(data))
        if entry is None:
            entry = self.base + at | (len(data) // 4) << 42
        ctypes.c_uint64.from_address(self.control_at + 8 * self.put).value = entry
        self.put = (self.put + 1) % ENTRIES

    def ring(self, *, put: int | None = None, token: int | None = None) -> None:
        """Tell the GPU."""
        userd = self.control_at + PAGE
        ctypes.c_uint32.from_address(userd + 0x8C).value = self.put if put is None else put
        ctypes.c_uint32.from_address(self.doorbell).value = self.token if token is None else token

    def submit(self, *stream: bytes) -> None:
        self.push(*stream)
        self.ring()

    def heard(self) -> bool:
        """Whether the GPU has looked at the doorbell, after a while."""
        return eventually(lambda: not ctypes.c_uint32.from_address(self.doorbell).value)

    def seen(self) -> int:
        return int(ctypes.c_uint32.from_address(self.words.address).value)

    def error(self) -> tuple[int, int]:
        """(status, Xid) of the notifier"""
        _, info32, _, status = struct.unpack_from("<QIHH", self.words.map, PAGE)
        return status, info32

    def done(self) -> bool:
        """Whether the last semaphore came; False if the channel died."""
        assert eventually(lambda: self.seen() == self.sequence or self.error()[0] != 0)
        return self.seen() == self.sequence

    def run(self, *stream: bytes) -> None:
        self.submit(*stream)
        assert self.done(), self.error()

    def refused(self, *stream: bytes) -> int:
        """The Xid that the stream dies of."""
        self.submit(*stream)
        assert not self.done()
        status, xid = self.error()
        assert status == CHANNEL_ERROR
        return xid
