"""Regions seen by another GPU than the one that they lie on, on two simulated ones."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

#: Begins each program: what one device may do at an address, whether it has a context, a process.
PREAMBLE = """
import gc, os, subprocess, sys
import gdrpy
from gdrpy import cuda, sim

def rights(region):
    location = cuda.driver().CUmemLocation()
    location.type = cuda.driver().CUmemLocationType.CU_MEM_LOCATION_TYPE_DEVICE
    found = []
    for location.id in range(2):
        found.append(int(cuda.call("cuMemGetAccess", location, region.ptr)))
    return found

def refusal(call):
    before = len(os.listdir("/proc/self/fd")), open("/proc/self/maps").read().count("gdrpy-sim")
    try:
        call()
    except Exception as error:
        print(type(error).__name__, error)
    gc.collect()
    after = len(os.listdir("/proc/self/fd")), open("/proc/self/maps").read().count("gdrpy-sim")
    print("left behind:", *(b - a for a, b in zip(before, after)))
"""


def run(code: str, **environment: str) -> list[str]:
    """The lines that a program prints on two simulated GPUs."""
    path = os.pathsep.join([str(Path(__file__).parents[1]), *sys.path])
    done = subprocess.run(
        [sys.executable, "-c", PREAMBLE + code],
        env=os.environ | {"GDRPY_SIM_DEVICES": "2", "PYTHONPATH": path} | environment,
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    assert done.stderr == ""
    return done.stdout.splitlines()


OPENED = """
fd = gdrpy.alloc(1 << 20, 0, gpu=False).export()
region = gdrpy.Region.from_fd(fd, device=%s)
"""


class TestViewOnAnotherGpu:
    @pytest.mark.parametrize(
        "device", ["1", "'GPU-67647270-7920-7369-6d75-6c6174656401'", "'0000:02:00.0'"]
    )
    def test_is_of_the_gpu_that_was_named_and_both_may_use_it(self, device: str) -> None:
        code = """
print(region.device, region.location, rights(region), cuda.has_context(0))
"""
        assert run(OPENED % device + code) == ["1 simulated GPU 0 [3, 3] False"]

    def test_shows_the_same_bytes_and_copies_by_its_own_gpu(self) -> None:
        code = """
with gdrpy.Region.from_fd(fd) as home:
    region.fill(7)
    print(home.read(3, 1 << 19), home.device)
    home.write(b"hello")
    with gdrpy.Region.from_fd(fd, cpu=False, device=1) as bare:
        print(bare.read(5), bare.device, rights(bare))
        bare.write(b"world")
    print(region.cpu.read(5), region.flag().ptr == region.ptr)
"""
        assert run(OPENED % 1 + code) == [
            "b'\\x07\\x07\\x07' 0",
            "b'hello' 1 [3, 3]",
            "b'world' True",
        ]

    def test_takes_arrays_of_either_gpu_without_the_host(self) -> None:
        code = """
for device in range(2):
    with gdrpy.alloc(4096, device) as other:
        other.fill(device + 1)
        before = sim.call_count("cuMemcpyAsync")
        region.array(4096, "U8").write(other)
        print(sim.call_count("cuMemcpyAsync") - before, region.cpu.read(2))
print(sim.call_count("cuMemHostAlloc"))
"""
        assert run(OPENED % 1 + code) == ["1 b'\\x01\\x01'", "1 b'\\x02\\x02'", "0"]

    @pytest.mark.parametrize("device", [0, 1])
    def test_that_is_dropped_stays_until_the_work_of_either_gpu_is_done(self, device: int) -> None:
        code = f"""
from gdrpy.memory import reclaim as _reclaim
bell = gdrpy.alloc(4096, {device})
bell.fill(0)
region.fill(0)
with cuda.context({device}):
    stream = cuda.call("cuStreamCreate", 1)
    bell.flag().stream_wait(stream, 1)
    cuda.call("cuMemsetD8Async", region.ptr, 9, 1 << 20, stream)
del region
gc.collect()
look = gdrpy.Region.from_fd(fd, gpu=False)
print(look.read(1), _reclaim.reclaim(0))
bell.flag().set(1)
with cuda.context({device}):
    cuda.call("cuStreamSynchronize", stream)
print(look.read(1), _reclaim.reclaim(0, wait=True), _reclaim.reclaim(0))
"""
        assert run(OPENED % 1 + code) == ["b'\\x00' False", "b'\\t' True False"]

    def test_of_a_fabric_handle_is_usable_by_both(self) -> None:
        code = """
with gdrpy.alloc(5000, 0, fabric=True) as made:
    with gdrpy.Region.from_fabric(made.export_fabric(), 5000, 1) as other:
        other.write(b"hello")
        print(other.device, other.location, rights(other), made.cpu.read(5))
"""
        assert run(code, GDRPY_SIM_FABRIC="1") == ["1 simulated GPU 0 [3, 3] b'hello'"]

    def test_arrives_in_another_process_as_a_view_of_the_memorys_own_gpu(self) -> None:
        code = """
import multiprocessing
from multiprocessing.reduction import ForkingPickler
import pickle
arrived = pickle.loads(ForkingPickler.dumps(region))
print(arrived.device)
"""
        assert run(OPENED % 1 + code) == ["0"]


class TestGpuWithoutAWay:
    @pytest.mark.parametrize(
        ("call", "program"),
        [
            ("Region.from_fd", "gdrpy.Region.from_fd(fd, device=1)"),
            ("Region.from_fabric", "gdrpy.Region.from_fabric(made.export_fabric(), 4096, 1)"),
        ],
    )
    def test_is_refused_with_the_reason(self, call: str, program: str) -> None:
        code = f"""
made = gdrpy.alloc(4096, 0, fabric=True)
fd = made.export()
gdrpy.alloc(4096, 1).close()
refusal(lambda: {program})
with gdrpy.Region.from_fd(fd, device=0) as region:
    print(region.device)
"""
        assert run(code, GDRPY_SIM_PEERS="0", GDRPY_SIM_FABRIC="1") == [
            f"BackendUnavailable {call}: GPU 1 cannot reach the memory of GPU 0, where this memory "
            "lies (cuDeviceCanAccessPeer says 0; nvidia-smi topo -p2p r shows the links): open it "
            "on GPU 0, or copy it",
            "left behind: 0 0",
            "0",
        ]


#: What a process does that sees GPU 0 alone, with memory of GPU 1.
BLIND = """
fd = int(sys.argv[1])
gdrpy.alloc(4096).close()
refusal(lambda: gdrpy.Region.from_fd(fd))
refusal(lambda: gdrpy.Region.from_fd(fd, device=0))
print(gdrpy.Region.from_fd(fd, gpu=False).location)
"""


class TestGpuThatIsNotSeen:
    def test_is_told_with_the_remedy(self) -> None:
        code = f"""
fd = gdrpy.alloc(4096, 1).export()
subprocess.run(
    [sys.executable, "-c", {PREAMBLE + BLIND!r}, str(fd)],
    pass_fds=[fd],
    env=os.environ | {{"GDRPY_SIM_DEVICES": "1"}},
)
"""
        said = (
            "NotFound Region.from_fd: the memory lies on a GPU that this process does not see: "
            "add it to CUDA_VISIBLE_DEVICES and to the container's GPUs, or open with gpu=False"
        )
        assert run(code) == [*[said, "left behind: 0 0"] * 2, "simulated GPU 1"]


class TestTorchsNames:
    def test_are_of_this_process(self) -> None:
        code = """
from gdrpy.broker import temporary
with gdrpy.alloc(4096, "cuda:1") as region:
    print(region.device, gdrpy.Region.from_fd(region.export(), device="cuda:0").device)
print(gdrpy.alloc(4096, "cuda").device)
with cuda.context(1):
    print(gdrpy.alloc(4096, "cuda").device, gdrpy.page_locked(4096, "cuda").device)
with temporary("--keeper", "none") as path, gdrpy.connect(path) as broker:
    for device in ("cuda:1", "cuda"):
        with broker.allocate(None, 4096, device) as region:
            print(region.info().device)
    with cuda.context(1), broker.create("there", 4096, "cuda") as region:
        print(region.info().device, region.publish())
    print(broker.get("there", device="cuda:0").device)
refusal(lambda: gdrpy.alloc(4096, "cuda:2"))
"""
        *said, refused, left = run(code)
        assert said == ["1 0", "0", "1 1", "1", "0", "1 1", "0"]
        assert refused.startswith("NotFound alloc: there is no CUDA device 2: this process sees 2")
        assert left == "left behind: 0 0"


class TestArguments:
    def test_are_checked_before_anything_is_touched(self) -> None:
        code = """
for how in ({"device": 1, "gpu": False}, {"device": "cpu"}, {"device": 1.5}, {"device": 7}):
    refusal(lambda: gdrpy.Region.from_fd(fd, **how))
"""
        said = run(OPENED % 1 + code)
        assert said[1::2] == ["left behind: 0 0"] * 4
        assert [line.partition(", a GPU")[0] for line in said[::2]] == [
            "ValueError Region.from_fd: device=1 chooses the GPU of the GPU view, which gpu=False "
            "leaves out",
            "ValueError Region.from_fd: device must be a CUDA ordinal",
            "TypeError Region.from_fd: device must be a CUDA ordinal",
            "NotFound Region.from_fd: there is no CUDA device 7: this process sees 2, numbered "
            "from 0: name one of them, or check CUDA_VISIBLE_DEVICES and the GPUs given to "
            "the container",
        ]


#: Opens a region by its name, which lies on a GPU that it does not see.
BLIND_CLIENT = """
import warnings
broker = gdrpy.connect(sys.argv[1])
with warnings.catch_warnings(record=True) as caught:
    warnings.simplefilter("always")
    region = broker.get("there")
print(*[one.message for one in caught])
print(*[one.filename for one in caught])
print(region.read(4), region.device)
refusal(lambda: region.ptr)
refusal(lambda: broker.get("there", cpu=False))
refusal(lambda: broker.get("there", device=0, cpu=False))
"""


class TestBroker:
    def test_opens_memory_of_a_gpu_that_is_not_seen_for_the_cpu_and_says_so(self) -> None:
        code = f"""
from gdrpy.broker import temporary
with temporary("--keeper", "none") as path, gdrpy.connect(path) as broker:
    with broker.allocate("there", 4096, 1) as region:
        region.write(b"seen")
        print(cuda.uuid(1))
        sys.stdout.flush()
        subprocess.run(
            [sys.executable, "-c", {PREAMBLE + BLIND_CLIENT!r}, path],
            env=os.environ | {{"GDRPY_SIM_DEVICES": "1"}},
        )
"""
        uuid, warned, place, read, *refused = run(code)
        words = (
            f"the memory lies on the GPU {uuid} that this process does not see: add it to "
            f"CUDA_VISIBLE_DEVICES and to the container's GPUs"
        )
        assert warned == (
            f"opening region 'there' with its CPU view alone: {words}, or open it with gpu=False"
        )
        assert place == "<string>"
        assert read == "b'seen' None"
        assert refused[0] == f"MissingView Region.ptr: {words}"
        assert refused[2] == f"NotFound opening region 'there': {words}, or open with gpu=False"

    def test_makes_regions_on_a_gpu_by_its_uuid_and_tells_it(self) -> None:
        code = """
from gdrpy.broker import temporary
with temporary("--keeper", "none") as path, gdrpy.connect(path) as broker:
    for device in (cuda.uuid(1), "02:00.0"):
        with broker.allocate("there", 4096, device) as region:
            told = region.info()
            print(region.device, told.device, told.uuid == cuda.uuid(1))
    print(broker.rounded_size(1, cuda.uuid(1)), broker.status()["uuids"]["1"] == cuda.uuid(1))
    (listed,) = broker.list()
    print(listed.uuid == cuda.uuid(1), broker.put("host", b"x", "cpu").info().uuid)
    refusal(lambda: broker.allocate("there", 4096, cuda.uuid(0)))
    refusal(lambda: broker.allocate("else", 4096, "GPU-00000000-0000-0000-0000-000000000007"))
    refusal(lambda: broker.allocate("else", 4096, "GPU-7"))
"""
        said = run(code)
        assert said[:4] == ["1 1 True", "1 1 True", f"{2 << 20} True", "True None"]
        assert [line for line in said[4:] if line != "left behind: 0 0"] == [
            "SizeMismatch allocate: region 'there' exists with 4096 bytes on GPU 1, and 4096 "
            "bytes on GPU 0 were asked for: ask for what exists, delete it first, or take another "
            "name",
            "NotFound allocate: the broker sees no GPU GPU-00000000-0000-0000-0000-000000000007, "
            "but GPU-67647270-7920-7369-6d75-6c6174656400 (GPU 0), "
            "GPU-67647270-7920-7369-6d75-6c6174656401 (GPU 1): name one that it sees, or "
            "give the broker GPU-00000000-0000-0000-0000-000000000007 too",
            "ValueError allocate: device must be a CUDA ordinal, a GPU's UUID ('GPU-...' as "
            "nvidia-smi -L lists it), its PCI address ('0000:3b:00.0'), torch's name ('cuda:0') "
            "or 'cpu', not 'GPU-7'",
        ]

    def test_grants_are_opened_on_the_gpu_that_was_named(self) -> None:
        code = """
import asyncio
from gdrpy.broker import temporary
async def get(path):
    async with await gdrpy.aio.connect(path) as broker:
        print((await broker.get("there", device=1)).device)
with temporary("--keeper", "none") as path, gdrpy.connect(path) as broker:
    broker.put("there", b"hello").close()
    region = broker.get("there", device=1, wait=1)
    print(region.device, region.read(5), rights(region))
    (many,) = broker.get_many(["there"], device="0000:02:00.0", cpu=False)
    print(many.device, broker.get("there").device)
    asyncio.run(get(path))
    refusal(lambda: broker.get("there", gpu=False, device=1))
"""
        assert run(code) == [
            "1 b'hello' [3, 3]",
            "1 0",
            "1",
            "ValueError get: device=1 chooses the GPU of the GPU view, which gpu=False leaves out",
            "left behind: 0 0",
        ]
