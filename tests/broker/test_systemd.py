"""The broker as a service: units, socket activation, descriptors that systemd keeps."""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import gdrpy
from fakesystemd import FakeSystemd
from gdrpy.broker.server import systemd
from gdrpy.broker.server.store import Full
from gdrpy.cli import main

KEEPER = ("--keeper", "systemd")


@pytest.fixture
def manager(tmp_path: Path) -> Iterator[FakeSystemd]:
    made = FakeSystemd(tmp_path)
    yield made
    made.close()
    log = made.log.read_text() if made.log.exists() else ""
    assert " ERROR " not in log, log
    assert "Traceback" not in log, log


class TestService:
    def test_serves_the_socket_that_it_was_given(self, manager: FakeSystemd):
        manager.start(*KEEPER)
        with gdrpy.connect(manager.socket) as client:
            assert client.list() == []
        assert manager.end(signal.SIGTERM) == 0
        assert Path(manager.socket).exists()

    def test_says_when_it_is_ready_and_when_it_ends(self, manager: FakeSystemd):
        manager.start(*KEEPER)
        assert manager.told == ["READY=1"]
        manager.end(signal.SIGTERM)
        assert manager.told == ["READY=1", "STOPPING=1"]

    def test_makes_its_own_socket_without_a_socket_unit(self, tmp_path: Path):
        manager = FakeSystemd(tmp_path, activate=False)
        manager.start(*KEEPER, "--socket", manager.socket)
        with gdrpy.connect(manager.socket) as client:
            client.allocate("x", 1, "cpu")
        assert manager.end(signal.SIGTERM) == 0
        assert not Path(manager.socket).exists()
        manager.close()

    def test_has_no_keeper_process(self, manager: FakeSystemd):
        manager.start(*KEEPER)
        pid = manager._process.pid
        children = Path(f"/proc/{pid}/task/{pid}/children").read_text()
        assert children == ""
        assert not Path(f"{manager.socket}.keeper").exists()

    @pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
    def test_has_everything_back_when_it_is_started_again(self, manager: FakeSystemd, number):
        manager.start(*KEEPER)
        with gdrpy.connect(manager.socket) as client:
            for name, device in (("gpu", 0), ("host", "cpu")):
                with client.create(name, 5000, device, gpu=False, metadata={"of": name}) as region:
                    region.write(name.encode())
                    region.publish()
            client.seal("host")
            life = client.life
        manager.end(number)
        manager.start(*KEEPER)
        with gdrpy.connect(manager.socket) as client:
            assert client.life == life
            assert [(one.name, one.sealed) for one in client.list()] == [
                ("gpu", False),
                ("host", True),
            ]
            for name in ("gpu", "host"):
                with client.get(name, gpu=False) as region:
                    assert region.read(len(name)) == name.encode()
                    assert region.metadata == {"of": name}

    def test_lets_clients_go_on_over_a_restart(self, manager: FakeSystemd):
        manager.start(*KEEPER)
        with gdrpy.connect(manager.socket) as client:
            held = client.allocate(None, 10, "cpu")
            held.write(b"anonymous")
            manager.end(signal.SIGKILL)
            manager.start(*KEEPER)
            assert client.status()["leases"] == 1
            assert held.read(9) == b"anonymous"

    def test_has_systemd_forget_what_is_freed(self, manager: FakeSystemd):
        manager.start(*KEEPER)
        with gdrpy.connect(manager.socket) as client:
            client.allocate("x", 1, "cpu").close()
            number = client.stat("x").region
            client.delete("x")
            client.status()
        manager.end(signal.SIGTERM)
        assert f"r{number}" not in manager.store
        # The broker may not have seen that this process's connection has ended.
        assert [name[0] for name in manager.store if name[0] != "p"] == ["j"]

    def test_refuses_regions_that_systemd_would_not_keep(self, manager: FakeSystemd):
        manager.start(*KEEPER, FDSTORE="5")  # two for journals, one for this process
        with gdrpy.connect(manager.socket) as client:
            for name in "ab":
                client.allocate(name, 1, "cpu")
            with pytest.raises(gdrpy.OutOfMemory, match="systemd keeps 5 descriptors"):
                client.allocate("c", 1, "cpu")
            client.delete("a")
            client.allocate("c", 1, "cpu")

    def test_closes_what_is_no_brokers(self, manager: FakeSystemd):
        manager.store["stranger"] = os.open("/dev/zero", os.O_RDONLY)
        manager.start(*KEEPER)
        pid = manager._process.pid
        opened = [str(entry.readlink()) for entry in Path(f"/proc/{pid}/fd").iterdir()]
        assert "/dev/zero" not in opened
        assert "passed as 'stranger': not a broker's" in manager.log.read_text()

    def test_closes_what_was_kept_when_systemd_keeps_no_longer(self, manager: FakeSystemd):
        manager.store["r1"] = os.open("/dev/zero", os.O_RDONLY)
        manager.start("--keeper", "none")
        opened = Path(f"/proc/{manager._process.pid}/fd").iterdir()
        assert "/dev/zero" not in [str(entry.readlink()) for entry in opened]

    def test_does_not_start_so_without_systemd(self, capsys, tmp_path, monkeypatch):
        monkeypatch.delenv("NOTIFY_SOCKET", raising=False)
        assert main(["serve", *KEEPER, "--socket", str(tmp_path / "x.sock")]) == 2
        assert "did not start this process as a service of Type=notify" in capsys.readouterr().err


class TestPassedDescriptors:
    def test_of_another_process_are_left_alone(self, monkeypatch):
        monkeypatch.setenv("LISTEN_PID", str(os.getppid()))
        monkeypatch.setenv("LISTEN_FDS", "1")
        assert systemd.take_passed() == (None, {})
        assert "LISTEN_FDS" not in os.environ

    def test_that_are_a_stream_socket_are_refused(self, tmp_path):
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as wrong:
            wrong.bind(str(tmp_path / "x"))
            wrong.listen()
            with pytest.raises(OSError, match="not a Unix socket of ListenSequentialPacket="):
                systemd._listener(os.dup(wrong.fileno()), "x")


class TestStore:
    @pytest.fixture
    def manager_socket(self, tmp_path: Path) -> Iterator[socket.socket]:
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as made:
            made.bind(str(tmp_path / "notify"))
            yield made

    def test_keeps_room_for_journals(self, manager_socket: socket.socket):
        notifier = systemd.Notifier(manager_socket.getsockname())
        store = systemd.SystemdStore(notifier, {}, 3)
        store.hold("j1", 0)
        store.hold("r1", 0)
        with pytest.raises(Full):
            store.hold("r2", 0)
        store.hold("j2", 0)

    def test_names_what_it_holds(self, manager_socket: socket.socket):
        store = systemd.SystemdStore(systemd.Notifier(manager_socket.getsockname()), {}, 9)
        store.hold("r7", 0)
        store.drop("r7")
        data, (fd,), _, _ = socket.recv_fds(manager_socket, 100, 4)
        assert data == b"FDSTORE=1\nFDNAME=r7\nFDPOLL=0"
        assert os.path.samestat(os.fstat(fd), os.fstat(0))
        os.close(fd)
        assert manager_socket.recv(100) == b"FDSTOREREMOVE=1\nFDNAME=r7"

    def test_gives_back_once_what_was_kept(self):
        store = systemd.SystemdStore(systemd.Notifier(None), {"r1": 7}, 9)
        assert store.recover() == {"r1": 7}
        assert store.recover() == {}

    def test_may_be_told_of_by_an_abstract_socket(self):
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as manager:
            manager.bind(f"\0gdrpy-test-{os.getpid()}")
            systemd.Notifier(f"@gdrpy-test-{os.getpid()}").tell("READY=1")
            assert manager.recv(100) == b"READY=1"

    def test_fits_into_the_environment_of_the_next_process(self):
        # execve(2): MAX_ARG_STRLEN, 32 pages, for one variable.
        longest = "LISTEN_FDNAMES=broker" + ":p3fffff.ffffffffff" * systemd.STORE_LIMIT
        assert len(longest) < 128 << 10


class TestUnit:
    def unit(self, capsys: pytest.CaptureFixture[str], kind: str, *words: str) -> str:
        assert main(["serve", "--print-unit", kind, *words]) == 0
        return capsys.readouterr().out

    def test_of_the_service_runs_this_installation(self, capsys):
        text = self.unit(capsys, "service", "--max-bytes", "1G", "--strict", "--map-users", "9:1:5")
        (line,) = [line for line in text.splitlines() if line.startswith("ExecStart=")]
        assert line.startswith(f"ExecStart={sys.executable} -m gdrpy serve --keeper systemd")
        assert line.endswith("--max-bytes 1073741824 --strict --map-users 9:1:5")

    def test_of_the_service_keeps_what_the_broker_holds(self, capsys):
        lines = self.unit(capsys, "service").splitlines()
        assert {"Type=notify", "Restart=always", "FileDescriptorStoreMax=6144"} <= {*lines}

    def test_of_the_service_keeps_it_as_the_command_line_says(self, capsys):
        words = ("--keeper", "process", "--linger", "90")
        lines = self.unit(capsys, "service", *words).splitlines()
        (line,) = [line for line in lines if line.startswith("ExecStart=")]
        assert " serve --keeper process --linger 90 " in line
        assert "KillMode=process" in lines
        assert not [line for line in lines if line.startswith("FileDescriptorStoreMax")]
        text = self.unit(capsys, "service", "--keeper", "process", "--linger", "inf")
        assert " --linger inf " in text
        assert " serve --keeper none " in self.unit(capsys, "service", "--keeper", "none")

    def test_of_the_service_leaves_it_its_gpu(self, capsys):
        text = self.unit(capsys, "service")
        for setting in ("PrivateDevices", "DevicePolicy", "DeviceAllow", "ProtectClock"):
            assert f"{setting}=" not in text

    def test_of_the_socket_is_for_whom_it_shall_be(self, capsys):
        lines = self.unit(capsys, "socket", "--group", "root").splitlines()
        assert {"SocketMode=0660", "SocketGroup=root", "DirectoryMode=0755"} <= {*lines}
        lines = self.unit(capsys, "socket").splitlines()
        assert {"SocketMode=0600", "DirectoryMode=0700"} <= {*lines}

    def test_has_words_that_systemd_takes_as_they_are(self):
        from gdrpy.cli.broker import units

        assert units._quoted("/opt/my env/100%/$x\\y") == '"/opt/my env/100%%/$$x\\\\y"'

    def test_is_a_string_in_json(self, capsys):
        text = self.unit(capsys, "socket")
        told = json.loads(self.unit(capsys, "socket", "--json"))
        assert told == {"unit": text.replace("--print-unit socket", "--print-unit socket --json")}

    @pytest.mark.parametrize("kind", ["service", "socket"])
    def test_tells_the_command_that_made_it(self, capsys, kind):
        first = self.unit(capsys, kind, "--group", "root").splitlines()[0]
        assert first.endswith(f"made by: gdrpy serve --print-unit {kind} --group root")
        lines = self.unit(capsys, kind, "--restore", "/a\nExecStartPre=b").splitlines()
        assert lines[0].endswith("\\nExecStartPre=b'\"")

    @pytest.fixture
    def systemd_analyze(self) -> str:
        found = shutil.which("systemd-analyze")
        if found is None:
            pytest.skip("needs systemd-analyze")
        return found

    def test_is_what_systemd_understands(self, capsys, systemd_analyze, tmp_path):
        for kind in ("service", "socket"):
            text = self.unit(capsys, kind, "--metrics", "[::1]:9464", "--max-bytes-per-user", "2G")
            (tmp_path / f"gdrpy.{kind}").write_text(text)
        done = subprocess.run(
            [systemd_analyze, "verify", tmp_path / "gdrpy.service", tmp_path / "gdrpy.socket"],
            capture_output=True,
            text=True,
            check=False,
        )
        assert (done.returncode, done.stderr) == (0, "")
