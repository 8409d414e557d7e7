"""The choice among backends, and what each says of itself."""

from __future__ import annotations

import errno
import os
import subprocess
import sys

import pytest

import gdrpy
from gdrpy import cuda
from gdrpy.backends import ALL, node, nvrm
from gdrpy.backends.nvrm import TESTED_DRIVERS, is_tested
from gdrpy.backends.records import Status


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

    def test_of_one_that_cannot_serve_tells_reason_and_remedy(self, monkeypatch):
        monkeypatch.setattr(
            type(ALL["dmabuf"]), "status", lambda *_: Status(False, "too old", "update it")
        )
        with pytest.raises(
            gdrpy.BackendUnavailable, match=r"dmabuf: too old \(update it\)"
        ) as caught:
            gdrpy.alloc(4096, backend="dmabuf")
        assert isinstance(caught.value, OSError)

    def test_passes_over_one_that_refuses_the_memory(self, monkeypatch):
        from gdrpy import backends

        def refuse(*_: object) -> None:
            raise gdrpy.InvalidHandle("not this one")

        monkeypatch.setattr(backends, "_candidates", lambda _: [ALL["dmabuf"], ALL["sim"]])
        monkeypatch.setattr(type(ALL["dmabuf"]), "from_allocation", refuse)
        with gdrpy.alloc(4096) as region:
            assert region.cpu.backend == "sim"


class TestTestedDriver:
    @pytest.mark.parametrize("version", [*TESTED_DRIVERS, "580.159.04", "570.1"])
    def test_inside_the_range_is_tested(self, version):
        assert is_tested(version)

    @pytest.mark.parametrize("version", ["550.54.13", "535.288.01", "595.45.05", "600.1"])
    def test_outside_the_range_is_not(self, version):
        assert not is_tested(version)


class TestStatus:
    def test_of_every_backend_has_a_reason(self):
        for name, backend in ALL.items():
            status = backend.status(0)
            assert status.reason, name
            assert status.usable or status.remedy, name

    def test_of_nvrm_says_that_there_is_no_driver(self, monkeypatch, tmp_path):
        node = tmp_path / "nvidiactl"
        monkeypatch.setattr(nvrm, "CONTROL_NODE", node)
        assert ALL["nvrm"].status() == Status(
            False,
            f"no NVIDIA kernel driver: {node} is missing",
            "install the driver, or pass the node into the container (--gpus, --device)",
        )


class TestKernelModule:
    """Where there is none; tests/vm/inside has the rest."""

    @pytest.fixture
    def missing(self, monkeypatch, tmp_path):
        monkeypatch.setattr(node, "PATH", tmp_path / "gdrdrv")
        return tmp_path / "gdrdrv"

    def test_cannot_pin_simulated_memory_that_is_no_pci_memory(self):
        assert ALL["gdrdrv"].status(0) == Status(
            False,
            "the simulated GPU's memory is no PCI memory, which a kernel module could pin",
            "run it in QEMU: tests/vm/README.md",
        )

    def test_that_is_not_loaded_says_how_to_load_it(self, missing):
        assert ALL["gdrdrv"].status() == Status(
            False, f"no kernel module serves {missing}", "load the module: sudo ./insmod.sh"
        )

    def test_that_is_something_else_is_not_taken_for_one(self, missing):
        missing.touch()
        assert ALL["gdrdrv"].status().reason == f"{missing} speaks another ABI than gdrdrv 2"

    def test_gives_events_and_without_it_there_are_none(self):
        with gdrpy.open() as gdr:
            for call in (gdr.fileno, gdr.events):
                with pytest.raises(gdrpy.BackendUnavailable, match="run it in QEMU"):
                    call()

    def test_makes_revocable_pins_and_without_it_there_are_none(self):
        with gdrpy.alloc(4096) as region, gdrpy.open() as gdr:
            with pytest.raises(gdrpy.BackendUnavailable, match="sim: its pins keep the memory"):
                gdr.pin(region, revocable=True)
            with pytest.raises(ValueError, match="sigbus=True says how"):
                gdr.pin(region, sigbus=True)
            with gdr.pin(region) as pin:
                assert not pin.revoked

    def test_shares_pins_and_without_it_nothing_does(self):
        with (
            gdrpy.alloc(4096) as region,
            gdrpy.open() as gdr,
            gdr.pin(region) as pin,
            pytest.raises(gdrpy.BackendUnavailable, match=r"Pin\.export: sim cannot share"),
        ):
            pin.export()

    def test_gives_a_pin_back_that_has_no_descriptor(self, monkeypatch):
        ended = []

        class FullNode:
            full, closed = True, False
            unpin = staticmethod(ended.append)

            def pin(self, *_: object) -> int:
                return 7

            def info(self, _: int) -> node.PinnedPages:
                return node.PinnedPages(1 << 16, 1 << 16, None, False)

            def share(self, _: int) -> int:
                raise gdrpy.DriverError(errno.EMFILE, "too many open files")

        monkeypatch.setattr(cuda, "location", lambda _: "a GPU")
        with pytest.raises(gdrpy.DriverError, match="too many open files"):
            ALL["gdrdrv"]._pin(FullNode(), 1 << 16, 4096, 0, 0)
        assert ended == [7]


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
        assert done.stderr.endswith("ValueError: GDRPY_SIM must be 0 or 1, and is 'yes'\n")

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
