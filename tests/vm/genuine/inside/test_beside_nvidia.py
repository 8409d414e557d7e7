"""gdrdrv beside NVIDIA's own nvidia.ko: insmod.sh, flavours, order of unloading, refused pins.

No GPU works behind the driver, so every pin is refused. What a refusal leaves behind is measured.
"""

from __future__ import annotations

import errno
import os
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest
from gdrdrv import PERSISTENT, REVOCABLE, Gdrdrv

from machine import RELEASE, Machine, done

NO_DRIVER, IN_USE = 5, 8
GPU_PAGE = 65536
BOGUS = 0x7F00_0000_0000
PINS = 10_000


def refusal(ended: subprocess.CompletedProcess[str]) -> tuple[int, str]:
    """What insmod.sh failed with."""
    return ended.returncode, ended.stderr.splitlines()[-1].removeprefix("insmod.sh: ")


def references(module: str) -> int:
    return int(Path(f"/sys/module/{module}/refcnt").read_text())


def kernel_memory() -> int:
    """Bytes that the kernel has allocated for itself, and not merely caches."""
    lines = Path("/proc/meminfo").read_text().splitlines()
    sizes = {line.partition(":")[0]: int(line.split()[1]) for line in lines}
    return (sizes["SUnreclaim"] + sizes["VmallocUsed"] + sizes["PageTables"]) << 10


def pages_ever_allocated() -> int:
    """Pages, counted since the machine started."""
    pairs = (line.split() for line in Path("/proc/vmstat").read_text().splitlines())
    return sum(int(count) for name, count in pairs if name.startswith("pgalloc_"))


def live_pins() -> list[str]:
    _heading, *pins = Path("/proc/driver/gdrdrv/pins").read_text().splitlines()
    return pins


class TestStatus:
    def test_without_a_driver_tells_to_load_it(self, machine: Machine) -> None:
        machine.unload()
        found = machine.status()
        assert found["NVIDIA"] == "no driver with a peer-to-peer interface is loaded"
        assert found["next"] == "no NVIDIA driver is loaded: sudo modprobe nvidia"

    def test_beside_the_driver_tells_what_loading_would_do(self, driver: Machine) -> None:
        driver.module.unlink(missing_ok=True)
        found = driver.status()
        assert found["NVIDIA"] == f"nvidia {driver.driver.version}"
        assert found["kernel"] == f"Linux {RELEASE}, headers in /lib/modules/{RELEASE}/build"
        assert found["built"] == "driver/gdrdrv.ko is missing"
        assert found["next"] == (
            "sudo ./insmod.sh would build driver/gdrdrv.ko and load it; nothing of the NVIDIA "
            "driver is changed"
        )


class TestLoading:
    def test_driver_binds_to_the_gpu(self, driver: Machine) -> None:
        # Not by /proc/driver/nvidia/gpus: NVIDIA's code returns from its open() with a lock held,
        # upon which lockdep, where there is one, reports no more.
        bound = Path("/sys/bus/pci/devices/0001:00:00.0/driver").resolve()
        assert bound.name == "nvidia"

    @pytest.mark.skipif(
        "GENUINE_GDRDRV" in os.environ, reason="gdrdrv was built on the host, which is faster"
    )
    def test_insmod_builds_and_loads(self, driver: Machine) -> None:
        driver.module.unlink(missing_ok=True)
        # Debugging information, which nothing here looks at, takes a sixth of the compiler's time.
        *first, last = done(driver.insmod(KCFLAGS="-g0"))
        assert first == ["building: driver/gdrdrv.ko is missing"]
        assert last.startswith("gdrdrv is loaded: ")
        assert driver.status()["next"] == "none: gdrdrv is ready"

    def test_module_tells_which_driver_it_was_built_for(self, loaded: Machine) -> None:
        told = done(loaded.run("modinfo", "-F", "nvidia", loaded.module))
        assert told == [loaded.driver.version]

    def test_node_answers(self, loaded: Machine) -> None:
        with Gdrdrv() as node, pytest.raises(OSError, match="Invalid argument") as caught:
            node.unpin(1)
        assert caught.value.errno == errno.EINVAL


class TestFlavours:
    @pytest.fixture
    def others(self) -> Path:
        """gdrdrv as it is built for the other flavour."""
        return Path(os.environ["GENUINE_OTHERS_GDRDRV"])

    def test_gdrdrv_for_the_other_one_is_refused(self, driver: Machine, others: Path) -> None:
        assert refusal(driver.insmod(GDRDRV_MODULE=str(others))) == (
            NO_DRIVER,
            f"{others} is for NVIDIA driver {driver.driver.other_flavour.version}, not "
            f"{driver.driver.version}",
        )

    def test_gdrdrv_with_gpl_symbols_is_for_the_open_one(self, driver: Machine) -> None:
        module = os.environ["GENUINE_GPL_GDRDRV"]
        ended = driver.insmod(GDRDRV_MODULE=module)
        if driver.driver.flavour == "open":
            assert done(ended)[0].startswith("gdrdrv is loaded: ")
            done(driver.insmod("--unload"))
            return
        code, reason = refusal(ended)
        assert code == NO_DRIVER
        assert reason.startswith(f"{module} is not for this NVIDIA driver (")


class TestOrder:
    def test_driver_stays_while_gdrdrv_is_loaded(self, loaded: Machine) -> None:
        ended = loaded.run("rmmod", "nvidia")
        assert ended.returncode == 1
        assert ended.stderr == "rmmod: ERROR: Module nvidia is in use by: gdrdrv\n"

    def test_gdrdrv_stays_while_its_node_is_open(self, loaded: Machine) -> None:
        with Gdrdrv():
            code, reason = refusal(loaded.insmod("--unload"))
        assert code == IN_USE
        assert reason.startswith(f"gdrdrv is in use by {os.getpid()} (")

    def test_driver_goes_after_gdrdrv(self, loaded: Machine) -> None:
        assert done(loaded.insmod("--unload")) == ["gdrdrv is unloaded"]
        done(loaded.run("rmmod", "nvidia"))
        assert not Path("/sys/module/nvidia").exists()


def refused_pins(count: int) -> Counter[str]:
    """What as many pins were refused with, revocable and persistent, of one page and of many."""
    found: Counter[str] = Counter()
    with Gdrdrv() as node:
        for i in range(count):
            flags = (REVOCABLE, PERSISTENT)[i % 2]
            pages = (1, 3, 256, 4096)[i // 2 % 4]
            try:
                node.pin(BOGUS + i * GPU_PAGE, pages * GPU_PAGE, flags)
            except OSError as error:
                found[errno.errorcode[error.errno or 0]] += 1
            else:
                found["pinned"] += 1
    return found


class TestRefusedPins:
    def test_leave_nothing(self, loaded: Machine) -> None:
        refused_pins(1000)
        before = kernel_memory()
        held = references("nvidia"), references("gdrdrv")
        assert refused_pins(PINS) == {"EINVAL": PINS}
        # A leak of the smallest block, or of a page in a hundred pins, is more.
        assert kernel_memory() - before < PINS * 32
        assert (references("nvidia"), references("gdrdrv")) == held
        assert live_pins() == []

    def test_measure_sees_a_block_for_each(self, loaded: Machine) -> None:
        before = kernel_memory()
        nodes = [Gdrdrv() for _ in range(1000)]
        grown = kernel_memory() - before
        for node in nodes:
            os.close(node.fd)
        assert grown > 1000 * 256

    def test_of_eight_tebibytes_takes_no_memory(self, loaded: Machine) -> None:
        """By a user without privileges, whom the kernel ends first if memory is short."""
        script = """
import os
from gdrdrv import REVOCABLE, Gdrdrv
with open("/proc/self/oom_score_adj", "w") as first:
    first.write("1000")
os.setgroups([])
os.setgid(65534)
os.setuid(65534)
with Gdrdrv() as node:
    try:
        node.pin(0x7F0000000000, 1 << 43, REVOCABLE)
    except OSError as error:
        print(error.errno)
"""
        Path("/dev/gdrdrv").chmod(0o666)
        before = pages_ever_allocated()
        ended = loaded.run(sys.executable, "-c", script, PYTHONPATH=os.pathsep.join(sys.path))
        allocated = pages_ever_allocated() - before
        assert ended.returncode == 0, f"{ended}, after {allocated} pages were allocated"
        assert int(ended.stdout) in (errno.EINVAL, errno.EDQUOT)
        # The table of the pin would take 524288 pages; to start Python, a few thousands.
        assert allocated < 100_000
