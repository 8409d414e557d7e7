"""The file of measured limits: what cannot be used never keeps a region from copying."""

from __future__ import annotations

import errno
import json
import pwd
from collections.abc import Iterator
from pathlib import Path

import pytest

import gdrpy
from gdrpy import _tuned, tuning
from gdrpy.cli import main
from gdrpy.limits import BUILT_IN


@pytest.fixture(autouse=True)
def folder(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Path]:
    """The cache folder, empty at first."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.delenv("GDRPY_TUNING", raising=False)
    tuning.forget()
    yield tmp_path
    tuning.forget()


@pytest.fixture
def homeless(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A user whom neither the environment nor the system gives a home, as in some containers."""

    def unknown(uid: int) -> None:
        raise KeyError(uid)

    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.delenv("HOME")
    monkeypatch.setattr(pwd, "getpwuid", unknown)


def keep(**changes: object) -> Path:
    """A file as save() writes it, with one thing changed."""
    file = _tuned.save(0, BUILT_IN)
    file.write_text(json.dumps({**json.loads(file.read_text()), **changes}))
    return file


class TestKeptLimits:
    def test_are_taken(self):
        _tuned.save(0, BUILT_IN._replace(read_dma=12345))
        assert tuning.limits(0).read_dma == 12345

    def test_of_another_machine_are_not(self):
        keep(origin={"cpu": "another"})
        assert tuning.limits(0) == BUILT_IN

    @pytest.mark.parametrize(
        "limits",
        [
            None,
            [1, 2, 3],
            {"read_dma": 1},
            {**BUILT_IN._asdict(), "threads_to": 0},
            {**BUILT_IN._asdict(), "lanes": 9},
            {**BUILT_IN._asdict(), "read_dma": -1},
            {**BUILT_IN._asdict(), "read_dma": 1 << 63},
            {**BUILT_IN._asdict(), "read_dma": 4096.5},
        ],
    )
    def test_that_cannot_be_are_told_of_and_not_taken(self, limits):
        file = keep(limits=limits)
        with pytest.warns(RuntimeWarning, match=f"{file} cannot be used .*: built-in limits"):
            assert tuning.limits(0) == BUILT_IN

    @pytest.mark.parametrize("text", ["", "{", "null", "\x00", "7"])
    def test_in_no_such_file_are_told_of_and_not_taken(self, text):
        file = keep()
        file.write_text(text)
        with pytest.warns(RuntimeWarning, match="run gdrpy tune again, or delete it"):
            assert tuning.limits(0) == BUILT_IN


class TestUserWithoutAHome:
    def test_has_the_built_in_limits(self, homeless):
        with gdrpy.alloc(4096) as region:
            region.write(b"somewhere")
            assert region.read(9) == b"somewhere"

    def test_is_told_what_to_do_to_keep_others(self, homeless):
        with pytest.raises(FileNotFoundError, match="no home folder: set XDG_CACHE_HOME"):
            _tuned.save(0, BUILT_IN)

    @pytest.mark.parametrize("option", ["--show", "--reset"])
    def test_is_told_so_by_the_command(self, homeless, capsys, option):
        assert main(["tune", option]) == 1
        assert "error: nothing is kept here: this user has no home" in capsys.readouterr().err


class TestSave:
    def test_that_fails_leaves_the_old_file_and_no_other(self, folder, monkeypatch):
        file = _tuned.save(0, BUILT_IN)

        def refuse(draft: Path, target: Path) -> None:
            raise OSError(errno.EROFS, "read-only", str(target))

        monkeypatch.setattr(Path, "replace", refuse)
        with pytest.raises(OSError, match="read-only"):
            _tuned.save(0, BUILT_IN._replace(read_dma=12345))
        assert list(file.parent.iterdir()) == [file]
        assert tuning.limits(0) == BUILT_IN
