"""The broker's place: its folder, socket and lock, and its keeper's socket, whatever is removed."""

from __future__ import annotations

import errno
import fcntl
import os
import shutil
import stat
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from brokers import Broker, StartBroker, Template, await_end
from gdrpy.broker import place
from gdrpy.broker import unix as _unix
from gdrpy.broker.server.daemon import Options, Place
from gdrpy.broker.server.quotas import Quotas
from gdrpy.errors import PermissionDenied


def await_true(true: Callable[[], object]) -> None:
    """Wait until the broker has noticed."""
    deadline = time.monotonic() + 20
    while not true():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def reachable(broker: Broker) -> bool:
    """Whether a new client can connect."""
    try:
        broker.client().close()
    except OSError:
        return False
    return True


class TestRemovedPlace:
    def test_of_the_socket_is_made_again(self, broker: Broker) -> None:
        with broker.client() as client:
            client.allocate("kept").write(b"as it was")
            Path(broker.path).unlink()
            await_true(lambda: reachable(broker))
            assert client.get("kept").bytes(9) == b"as it was"
        assert "was removed: made it again" in broker.log.read_text()

    def test_with_everything_in_it_is_made_again_and_nothing_is_lost_by_a_crash(
        self, start_broker: StartBroker, tmp_path: Path
    ) -> None:
        broker = start_broker()
        folder = tmp_path / "inner"
        broker.stop()
        broker.setup.path = broker.path = str(folder / "broker.sock")
        broker.start()
        with broker.client() as client:
            client.allocate("kept").write(b"as it was")
            shutil.rmtree(folder)
            await_true(lambda: reachable(broker))
            await_true(lambda: _unix.is_live(f"{broker.path}.keeper") and len(broker.keepers()))
            await_true(lambda: Path(f"{broker.path}.keeper").exists())
            await_true(lambda: "its socket was removed" in broker.log.read_text())
            client.ok("status")
            broker.restart()
            client.path = broker.path
            client.reopen()
            assert client.get("kept").bytes(9) == b"as it was"

    def test_of_the_keeper_is_made_again_and_nothing_is_lost_by_a_crash(
        self, broker: Broker
    ) -> None:
        with broker.client() as client:
            client.allocate("kept").write(b"as it was")
            keeper = broker.keeper
            Path(f"{broker.path}.keeper").unlink()
            await_end(keeper)
            client.ok("status")
            broker.restart()
            client.reopen()
            assert client.get("kept").bytes(9) == b"as it was"

    def test_of_the_keeper_without_a_broker_is_made_again_by_the_keeper(
        self, broker: Broker
    ) -> None:
        with broker.client() as client:
            client.allocate("kept").write(b"as it was")
            broker.kill()
            Path(f"{broker.path}.keeper").unlink()
            await_true(Path(f"{broker.path}.keeper").exists)
            broker.start()
            client.reopen()
            assert client.get("kept").bytes(9) == b"as it was"

    def test_of_the_lock_is_locked_again_and_a_second_broker_is_told(
        self, broker: Broker, template: Template
    ) -> None:
        lock = Path(f"{broker.path}.lock")
        lock.unlink()
        with pytest.raises(FileExistsError, match="though its lock was removed"):
            Place(Options(broker.path, Quotas())).__enter__()
        await_true(lambda: "the lock of" in broker.log.read_text())
        with pytest.raises(FileExistsError, match="another broker runs there"):
            Place(Options(broker.path, Quotas())).__enter__()


class TestPlace:
    def test_leaves_no_file_behind(self, tmp_path: Path) -> None:
        with Place(Options(str(tmp_path / "broker.sock"), Quotas())) as made, made.listening():
            assert sorted(tmp_path.iterdir()) == [
                tmp_path / "broker.sock",
                tmp_path / "broker.sock.lock",
            ]
        assert list(tmp_path.iterdir()) == []


class TestSuccessor:
    def test_holds_the_lock_that_others_find_when_the_broker_before_it_removes_its_own(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        options = Options(str(tmp_path / "broker.sock"), Quotas())
        first, flock = Place(options).__enter__(), fcntl.flock

        def flock_after_the_end(fd: int, how: int) -> None:
            monkeypatch.undo()
            first.__exit__()
            flock(fd, how)

        monkeypatch.setattr(fcntl, "flock", flock_after_the_end)
        with Place(options), pytest.raises(FileExistsError, match="another broker runs there"):
            Place(options).__enter__()

    def test_keeps_its_socket_when_the_broker_before_it_ends(self, tmp_path: Path) -> None:
        path = str(tmp_path / "broker.sock")
        first, second = Place(Options(path, Quotas())), Place(Options(path, Quotas()))
        with first:
            serving = first.listening()
            serving.__enter__()
            Path(path).unlink()
            Path(f"{path}.lock").unlink()
            with second, second.listening():
                serving.__exit__(None, None, None)
                assert _unix.is_live(path)
                assert second.whole()


class TestFolderOfASocketForOthers:
    def serve(self, path: Path, mode: int) -> None:
        with Place(Options(str(path), Quotas(), mode=mode)) as made, made.listening():
            pass

    def test_is_made_passable_after_a_private_run(self, public_path: Path) -> None:
        path = public_path / "gdrpy" / "broker.sock"
        self.serve(path, 0o600)
        assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700
        self.serve(path, 0o666)
        assert stat.S_IMODE(path.parent.stat().st_mode) == 0o755

    def test_is_made_passable_with_those_above_it_that_nothing_else_is_in(
        self, public_path: Path
    ) -> None:
        path = public_path / "outer" / "middle" / "inner" / "broker.sock"
        mask = os.umask(0o077)
        try:
            self.serve(path, 0o600)
            self.serve(path, 0o666)
        finally:
            os.umask(mask)
        found = [stat.S_IMODE(folder.stat().st_mode) for folder in list(path.parents)[:3]]
        assert found == [0o755] * 3

    @pytest.mark.parametrize("inner", ["", "gdrpy"])
    def test_is_left_alone_where_it_has_more_in_it_and_the_reason_is_said(
        self, inner: str, public_path: Path
    ) -> None:
        folder = public_path / "home"
        folder.mkdir(mode=0o700)
        (folder / "gdrpy-diary").touch()
        with pytest.raises(PermissionError, match=f"{folder} has mode 0700.*: chmod") as refused:
            self.serve(folder / inner / "broker.sock", 0o666)
        assert refused.value.errno == errno.EACCES
        assert stat.S_IMODE(folder.stat().st_mode) == 0o700
        self.serve(folder / inner / "broker.sock", 0o600)

    def test_is_left_alone_where_it_is_another_users(self, public_path: Path) -> None:
        if os.geteuid() != 0:
            pytest.skip("giving a folder away needs CAP_CHOWN")
        folder = public_path / "home"
        folder.mkdir(mode=0o700)
        os.chown(folder, 40001, 40001)
        with pytest.raises(PermissionError, match=f"{folder} has mode 0700"):
            self.serve(folder / "gdrpy" / "broker.sock", 0o666)


class TestPathToConnectTo:
    @pytest.fixture(autouse=True)
    def user(self, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
        """An ordinary user without a runtime directory."""
        monkeypatch.delenv(place.VARIABLE, raising=False)
        monkeypatch.delenv("XDG_RUNTIME_DIR", raising=False)
        monkeypatch.setenv("TMPDIR", str(tmp_path))
        monkeypatch.setattr(os, "geteuid", lambda: 40001)
        monkeypatch.setattr(place, "SYSTEM", str(tmp_path / "run" / "broker.sock"))

    @pytest.mark.parametrize("kind", ["folder", "file", "dangling link"])
    def test_is_the_systems_where_another_user_made_the_folder(
        self, kind: str, tmp_path: Path
    ) -> None:
        folder = tmp_path / "gdrpy-40001"
        if kind == "folder":
            folder.mkdir()
        elif kind == "file":
            folder.touch()
        else:
            folder.symlink_to(tmp_path / "nothing")
        with pytest.raises(PermissionDenied, match=f"{folder} is not a folder that only you"):
            place.connect_path()
        (tmp_path / "run").mkdir()
        (tmp_path / "run" / "broker.sock").touch()
        assert place.connect_path() == str(tmp_path / "run" / "broker.sock")

    def test_is_the_systems_where_its_folder_lets_nobody_in(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        def stat_refused(path: object) -> None:
            raise PermissionError(errno.EACCES, "Permission denied", path)

        monkeypatch.setattr(_unix, "private_folder", lambda: str(tmp_path))
        monkeypatch.setattr(os.path, "exists", lambda _: False)
        monkeypatch.setattr(os, "stat", stat_refused)
        assert place.connect_path() == str(tmp_path / "run" / "broker.sock")
