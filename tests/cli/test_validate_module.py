"""``gdrpy validate --module`` where no step can be run. In the guest all can:
tests/vm/inside/test_validate_module.py."""

from __future__ import annotations

import os
import re
import stat
import sys
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any

import pytest

from gdrpy import cuda
from gdrpy.cli import firstrun, main
from gdrpy.cli.exits import CommandError
from gdrpy.cli.firstrun import machine, node
from gdrpy.errors import CudaError
from support import open_descriptors

SYMBOLS = (
    "ffffffffc0a01000 t nvidia_p2p_get_pages\t[nvidia]\n"
    "ffffffffc0a02000 T nvidia_p2p_get_pages_persistent\t[nvidia]\n"
)
#: As nvidia-smi -q -d MEMORY says it.
MEMORY = """
    FB Memory Usage
        Total                             : 143771 MiB
        Reserved                          : 625 MiB
        Used                              : 14 MiB
        Free                              : 143133 MiB
    BAR1 Memory Usage
        Total                             : 262144 MiB
        Used                              : 3 MiB
        Free                              : 262141 MiB
    Conf Compute Protected Memory Usage
        Total                             : 0 MiB
        Used                              : 0 MiB
"""


@pytest.fixture
def root_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Files in place of /proc, /sys and the kernel's log, of a machine with the NVIDIA driver; the
    caller is root."""
    proc, sysfs = tmp_path / "proc", tmp_path / "sys"
    (proc / "sys/kernel").mkdir(parents=True)
    (proc / "sys/kernel/tainted").write_text("12289\n")
    (proc / "modules").write_text("nvidia 56713216 0 - Live 0x0000000000000000 (POE)\n")
    (proc / "kallsyms").write_text(SYMBOLS)
    folder = sysfs / "module/nvidia"
    folder.mkdir(parents=True)
    (folder / "version").write_text("580.159.04\n")
    (folder / "taint").write_text("OE\n")
    monkeypatch.setattr(machine, "PROC", proc)
    monkeypatch.setattr(machine, "SYS", sysfs)
    monkeypatch.setattr(machine, "KernelLog", SilentLog)
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    return tmp_path


class SilentLog:
    """A kernel that says nothing."""

    def mark(self, words: str) -> None: ...

    def new_lines(self) -> list[str]:
        return []

    def close(self) -> None: ...


@pytest.fixture
def refusal(json_of):
    """Why no step can be run."""

    def refusal() -> str:
        status, result = json_of("validate", "--module")
        assert status == 2
        assert result["error"]["type"] == "CommandError"
        return str(result["error"]["message"])

    return refusal


class TestRefusal:
    def test_of_a_user_who_is_not_root(self, refusal, monkeypatch):
        monkeypatch.setattr(os, "geteuid", lambda: 1000)
        assert refusal() == (
            "only root may load modules and read the kernel's log: sudo gdrpy validate --module, "
            "by the path of gdrpy (.venv/bin/gdrpy)"
        )

    def test_of_a_kernel_without_modules(self, refusal, root_files):
        (root_files / "proc/modules").unlink()
        assert refusal() == (
            f"{root_files}/proc/modules: No such file or directory: run it on the host, not in a "
            f"container"
        )

    def test_of_a_kernel_log_that_may_not_be_read(self, refusal, root_files, monkeypatch):
        def denied() -> SilentLog:
            raise PermissionError(1, "Operation not permitted", "/dev/kmsg")

        monkeypatch.setattr(machine, "KernelLog", denied)
        assert refusal() == (
            "/dev/kmsg: Operation not permitted: run it on the host, not in a container"
        )

    def test_of_a_machine_without_the_driver(self, refusal, root_files):
        (root_files / "proc/kallsyms").write_text("ffffffffc0a01000 t schedule\n")
        assert refusal() == (
            "no NVIDIA driver with a peer-to-peer interface is loaded: sudo modprobe nvidia, and "
            "nvidia-smi must work"
        )

    def test_of_the_simulated_gpu(self, refusal, root_files):
        assert refusal() == "CUDA reaches no GPU here: GDRPY_SIM=0 gdrpy info"

    def test_of_a_cuda_that_does_not_start(self, refusal, root_files, monkeypatch):
        def fails() -> bool:
            raise CudaError("cuInit", "CUDA_ERROR_UNKNOWN", "unknown error")

        monkeypatch.setattr(cuda, "simulated", fails)
        assert refusal() == "cuInit: CUDA_ERROR_UNKNOWN: unknown error"

    def test_of_a_missing_device(self, json_of, root_files, monkeypatch):
        monkeypatch.setattr(cuda, "simulated", lambda: False)
        status, result = json_of("validate", "--module", "--device", "7")
        assert status == 2
        assert result["error"]["message"].startswith("--device: there is no CUDA device 7")

    def test_of_an_obstacle_that_insmod_tells(self, refusal, root_files, monkeypatch):
        script = root_files / "insmod.sh"
        script.write_text("#!/bin/sh\necho 'module:     not loaded'\necho 'next:       no headers'")
        script.chmod(0o755)
        monkeypatch.setattr(machine, "INSMOD", script)
        monkeypatch.setattr(cuda, "simulated", lambda: False)
        assert refusal() == "no headers"

    def test_of_an_installation_without_insmod(self, refusal, root_files, monkeypatch):
        monkeypatch.setattr(machine, "INSMOD", root_files / "insmod.sh")
        monkeypatch.setattr(cuda, "simulated", lambda: False)
        assert refusal().startswith(f"there is no {root_files}/insmod.sh: load gdrdrv (sudo modpr")

    @pytest.mark.parametrize(
        "words", [["--backend", "nvrm"], ["--check", "read-only"], ["--size", "2M"]]
    )
    def test_of_options_that_say_nothing_here(self, capsys, words):
        with pytest.raises(SystemExit) as ended:
            main(["validate", "--module", *words])
        assert ended.value.code == 2
        assert "--module goes with --device, --seed and --json only" in capsys.readouterr().err


class TestDoubt:
    def test_where_the_kernel_refuses_the_module(self, json_of, root_files, monkeypatch):
        script = root_files / "insmod.sh"
        script.write_text(
            "#!/bin/sh\n"
            "[ $# = 0 ] || { echo 'next:       sudo ./insmod.sh would load it'; exit; }\n"
            "echo 'insmod.sh: Invalid parameters; the kernel says: nothing' >&2\n"
            "exit 1\n"
        )
        script.chmod(0o755)
        monkeypatch.setattr(machine, "INSMOD", script)
        monkeypatch.setattr(cuda, "simulated", lambda: False)
        status, result = json_of("validate", "--module")
        assert status == 1
        assert [step["passed"] for step in result["steps"]] == [True, False]
        assert result["steps"][0]["words"].endswith(
            f"NVIDIA driver 580.159.04 (nvidia, open flavour), Linux {os.uname().release}; kernel "
            f"tainted POE; sudo ./insmod.sh would load it"
        )
        assert result["steps"][1]["words"] == (
            "insmod.sh: Invalid parameters; the kernel says: nothing"
        )
        assert result["not_run"] == [step.name for step in firstrun.ALL[2:]]


class TestMachine:
    def test_tells_modules_and_taint(self, root_files):
        found = machine.look()
        assert found.modules == {"nvidia"}
        assert found.taint == "POE"

    def test_tells_the_drivers_flavour(self, root_files):
        (root_files / "sys/module/nvidia/taint").write_text("POE\n")
        assert machine.driver() == "NVIDIA driver 580.159.04 (nvidia, proprietary flavour)"

    def test_reads_the_modules_own_files(self, root_files):
        assert (machine.pins(), machine.registrations(), machine.counters()) == ([], None, {})
        folder = root_files / "proc/driver/gdrdrv"
        folder.mkdir(parents=True)
        (folder / "pins").write_text(
            "# pid uid handle va bytes lifetime type mappings\n"
            "7 0 1 0x7f0000000000 65536 revocable write-combined 2 revoked\n"
        )
        (folder / "nv_get_pages_refcount").write_text("1\n")
        (folder / "stats").write_text("pins: 3\nuser 0: 1 pins, 65536 bytes\n")
        (pin,) = machine.pins()
        assert (pin["pid"], pin["bytes"], pin["mappings"]) == ("7", "65536", "2")
        assert machine.registrations() == 1
        assert machine.counters() == {"pins": 3}

    def test_reads_bar1_use_from_nvidia_smi(self, tmp_path, monkeypatch):
        monkeypatch.setenv("PATH", str(tmp_path))
        assert machine.bar1_used("0000:01:00.0") is None
        tool = tmp_path / "nvidia-smi"
        tool.write_text(f"#!/bin/sh\n[ \"$5\" = 0000:01:00.0 ] && echo '{MEMORY}'\n")
        tool.chmod(0o755)
        assert machine.bar1_used("0000:01:00.0") == 3
        assert machine.bar1_used("0000:02:00.0") is None

    def test_finds_a_node_that_is_another_device(self, root_files, monkeypatch):
        node = root_files / "gdrdrv"
        monkeypatch.setattr(machine, "NODE", node)
        assert machine.node_problem() == f"{node}: No such file or directory"
        node.write_text("")
        assert machine.node_problem() == f"{node} is not the module's device"
        assert stat.S_ISREG(node.stat().st_mode)

    def test_says_that_insmod_fails_for_want_of_something(self, root_files, monkeypatch):
        script = root_files / "insmod.sh"
        script.write_text("#!/bin/sh\necho 'insmod.sh: no make: apt install make' >&2; exit 4\n")
        script.chmod(0o755)
        monkeypatch.setattr(machine, "INSMOD", script)
        with pytest.raises(CommandError, match="^no make: apt install make$") as refused:
            machine.insmod()
        assert refused.value.status == 2


class TestAlarm:
    @pytest.mark.parametrize(
        "line",
        [
            "WARNING: CPU: 0 PID: 155 at mm/memory.c:1859 vmf_insert_pfn_prot+0x1f/0x120",
            "BUG: kernel NULL pointer dereference, address: 000000000000000d",
            "Oops: 0000 [#1] PREEMPT SMP NOPTI",
            "Call Trace:",
            "x86/PAT: python:155 conflicting memory types c0000000-c0010000 write-combining<->"
            "uncached-minus",
            "NVRM: Xid (PCI:0000:01:00): 31, pid=155, name=python, Ch 00000008, MMU Fault",
            "INFO: task python:155 blocked for more than 120 seconds.",
        ],
    )
    def test_is_raised_by(self, line):
        assert machine.ALARM.search(line)

    @pytest.mark.parametrize(
        "line",
        [
            "gdrdrv: loading out-of-tree module taints kernel.",
            "gdrdrv: module verification failed: signature and/or required key missing - tainting"
            " kernel",
            "NVRM: loading NVIDIA UNIX Open Kernel Module for x86_64  580.159.04",
        ],
    )
    def test_is_not_raised_by_what_loading_says(self, line):
        assert not machine.ALARM.search(line)
        assert machine.TOLD.search(line)


class TestPage:
    def test_lists_the_steps(self, checkout):
        page = (checkout / "docs/kernel-module.md").read_text()
        section = page.partition("## First run beside a GPU")[2].partition("\n## ")[0]
        rows = re.findall(r"^\| (\d+) \| `(\w+)` \| (.+?) \|", section, re.MULTILINE)
        assert rows == [
            (str(number), step.name, step.shows) for number, step in enumerate(firstrun.ALL, 1)
        ]


def test_an_interrupt_at_any_bytecode_of_a_step_leaves_the_node_closed(monkeypatch):
    """Or the module could not be unloaded."""
    monkeypatch.setattr(node, "PATH", os.devnull)
    step = next(step for step in firstrun.ALL if step.name == "interface")
    before, number = open_descriptors(), 0
    while interrupted_at(number, lambda: firstrun._attempt(step, None)):
        assert open_descriptors() == before, f"after bytecode {number}"
        number += 1
    assert number > 20


def interrupted_at(number: int, call: Callable[[], object]) -> bool:
    """Whether a call was interrupted before this bytecode of the first run's modules."""
    left = number

    def trace(frame: FrameType, event: str, _: object) -> Any:
        nonlocal left
        if "/firstrun/" not in frame.f_code.co_filename:
            return None
        frame.f_trace_opcodes = True
        if event == "opcode":
            left -= 1
            if left < 0:
                sys.settrace(None)
                raise KeyboardInterrupt
        return trace

    sys.settrace(trace)
    try:
        call()
    except KeyboardInterrupt:
        return True
    finally:
        sys.settrace(None)
    return False
