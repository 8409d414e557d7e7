"""What the environment and the order of a program's steps decide: the backend, and what is told."""

from __future__ import annotations

import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from gdrpy import sim

STEPS = "plain/steps"
#: Where a program finds the simulated driver that it asks for by name.
WITH_CUDA = {"LD_LIBRARY_PATH": str(Path(sim.driver_path()).parent)}
EINVAL = 22

Run = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture
def take(run: Run) -> Callable[..., tuple[list[str], list[str]]]:
    """The steps as they ended, and the lines told on stderr."""

    def take(steps: str, **environment: str | Path) -> tuple[list[str], list[str]]:
        done = run(STEPS, *steps.split(), **{**WITH_CUDA, **environment})
        assert done.returncode == 0
        return done.stdout.splitlines(), done.stderr.splitlines()

    return take


Take = Callable[..., tuple[list[str], list[str]]]

ALL = "pin map copy type unmap unpin"
ALL_DONE = ["pin 0", "map 0", "copy 0", "type 2", "unmap 0", "unpin 0"]
WRITE_COMBINED = [step.replace("type 2", "type 1") for step in ALL_DONE]


class TestBackend:
    def test_is_that_of_the_loaded_driver(self, take: Take) -> None:
        assert take(f"cuda open {ALL}")[0] == ["cuda 0", "open 0", *ALL_DONE]

    @pytest.mark.parametrize("name", ["sim", "dmabuf"])
    def test_is_forced_by_gdrpy_backend(self, take: Take, name: str) -> None:
        steps, _ = take(f"cuda open {ALL} uses-dmabuf", GDRPY_BACKEND=name)
        assert steps[1:-1] == ["open 0", *ALL_DONE]
        assert steps[-1] == f"uses-dmabuf {int(name == 'dmabuf')}"

    def test_that_cannot_serve_is_not_replaced(self, take: Take) -> None:
        for name in ("gdrdrv", "nvrm"):
            assert take("cuda open", GDRPY_BACKEND=name)[0] == ["cuda 0", "open -1"]

    def test_that_there_is_not_is_told(self, take: Take) -> None:
        steps, told = take("cuda open", GDRPY_BACKEND="best", GDRCOPY_ENABLE_LOGGING="1")
        assert steps == ["cuda 0", "open -1"]
        assert told == [
            "libgdrapi: gdr_open: there is no backend GDRPY_BACKEND=best: set it to gdrdrv, "
            "dmabuf, nvrm or sim, or unset it"
        ]

    def test_is_dmabuf_if_gdrcopys_variable_says_so(self, take: Take) -> None:
        steps, _ = take(f"cuda open uses-dmabuf {ALL}", GDRCOPY_USE_DMABUF_MMAP="1")
        assert steps == ["cuda 0", "open 0", "uses-dmabuf 1", *ALL_DONE]

    @pytest.mark.parametrize("value", ["0", "", "yes", "11"])
    def test_is_not_dmabuf_for_another_value(self, take: Take, value: str) -> None:
        steps, _ = take("cuda open uses-dmabuf", GDRCOPY_USE_DMABUF_MMAP=value)
        assert steps[-1] == "uses-dmabuf 0"

    def test_gdrpys_variable_has_the_last_word(self, take: Take) -> None:
        steps, _ = take(
            "cuda open pin uses-dmabuf", GDRCOPY_USE_DMABUF_MMAP="1", GDRPY_BACKEND="sim"
        )
        assert steps[1:] == ["open 0", "pin 0", "uses-dmabuf 0"]

    def test_is_nvrm_on_a_machine_with_the_driver(self, take: Take, resource_manager: Path) -> None:
        steps, _ = take(f"cuda open {ALL}", GDRPY_BACKEND="nvrm", LD_PRELOAD=resource_manager)
        assert steps == ["cuda 0", "open 0", *WRITE_COMBINED]


class TestOrder:
    def test_library_may_be_opened_before_cuda(self, take: Take, resource_manager: Path) -> None:
        steps, _ = take(f"open cuda {ALL}", GDRPY_BACKEND="nvrm", LD_PRELOAD=resource_manager)
        assert steps == ["open 0", "cuda 0", *WRITE_COMBINED]

    def test_forced_simulated_gpu_may_come_later(self, take: Take) -> None:
        steps, _ = take(f"open cuda {ALL}", GDRPY_BACKEND="sim")
        assert steps == ["open 0", "cuda 0", *ALL_DONE]

    @pytest.mark.parametrize("name", ["sim", "nvrm"])
    def test_child_of_a_process_that_opened_the_library_opens_its_own(
        self, take: Take, resource_manager: Path, name: str
    ) -> None:
        steps, told = take(
            f"open fork pin cuda open {ALL} close",
            GDRPY_BACKEND=name,
            LD_PRELOAD=resource_manager,
        )
        done = ALL_DONE if name == "sim" else WRITE_COMBINED
        assert steps == ["open 0", "fork 0", "pin 13", "cuda 0", "open 0", *done, "close 0"]
        assert told == []

    def test_without_cuda_nothing_is_pinned(self, take: Take, resource_manager: Path) -> None:
        steps, told = take(
            "open pin-host",
            GDRPY_BACKEND="nvrm",
            LD_PRELOAD=resource_manager,
            GDRCOPY_ENABLE_LOGGING="1",
        )
        assert steps == ["open 0", f"pin-host {EINVAL}"]
        assert len(told) == 1
        assert "this process has loaded no libcuda.so.1" in told[0]

    def test_without_cuinit_nothing_is_pinned_and_the_call_is_named(self, take: Take) -> None:
        log = {"GDRCOPY_ENABLE_LOGGING": "1", "GDRCOPY_LOG_LEVEL": "2"}
        steps, told = take("load-cuda open pin-host", GDRPY_BACKEND="dmabuf", **log)
        assert steps == ["load-cuda 0", "open 0", f"pin-host {EINVAL}"]
        assert told[0] == (
            "libgdrapi: gdr_open: using dmabuf: CUDA is not initialized in this process yet"
        )
        assert told[1].endswith(
            " cannot be GPU memory yet (CUDA_ERROR_NOT_INITIALIZED): call cuInit() or any "
            "function of the CUDA runtime in this process first"
        )

    def test_calls_without_a_library_object_are_refused(self, take: Take) -> None:
        steps, _ = take("cuda pin map unmap unpin close")
        assert steps == [
            "cuda 0",
            *(f"{step} {EINVAL}" for step in ("pin", "map", "unmap", "unpin", "close")),
        ]


class TestPinsThatCannotSucceed:
    """Programs end where a pin fails that gdr_open() promised, and do without where it did not."""

    @pytest.fixture
    def opened(
        self, take: Take, resource_manager: Path
    ) -> Callable[..., tuple[list[str], list[str]]]:
        """The steps, and what was told, where the driver refuses something."""

        def opened(steps: str, fault: str, **more: str) -> tuple[list[str], list[str]]:
            return take(
                steps,
                GDRPY_BACKEND="nvrm",
                LD_PRELOAD=resource_manager,
                FAKE_RM_FAULT=fault,
                GDRCOPY_ENABLE_LOGGING="1",
                **more,
            )

        return opened

    @pytest.mark.parametrize(
        ("fault", "reason"),
        [
            ("open:/dev/nvidia0:13", "/dev/nvidia0"),
            ("open:/dev/nvidia0:2", "/dev/nvidia0"),
            ("IMPORT_OBJECTS_FROM_FD:1:0x56", "IMPORT_OBJECT"),
            ("RM_MAP_MEMORY:1:0x56", "RM_MAP_MEMORY"),
        ],
    )
    def test_are_found_out_without_a_context(self, opened: Take, fault: str, reason: str) -> None:
        steps, told = opened("init-cuda open", fault)
        assert steps == ["init-cuda 0", "open -1"]
        assert told[0] == "libgdrapi: gdr_open: nothing can map GPU memory here:"
        assert told[1].startswith("libgdrapi: gdr_open: cannot use nvrm: ")
        assert reason in told[1]

    def test_of_cumemalloc_memory_are_found_out_in_a_context(self, opened: Take) -> None:
        fault = "RM_DUP_OBJECT:1:0x57"
        steps, told = opened("cuda open", fault)
        assert steps == ["cuda 0", "open -1"]
        assert "cannot use nvrm: nvrm cannot pin cuMemAlloc pointers with NVIDIA" in told[1]
        assert opened("init-cuda open", fault) == (["init-cuda 0", "open 0"], [])

    @pytest.mark.parametrize("fault", ["RM_MAP_MEMORY:1:0x51", "RM_DUP_OBJECT:1:0x51"])
    def test_for_want_of_memory_may_succeed_later(self, opened: Take, fault: str) -> None:
        steps, told = opened("cuda open pin unpin", fault)
        assert (steps, told) == (["cuda 0", "open 0", "pin 0", "unpin 0"], [])

    @pytest.mark.parametrize("call", ["cuMemCreate", "cuMemExportToShareableHandle"])
    def test_of_exports_are_found_out_by_what_cuda_refuses(self, opened: Take, call: str) -> None:
        steps, told = opened("init-cuda open", "", GDRPY_SIM_FAULT=f"{call}:1:801")
        assert steps == ["init-cuda 0", "open -1"]
        assert told[1] == (
            f"libgdrapi: gdr_open: cannot use nvrm: exporting GPU memory: {call}: "
            "CUDA_ERROR_NOT_SUPPORTED"
        )
        for temporary in (2, 304):
            fault = f"{call}:1:{temporary}"
            steps, told = opened("init-cuda open", "", GDRPY_SIM_FAULT=fault)
            assert (steps, told) == (["init-cuda 0", "open 0"], []), fault

    def test_on_one_gpu_say_nothing_of_another(self, opened: Take) -> None:
        fault = "open:/dev/nvidia1:13"  # device 0: minor numbers count down
        steps, _ = opened("init-cuda open", fault, GDRPY_SIM_DEVICES="2")
        assert steps == ["init-cuda 0", "open 0"]
        steps, _ = opened("cuda open", fault, GDRPY_SIM_DEVICES="2")
        assert steps == ["cuda 0", "open -1"]


class TestMachineWithoutGpu:
    def test_has_no_library_object(self, take: Take) -> None:
        assert take("open") == (["open -1"], [])

    def test_is_told_why_for_each_backend(self, take: Take) -> None:
        _, told = take("open", GDRCOPY_ENABLE_LOGGING="1")
        assert told == [
            "libgdrapi: gdr_open: nothing can map GPU memory here:",
            "libgdrapi: gdr_open: cannot use nvrm: no NVIDIA kernel driver: /dev/nvidiactl is "
            "missing (install the driver, or pass the node into the container (--gpus, --device))",
            "libgdrapi: gdr_open: cannot use dmabuf: no CUDA driver is loaded in this process yet",
            "libgdrapi: gdr_open: cannot use gdrdrv: no kernel module serves /dev/gdrdrv "
            "(load the kernel module gdrdrv)",
        ]

    def test_with_nodes_that_may_not_be_opened_is_told_so(
        self, take: Take, resource_manager: Path
    ) -> None:
        steps, told = take(
            "open",
            GDRCOPY_ENABLE_LOGGING="1",
            LD_PRELOAD=resource_manager,
            FAKE_RM_FAULT="open:/dev/nvidiactl:13",
        )
        assert steps == ["open -1"]
        assert "nvrm: no permission to open /dev/nvidiactl" in told[1]


class TestLog:
    REFUSED = "cuda open pin-host close"

    def test_is_silent_unless_it_is_asked_for(self, take: Take) -> None:
        assert take(self.REFUSED)[1] == []
        assert take(self.REFUSED, GDRCOPY_LOG_LEVEL="1")[1] == []

    def test_tells_errors_by_default(self, take: Take) -> None:
        _, told = take(self.REFUSED, GDRCOPY_ENABLE_LOGGING="")
        (line,) = told
        assert line.startswith("libgdrapi: gdr_pin_buffer: 0x")
        assert "pass a pointer from cuMemAlloc, cudaMalloc" in line

    def test_tells_what_the_level_asks_for_and_what_is_worse(self, take: Take) -> None:
        told = [
            take("cuda open pin pin-host close", GDRCOPY_ENABLE_LOGGING="1", GDRCOPY_LOG_LEVEL=n)[1]
            for n in "1234"
        ]
        debug, info, warning, error = map(len, told)
        assert debug > info > warning == error == 1
        assert any(line.startswith("libgdrapi: gdr_open: using sim") for line in told[1])

    @pytest.mark.parametrize("level", ["", "0", "5", "-1", "11", "debug", "1x"])
    def test_tells_errors_for_a_level_that_there_is_not(self, take: Take, level: str) -> None:
        _, told = take(self.REFUSED, GDRCOPY_ENABLE_LOGGING="1", GDRCOPY_LOG_LEVEL=level)
        (line,) = told
        assert line.startswith("libgdrapi: gdr_pin_buffer: 0x")

    def test_warns_once_of_a_driver_that_is_not_known(
        self, take: Take, resource_manager: Path
    ) -> None:
        _, told = take(
            "cuda open close open pin close",
            GDRPY_BACKEND="nvrm",
            LD_PRELOAD=resource_manager,
            GDRCOPY_ENABLE_LOGGING="1",
            GDRCOPY_LOG_LEVEL="3",
            FAKE_RM_VERSION="999.1.2",
        )
        (line,) = told
        assert line.startswith(
            "libgdrapi: the nvrm backend was not compared with NVIDIA driver 999.1.2;"
        )


class TestEnd:
    def test_of_a_program_that_gives_nothing_back_is_quiet(
        self, run: Run, resource_manager: Path
    ) -> None:
        for environment in ({}, {"GDRPY_BACKEND": "nvrm", "LD_PRELOAD": resource_manager}):
            done = run(STEPS, *["cuda", "open", "pin", "map"], **{**WITH_CUDA, **environment})
            assert (done.returncode, done.stderr) == (0, "")
