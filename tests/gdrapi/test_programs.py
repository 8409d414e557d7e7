"""The C programs, on every backend that a machine without a GPU can play, under the sanitizers."""

from __future__ import annotations

import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

HERE = Path(__file__).parent
PROGRAMS = sorted(path.stem for path in HERE.glob("test_*.c"))
#: A dma-buf of the simulated GPU begins where its block does: these pin no other pointers.
WHOLE_BLOCKS = ["test_copies", "test_fork", "test_queries"]

Run = Callable[..., subprocess.CompletedProcess[str]]


def check(done: subprocess.CompletedProcess[str]) -> None:
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.endswith(" tests passed\n")


@pytest.mark.parametrize("variant", ["plain", "sanitized"])
@pytest.mark.parametrize("program", PROGRAMS)
class TestProgram:
    def test_passes_on_the_simulated_gpu(self, run: Run, program: str, variant: str) -> None:
        check(run(f"{variant}/{program}"))

    def test_passes_on_the_resource_manager(
        self, run: Run, resource_manager: Path, program: str, variant: str
    ) -> None:
        check(run(f"{variant}/{program}", GDRPY_BACKEND="nvrm", LD_PRELOAD=resource_manager))


class TestDmabuf:
    @pytest.mark.parametrize("program", WHOLE_BLOCKS)
    def test_passes_where_pins_begin_with_their_block(self, run: Run, program: str) -> None:
        check(run(f"sanitized/{program}", GDRPY_BACKEND="dmabuf"))


@pytest.mark.parametrize("program", ["test_threads", "test_first_use"])
class TestThreads:
    def test_pass_under_the_thread_sanitizer(self, run: Run, program: str) -> None:
        check(run(f"threads/{program}"))

    def test_pass_under_the_thread_sanitizer_on_the_resource_manager(
        self, run: Run, resource_manager: Path, program: str
    ) -> None:
        options = f"suppressions={HERE / 'tsan.supp'}:print_suppressions=0"
        nvrm = {"GDRPY_BACKEND": "nvrm", "LD_PRELOAD": resource_manager}
        check(run(f"threads/{program}", TSAN_OPTIONS=options, **nvrm))


def check_calls(done: subprocess.CompletedProcess[str], printed: str) -> None:
    assert (done.returncode, done.stderr, done.stdout) == (0, "", printed)


class TestRandomCalls:
    @pytest.mark.parametrize("seed", ["1", "20", "300"])
    def test_are_answered_as_foretold(self, run: Run, seed: str) -> None:
        check_calls(run("sanitized/fuzz", seed, "20000"), "20000 calls answered as foretold\n")

    def test_are_answered_as_foretold_on_the_resource_manager(
        self, run: Run, resource_manager: Path
    ) -> None:
        nvrm = {"GDRPY_BACKEND": "nvrm", "LD_PRELOAD": resource_manager}
        check_calls(run("sanitized/fuzz", "7", "5000", **nvrm), "5000 calls answered as foretold\n")

    @pytest.mark.parametrize("variant", ["sanitized", "threads"])
    def test_of_several_threads_crash_and_lose_nothing(self, run: Run, variant: str) -> None:
        check_calls(run(f"{variant}/fuzz_threads", "4000", "5000"), "5000 calls made\n")
