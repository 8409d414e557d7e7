"""The file that gdrpy tune leaves, and what a process makes of it."""

from __future__ import annotations

import errno
import json
import os
import warnings
from pathlib import Path

import pytest

import gdrpy
from gdrpy.cli import main
from gdrpy.copies import tuning
from gdrpy.copies.tuning import BUILT_IN

KEPT = BUILT_IN._replace(read_dma=12345)


@pytest.fixture(autouse=True)
def cache(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """Where limits are kept during a test, none at first."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.delenv("GDRPY_TUNING", raising=False)
    tuning.forget()
    yield tmp_path
    tuning.forget()


@pytest.fixture
def homeless(monkeypatch: pytest.MonkeyPatch) -> None:
    """A user without a home, as in containers that run under any number."""

    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.delenv("HOME", raising=False)
    monkeypatch.setattr(os, "getuid", lambda: 54321)


@pytest.fixture
def strict():
    """Every warning is an error."""
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        yield


def copies() -> bool:
    """Whether a region made now copies."""
    with gdrpy.alloc(4096) as region:
        region.write(b"bytes")
        return region.read(5) == b"bytes"


class TestFile:
    def test_holds_for_regions_made_from_then_on(self):
        tuning.save(0, KEPT)
        assert tuning.limits(0) == KEPT

    @pytest.mark.parametrize(
        ("content", "error"),
        [
            (b"", "JSONDecodeError"),
            (b'{"origin": {', "JSONDecodeError"),
            (b"\x9c\xff\x00", "UnicodeDecodeError"),
            (b"[1]", "TypeError"),
            (b"{}", "KeyError"),
            (b"[" * 100_000, "RecursionError"),
        ],
    )
    def test_that_cannot_be_understood_is_told_of_and_not_used(self, content, error):
        Path(tuning.save(0, KEPT)).write_bytes(content)
        with pytest.warns(RuntimeWarning, match=rf"cannot be used \({error}: .*run gdrpy tune"):
            assert copies()
        assert tuning.limits(0) == BUILT_IN

    def test_of_another_version_of_gdrpy_are_not_used(self):
        file = Path(tuning.save(0, KEPT))
        content = json.loads(file.read_text())
        del content["limits"]["read_engine"]
        file.write_text(json.dumps(content))
        assert tuning.limits(0) == BUILT_IN

    @pytest.mark.parametrize("value", [0, 17, 2.0, True, None])
    def test_with_a_number_that_cannot_be_is_told_of_and_not_used(self, value):
        file = Path(tuning.save(0, KEPT))
        kept = json.loads(file.read_text())
        kept["limits"]["threads_to"] = value
        file.write_text(json.dumps(kept))
        with pytest.warns(RuntimeWarning, match="threads_to must be a number from 1 to 16"):
            assert tuning.limits(0) == BUILT_IN

    def test_that_is_a_pipe_is_not_waited_for(self):
        file = Path(tuning.path(0))
        file.parent.mkdir(parents=True)
        os.mkfifo(file)
        with pytest.warns(RuntimeWarning, match="not a regular file"):
            assert copies()

    @pytest.mark.usefixtures("strict")
    def test_that_belongs_to_other_cpus_is_not_used(self):
        file = Path(tuning.save(0, KEPT))
        kept = json.loads(file.read_text())
        kept["origin"]["cpus"] += 1
        file.write_text(json.dumps(kept))
        assert tuning.limits(0) == BUILT_IN


@pytest.mark.usefixtures("strict")
class TestFolder:
    def test_that_is_a_file_has_no_limits(self, cache):
        (cache / "gdrpy").write_text("")
        assert tuning.limits(0) == BUILT_IN

    def test_that_may_not_be_read_has_no_limits(self, monkeypatch):
        def refuse(file: str) -> bytes:
            raise PermissionError(13, "Permission denied", file)

        monkeypatch.setattr(tuning, "_read", refuse)
        assert tuning.limits(0) == BUILT_IN

    def test_that_is_relative_is_ignored(self, monkeypatch, tmp_path):
        monkeypatch.setenv("HOME", str(tmp_path / "home"))
        monkeypatch.setenv("XDG_CACHE_HOME", "cache")
        assert Path(tuning.path(0)).parent == tmp_path / "home/.cache/gdrpy"


@pytest.mark.usefixtures("homeless")
class TestNoHome:
    @pytest.mark.usefixtures("strict")
    def test_regions_copy_by_what_is_built_in(self):
        assert copies()
        assert tuning.limits(0) == BUILT_IN

    @pytest.mark.parametrize("words", [[], ["--show"], ["--reset"]])
    def test_tune_says_so_before_it_measures(self, capsys, words):
        assert main(["tune", *words]) == 2
        assert capsys.readouterr().err == (
            "error: ~/.cache: this user has no home folder: set XDG_CACHE_HOME\n"
        )


class TestSave:
    def test_that_fails_leaves_the_old_file_and_no_other(self, monkeypatch):
        file = Path(tuning.save(0, BUILT_IN))

        def refuse(draft: str, target: str) -> None:
            raise OSError(errno.EROFS, "read-only", target)

        monkeypatch.setattr(os, "replace", refuse)
        with pytest.raises(OSError, match="read-only"):
            tuning.save(0, BUILT_IN._replace(read_dma=12345))
        assert list(file.parent.iterdir()) == [file]
        assert tuning.limits(0) == BUILT_IN
