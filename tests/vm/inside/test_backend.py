"""The gdrdrv backend, as Python sees it: on this project's module, and on one without its features.

What every backend does is in tests/contract, which runs here too.
"""

from __future__ import annotations

import errno
import os
import resource
import select
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import standin
from standin import Mode

import gdrpy
from gdrpy import cuda
from gdrpy._core.calls import ffi, lib
from gdrpy.memory import node
from gdrpy.memory.backends import ALL
from gdrpy.memory.view import MappingType
from support import hide_features, open_descriptors

MIB = 1 << 20
QUOTA = Path("/sys/module/gdrdrv/parameters/max_pinned_mib")


@pytest.fixture(autouse=True)
def context(nothing_left: None) -> Iterator[None]:
    with cuda.context(0):
        yield


@pytest.fixture
def pointer(context: None) -> Iterator[int]:
    """A block of 2 MiB of its own; the test frees it, or this does."""
    pointer = int(cuda.call("cuMemAlloc", 2 * MIB))
    yield pointer
    if standin.stats().registrations:
        cuda.call("cuMemFree", pointer)


@pytest.fixture
def gdr(pointer: int) -> Iterator[gdrpy.Gdr]:
    with gdrpy.open() as gdr:
        yield gdr


@pytest.fixture
def nvidias(monkeypatch: pytest.MonkeyPatch) -> None:
    """The module seems to be NVIDIA's."""
    hide_features(monkeypatch)


def readable(gdr: gdrpy.Gdr) -> bool:
    return bool(select.select([gdr], [], [], 0)[0])


def run(script: str, *arguments: object, pass_fds: tuple[int, ...] = ()) -> str:
    """What a script prints in a process of its own."""
    done = subprocess.run(
        [sys.executable, "-c", "import gdrpy, os, sys\n" + script, *map(str, arguments)],
        pass_fds=pass_fds,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


class TestChoice:
    def test_falls_on_the_module_where_it_can_pin_the_memory(self) -> None:
        with gdrpy.alloc(MIB) as region:
            assert region.cpu.backend == "gdrdrv"
            assert region.cpu.mapping_type is MappingType.WRITE_COMBINED

    def test_falls_on_another_backend_for_a_region_without_gpu_view(self) -> None:
        with gdrpy.alloc(MIB, gpu=False) as region:
            assert region.cpu.backend == "sim"

    def test_is_told_by_info_with_the_modules_version(self) -> None:
        status = ALL["gdrdrv"].status(0)
        version = Path("/sys/module/gdrdrv/version").read_text().strip()
        assert status.usable
        assert status.reason == f"gdrpy's gdrdrv, version {version}, ABI 2.6"

    def test_of_a_module_without_features_is_called_nvidias(self, nvidias: None) -> None:
        assert ALL["gdrdrv"].status(0).reason.startswith("NVIDIA's gdrdrv, version ")


class TestMapping:
    def test_is_write_combined_in_the_page_tables(self) -> None:
        with gdrpy.alloc(MIB) as region:
            region.write(b"\xff" * MIB)
            for offset in range(0, MIB, 4096):
                assert standin.pte(region.cpu.address + offset).mode == Mode.WC

    def test_of_a_part_is_that_part(self, gdr: gdrpy.Gdr, pointer: int) -> None:
        with gdr.pin(pointer + 100_000, 50_000) as pin, pin.map(10_001, 20) as part:
            part.write(b"a part of a pin")
            with pin.map() as whole:
                assert whole.read(15, 10_001) == b"a part of a pin"

    def test_read_only_has_no_writable_page(self, gdr: gdrpy.Gdr, pointer: int) -> None:
        with gdr.pin(pointer, MIB) as pin, pin.map(readonly=True) as mapping:
            mapping.read(4)
            assert not standin.pte(mapping.address).writable

    def test_info_is_what_the_kernel_says(self, gdr: gdrpy.Gdr, pointer: int) -> None:
        with gdr.pin(pointer + 70_000, 10) as pin:
            assert pin.info == gdrpy.pins.PinInfo(pointer + 65_536, 65_536, 65_536, False, None)
            told = ffi.new("struct core_pin_info *")
            assert lib.core_node_info(gdr._open_node().struct, pin._memory.handle, told) == 0
            assert (told.va, told.nbytes) == (pin.info.va, pin.info.mapped_size)


class TestPin:
    def test_that_finds_no_free_descriptor_is_given_back(
        self, gdr: gdrpy.Gdr, pointer: int
    ) -> None:
        gdr.pin(pointer, 4096).close()  # opens the node
        before = standin.live()
        unused = os.dup(0)
        os.close(unused)
        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        resource.setrlimit(resource.RLIMIT_NOFILE, (unused, hard))
        try:
            with pytest.raises(gdrpy.DriverError, match="Too many open files") as caught:
                gdr.pin(pointer, 4096)
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
        assert caught.value.errno == errno.EMFILE
        assert standin.live() == before

    def test_is_kept_by_a_mapping_after_everything_else_is_closed(self, pointer: int) -> None:
        with gdrpy.open() as gdr:
            mapping = gdr.pin(pointer, 4096).map()
        mapping.write(b"kept")
        assert mapping.read(4) == b"kept"
        mapping.close()
        assert node.PATH not in open_descriptors().values()


class TestRevocablePin:
    def test_is_told_of_once_by_an_event(self, gdr: gdrpy.Gdr, pointer: int) -> None:
        with gdr.pin(pointer, MIB, revocable=True) as pin:
            assert not pin.attributes.persistent
            assert (readable(gdr), gdr.events(), pin.revoked) == (False, [], False)
            cuda.call("cuMemFree", pointer)
            assert readable(gdr)
            assert gdr.events() == [gdrpy.pins.Revocation(pin)]
            assert (readable(gdr), gdr.events(), pin.revoked) == (False, [], True)

    def test_raises_revoked_once_it_is_known(self, gdr: gdrpy.Gdr, pointer: int) -> None:
        with gdr.pin(pointer, MIB, revocable=True) as pin, pin.map() as mapping:
            flag = mapping.flag()
            cuda.call("cuMemFree", pointer)
            assert pin.revoked
            for use in (
                lambda: mapping.write(b"x"),
                lambda: mapping.read(1),
                lambda: mapping.store(0, 1),
                lambda: flag.set(1),
                lambda: flag.wait(1),
                lambda: memoryview(mapping),
                lambda: pin.map(),
                lambda: pin.export(),
            ):
                with pytest.raises(gdrpy.Revoked, match="freed by its owner"):
                    use()

    def test_shows_zeros_to_views_made_before(self, gdr: gdrpy.Gdr, pointer: int) -> None:
        with gdr.pin(pointer, MIB, revocable=True) as pin, pin.map() as mapping:
            array = mapping.numpy()
            array[5000] = 7
            cuda.call("cuMemFree", pointer)
            assert array[5000] == 0
            array[5000] = 9  # into a page of its own
            assert standin.live() == (0, 0, 0, 0)
            del array

    def test_kills_by_sigbus_where_that_was_asked_for(self) -> None:
        script = """
from gdrpy import cuda
with cuda.context(0):
    pointer = int(cuda.call("cuMemAlloc", 2 << 20))
pin = gdrpy.open().pin(pointer, 4096, revocable=True, sigbus=True)
array = pin.map().numpy()
array[0] = 1
with cuda.context(0):
    cuda.call("cuMemFree", pointer)
array[0] = 2
"""
        done = subprocess.run([sys.executable, "-c", "import gdrpy\n" + script])
        assert done.returncode == -signal.SIGBUS

    def test_wait_ends_when_another_thread_learns_of_it(self, gdr: gdrpy.Gdr, pointer: int) -> None:
        import threading

        with gdr.pin(pointer, MIB, revocable=True) as pin, pin.map() as mapping:
            flag = mapping.flag()

            def free() -> None:
                with cuda.context(0):
                    cuda.call("cuMemFree", pointer)
                gdr.events()

            thread = threading.Thread(target=free)
            thread.start()
            with pytest.raises(gdrpy.Revoked):
                flag.wait(1)
            thread.join()

    def test_of_which_too_many_end_at_once_are_all_told(self, gdr: gdrpy.Gdr, pointer: int) -> None:
        pins = [gdr.pin(pointer, 4096, revocable=True) for _ in range(300)]
        cuda.call("cuMemFree", pointer)
        told = [revocation.pin for revocation in gdr.events()]
        assert len(told) == 300
        assert set(told) == set(pins)
        assert gdr.events() == []

    def test_closed_in_time_is_not_told(self, gdr: gdrpy.Gdr, pointer: int) -> None:
        gdr.pin(pointer, 4096, revocable=True).close()
        cuda.call("cuMemFree", pointer)
        assert gdr.events() == []

    def test_is_not_what_a_pin_is_by_default(self, gdr: gdrpy.Gdr, pointer: int) -> None:
        with gdr.pin(pointer, MIB) as pin, pin.map() as mapping:
            mapping.write(b"kept")
            cuda.call("cuMemFree", pointer)
            assert (gdr.events(), pin.revoked, mapping.read(4)) == ([], False, b"kept")

    def test_is_refused_by_backends_that_have_none(self, pointer: int) -> None:
        with (
            gdrpy.open(backend="sim") as gdr,
            pytest.raises(gdrpy.BackendUnavailable, match="its pins cannot be revoked"),
        ):
            gdr.pin(pointer, MIB, revocable=True)


class TestSharedPin:
    def test_is_mapped_by_a_process_without_cuda(self, gdr: gdrpy.Gdr, pointer: int) -> None:
        with gdr.pin(pointer + 65_536 + 8, 100) as pin, pin.map() as mapping:
            fd = pin.export()
            offset = pin.ptr - pin.info.va
            told = run(
                """
fd, offset = map(int, sys.argv[1:])
with gdrpy.Region.from_fd(fd, gpu=False) as region:
    region.write(b"stored by another process", offset)
    print(region.nbytes, region.cpu.backend, "cuda" in sys.modules)
""",
                fd,
                offset,
                pass_fds=(fd,),
            )
            os.close(fd)
            assert told == "65536 gdrdrv False\n"
            assert mapping.read(25) == b"stored by another process"

    def test_read_only_is_read_only_in_the_kernel(self, gdr: gdrpy.Gdr, pointer: int) -> None:
        with gdr.pin(pointer, 4096) as pin, pin.map() as mapping:
            mapping.write(b"look")
            fd = pin.export(readonly=True)
            with pytest.raises(gdrpy.PermissionDenied, match="shared read-only"):
                gdrpy.Region.from_fd(fd, gpu=False)
            with gdrpy.Region.from_fd(fd, gpu=False, readonly=True) as reader:
                assert reader.read(4) == b"look"
            os.close(fd)

    def test_has_no_gpu_view(self, gdr: gdrpy.Gdr, pointer: int) -> None:
        with gdr.pin(pointer, 4096) as pin:
            fd = pin.export()
            with pytest.raises(gdrpy.InvalidHandle, match="is a share of a pin, which CUDA"):
                gdrpy.Region.from_fd(fd)
            os.close(fd)

    def test_tells_its_holders_when_the_pin_has_ended(self, gdr: gdrpy.Gdr, pointer: int) -> None:
        pin = gdr.pin(pointer, 4096)
        fd = pin.export()
        with gdrpy.Region.from_fd(fd, gpu=False) as region:
            region.write(b"now")
            assert not region.revoked
            view = memoryview(region.cpu)
            pin.close()
            assert view[0] == 0
            assert region.revoked
            with pytest.raises(gdrpy.Revoked):
                region.write(b"then")
            del view
            with pytest.raises(gdrpy.Revoked):
                gdrpy.Region.from_fd(fd, gpu=False)
        os.close(fd)


class TestForkedChild:
    def test_does_not_keep_the_parents_node(self, gdr: gdrpy.Gdr, pointer: int) -> None:
        with gdr.pin(pointer, 4096), gdrpy.alloc(MIB):
            assert node.PATH in open_descriptors().values()
            child = os.fork()
            if not child:
                os._exit(node.PATH in open_descriptors().values())
            assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


class TestUser:
    @pytest.fixture
    def quota(self) -> Iterator[None]:
        """1 MiB for each user but root."""
        QUOTA.write_text("1")
        yield
        QUOTA.write_text("0")

    def test_who_pins_more_than_allowed_is_told_so(self, quota: None) -> None:
        told = run(
            """
gdrpy.rounded_size(1), gdrpy.alloc, gdrpy.open  # loaded from where the other user may not read
os.setuid(65534)
with gdrpy.alloc(1 << 20, cpu=False) as region, gdrpy.open() as gdr:
    for size in (1 << 20, (1 << 20) + 1):
        try:
            gdr.pin(region.ptr, size).close()
            print("pinned")
        except gdrpy.OutOfMemory as error:
            print("max_pinned_mib" in str(error))
"""
        )
        assert told == "pinned\nTrue\n"

    def test_without_permission_is_told_so(self) -> None:
        Path(node.PATH).chmod(0o600)
        try:
            told = run(
                """
gdrpy.rounded_size(1), gdrpy.alloc, gdrpy.open  # loaded from where the other user may not read
os.setuid(65534)
from gdrpy.memory.backends import ALL
print(ALL["gdrdrv"].status(0).reason)
"""
            )
        finally:
            Path(node.PATH).chmod(0o666)
        assert told == "no permission to open /dev/gdrdrv for reading and writing\n"


@pytest.mark.usefixtures("nvidias")
class TestNvidiasModule:
    def test_maps_a_pin_once_for_all_its_mappings(self, gdr: gdrpy.Gdr, pointer: int) -> None:
        with gdr.pin(pointer + 70_000, 1000) as pin:
            with pin.map(0, 10) as first, pin.map(500, 10) as second, pin.map() as whole:
                first.write(b"first")
                second.write(b"second")
                assert (whole.read(5), whole.read(6, 500)) == (b"first", b"second")
                assert first.address + 500 == second.address
            with pin.map() as again:
                assert again.read(5) == b"first"

    def test_makes_no_revocable_pins(self, gdr: gdrpy.Gdr, pointer: int) -> None:
        with pytest.raises(gdrpy.BackendUnavailable, match="persistent pins only"):
            gdr.pin(pointer, 4096, revocable=True)

    @pytest.mark.usefixtures("default_revocable")
    def test_without_persistent_mappings_says_what_its_pins_need(self, pointer: int) -> None:
        needed = "revocable pins only: pass revocable=True, sigbus=True, or reload the module"
        with gdrpy.open(backend="gdrdrv") as gdr:
            with pytest.raises(gdrpy.BackendUnavailable, match=needed):
                gdr.pin(pointer, 4096)
            with gdr.pin(pointer, 4096, revocable=True, sigbus=True) as pin:
                assert not pin.attributes.persistent

    def test_has_no_events(self, gdr: gdrpy.Gdr) -> None:
        for call in (gdr.fileno, gdr.events):
            with pytest.raises(gdrpy.BackendUnavailable, match="has no events"):
                call()

    def test_shares_no_pins(self, gdr: gdrpy.Gdr, pointer: int) -> None:
        with (
            gdr.pin(pointer, 4096) as pin,
            pytest.raises(gdrpy.BackendUnavailable, match="cannot share a pin"),
        ):
            pin.export()
