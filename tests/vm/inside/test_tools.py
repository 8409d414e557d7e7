"""The command line in the guest: the same programs as on a real GPU, through the real module."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest

import gdrpy
from gdrpy import region
from gdrpy.cli import checks, main
from gdrpy.memory.gpu import GpuMemory

Run = Callable[..., dict[str, Any]]


@pytest.fixture
def run(capfd: pytest.CaptureFixture[str]) -> Run:
    """What a command that ends with this status prints as JSON."""

    def run(*arguments: str, status: int = 0) -> dict[str, Any]:
        ended = main([*arguments, "--json"])
        printed, complaints = capfd.readouterr()
        assert ended == status, complaints
        result: dict[str, Any] = json.loads(printed)
        return result

    return run


class TestCommandLine:
    def test_info_chooses_the_module(self, run: Run) -> None:
        chosen = [state["backend"] for state in run("info")["backends"] if state["chosen"]]
        assert chosen == ["gdrdrv"]

    @pytest.mark.timeout(300)
    def test_validate_passes_through_the_module(self, run: Run) -> None:
        result = run("validate")
        assert result["header"]["backend"] == "gdrdrv"
        assert result["counts"] == {"passed": len(checks.ALL), "failed": 0, "skipped": 0}

    def test_copybw_finds_the_right_data_through_the_module(self, run: Run) -> None:
        result = run("copybw", "--sizes", "4K,1M", "--seconds", "0.01")
        assert result["header"]["backend"] == "gdrdrv"
        assert {one["size"] for one in result["results"]} == {4096, 1 << 20}


def tells_nothing(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(gdrpy.Gdr, "events", lambda self: [])


def keeps_what_was_freed(patch: pytest.MonkeyPatch) -> None:
    pin = gdrpy.Gdr.pin
    patch.setattr(gdrpy.Gdr, "pin", lambda self, *range_, **_: pin(self, *range_))


def shares_another_page(patch: pytest.MonkeyPatch) -> None:
    open_export, map_ = region.open_export, GpuMemory.map

    def shorter(*args: Any, **options: Any) -> Any:
        memory = open_export(*args, **options)
        memory.size -= 4096
        return memory

    def shifted(self: GpuMemory, offset: int, *rest: Any) -> gdrpy.Mapping:
        return map_(self, offset if self.handle else offset + 4096, *rest)

    patch.setattr(region, "open_export", shorter)
    patch.setattr(GpuMemory, "map", shifted)


def shares_for_writing(patch: pytest.MonkeyPatch) -> None:
    share = GpuMemory.share
    patch.setattr(GpuMemory, "share", lambda self, readonly: share(self, False))


class TestCheckOfTheModule:
    @pytest.mark.parametrize(
        ("check", "breaks"),
        [
            ("pin-revoked", tells_nothing),
            ("pin-revoked", keeps_what_was_freed),
            ("pin-shared", shares_another_page),
            ("pin-shared", shares_for_writing),
        ],
    )
    def test_sees_red_when_it_is_broken(
        self,
        run: Run,
        monkeypatch: pytest.MonkeyPatch,
        check: str,
        breaks: Callable[[pytest.MonkeyPatch], None],
    ) -> None:
        breaks(monkeypatch)
        result = run("validate", "--check", check, status=1)
        assert result["counts"]["failed"] == 1
