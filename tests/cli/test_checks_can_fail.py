"""Each check of ``gdrpy validate`` sees red when what it checks is broken."""

from __future__ import annotations

import subprocess
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import gdrpy
from gdrpy.cli import checks, main
from gdrpy.cli.checks import gpu, peer, rig, sharing
from gdrpy.memory.gpu import GpuMemory

Breaker = Callable[[pytest.MonkeyPatch], None]
#: Those that need the kernel module are broken in the guest: tests/vm/inside/test_tools.py.
NAMES = [check.name for check in checks.ALL if check.backend is None]

#: The byte that is broken in whatever is copied; the middle of what is shorter than that.
BROKEN = 1000


def flipped(data: Any) -> bytearray:
    """A copy with one byte flipped."""
    broken = bytearray(memoryview(data).cast("B"))
    broken[min(BROKEN, len(broken) // 2)] ^= 0xFF
    return broken


def driver_reads_wrong(patch: pytest.MonkeyPatch) -> None:
    get = rig.Rig.get
    patch.setattr(
        rig.Rig, "get", lambda self, ptr, n: np.frombuffer(flipped(get(self, ptr, n)), np.uint8)
    )


def driver_writes_wrong(patch: pytest.MonkeyPatch) -> None:
    put = rig.Rig.put
    patch.setattr(rig.Rig, "put", lambda self, ptr, data: put(self, ptr, flipped(data)))


def mapping_reads_wrong(patch: pytest.MonkeyPatch) -> None:
    read = gdrpy.Mapping.read
    patch.setattr(gdrpy.Mapping, "read", lambda *args: bytes(flipped(read(*args))))


def mapping_writes_wrong(patch: pytest.MonkeyPatch) -> None:
    write = gdrpy.Mapping.write
    patch.setattr(
        gdrpy.Mapping, "write", lambda self, data, offset=0: write(self, flipped(data), offset)
    )


def mapping_writes_a_byte_too_many(patch: pytest.MonkeyPatch) -> None:
    write = gdrpy.Mapping.write

    def spill(self: gdrpy.Mapping, data: Any, offset: int = 0) -> None:
        beside = self.read(1, offset + len(data))[0] ^ 0xFF
        write(self, bytes(data) + bytes([beside]), offset)

    patch.setattr(gdrpy.Mapping, "write", spill)


def mapping_reads_one_byte_too_few(patch: pytest.MonkeyPatch) -> None:
    readinto = gdrpy.Mapping.readinto

    def short(self: gdrpy.Mapping, buffer: Any, offset: int = 0) -> int:
        return readinto(self, memoryview(buffer)[:-1], offset) + 1

    patch.setattr(gdrpy.Mapping, "readinto", short)


def mappings_begin_a_byte_late(patch: pytest.MonkeyPatch) -> None:
    map_ = GpuMemory.map

    def late(self: GpuMemory, offset: int, *rest: Any) -> gdrpy.Mapping:
        return map_(self, offset + (offset > 0), *rest)

    patch.setattr(GpuMemory, "map", late)


def read_only_is_ignored(patch: pytest.MonkeyPatch) -> None:
    map_ = GpuMemory.map

    def writable(
        self: GpuMemory, offset: int, nbytes: int, readonly: bool, *rest: Any
    ) -> gdrpy.Mapping:
        del readonly
        return map_(self, offset, nbytes, False, *rest)

    patch.setattr(GpuMemory, "map", writable)


def region_writes_wrong(*, cpu: bool) -> Breaker:
    """Regions with the CPU view write wrong bytes, or those without."""

    def breaker(patch: pytest.MonkeyPatch) -> None:
        write = gdrpy.Region.write

        def write_wrong(self: gdrpy.Region, data: Any, offset: int) -> None:
            write(self, flipped(data) if (self._cpu is not None) is cpu else data, offset)

        patch.setattr(gdrpy.Region, "write", write_wrong)

    return breaker


def region_reads_wrong(patch: pytest.MonkeyPatch) -> None:
    read = gdrpy.Region.read
    patch.setattr(gdrpy.Region, "read", lambda *args: bytes(flipped(read(*args))))


def region_reads_nothing(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(gdrpy.Region, "readinto", lambda *_: None)


def gpu_fills_nothing(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(rig.Rig, "on_gpu", lambda *_: None)


def gpu_does_not_wait(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(gdrpy.Flag, "stream_wait", lambda *_: None)
    # The stream has then long written its flag; make sure of it.
    write = gdrpy.Flag.stream_write

    def write_and_finish(self: gdrpy.Flag, stream: Any, value: int) -> None:
        from gdrpy import cuda

        write(self, stream, value)
        cuda.call("cuStreamSynchronize", stream)

    patch.setattr(gdrpy.Flag, "stream_write", write_and_finish)


def gpu_never_answers(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(gdrpy.Flag, "stream_write", lambda *_: None)
    patch.setattr(gpu, "FLAG_TIMEOUT", 0.01)


def second_process_runs(source: str) -> Breaker:
    """Another program in its place."""

    def breaker(patch: pytest.MonkeyPatch) -> None:
        run = subprocess.run
        patch.setattr(
            sharing.subprocess,
            "run",
            lambda command, **options: run([command[0], "-c", source], **options),
        )

    return breaker


def second_process_expects_other_bytes(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(peer, "OURS", 99)


def second_process_hangs(patch: pytest.MonkeyPatch) -> None:
    second_process_runs("import time; time.sleep(60)")(patch)
    patch.setattr(sharing, "PEER_TIMEOUT", 0.2)


WROTE_NOTHING = """print('{"cuda_loaded": false, "difference": null}')"""
LOADED_CUDA = """print('{"cuda_loaded": true, "difference": null}')"""

BREAKS: list[tuple[str, Breaker, str]] = [
    ("numpy-stores", driver_reads_wrong, "read by the driver: first differing byte at offset 1000"),
    ("numpy-loads", driver_writes_wrong, "loaded by the CPU: first differing byte at offset 1000"),
    ("mapping-write", mapping_writes_wrong, "first differing byte at offset 1000:"),
    ("mapping-both", mapping_reads_wrong, "first differing byte at offset 1000:"),
    ("mapping-read", driver_writes_wrong, "first differing byte at offset 1000:"),
    ("writes-anywhere", mapping_writes_wrong, "1 bytes at offset 64: first differing byte"),
    ("writes-anywhere", mapping_writes_a_byte_too_many, "first differing byte at offset 65:"),
    ("reads-anywhere", mapping_reads_one_byte_too_few, "1 bytes from 64: first differing byte"),
    ("sub-ranges", mappings_begin_a_byte_late, "a mapping of 1 bytes at offset 1: first"),
    ("two-mappings", mappings_begin_a_byte_late, "read by the second: first differing byte"),
    ("read-only", read_only_is_ignored, "the mapping does not call itself read-only"),
    ("second-process", second_process_expects_other_bytes, "read by the second process: first"),
    ("second-process", second_process_runs(WROTE_NOTHING), "written by the second process: first"),
    ("second-process", second_process_runs(LOADED_CUDA), "the second process loaded CUDA"),
    ("second-process", second_process_runs("1 / 0"), "status 1: ZeroDivisionError"),
    ("second-process", second_process_hangs, "did not end within 0.2 s"),
    ("gpu-writes", gpu_fills_nothing, "after cuMemsetD8: first differing byte at offset 0:"),
    ("flags-32", gpu_does_not_wait, "the stream did not wait for the CPU's flag"),
    ("flags-64", gpu_does_not_wait, "the stream did not wait for the CPU's flag"),
    ("flags-32", gpu_never_answers, "Timeout: "),
    ("flags-64", gpu_never_answers, "Timeout: "),
    (
        "region-write",
        region_writes_wrong(cpu=True),
        "both views, write of 1 bytes: first",
    ),
    ("region-write", region_writes_wrong(cpu=False), "GPU view only, write of 1 bytes: first"),
    ("region-read", region_reads_wrong, "first differing byte at offset"),
    ("region-read", region_reads_nothing, " bytes: first differing byte at offset 67:"),
    ("pin-small", mapping_reads_wrong, "allocation 0 of 4096 bytes, read: first differing"),
    ("pin-small", mapping_writes_wrong, "allocation 0 of 4096 bytes, written: first differing"),
    ("pin-interior", mapping_reads_wrong, "first differing byte at offset 13345:"),
    ("pin-interior", mapping_writes_wrong, "the whole allocation: first differing byte"),
    ("pin-large", mapping_reads_wrong, "read through the pin: first differing byte"),
    ("pin-large", mapping_writes_wrong, "written through the pin: first differing byte"),
]


class TestBrokenGround:
    @pytest.mark.parametrize(
        ("name", "breaker", "message"),
        BREAKS,
        ids=[f"{name}-{i}" for i, (name, _, _) in enumerate(BREAKS)],
    )
    def test_fails_the_check_and_says_where(self, capsys, monkeypatch, name, breaker, message):
        breaker(monkeypatch)
        assert main(["validate", "--check", name, "--size", "64K", "--seed", "1"]) == 1
        title, verdict, problem, summary = capsys.readouterr().out.splitlines()
        assert "simulated GPU" in title
        assert verdict.startswith(f"FAIL  {name}  ")
        assert message in problem
        assert summary == "0 passed, 1 failed"

    def test_exists_for_every_check(self):
        assert {name for name, _, _ in BREAKS} == set(NAMES)

    def test_json_tells_the_difference(self, json_of, monkeypatch):
        mapping_writes_wrong(monkeypatch)
        status, result = json_of("validate", "--check", "mapping-write", "--seed", "1")
        assert status == 1
        assert result["counts"] == {"passed": 0, "failed": 1, "skipped": 0}
        found = result["checks"][0]["difference"]
        assert (found["offset"], found["differing"], found["nbytes"]) == (1000, 1, 1 << 20)
        expected, got = (bytes.fromhex(found[side]) for side in ("expected", "got"))
        assert got[0] == expected[0] ^ 0xFF
        assert got[1:] == expected[1:]

    def test_does_not_keep_the_other_checks_from_running(self, json_of, monkeypatch):
        region_reads_nothing(monkeypatch)
        status, result = json_of("validate", "--size", "64K")
        assert status == 1
        failed = [one["name"] for one in result["checks"] if one["verdict"] == "failed"]
        assert failed == ["region-read"]
        assert len(result["checks"]) == len(NAMES)

    def test_gives_everything_back(self, monkeypatch, no_descriptors_leak):
        del no_descriptors_leak
        driver_reads_wrong(monkeypatch)
        for name in ("numpy-stores", "sub-ranges", "pin-large"):
            check = checks.ALL[NAMES.index(name)]
            result = checks.run(check, checks.Settings(0, None, 4096, 1))
            assert result.verdict is checks.Verdict.FAILED
            assert "cleaning up" not in result.message

    def test_of_memory_that_cannot_be_given_back_fails_too(self):
        kept = []
        check = checks.Check("keeps", "a view", lambda r: kept.append(r.region().numpy()))
        result = checks.run(check, checks.Settings(0, None, 4096, 1))
        assert result.verdict is checks.Verdict.FAILED
        assert result.message.startswith("cleaning up: BufferError: ")
        kept.clear()
