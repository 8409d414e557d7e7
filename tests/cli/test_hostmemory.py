"""Refusing what the host has no memory for."""

from __future__ import annotations

import pytest

from gdrpy.cli import hostmemory, main
from gdrpy.cli.exits import UNUSABLE, CommandError


@pytest.fixture
def available(monkeypatch, tmp_path):
    """Sets what the kernel says is available: in KiB, or nothing at all."""

    def tell(kib: int | None) -> None:
        path = tmp_path / "meminfo"
        if kib is not None:
            path.write_text(f"MemTotal:  999999999 kB\nMemFree:  1 kB\nMemAvailable:  {kib} kB\n")
        monkeypatch.setattr(hostmemory, "_MEMINFO", path)

    return tell


class TestRequire:
    def test_takes_what_is_there(self, available):
        available(4)
        hostmemory.require(4096, simulated=True)

    def test_refuses_a_byte_more(self, available):
        available(4)
        with pytest.raises(CommandError) as caught:
            hostmemory.require(4097, simulated=False)
        assert caught.value.status == UNUSABLE
        assert str(caught.value) == (
            "this needs about 4.0 KiB of host memory, and 4.0 KiB are available: choose a smaller "
            "size"
        )

    def test_takes_everything_where_the_kernel_does_not_tell(self, available):
        available(None)
        hostmemory.require(1 << 60, simulated=True)


class TestCommands:
    @pytest.mark.parametrize(
        ("words", "needed"),
        [
            (["copybw", "--sizes", "12G"], "96.0 GiB"),
            (["validate", "--size", "12G"], "12.0 GiB"),
            (["producer", "--count", "3221225472"], "72.0 GiB"),
        ],
    )
    def test_refuse_on_the_simulated_gpu_before_they_fill_it(
        self, available, capsys, words, needed
    ):
        available(4 << 20)
        assert main(words) == 2
        assert capsys.readouterr().err == (
            f"error: this needs about {needed} of host memory, and 4.0 GiB are available; the "
            f"simulated GPU's memory is host memory: choose a smaller size\n"
        )
