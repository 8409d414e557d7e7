"""The bed tells how a command in the guest ended, and is red when the kernel found a fault."""

from __future__ import annotations

import os
import runpy
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from kernels import Kernel

HERE = Path(__file__).parent
CHECKOUT = HERE.parent.parent
INSIDE = HERE / "inside"
#: The program's names.
RUN = runpy.run_path(str(HERE / "run"))
NOT_SET_UP, TIME_IS_UP, BED_FAILED = 77, 124, 125

Run = Callable[..., "subprocess.CompletedProcess[str]"]


@pytest.fixture
def run(bed: Path) -> Run:
    def run(*arguments: str | Path) -> subprocess.CompletedProcess[str]:
        return subprocess.run([bed, *arguments], capture_output=True, text=True, cwd=CHECKOUT)

    return run


@pytest.fixture
def run_on(run: Run) -> Run:
    """A guest of a kernel by its name; skips where that was not built."""

    def run_on(kernel: str, *arguments: str | Path) -> subprocess.CompletedProcess[str]:
        ended = run("--kernel", kernel, *arguments)
        if ended.returncode == NOT_SET_UP:
            pytest.skip(ended.stderr.strip())
        return ended

    return run_on


#: For what is not about it: the guest's own shell takes seconds to load it, and to unload it.
WITHOUT_GDRDRV = ("--gdrdrv", "none")


def in_guest(script: str) -> list[str]:
    """The command that runs Python code in the guest, with the stand-in's module at hand."""
    prelude = f"import sys; sys.path.insert(0, {str(INSIDE)!r})\n"
    return ["--", sys.executable, "-c", prelude + script]


class TestResult:
    def test_status_and_output_are_the_commands(self, run: Run) -> None:
        ended = run(*WITHOUT_GDRDRV, "--", "sh", "-c", "echo to stdout; echo to stderr >&2; exit 3")
        assert ended.returncode == 3, ended.stderr
        assert ended.stdout == "to stdout\nto stderr\n"
        assert ended.stderr == ""

    def test_gpu_memory_is_the_file_on_the_host(self, run: Run, tmp_path: Path) -> None:
        script = """
import mmap
from standin import PAGE, View
with View(2) as view:
    memory = mmap.mmap(view.fd, view.size)
    memory[PAGE : PAGE + 4] = b"word"
    memory.close()
"""
        bar = tmp_path / "bar"
        ended = run(*WITHOUT_GDRDRV, "--bar", "16", "--bar-file", bar, *in_guest(script))
        assert ended.returncode == 0, ended.stderr
        assert bar.stat().st_size == 16 << 20
        assert bar.read_bytes().rstrip(b"\0") == bytes(65536) + b"word"


class TestFailure:
    def test_kernel_panic_is_red(self, run: Run) -> None:
        ended = run(*WITHOUT_GDRDRV, "--", "sh", "-c", "echo c > /proc/sysrq-trigger")
        assert ended.returncode == BED_FAILED
        assert "the kernel reported a fault" in ended.stderr
        assert "sysrq triggered crash" in ended.stderr

    def test_end_without_a_result_is_red(self, run: Run) -> None:
        ended = run(*WITHOUT_GDRDRV, "--", "sh", "-c", "echo o > /proc/sysrq-trigger; sleep 1000")
        assert ended.returncode == BED_FAILED
        assert "the guest ended without a result" in ended.stderr

    def test_kernel_warning_is_red_though_the_command_succeeds(self, run: Run) -> None:
        ended = run(*WITHOUT_GDRDRV, *in_guest("from standin import *; make_fault(Fault.WARNING)"))
        assert ended.returncode == BED_FAILED
        assert "the kernel reported a fault" in ended.stderr
        assert "asked for" in ended.stderr

    def test_put_from_within_a_callback_is_red(self, run: Run) -> None:
        script = """
from standin import PUT_IN_CALLBACK, Probe, View
with Probe() as probe, View(1) as view:
    probe.get(view.address, view.size, PUT_IN_CALLBACK)
"""
        ended = run(*WITHOUT_GDRDRV, *in_guest(script))
        assert ended.returncode == BED_FAILED
        assert "called from a free callback" in ended.stderr

    def test_module_still_in_use_is_red(self, run: Run) -> None:
        ended = run(*WITHOUT_GDRDRV, "--", "sh", "-c", "sleep 1000 < /dev/gpustandin &")
        assert ended.returncode == BED_FAILED
        assert "gpustandin is still in use after the command" in ended.stderr

    def test_command_that_does_not_end_is_ended(self, run: Run) -> None:
        ended = run(*WITHOUT_GDRDRV, "--timeout", "5", "--", "sleep", "1000")
        assert ended.returncode == TIME_IS_UP
        assert "the time was up: 5 seconds" in ended.stderr

    def test_guest_that_never_boots_is_red(self, run: Run) -> None:
        ended = run(*WITHOUT_GDRDRV, "--boot-timeout", "0.5", "--", "true")
        assert ended.returncode == BED_FAILED
        assert "the guest had not booted after 0.5 seconds" in ended.stderr

    def test_guest_that_has_not_booted_in_time_is_booted_again(
        self, run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """A program that hangs the first time stands for the emulator and its guest."""
        emulator = tmp_path / "qemu-system-x86_64"
        emulator.write_text(
            f"""#!/bin/bash
mkdir {tmp_path}/hung && exec sleep 1000
[[ "$*" =~ -serial\\ file:([^ ]+).*gdrpy.job=([^ ]+) ]]
source "${{BASH_REMATCH[2]}}/job"
echo "$result_mark begins" > "${{BASH_REMATCH[1]}}"
echo "${{command[@]}}"
echo "$result_mark exit 0"
"""
        )
        emulator.chmod(0o755)
        monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
        ended = run(*WITHOUT_GDRDRV, "--boot-timeout", "3", "--", "echo", "done")
        assert (ended.returncode, ended.stdout) == (0, "echo done\n"), ended.stderr
        assert (tmp_path / "hung").exists()

    def test_kernel_that_was_not_fetched_is_named(self, run: Run) -> None:
        ended = run("--kernel", "none-such", "--", "true")
        assert ended.returncode == NOT_SET_UP
        assert "no kernel 'none-such' in this checkout: tests/vm/setup none-such" in ended.stderr

    def test_module_for_another_kernel_is_refused(self, run: Run) -> None:
        ended = run("--gdrdrv", HERE / "run", "--", "true")
        assert ended.returncode == BED_FAILED
        assert "is no kernel module" in ended.stderr


class TestModuleThatStays:
    def unpinned(self, user: int) -> list[str]:
        return in_guest(
            f"""
import os
from gdrdrv import REVOCABLE, Gdrdrv
from standin import View
os.setuid({user})
with View(1) as view, Gdrdrv() as node:
    node.unpin(node.pin(view.address, view.size, REVOCABLE))
"""
        )

    def test_cannot_be_unloaded_after_a_users_revocable_pin(self, run: Run) -> None:
        ended = run(*self.unpinned(65534))
        assert ended.returncode == BED_FAILED
        assert "gdrdrv stays loaded until the next reboot" in ended.stderr

    def test_can_be_unloaded_after_roots(self, run: Run) -> None:
        ended = run(*self.unpinned(0))
        assert ended.returncode == 0, ended.stderr


class TestCheckers:
    """All faults in one boot. The checker of locks is first: it is off after any other's report."""

    FAULTS = ("LOCK_INVERSION", "SLEEP_IN_ATOMIC", "USE_AFTER_FREE", "LEAK")

    @pytest.fixture(scope="class")
    @classmethod
    def told(cls, bed: Path, tmp_path_factory: pytest.TempPathFactory) -> str:
        """What the kernel said, though the command succeeded."""
        log = tmp_path_factory.mktemp("checkers") / "log"
        faults = "; ".join(f"make_fault(Fault.{fault})" for fault in cls.FAULTS)
        script = in_guest(f"from standin import *; {faults}; print('done')")
        command = [bed, *WITHOUT_GDRDRV, "--kernel", "debug", "--log", log, *script]
        ended = subprocess.run(command, capture_output=True, text=True, cwd=CHECKOUT)
        if ended.returncode == NOT_SET_UP:
            pytest.skip(ended.stderr.strip())
        assert (ended.returncode, ended.stdout) == (BED_FAILED, "done\n"), ended.stderr
        return log.read_text(errors="replace")

    @pytest.mark.parametrize(
        ("report", "culprit"),
        [
            ("possible circular locking dependency", "lock_inversion"),
            ("BUG: sleeping function called", "sleep_in_atomic"),
            ("BUG: KASAN: use-after-free", "use_after_free"),
            # Of ten blocks, but for those whose address some stale word still bears.
            ("new suspected memory leaks", "leak [gpustandin]"),
        ],
    )
    def test_fault_is_reported(self, told: str, report: str, culprit: str) -> None:
        before, _, rest = told.partition(report)
        assert culprit in rest
        line = before.rpartition("\n")[2] + report + rest.partition("\n")[0]
        assert RUN["REPORT"].search(line), f"{line} alone would not be red"


class TestKernelWithRaces:
    """Where it was built: that takes long, and is not asked of CI."""

    __test__ = Kernel("kcsan").initramfs.exists()

    def test_data_race_of_two_processes_is_red(self, run_on: Run) -> None:
        script = """
import os
from standin import *
child = os.fork()
make_fault(Fault.DATA_RACE)
if child:
    os.wait()
"""
        ended = run_on("kcsan", "--parallel", *WITHOUT_GDRDRV, *in_guest(script))
        assert ended.returncode == BED_FAILED, ended.stderr
        assert "BUG: KCSAN: data-race in racing_count [gpustandin]" in ended.stderr
