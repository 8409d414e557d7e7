"""The stand-in keeps the rules of the interface that it stands in for."""

from __future__ import annotations

import ctypes
import errno
import fcntl
import mmap
import os
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path

import pytest
import standin
from standin import PAGE, PERSISTENT, Mode, Probe, View

ENOTSUPP = 524


def refused(error: int) -> pytest.RaisesExc[OSError]:
    return pytest.raises(OSError, match=rf"\[Errno {error}\]")


class TestPin:
    def test_page_table_tells_version_page_size_and_physical_pages(
        self, view: View, probe: Probe, bar_start: int
    ) -> None:
        table = probe.get(view.address, view.size)
        version = 0x10002 if standin.GENUINE else 0x20000
        assert (table.version, table.page_size, table.entries) == (version, 1, 4)
        assert table.first == bar_start
        assert table.last == bar_start + 3 * PAGE
        assert standin.stats().pinned_pages == 4

    def test_part_of_a_block_begins_at_its_own_page(self, view: View, bar_start: int) -> None:
        with Probe() as probe:
            table = probe.get(view.address + PAGE, 2 * PAGE)
            assert (table.entries, table.first) == (2, bar_start + PAGE)

    def test_scattered_block_is_no_physical_run(self) -> None:
        with View(3, standin.SCATTERED) as view, Probe() as probe:
            table = probe.get(view.address, view.size)
            assert table.last == table.first - 2 * PAGE

    @pytest.mark.parametrize(
        ("offset", "size"),
        [(0, 0), (4096, PAGE), (0, PAGE + 4096), (0, 5 * PAGE), (-PAGE, PAGE), (4 * PAGE, PAGE)],
        ids=["empty", "unaligned", "part of a page", "too long", "before", "behind"],
    )
    def test_range_that_is_no_whole_pages_of_a_block_is_invalid(
        self, view: View, probe: Probe, offset: int, size: int
    ) -> None:
        with refused(errno.EINVAL):
            probe.get(view.address + offset, size)

    def test_memory_of_another_process_is_not_found(self, view: View) -> None:
        child = os.fork()
        if child == 0:
            code = 0
            try:
                with Probe() as probe:
                    probe.get(view.address, PAGE)
            except OSError as error:
                code = error.errno
            os._exit(code)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == errno.EINVAL

    def test_memory_that_was_freed_is_not_found(self, view: View, probe: Probe) -> None:
        view.unregister()
        with refused(errno.EINVAL):
            probe.get(view.address, PAGE)


class TestFreeing:
    def test_callback_is_made_and_a_late_put_succeeds(self, view: View, probe: Probe) -> None:
        probe.get(view.address, view.size)
        late = standin.stats().late_puts
        view.unregister()
        assert probe.callbacks == 1
        assert standin.live() == (1, 0, 0, 0)
        probe.put()
        assert standin.stats().late_puts == late + 1

    def test_closing_the_file_makes_the_callback(self, probe: Probe) -> None:
        with View(1) as view:
            probe.get(view.address, PAGE)
        assert probe.callbacks == 1
        assert standin.live() == (0, 0, 0, 0)

    def test_all_pins_of_the_memory_are_called_back(self, view: View) -> None:
        with Probe() as one, Probe() as other:
            one.get(view.address, PAGE)
            other.get(view.address, view.size)
            view.unregister()
            assert (one.callbacks, other.callbacks) == (1, 1)

    def test_put_pages_are_not_called_back_for(self, view: View, probe: Probe) -> None:
        probe.get(view.address, PAGE)
        probe.put()
        view.unregister()
        assert probe.callbacks == 0

    def test_death_of_the_process_frees_what_it_had(self) -> None:
        script = """
import os, signal, sys
sys.path.insert(0, sys.argv[1])
from standin import Probe, View
view, probe = View(2), Probe()
probe.get(view.address, view.size)
os.kill(os.getpid(), signal.SIGKILL)
"""
        died = subprocess.run([sys.executable, "-c", script, str(Path(__file__).parent)])
        assert died.returncode == -9
        assert standin.live() == (0, 0, 0, 0)

    def test_put_waits_for_the_callback_in_flight(self, view: View, probe: Probe) -> None:
        probe.get(view.address, PAGE)
        late = standin.stats().late_puts
        standin.hold_callbacks(True)
        try:
            freeing = threading.Thread(target=view.unregister)
            freeing.start()
            standin.await_stats(lambda stats: stats.held_callbacks == 1)
            putting = threading.Thread(target=probe.put)
            putting.start()
            standin.await_stats(lambda stats: stats.waiting_calls == 1)
            assert probe.callbacks == 0
        finally:
            standin.hold_callbacks(False)
        freeing.join()
        putting.join()
        assert probe.callbacks == 1
        assert standin.stats().late_puts == late + 1


class TestStalePage:
    """Tables are told apart by their addresses alone, which are used again."""

    def test_put_by_another_process_succeeds_and_leaves_the_pin(
        self, view: View, probe: Probe
    ) -> None:
        probe.get(view.address, PAGE)
        late = standin.stats().late_puts
        child = os.fork()
        if child == 0:
            probe.put()
            os._exit(0)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
        assert standin.stats().late_puts == late + 1
        assert standin.stats().pins == 1
        view.unregister()
        assert probe.callbacks == 1

    @pytest.mark.skipif(standin.HAS_KASAN, reason="KASAN keeps freed tables from being used again")
    def test_put_after_the_callback_takes_another_pin_away(self, view: View, probe: Probe) -> None:
        probe.get(view.address, PAGE)
        view.unregister()
        with View(1) as other, Probe() as another:
            another.get(other.address, PAGE)
            probe.put()
            assert standin.stats().pins == 0
            another.forget()

    def test_memory_freed_before_the_callback_is_known_loses_a_table(
        self, view: View, probe: Probe
    ) -> None:
        lost = standin.stats().lost_tables
        standin.free_in_next_get(standin.BEFORE_CALLBACK)
        with refused(errno.EINVAL):
            probe.get(view.address, PAGE)
        assert standin.stats().lost_tables == lost + 1
        assert probe.callbacks == 0


class TestPersistentPin:
    def test_freeing_makes_no_callback_and_keeps_the_pages(self, probe: Probe) -> None:
        with View(2) as view:
            probe.get(view.address, view.size, PERSISTENT)
        assert probe.callbacks == 0
        assert standin.live() == (1, 0, 0, 1)
        probe.put()
        assert standin.live() == (0, 0, 0, 0)

    @pytest.mark.newer_driver
    def test_forced_bar1_is_known(self, view: View, probe: Probe) -> None:
        before = standin.stats().forced_bar1_pins
        probe.get(view.address, PAGE, PERSISTENT, driver_flags=1)
        assert standin.stats().forced_bar1_pins == before + 1

    def test_unknown_flag_is_invalid(self, view: View, probe: Probe) -> None:
        with refused(errno.EINVAL):
            probe.get(view.address, PAGE, PERSISTENT, driver_flags=2)


@pytest.mark.newer_driver
class TestOlderDriver:
    def test_page_table_of_version_1_2(
        self, view: View, probe: Probe, set_parameter: Callable[[str, str], None]
    ) -> None:
        set_parameter("table_version", "0x10002")
        assert probe.get(view.address, PAGE).version == 0x10002

    def test_forced_bar1_is_unknown(
        self, view: View, probe: Probe, set_parameter: Callable[[str, str], None]
    ) -> None:
        set_parameter("force_bar1", "0")
        with refused(errno.EINVAL):
            probe.get(view.address, PAGE, PERSISTENT, driver_flags=1)


class TestFault:
    @pytest.mark.parametrize("error", [errno.ENOMEM, ENOTSUPP])
    def test_next_pin_fails_so_and_the_one_after_works(
        self, view: View, probe: Probe, error: int
    ) -> None:
        standin.fail_next_get(error)
        with refused(error):
            probe.get(view.address, PAGE)
        probe.get(view.address, PAGE)


class TestCacheMode:
    """The query must tell apart what the kernel makes of a mapping."""

    def map_bar(self, folder: Path, name: str) -> int:
        with (folder / name).open("r+b") as file:
            bar = mmap.mmap(file.fileno(), PAGE)
        address = ctypes.addressof(ctypes.c_char.from_buffer(bar))
        return standin.pte(address).mode

    def test_write_combined_mapping(self, bar_folder: Path) -> None:
        assert self.map_bar(bar_folder, "resource2_wc") == Mode.WC

    def test_uncached_mapping(self, bar_folder: Path) -> None:
        assert self.map_bar(bar_folder, "resource2") == Mode.UC_MINUS

    def test_entry_of_a_view_names_the_page_that_a_pin_names(self, probe: Probe) -> None:
        with View(2, standin.SCATTERED) as view:
            memory = mmap.mmap(view.fd, view.size)
            start = ctypes.addressof(ctypes.c_char.from_buffer(memory))
            memory[PAGE + 5] = 1
            entry = standin.pte(start + PAGE + 5)
            assert entry.physical == probe.get(view.address, view.size).last + 5
            assert entry.writable == 1
            del memory

    def test_nothing_mapped_is_a_fault(self) -> None:
        with refused(errno.EFAULT):
            standin.pte(0)


class TestNode:
    def test_block_larger_than_the_memory_left_is_refused(self) -> None:
        with refused(errno.ENOMEM):
            View(1 << 20)

    def test_private_mapping_is_refused(self, view: View) -> None:
        with refused(errno.EINVAL):
            mmap.mmap(view.fd, PAGE, flags=mmap.MAP_PRIVATE)

    def test_mapping_beyond_the_block_is_refused(self, view: View) -> None:
        with refused(errno.EINVAL):
            mmap.mmap(view.fd, view.size + 4096)

    def test_file_is_made_a_view_once(self, view: View) -> None:
        with refused(errno.EINVAL):
            fcntl.ioctl(view.fd, standin.CREATE, standin.Block(size=PAGE))
