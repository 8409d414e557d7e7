"""insmod.sh, on a machine made of files: what it does, and every reason why it cannot."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest
from fake_machine import MODULE, RELEASE, Machine

FAILED, USAGE, NOT_ROOT, NO_BUILD, NO_DRIVER, UNSIGNED, ANOTHER, IN_USE = range(1, 9)
LOCKED = "none [integrity] confidentiality"
AGAIN = "sudo ./insmod.sh --unload, then again"


@pytest.fixture
def machine(tmp_path: Path, checkout: Path) -> Machine:
    return Machine(tmp_path, checkout)


@pytest.fixture
def built(machine: Machine) -> Machine:
    """The machine, with the module built."""
    machine.module.write_text(MODULE)
    return machine


@pytest.fixture
def loaded(built: Machine) -> Machine:
    """The machine, with the module loaded."""
    built.done()
    (built.root / "calls").unlink()
    return built


class TestLoad:
    def test_builds_and_loads(self, machine: Machine) -> None:
        *first, last = machine.done()
        assert first == ["building: driver/gdrdrv.ko is missing"]
        assert last.startswith("gdrdrv is loaded: ")
        assert machine.is_loaded
        assert machine.calls("make") == [
            f"make -s -C driver KDIR={machine.headers} clean",
            f"make -s -C driver KDIR={machine.headers} NVIDIA_DRIVER=550.54.14-open TRACEPOINTS=",
        ]

    def test_loads_without_building_what_is_built(self, built: Machine) -> None:
        built.done()
        assert built.calls("make", "insmod") == ["insmod driver/gdrdrv.ko"]

    def test_again_does_nothing(self, loaded: Machine) -> None:
        assert loaded.done("--load") == ["gdrdrv is loaded already"]
        assert loaded.calls("make", "insmod", "mknod") == []

    def test_passes_parameters_on(self, built: Machine) -> None:
        built.done("mode=0660", "max_pinned_mib=1024")
        expected = ["insmod driver/gdrdrv.ko mode=0660 max_pinned_mib=1024"]
        assert built.calls("insmod") == expected
        assert built.done("max_pinned_mib=0x400", "mode=0660") == ["gdrdrv is loaded already"]

    def test_takes_a_given_module_as_it_is(self, machine: Machine, tmp_path: Path) -> None:
        module = tmp_path / "mine.ko"
        module.write_text(MODULE.replace("nvidia: 550.54.14-open\n", ""))
        machine.done(GDRDRV_MODULE=str(module))
        assert machine.calls("make", "insmod") == [f"insmod {module}"]


class TestBuild:
    @pytest.mark.parametrize(
        ("field", "value", "reason"),
        [
            ("vermagic", "5.10.0-1", f"is for Linux 5.10.0-1, not {RELEASE}"),
            (
                "nvidia",
                "535.1-open",
                "is for NVIDIA driver 535.1-open, not 550.54.14-open",
            ),
            (
                "nvidia",
                "550.54.14-proprietary",
                "is for NVIDIA driver 550.54.14-proprietary, not 550.54.14-open",
            ),
        ],
    )
    def test_is_done_anew_for_another(
        self, machine: Machine, field: str, value: str, reason: str
    ) -> None:
        lines = [
            f"{field}: {value}" if line.startswith(field) else line for line in MODULE.splitlines()
        ]
        machine.module.write_text("\n".join(lines))
        assert machine.done()[0] == f"building: driver/gdrdrv.ko {reason}"
        assert machine.calls("insmod") == ["insmod driver/gdrdrv.ko"]

    def test_is_done_anew_for_a_changed_source(self, built: Machine) -> None:
        os.utime(built.checkout / "driver/uapi/gdrdrv.h", (2**32, 2**32))
        reason = "is older than driver/uapi/gdrdrv.h"
        assert built.done()[0] == f"building: driver/gdrdrv.ko {reason}"

    @pytest.mark.parametrize(("taint", "asked"), [("OE", "1"), ("POE", "")])
    def test_has_tracepoints_beside_the_open_driver_only(
        self, machine: Machine, taint: str, asked: str
    ) -> None:
        machine.load_nvidia("550.54.14", taint)
        (machine.headers / "include/config/auto.conf").write_text("CONFIG_EVENT_TRACING=y\n")
        machine.done()
        assert machine.calls("make")[1].endswith(f" TRACEPOINTS={asked}")

    def test_needs_headers(self, machine: Machine) -> None:
        shutil.rmtree(machine.headers)
        remedy = f"apt install linux-headers-{RELEASE}"
        assert machine.refused() == (
            NO_BUILD,
            f"no headers of Linux {RELEASE} in {machine.headers}: {remedy}",
        )

    def test_needs_headers_of_the_running_kernel(self, machine: Machine, tmp_path: Path) -> None:
        other = shutil.copytree(machine.headers, tmp_path / "other")
        (other / "include/generated/utsrelease.h").write_text('#define UTS_RELEASE "5.10.0-1"\n')
        assert machine.refused(KDIR=str(other)) == (
            NO_BUILD,
            f"{other} is of Linux 5.10.0-1, but {RELEASE} runs: set KDIR to that one's",
        )

    @pytest.mark.parametrize("command", ["make", "gcc"])
    def test_needs_tools(self, machine: Machine, command: str) -> None:
        (machine.commands / command).unlink()
        assert machine.refused() == (NO_BUILD, f"no {command}: apt install {command}")

    def test_names_packages_as_fedora_does(self, machine: Machine) -> None:
        (machine.commands / "make").rename(machine.commands / "dnf")
        assert machine.refused() == (NO_BUILD, "no make: dnf install make")

    def test_fails_by_errors_in_the_sources(self, machine: Machine) -> None:
        machine.write("sources-are-wrong", "")
        assert machine.refused() == (NO_BUILD, "driver/ does not build: see above")
        assert not machine.is_loaded

    def test_needs_the_installed_driver_to_be_the_loaded_one(self, machine: Machine) -> None:
        machine.install_nvidia("560.35.03", "NVIDIA")
        loaded, installed = "550.54.14-open", "560.35.03-proprietary"
        assert machine.refused() == (
            NO_DRIVER,
            f"NVIDIA driver {loaded} is loaded, but {installed} is installed: reboot, or load that",
        )

    def test_is_done_for_the_installed_driver_that_is_loaded(self, machine: Machine) -> None:
        machine.install_nvidia("550.54.14", "Dual MIT/GPL")
        machine.done()
        assert machine.is_loaded


class TestRefusal:
    def test_without_root(self, built: Machine) -> None:
        built.write("uid", "1000")
        reason = "only root may load and unload modules: sudo ./insmod.sh"
        assert built.refused() == (NOT_ROOT, reason)
        assert built.refused("--unload") == (NOT_ROOT, reason)

    def test_without_an_nvidia_driver(self, built: Machine) -> None:
        shutil.rmtree(built.root / "sys/module/nvidia")
        built.write("proc/kallsyms", "0 T kfree")
        reason = "no NVIDIA driver is loaded: sudo modprobe nvidia"
        assert built.refused() == (NO_DRIVER, reason)

    def test_with_a_driver_that_is_too_old(self, built: Machine) -> None:
        built.write("proc/kallsyms", "0 T nvidia_p2p_get_pages\t[nvidia]")
        reason = "NVIDIA driver 550.54.14 has no persistent peer-to-peer pins: install a newer one"
        assert built.refused() == (NO_DRIVER, reason)

    @pytest.mark.parametrize(
        ("field", "reason"),
        [
            ("vermagic", f"is for Linux other, not {RELEASE}"),
            ("nvidia", "is for NVIDIA driver other, not 550.54.14-open"),
        ],
    )
    def test_of_a_given_module_that_does_not_fit(
        self, machine: Machine, tmp_path: Path, field: str, reason: str
    ) -> None:
        module = tmp_path / "mine.ko"
        module.write_text(f"{field}: other\n" + MODULE.replace(f"{field}: ", "was: "))
        assert machine.refused(GDRDRV_MODULE=str(module)) == (NO_DRIVER, f"{module} {reason}")

    def test_of_a_given_module_that_is_not_there(self, machine: Machine, tmp_path: Path) -> None:
        module = tmp_path / "none.ko"
        expected = (NO_DRIVER, f"{module} is missing")
        assert machine.refused(GDRDRV_MODULE=str(module)) == expected

    @pytest.mark.parametrize(
        ("path", "text", "secure_boot", "why"),
        [
            (
                "sys/module/module/parameters/sig_enforce",
                "Y",
                "disabled",
                "module.sig_enforce",
            ),
            (
                "sys/kernel/security/lockdown",
                LOCKED,
                "disabled",
                "lockdown: integrity",
            ),
            (
                "sys/kernel/security/lockdown",
                LOCKED,
                "enabled",
                "Secure Boot, lockdown: integrity",
            ),
        ],
    )
    def test_without_a_signature(
        self, built: Machine, path: str, text: str, secure_boot: str, why: str
    ) -> None:
        built.write(path, text)
        built.write("secureboot", secure_boot)
        assert built.refused() == (
            UNSIGNED,
            f"the kernel takes signed modules only ({why}): "
            "sign driver/gdrdrv.ko: docs/kernel-module.md",
        )
        assert built.calls("insmod") == []

    def test_a_signed_module_is_tried(self, built: Machine) -> None:
        built.write("sys/kernel/security/lockdown", LOCKED)
        built.module.write_text(MODULE + "sig_id: PKCS#7\n")
        built.done()
        assert built.is_loaded

    @pytest.mark.parametrize("error", ["Key was rejected by service", "Required key not available"])
    def test_with_a_key_that_is_not_trusted(self, built: Machine, error: str) -> None:
        built.write("kernel-refuses", error)
        reason = "the kernel trusts no key that signed driver/gdrdrv.ko: enrol one:"
        assert built.refused() == (UNSIGNED, f"{reason} docs/kernel-module.md")

    def test_for_a_root_without_the_right(self, built: Machine) -> None:
        built.write("kernel-refuses", "Operation not permitted")
        assert built.refused() == (
            NOT_ROOT,
            "this root may not load modules: run insmod.sh on the host, not in a container",
        )

    @pytest.mark.parametrize(
        ("log", "reason"),
        [
            (
                "gdrdrv: no symbol version for nvidia_p2p_get_pages",
                "this kernel checks symbol versions: rm driver/gdrdrv.ko, then again with "
                "NVIDIA_SYMVERS=the Module.symvers of the NVIDIA driver's build",
            ),
            (
                "gdrdrv: disagrees about version of symbol nvidia_p2p_get_pages",
                "driver/gdrdrv.ko was built with the Module.symvers of another NVIDIA driver: "
                "rm driver/gdrdrv.ko, then again with NVIDIA_SYMVERS=that of the loaded one",
            ),
            (
                "gdrdrv: Unknown symbol bpf_trace_run1 (err -2)",
                "driver/gdrdrv.ko is not for this NVIDIA driver (Unknown symbol bpf_trace_run1 "
                "(err -2)): rm driver/gdrdrv.ko, then again",
            ),
        ],
    )
    def test_for_the_drivers_symbols(self, built: Machine, log: str, reason: str) -> None:
        built.write("kernel-refuses", "Invalid parameters")
        built.write("dmesg", f"[1.0] other: words\n[2.0] {log}\n[3.0] other: words")
        assert built.refused() == (NO_DRIVER, reason)

    def test_for_anything_else_is_passed_on(self, built: Machine) -> None:
        built.write("kernel-refuses", "Invalid parameters")
        built.write("dmesg", "[2.0] gdrdrv: `9' invalid for parameter `mode'")
        assert built.refused("mode=9") == (
            FAILED,
            "ERROR: could not insert module driver/gdrdrv.ko: Invalid parameters; "
            "the kernel says: [2.0] gdrdrv: `9' invalid for parameter `mode'",
        )

    def test_for_nvidias_gdrdrv(self, built: Machine) -> None:
        built.write("sys/module/gdrdrv/version", "2.4.1")
        reason = f"another gdrdrv, NVIDIA's 2.4.1, is loaded: {AGAIN}"
        assert built.refused() == (ANOTHER, reason)

    def test_for_an_older_gdrdrv(self, loaded: Machine) -> None:
        loaded.write("sys/module/gdrdrv/srcversion", "0000000000000000")
        reason = f"gdrdrv is loaded, but from other sources than driver/gdrdrv.ko: {AGAIN}"
        assert loaded.refused() == (ANOTHER, reason)

    @pytest.mark.parametrize(
        ("parameter", "is_now"),
        [
            ("mode=0600", "mode=0666"),
            ("max_pinned_mib=1", "max_pinned_mib=0"),
            ("use_persistent_mapping=0", "use_persistent_mapping=Y"),
        ],
    )
    def test_for_other_parameters(self, loaded: Machine, parameter: str, is_now: str) -> None:
        reason = f"gdrdrv is loaded with {is_now}: {AGAIN}"
        assert loaded.refused(parameter) == (ANOTHER, reason)

    def test_of_an_unknown_parameter(self, built: Machine) -> None:
        known = "max_pinned_mib mode use_persistent_mapping"
        reason = f"gdrdrv has no parameter 'mod': there are {known}"
        assert built.refused("mod=0666") == (USAGE, reason)
        assert not built.is_loaded

    def test_of_an_unknown_parameter_of_the_loaded_module(self, loaded: Machine) -> None:
        known = "max_pinned_mib mode use_persistent_mapping"
        reason = f"gdrdrv has no parameter 'mod': there are {known}"
        assert loaded.refused("mod=0") == (USAGE, reason)


class TestNode:
    def test_is_made_where_nobody_else_does(self, built: Machine) -> None:
        built.write("no-devtmpfs", "")
        assert "made /dev/gdrdrv, which no devtmpfs had made" in built.done("mode=0640")
        assert built.calls("mknod") == [f"mknod -m 0640 {built.root}/dev/gdrdrv c 1 3"]

    def test_is_made_again_when_it_is_lost(self, loaded: Machine) -> None:
        (loaded.root / "dev/gdrdrv").unlink()
        loaded.done()
        assert loaded.calls("mknod", "insmod") == [f"mknod -m 0666 {loaded.root}/dev/gdrdrv c 1 3"]

    def test_of_another_number_is_replaced(self, loaded: Machine) -> None:
        loaded.write("sys/class/misc/gdrdrv/dev", "10:120")
        loaded.done()
        expected = f"mknod -m 0666 {loaded.root}/dev/gdrdrv c 10 120"
        assert loaded.calls("mknod") == [expected]

    def test_needs_a_device(self, loaded: Machine) -> None:
        (loaded.root / "dev/gdrdrv").unlink()
        (loaded.root / "sys/class/misc/gdrdrv/dev").unlink()
        reason = "the module is loaded, but has no device: see dmesg"
        assert loaded.refused() == (FAILED, reason)


class TestUnload:
    def test_unloads(self, loaded: Machine) -> None:
        assert loaded.done("--unload") == ["gdrdrv is unloaded"]
        assert not loaded.is_loaded
        assert not (loaded.root / "dev/gdrdrv").is_symlink()

    def test_again_does_nothing(self, machine: Machine) -> None:
        assert machine.done("--unload") == ["gdrdrv is not loaded"]
        assert machine.calls("rmmod") == []

    def test_names_who_uses_the_module(self, loaded: Machine) -> None:
        loaded.write("kernel-refuses", "")
        loaded.process_with(71, "bystander", "/dev/null")
        loaded.process_with(72, "python3", "/dev/gdrdrv")
        loaded.write("proc/73/comm", "trainer")
        loaded.write(
            "proc/73/maps", "7f0000000000-7f0000010000 rw-s 00000000 00:2b 9 /gdrdrv (deleted)"
        )
        reason = "gdrdrv is in use by 72 (python3), 73 (trainer): end them first"
        assert loaded.refused("--unload") == (IN_USE, reason)

    def test_says_what_rmmod_says_when_nobody_is_found(self, loaded: Machine) -> None:
        loaded.write("kernel-refuses", "")
        reason = (
            "ERROR: Module gdrdrv is in use, by no process: gdrdrv stays loaded until the next "
            "reboot after a user has unpinned a revocable pin"
        )
        assert loaded.refused("--unload") == (IN_USE, reason)


class TestStatus:
    def test_needs_no_root_and_changes_nothing(self, machine: Machine) -> None:
        machine.write("uid", "1000")
        assert machine.status() == {
            "module": "not loaded",
            "node": "/dev/gdrdrv is missing",
            "NVIDIA": "nvidia 550.54.14-open",
            "kernel": f"Linux {RELEASE}, headers in {machine.headers}",
            "built": "driver/gdrdrv.ko is missing",
            "signatures": "not enforced",
            "next": "sudo ./insmod.sh would build driver/gdrdrv.ko and load it; "
            "nothing of the NVIDIA driver is changed",
        }
        assert machine.calls("make", "insmod", "rmmod", "mknod") == []

    def test_of_a_loaded_module(self, loaded: Machine) -> None:
        status = loaded.status()
        assert status["module"] == "gdrpy's gdrdrv 2.6 is loaded"
        assert status["parameters"] == "max_pinned_mib=0 mode=0666 use_persistent_mapping=Y"
        assert status["node"].startswith("/dev/gdrdrv, 666 ")
        assert status["built"] == "driver/gdrdrv.ko is for this kernel and driver"
        assert status["next"] == "none: gdrdrv is ready"

    def test_of_nvidias_module(self, machine: Machine) -> None:
        machine.write("sys/module/gdrdrv/version", "2.5")
        status = machine.status()
        assert status["module"] == "another gdrdrv, NVIDIA's 2.5, is loaded"
        assert status["next"] == f"another gdrdrv, NVIDIA's 2.5, is loaded: {AGAIN}"

    def test_of_a_machine_with_nothing(self, machine: Machine) -> None:
        shutil.rmtree(machine.root)
        machine.root.mkdir()
        status = machine.status()
        assert status["NVIDIA"] == "no driver with a peer-to-peer interface is loaded"
        assert status["kernel"] == f"Linux {RELEASE}, no headers"
        assert status["next"] == "no NVIDIA driver is loaded: sudo modprobe nvidia"

    def test_of_the_proprietary_driver(self, machine: Machine) -> None:
        machine.load_nvidia("535.1", "POE")
        assert machine.status()["NVIDIA"] == "nvidia 535.1-proprietary"

    def test_of_a_missing_node(self, loaded: Machine) -> None:
        (loaded.root / "dev/gdrdrv").unlink()
        status = loaded.status()
        assert status["node"] == "/dev/gdrdrv is missing"
        assert status["next"] == "sudo ./insmod.sh would make the node"

    def test_of_missing_headers(self, machine: Machine) -> None:
        shutil.rmtree(machine.headers)
        status = machine.status()
        assert status["kernel"] == f"Linux {RELEASE}, no headers"
        assert status["next"].startswith(f"no headers of Linux {RELEASE} in ")

    def test_of_enforced_signatures(self, machine: Machine) -> None:
        machine.write("sys/kernel/security/lockdown", LOCKED)
        machine.write("secureboot", "enabled")
        status = machine.status()
        assert status["signatures"] == "enforced (Secure Boot, lockdown: integrity)"
        assert status["next"] == (
            "sudo ./insmod.sh would build driver/gdrdrv.ko; "
            "then it has to be signed: docs/kernel-module.md"
        )

    def test_of_a_given_module_that_is_not_there(self, machine: Machine) -> None:
        status = machine.status(GDRDRV_MODULE="/none.ko")
        assert status["next"] == "/none.ko is missing"

    def test_of_a_built_module(self, built: Machine) -> None:
        assert built.status()["next"] == (
            "sudo ./insmod.sh would load driver/gdrdrv.ko; nothing of the NVIDIA driver is changed"
        )

    def test_of_this_machine(self, checkout: Path) -> None:
        ended = subprocess.run(
            [checkout / "insmod.sh", "--status"], capture_output=True, text=True, check=False
        )
        assert (ended.returncode, ended.stderr) == (0, "")
        assert ended.stdout.startswith("module:     ")


class TestArguments:
    def test_help_tells_every_exit_status(self, machine: Machine) -> None:
        text = "\n".join(machine.done("--help"))
        assert text.startswith("usage: sudo ./insmod.sh ")
        assert all(f"\n  {status}  " in text for status in range(9))

    def test_unknown_one_is_refused(self, machine: Machine) -> None:
        ended = machine.run("--lod")
        assert ended.returncode == USAGE
        assert ended.stderr.endswith("insmod.sh: unknown argument '--lod'\n")

    def test_parameters_are_for_loading(self, machine: Machine) -> None:
        assert machine.refused("--unload", "mode=0600") == (USAGE, "parameters are for --load")
