"""The choice among backends, and what each says of itself."""

from __future__ import annotations

import errno
import os
import subprocess
import sys

import pytest

import gdrpy
from gdrpy import cuda, sim
from gdrpy._core.calls import lib, text
from gdrpy._core.driver import TESTED_DRIVERS, is_tested
from gdrpy.memory import node
from gdrpy.memory.backends import ALL, Status, candidates


class TestChoice:
    def test_takes_the_simulated_backend_on_the_simulated_gpu(self, monkeypatch):
        monkeypatch.delenv("GDRPY_BACKEND", raising=False)
        with gdrpy.alloc(4096) as region:
            assert region.cpu.backend == "sim"

    def test_is_forced_by_the_environment(self, monkeypatch):
        monkeypatch.setenv("GDRPY_BACKEND", "dmabuf")
        with gdrpy.alloc(4096) as region:
            assert region.cpu.backend == "dmabuf"

    def test_is_forced_by_the_argument_before_the_environment(self, monkeypatch):
        monkeypatch.setenv("GDRPY_BACKEND", "dmabuf")
        with gdrpy.alloc(4096, backend="sim") as region:
            assert region.cpu.backend == "sim"

    def test_of_an_unknown_one_names_the_known(self, monkeypatch):
        monkeypatch.setenv("GDRPY_BACKEND", "magic")
        with pytest.raises(
            ValueError, match=r"no backend 'magic': choose one of gdrdrv, dmabuf, nvrm, sim"
        ):
            gdrpy.alloc(4096)
        with pytest.raises(ValueError, match="no backend 'magic'"):
            gdrpy.open(backend="magic")

    def test_of_one_that_cannot_serve_tells_reason_and_remedy(self):
        with pytest.raises(gdrpy.BackendUnavailable) as caught:
            gdrpy.alloc(4096, backend="gdrdrv")
        assert isinstance(caught.value, OSError)
        assert str(caught.value) == (
            "no backend can map this memory: gdrdrv: the simulated GPU's memory is not PCI memory, "
            "so a kernel module cannot pin it (run it in QEMU, with the simulated GPU on a PCI BAR)"
        )

    def test_passes_over_one_that_cannot_serve(self, monkeypatch):
        monkeypatch.delenv("GDRPY_BACKEND", raising=False)
        assert candidates() == ["gdrdrv", "sim"]
        with gdrpy.alloc(4096) as region, gdrpy.open() as gdr, gdr.pin(region) as pin:
            assert (region.cpu.backend, pin.backend) == ("sim", "sim")

    def test_is_among_those_that_the_core_has(self):
        found = [text(lib.core_backend_named(name.encode()).name) for name in ALL]
        assert found == list(ALL)


class TestFailedCudaCall:
    def test_of_the_core_is_told_with_its_call_and_name(self):
        refused = pytest.raises(gdrpy.CudaError)
        with cuda.context(0), sim.fault("cuCtxPushCurrent:1:201"), refused as caught:
            gdrpy.alloc(4096, backend="dmabuf")
        assert (caught.value.call, caught.value.name) == (
            "cuCtxPushCurrent",
            "CUDA_ERROR_INVALID_CONTEXT",
        )
        assert caught.value.explanation == "using the CUDA context of device 0"


class TestTestedDriver:
    @pytest.mark.parametrize("version", [*TESTED_DRIVERS, "535.309.01", "580.159.04", "570.1"])
    def test_inside_the_range_is_tested(self, version):
        assert is_tested(version)

    @pytest.mark.parametrize("version", ["535.43.01", "530.41.03", "595.45.05", "600.1"])
    def test_outside_the_range_is_not(self, version):
        assert not is_tested(version)


class TestStatus:
    def test_of_every_backend_has_a_reason(self):
        for name, backend in ALL.items():
            status = backend.status(0)
            assert status.reason, name
            assert status.usable or status.remedy, name

    def test_without_a_device_says_what_needs_one(self):
        needs_cuda = Status(False, "needs a CUDA device in this process", "open it with gpu=True")
        assert [name for name in ALL if ALL[name].status() == needs_cuda] == ["dmabuf", "sim"]


class TestKernelModule:
    """Where there is none; tests/vm/inside has the rest."""

    @pytest.fixture
    def missing(self, monkeypatch, tmp_path):
        monkeypatch.setattr(node, "PATH", str(tmp_path / "gdrdrv"))
        return tmp_path / "gdrdrv"

    def test_cannot_pin_simulated_memory_that_is_no_pci_memory(self):
        assert ALL["gdrdrv"].status(0) == Status(
            False,
            "the simulated GPU's memory is not PCI memory, so a kernel module cannot pin it",
            "run it in QEMU, with the simulated GPU on a PCI BAR",
        )

    def test_that_is_not_loaded_says_how_to_load_it(self, missing):
        with pytest.raises(gdrpy.BackendUnavailable) as caught:
            node.Node()
        assert str(caught.value) == (
            "no kernel module serves /dev/gdrdrv: load the kernel module gdrdrv"
        )

    def test_that_is_something_else_is_not_taken_for_one(self, missing):
        missing.touch()
        with pytest.raises(gdrpy.BackendUnavailable) as caught:
            node.Node()
        assert str(caught.value) == (
            "/dev/gdrdrv has a different ABI than gdrdrv 2: load the kernel module gdrdrv"
        )

    def test_gives_events_and_without_it_there_are_none(self):
        with gdrpy.open() as gdr:
            for call in (gdr.fileno, gdr.events):
                with pytest.raises(gdrpy.BackendUnavailable, match="run it in QEMU"):
                    call()

    def test_makes_revocable_pins_and_without_it_there_are_none(self):
        with gdrpy.alloc(4096) as region, gdrpy.open() as gdr:
            with pytest.raises(gdrpy.BackendUnavailable, match="sim: its pins cannot be revoked"):
                gdr.pin(region, revocable=True)
            with pytest.raises(ValueError, match="sigbus=True needs revocable=True"):
                gdr.pin(region, sigbus=True)
            with gdr.pin(region) as pin:
                assert not pin.revoked

    def test_shares_pins_and_without_it_nothing_does(self):
        with (
            gdrpy.alloc(4096) as region,
            gdrpy.open() as gdr,
            gdr.pin(region) as pin,
            pytest.raises(gdrpy.BackendUnavailable, match="^sim cannot share a pin"),
        ):
            pin.export()


class TestRevokedMapping:
    def test_refuses_everything_but_to_be_closed(self):
        with gdrpy.alloc(4096) as region, region.map() as mapping:
            flag = mapping.flag()
            mapping._revoke()
            assert mapping.revoked
            for use in (
                lambda: mapping.write(b"x"),
                lambda: mapping.read(1),
                lambda: mapping.readinto(bytearray(1)),
                lambda: mapping.load(0),
                lambda: mapping.address,
                lambda: memoryview(mapping),
                lambda: flag.get(),
                lambda: mapping.flush(),
            ):
                with pytest.raises(gdrpy.Revoked, match="freed by its owner") as caught:
                    use()
                assert caught.value.errno == errno.ENXIO
            mapping.close()
            assert mapping.closed


class TestEnvironment:
    def test_wrong_choice_of_simulation_is_refused(self, tmp_path):

        done = subprocess.run(
            [sys.executable, "-c", "import gdrpy; gdrpy.alloc(1)"],
            env={**os.environ, "GDRPY_SIM": "yes"},
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.stderr.endswith("ValueError: GDRPY_SIM must be 0 or 1, not 'yes'\n")

    def test_insisting_on_a_real_gpu_where_there_is_none_says_what_to_do(self):

        done = subprocess.run(
            [sys.executable, "-c", "import gdrpy; gdrpy.alloc(1)"],
            env={**os.environ, "GDRPY_SIM": "0"},
            capture_output=True,
            text=True,
            check=False,
        )
        assert "BackendUnavailable: CUDA cannot be loaded" in done.stderr
        assert "unset GDRPY_SIM" in done.stderr
        assert done.stderr.endswith('; host memory needs no GPU: device="cpu"\n')

    def test_without_a_gpu_leads_to_host_memory(self):
        code = """
import gdrpy
try:
    gdrpy.alloc(1)
except gdrpy.CudaError as error:
    print(str(error).rpartition("; ")[2])
with gdrpy.alloc(1, device="cpu") as region:
    print(region.location)
"""
        done = subprocess.run(
            [sys.executable, "-c", code],
            env={**os.environ, "GDRPY_SIM_FAULT": "cuInit:1:100"},
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.stdout == 'host memory needs none: device="cpu"\nhost memory\n'
