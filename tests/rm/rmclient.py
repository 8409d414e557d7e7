"""A client of the resource manager in plain ioctls, for the tests of the simulated one.

Packs its structures by hand from the documented offsets. Every call returns the status that the
structure came back with, beside what the call produces; a refused ioctl raises OSError.
"""

import ctypes
import fcntl
import os
import struct
from collections.abc import Iterator
from contextlib import contextmanager

CONTROL = "/dev/nvidiactl"
PAGE = 4096
BLOCK = 2 << 20

OK = 0
INSERT_DUPLICATE_NAME = 0x19
INVALID_ADDRESS = 0x1E
INVALID_ARGUMENT = 0x1F
INVALID_BASE = 0x20
INVALID_CLASS = 0x22
INVALID_CLIENT = 0x23
INVALID_FLAGS = 0x29
INVALID_LIMIT = 0x2E
INVALID_OBJECT_HANDLE = 0x33
INVALID_OBJECT_PARENT = 0x36
INVALID_PARAMETER = 0x3B
INVALID_STATE = 0x40
NO_MEMORY = 0x51
NOT_SUPPORTED = 0x56
OBJECT_NOT_FOUND = 0x57
OUT_OF_RANGE = 0x5B
STATE_IN_USE = 0x63

libc = ctypes.CDLL(None, use_errno=True)
libc.mmap.restype = ctypes.c_void_p
libc.mmap.argtypes = [
    ctypes.c_void_p,
    ctypes.c_size_t,
    ctypes.c_int,
    ctypes.c_int,
    ctypes.c_int,
    ctypes.c_long,
]
libc.munmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t]


def count(what: str) -> int:
    return int(libc.fakerm_count(what.encode()))


def counts() -> dict[str, int]:
    """What is alive, without the zeros."""
    words = ["clients", "devices", "objects", "mappings", "views", "files", "violations"]
    words += ["parts", "channels", "dma_mappings"]
    return {word: count(word) for word in words if count(word)}


def violation(index: int) -> str | None:
    libc.fakerm_violation.restype = ctypes.c_char_p
    text = libc.fakerm_violation(index)
    return None if text is None else text.decode()


def violations() -> list[str]:
    return [text for i in range(count("violations")) if (text := violation(i)) is not None]


def set_fault(specification: str) -> int:
    return int(libc.fakerm_set_fault(specification.encode()))


def pass_time(seconds: int, at_look: bool = False) -> None:
    """Have so many seconds pass for the hardware and the C core: now, or when it looks next."""
    libc.fakerm_pass_time(seconds, at_look)


def request(number: int, size: int) -> int:
    """_IOWR('F', number, <size bytes>)"""
    return 3 << 30 | size << 16 | ord("F") << 8 | number


def call(fd: int, number: int, data: bytes) -> bytes:
    buffer = bytearray(data)
    fcntl.ioctl(fd, request(number, len(buffer)), buffer)
    return bytes(buffer)


def memory_block(device: int = 0, size: int = BLOCK) -> int:
    """A descriptor of memory of the simulated GPU, as an exported allocation is."""
    fd = os.memfd_create(f"gdrpy-sim-dev{device}", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    os.ftruncate(fd, size)
    fcntl.fcntl(fd, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW)
    return fd


def open_control() -> int:
    return os.open(CONTROL, os.O_RDWR)


def open_minor(minor: int) -> int:
    return os.open(f"/dev/nvidia{minor}", os.O_RDWR)


def alloc_client(ctl: int) -> tuple[int, int]:
    """(status, client)"""
    fields = struct.unpack(
        "<IIIIQII", call(ctl, 0x2B, struct.pack("<IIIIQII", *[0] * 3, 0x41, *[0] * 3))
    )
    return fields[6], fields[2]


def device_params(instance: int, share: int = 0) -> ctypes.Array[ctypes.c_char]:
    return ctypes.create_string_buffer(struct.pack("<II", instance, share), 56)


def alloc_device(ctl: int, client: int, instance: int, handle: int = 0xD0) -> tuple[int, int]:
    """(status, device)"""
    params = device_params(instance)
    data = struct.pack("<IIIIQII", client, client, handle, 0x80, ctypes.addressof(params), 56, 0)
    fields = struct.unpack("<IIIIQII", call(ctl, 0x2B, data))
    return fields[6], fields[2]


def control(
    ctl: int, client: int, command: int, params: bytes, *, target: int | None = None, flags: int = 0
) -> tuple[int, bytes]:
    """(status, params)"""
    buffer = ctypes.create_string_buffer(params, len(params))
    target = client if target is None else target
    data = struct.pack(
        "<IIIIQII", client, target, command, flags, ctypes.addressof(buffer), len(params), 0
    )
    status = struct.unpack("<IIIIQII", call(ctl, 0x2A, data))[6]
    return status, buffer.raw


def export_info(ctl: int, client: int, fd: int) -> tuple[int, int, int]:
    """(status, device instance, GPU instance id)"""
    status, params = control(ctl, client, 0x3D08, struct.pack("<i76x", fd))
    return status, *struct.unpack_from("<II", params, 4)


def cards(ctl: int) -> list[tuple[int, int, int]]:
    """(bus, GPU id, minor) of each valid card"""
    data = call(ctl, 200, bytes(32 * 72))
    entries = [data[at : at + 72] for at in range(0, len(data), 72)]
    return [
        (entry[8], *struct.unpack_from("<I", entry, 16), *struct.unpack_from("<I", entry, 56))
        for entry in entries
        if entry[0]
    ]


def instance_of_gpu(ctl: int, client: int, gpu_id: int) -> tuple[int, int]:
    """(status, device instance)"""
    status, params = control(ctl, client, 0x205, struct.pack("<I28x", gpu_id))
    return status, struct.unpack_from("<I", params, 8)[0]


def import_many_params(fd: int, parent: int, handle: int, number: int = 1, index: int = 0) -> bytes:
    return struct.pack("<iII508x128xHH", fd, parent, handle, number, index)


def import_fd(ctl: int, client: int, device: int, fd: int, handle: int = 0xE0) -> tuple[int, int]:
    """(status, memory type)"""
    status, params = control(ctl, client, 0x3D0C, import_many_params(fd, device, handle))
    return status, params[520]


def dup_object(
    ctl: int, client: int, device: int, source: tuple[int, int], handle: int = 0xE2, flags: int = 0
) -> int:
    """Duplicate what the (pid, descriptor) of a legacy IPC handle names."""
    pid, fd = source
    return dup_of_client(ctl, client, device, (0xC1000000 | pid, fd), handle, flags)


def dup_of_client(
    ctl: int, client: int, device: int, source: tuple[int, int], handle: int = 0xE2, flags: int = 0
) -> int:
    """Duplicate what a (client, object) names."""
    data = struct.pack("<7I", client, device, handle, *source, flags, 0)
    return int(struct.unpack("<7I", call(ctl, 0x34, data))[6])


def surface_size(ctl: int, client: int, memory: int) -> tuple[int, int, int]:
    """(status, size in bytes from its two halves, size from its 4 KiB units)"""
    items = ctypes.create_string_buffer(struct.pack("<6I", 2, 0, 3, 0, 7, 0), 24)
    params = struct.pack("<I4xQ", 3, ctypes.addressof(items))
    status, _ = control(ctl, client, 0x410110, params, target=memory)
    values = struct.unpack("<6I", items.raw)
    return status, values[1] | values[3] << 32, values[5] * PAGE


def map_memory(
    ctl: int,
    client: int,
    device: int,
    memory: int,
    mfd: int,
    offset: int = 0,
    length: int = BLOCK,
    flags: int = 0,
) -> tuple[int, int]:
    """(status, linear address)"""
    data = struct.pack("<IIIIQQQIIi4x", client, device, memory, 0, offset, length, 0, 0, flags, mfd)
    fields = struct.unpack("<IIIIQQQIIi4x", call(ctl, 0x4E, data))
    return fields[7], fields[6]


def unmap_memory(ctl: int, client: int, device: int, memory: int, linear: int) -> int:
    data = struct.pack("<IIIIQII", client, device, memory, 0, linear, 0, 0)
    return int(struct.unpack("<IIIIQII", call(ctl, 0x4F, data))[5])


def free(ctl: int, client: int, parent: int, handle: int) -> int:
    return int(
        struct.unpack("<IIII", call(ctl, 0x29, struct.pack("<IIII", client, parent, handle, 0)))[3]
    )


def mmap(fd: int, length: int, *, flags: int = 1, offset: int = 0, protection: int = 3) -> int:
    """mmap, MAP_SHARED and read-write unless told; the address, and nobody unmaps it but munmap."""
    address = libc.mmap(None, length, protection, flags, fd, offset)
    if address == ctypes.c_void_p(-1).value:
        error = ctypes.get_errno()
        raise OSError(error, os.strerror(error))
    return int(address)


def munmap(address: int, length: int) -> None:
    if libc.munmap(address, length):
        error = ctypes.get_errno()
        raise OSError(error, os.strerror(error))


class Session:
    """A client with a device object of one GPU, for tests of what comes after."""

    def __init__(self, instance: int = 0) -> None:
        self.ctl = open_control()
        status, self.client = alloc_client(self.ctl)
        assert status == OK
        gpus = {instance_of_gpu(self.ctl, self.client, gpu)[1]: m for _, gpu, m in cards(self.ctl)}
        self.minor = gpus[instance]
        status, self.device = alloc_device(self.ctl, self.client, instance)
        assert status == OK

    def import_fd(self, fd: int, handle: int = 0xE0) -> int:
        status, kind = import_fd(self.ctl, self.client, self.device, fd, handle)
        assert (status, kind) == (OK, 1)
        return handle

    def map(self, memory: int, offset: int = 0, length: int = BLOCK) -> tuple[int, int]:
        """(linear address, view)"""
        mfd = open_minor(self.minor)
        status, linear = map_memory(self.ctl, self.client, self.device, memory, mfd, offset, length)
        assert status == OK
        view = mmap(mfd, length)
        os.close(mfd)
        return linear, view

    def unmap(self, memory: int, linear: int) -> int:
        return unmap_memory(self.ctl, self.client, self.device, memory, linear)

    def free(self, memory: int) -> int:
        return free(self.ctl, self.client, self.device, memory)

    def close(self) -> None:
        assert free(self.ctl, self.client, 0, self.client) == OK
        os.close(self.ctl)


@contextmanager
def session(instance: int = 0) -> Iterator[Session]:
    opened = Session(instance)
    try:
        yield opened
    finally:
        opened.close()
