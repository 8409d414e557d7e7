"""Unix sockets, as they are made to listen."""

from __future__ import annotations

import os
import socket
import stat

import pytest

from gdrpy import _unix


@pytest.fixture
def after_bind(monkeypatch):
    """Has the next sockets call a function when they have been bound to a path."""

    def arrange(then):
        class Bound(socket.socket):
            def bind(self, address):
                super().bind(address)
                then()

        monkeypatch.setattr(socket, "socket", Bound)

    return arrange


def mode_and_group(path):
    found = os.lstat(path)
    return stat.S_IMODE(found.st_mode), found.st_gid


class TestListeningSocket:
    def test_has_its_mode_and_group(self, tmp_path):
        path = str(tmp_path / "s")
        mask = os.umask(0o027)
        try:
            with _unix.listen(path, 0o666, 1, group=os.getegid()):
                assert mode_and_group(path) == (0o666, os.getegid())
        finally:
            os.umask(mask)

    def test_is_closed_to_all_while_it_is_made(self, tmp_path, after_bind):
        path, found = str(tmp_path / "s"), []
        after_bind(lambda: found.append(mode_and_group(path)[0]))
        _unix.listen(path, 0o666, 1).close()
        assert found == [0]

    def test_leaves_what_other_threads_make_meanwhile_its_mode(self, tmp_path, after_bind):
        beside = tmp_path / "beside"
        after_bind(beside.touch)
        mask = os.umask(0o022)
        try:
            _unix.listen(str(tmp_path / "s"), 0o600, 1).close()
        finally:
            os.umask(mask)
        assert stat.S_IMODE(beside.stat().st_mode) == 0o644

    @pytest.mark.parametrize("kind", ["file", "link", "socket"])
    def test_that_another_file_takes_the_place_of_changes_none(self, tmp_path, after_bind, kind):
        path, other = tmp_path / "s", tmp_path / "other"
        other.write_bytes(b"")
        other.chmod(0o640)
        before = mode_and_group(other)

        def replace():
            path.rename(tmp_path / "moved")
            if kind == "link":
                path.symlink_to(other)
            elif kind == "file":
                os.link(other, path)
            else:
                other.unlink()
                os.mknod(other, stat.S_IFSOCK | 0o640)
                other.chmod(0o640)
                os.link(other, path)

        after_bind(replace)
        with pytest.raises(FileExistsError, match="something else was put there"):
            _unix.listen(str(path), 0o600, 1, group=os.getegid() + 1)
        assert mode_and_group(other) == before
