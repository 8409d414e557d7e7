"""Unix sockets: how they are made to listen, and what a packet leaves when memory runs short."""

from __future__ import annotations

import _testcapi
import os
import socket
import stat
from contextlib import suppress

import pytest

from gdrpy._core import _packet
from gdrpy.broker import unix as _unix
from support import open_descriptors


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
        with pytest.raises(FileExistsError, match="another file was put there"):
            _unix.listen(str(path), 0o600, 1, group=os.getegid() + 1)
        assert mode_and_group(other) == before


def receive(sock, fails_at=0):
    """The descriptors of a packet, with one allocation that fails if ``fails_at`` is its number."""
    if fails_at:
        _testcapi.set_nomemory(fails_at, fails_at + 1)
    try:
        return _packet.receive(sock.fileno(), 2000, _unix.MAX_FDS)[1]
    finally:
        _testcapi.remove_mem_hooks()


class TestPacketWithoutMemory:
    def test_leaves_no_descriptor_open(self):
        here, there = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with here, there:
            there.setblocking(False)
            before = open_descriptors()
            failed, fds = 0, None
            while fds is None:
                _unix.send(here, bytes(1000), [here.fileno()] * _unix.MAX_FDS)
                try:
                    fds = receive(there, failed + 1)
                except MemoryError:
                    failed += 1
                    with suppress(BlockingIOError):  # unless it failed before it took the packet
                        _unix.close_all(receive(there))
                assert fds or open_descriptors() == before
            assert len(fds) == _unix.MAX_FDS
            assert failed > 2
            _unix.close_all(fds)
            assert open_descriptors() == before


class TestCloseSmall:
    @pytest.mark.parametrize("nbytes", [1, 256 << 10])
    def test_closes_a_small_memory_file(self, nbytes):
        fd = os.memfd_create("small")
        os.truncate(fd, nbytes)
        assert _unix.close_small(fd) is True
        with pytest.raises(OSError, match="Bad file descriptor"):
            os.fstat(fd)

    def test_leaves_a_large_one_open(self):
        fd = os.memfd_create("large")
        os.truncate(fd, (256 << 10) + 1)
        assert _unix.close_small(fd) is False
        os.close(fd)

    def test_leaves_what_has_no_size_open(self):
        """As a descriptor of a GPU's memory, which may be large."""
        fd = os.open("/dev/null", os.O_RDONLY)
        assert _unix.close_small(fd) is False
        os.close(fd)
