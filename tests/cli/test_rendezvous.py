"""The socket at which producer and consumer meet."""

from __future__ import annotations

import os
import socket
import stat
from contextlib import ExitStack
from pathlib import Path

import pytest

from gdrpy.broker import unix as _unix
from gdrpy.cli.exits import FAILED, UNUSABLE, CommandError
from gdrpy.cli.handover import rendezvous

TIMEOUT = 5.0


@pytest.fixture(autouse=True)
def nothing_leaks(no_descriptors_leak):
    """No test here may leave a descriptor open."""


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "meet.sock"


def leave_stale_socket(path: Path) -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as dead:
        dead.bind(str(path))


class TestDefaultPath:
    def test_is_in_the_runtime_folder(self, monkeypatch, tmp_path):
        monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
        assert rendezvous.default_path() == tmp_path / "gdrpy-handover.sock"

    def test_is_in_a_private_folder_where_there_is_none(self, monkeypatch, tmp_path):
        monkeypatch.delenv("XDG_RUNTIME_DIR", raising=False)
        monkeypatch.setenv("TMPDIR", str(tmp_path))
        folder = tmp_path / f"gdrpy-{os.geteuid()}"
        assert rendezvous.default_path() == folder / "gdrpy-handover.sock"
        assert stat.S_IMODE(folder.stat().st_mode) == 0o700
        assert rendezvous.default_path() == folder / "gdrpy-handover.sock"

    def test_is_refused_where_others_may_enter(self, monkeypatch, tmp_path):
        monkeypatch.delenv("XDG_RUNTIME_DIR", raising=False)
        monkeypatch.setenv("TMPDIR", str(tmp_path))
        folder = tmp_path / f"gdrpy-{os.geteuid()}"
        folder.mkdir()
        folder.chmod(0o755)
        with pytest.raises(CommandError, match="not a folder that only you can enter") as caught:
            rendezvous.default_path()
        assert caught.value.status == UNUSABLE

    def test_is_refused_where_the_folder_is_a_link(self, monkeypatch, tmp_path):
        monkeypatch.delenv("XDG_RUNTIME_DIR", raising=False)
        monkeypatch.setenv("TMPDIR", str(tmp_path))
        (tmp_path / "elsewhere").mkdir(mode=0o700)
        (tmp_path / f"gdrpy-{os.geteuid()}").symlink_to(tmp_path / "elsewhere")
        with pytest.raises(CommandError, match="not a folder that only you can enter"):
            rendezvous.default_path()


class TestListening:
    def test_socket_is_for_its_user_alone_and_goes_when_done(self, path):
        with ExitStack() as undo:
            _, replaced = rendezvous.listen(path, undo)
            assert not replaced
            assert stat.S_IMODE(path.stat().st_mode) == 0o600
        assert not path.exists()

    def test_replaces_a_stale_socket(self, path):
        leave_stale_socket(path)
        with ExitStack() as undo:
            listener, replaced = rendezvous.listen(path, undo)
            assert replaced
            with rendezvous.connect(path, TIMEOUT), rendezvous.accept(listener, TIMEOUT) as peer:
                assert _unix.peer_credentials(peer)[0] == os.getpid()

    def test_respects_a_live_one_without_disturbing_it(self, path):
        with ExitStack() as undo:
            listener, _ = rendezvous.listen(path, undo)
            with pytest.raises(CommandError, match="another program listens") as caught:
                rendezvous.listen(path, undo)
            assert caught.value.status == UNUSABLE
            with pytest.raises(CommandError, match="no consumer came"):
                rendezvous.accept(listener, 0.01)
            assert path.is_socket()

    def test_leaves_a_file_that_is_no_socket_alone(self, path):
        path.write_text("precious")
        with ExitStack() as undo, pytest.raises(CommandError, match="is not a socket and is left"):
            rendezvous.listen(path, undo)
        assert path.read_text() == "precious"

    def test_says_that_a_folder_is_missing(self, path):
        with ExitStack() as undo, pytest.raises(CommandError, match="No such file") as caught:
            rendezvous.listen(path / "below" / "meet.sock", undo)
        assert caught.value.status == UNUSABLE

    def test_says_that_a_path_is_too_long(self, tmp_path):
        with ExitStack() as undo, pytest.raises(CommandError, match="too long") as caught:
            rendezvous.listen(tmp_path / ("x" * 200), undo)
        assert caught.value.status == UNUSABLE

    def test_gives_up_when_nobody_comes(self, path):
        with ExitStack() as undo:
            listener, _ = rendezvous.listen(path, undo)
            with pytest.raises(CommandError, match=r"no consumer came within 0\.01 s") as caught:
                rendezvous.accept(listener, 0.01)
        assert caught.value.status == FAILED


class TestConnecting:
    def test_says_that_there_is_no_producer(self, path):
        with pytest.raises(CommandError, match="there is no such socket; start") as caught:
            rendezvous.connect(path, TIMEOUT)
        assert caught.value.status == UNUSABLE

    def test_says_that_a_file_is_no_socket(self, path):
        path.write_text("precious")
        with pytest.raises(CommandError, match="is not the socket of a producer: pass the"):
            rendezvous.connect(path, TIMEOUT)

    def test_says_that_a_socket_is_of_another_kind(self, path):
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as other:
            other.bind(str(path))
            other.listen(1)
            with pytest.raises(CommandError, match="is not the socket of a producer: pass the"):
                rendezvous.connect(path, TIMEOUT)

    def test_says_what_else_is_wrong(self, tmp_path):
        with pytest.raises(CommandError, match="^cannot connect to .*: AF_UNIX path too long$"):
            rendezvous.connect(tmp_path / ("x" * 200), TIMEOUT)

    def test_says_that_the_producer_is_gone(self, path):
        leave_stale_socket(path)
        with pytest.raises(CommandError, match="stale, its producer is gone") as caught:
            rendezvous.connect(path, TIMEOUT)
        assert caught.value.status == UNUSABLE
