"""``gdrpy serve`` as a program: its start, its words, its end."""

from __future__ import annotations

import contextlib
import itertools
import os
import signal
import stat
import subprocess
import sys
import sysconfig
from collections.abc import Iterator
from pathlib import Path

import pytest

import gdrpy
from gdrpy.cli import main
from serving import CHECKOUT, GPU, MARK, BrokerProcess, StartServing, marked, wait_for_ends


class TestReadyBroker:
    def test_says_what_it_serves(self, broker_process: BrokerProcess):
        ready = broker_process.ready
        assert ready["socket"] == broker_process.socket
        assert ready["pid"] == broker_process.pid
        assert ready["simulated"] is True
        assert ready["recovered"] == 0
        named = [[one[key] for key in ("device", "uuid", "gpu")] for one in ready["devices"]]
        assert named == [GPU, ["cpu", None, None]]

    def test_has_a_private_socket(self, broker_process: BrokerProcess):
        found = Path(broker_process.socket).stat()
        assert stat.S_ISSOCK(found.st_mode)
        assert stat.S_IMODE(found.st_mode) == 0o600

    def test_has_a_keeper(self, broker_process: BrokerProcess):
        assert len(broker_process.family()) == 2

    def test_shows_its_socket_in_the_command_of_its_keeper(self, broker_process: BrokerProcess):
        (keeper,) = set(broker_process.family()) - {broker_process.pid}
        words = Path(f"/proc/{keeper}/cmdline").read_text().split("\0")
        assert words[1:4] == ["-m", "gdrpy.broker.server.keeper", f"{broker_process.socket}.keeper"]

    def test_has_a_keeper_where_the_package_is_found_from_its_folder_alone(
        self, start_serving: StartServing, monkeypatch: pytest.MonkeyPatch
    ):
        monkeypatch.setattr(sys, "executable", os.path.realpath(sys.executable))  # of no venv
        folders = [CHECKOUT, sysconfig.get_path("purelib"), sysconfig.get_path("platlib")]
        relative = [os.path.relpath(folder, CHECKOUT) for folder in folders]
        broker = start_serving(PYTHONPATH=os.pathsep.join(relative))
        assert len(broker.family()) == 2

    def test_has_none_where_none_is_wanted(self, start_serving: StartServing):
        broker = start_serving("--keeper", "none")
        assert broker.family() == [broker.pid]


class TestEnd:
    @pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
    def test_by_a_signal_leaves_neither_socket_nor_keeper(
        self, broker_process: BrokerProcess, number
    ):
        family = broker_process.family()
        assert broker_process.stop(number) == 0
        assert not Path(broker_process.socket).exists()
        assert wait_for_ends(family) == []

    @pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
    @pytest.mark.parametrize(
        ("sizes", "held", "said"),
        [
            ([], 0, "the broker has ended; it had no regions\n"),
            ([4096, 8192], 0, "the broker has ended; it gave back 2 regions (12.0 KiB)\n"),
            (
                [4096, 8192],
                1,
                "the broker has ended; it gave back 1 region (8.0 KiB); processes keep 1 region "
                "(4.0 KiB) until they close it\n",
            ),
        ],
    )
    def test_by_a_signal_says_what_becomes_of_the_regions(
        self, tmp_path: Path, number, sizes, held, said
    ):
        path = str(tmp_path / "b.sock")
        command = [sys.executable, "-m", "gdrpy", "serve", "--socket", path]
        environment = os.environ | {"GDRPY_SIM": "1"}
        with subprocess.Popen(
            command, cwd=CHECKOUT, env=environment, stdout=subprocess.PIPE, text=True
        ) as process:
            assert process.stdout is not None
            while not process.stdout.readline().startswith("serving at "):
                assert process.poll() is None
            with gdrpy.connect(path) as client, contextlib.ExitStack() as holding:
                for order, size in enumerate(sizes):
                    region = client.allocate(str(order), size, "cpu")
                    if order < held:
                        holding.enter_context(region)
                    else:
                        region.close()
                assert client.status()["leases"] == held  # the broker knows of the closed ones
                process.send_signal(number)
                assert process.stdout.read() == said
        assert process.returncode == 0

    def test_comes_by_a_lost_terminal(self, tmp_path: Path, terminal):
        path = str(tmp_path / "b.sock")
        serving = terminal("serve", "--socket", path)
        serving.wait_for("serving at ")
        with gdrpy.connect(path) as client:
            client.allocate("kv", 4096, "cpu").close()
        serving.hang_up()
        assert serving.ending() == (0, "")
        assert not Path(path).exists()
        assert not Path(f"{path}.keeper").exists()

    def test_does_not_come_by_a_lost_terminal_below_nohup(self, tmp_path: Path):
        path = str(tmp_path / "b.sock")
        command = ["nohup", sys.executable, "-m", "gdrpy", "serve", "--json", "--keeper", "none"]
        with subprocess.Popen(
            [*command, "--socket", path], cwd=CHECKOUT, stdout=subprocess.PIPE
        ) as process:
            assert process.stdout is not None
            assert process.stdout.readline()
            process.send_signal(signal.SIGHUP)
            with gdrpy.connect(path) as client:
                assert client.list() == []
            process.terminate()
        assert process.returncode == 0

    def test_by_ctrl_c_on_a_terminal_is_asked_for_while_regions_are_held(
        self, tmp_path: Path, terminal
    ):
        path = str(tmp_path / "b.sock")
        serving = terminal("serve", "--socket", path, "--keeper", "none")
        serving.wait_for("serving at ")
        with gdrpy.connect(path) as client, client.allocate("kv", 4096, "cpu"):
            serving.press("\x03")
            question = serving.error_line()
            assert question.startswith("processes hold 1 region (4.0 KiB): press Ctrl-C again ")
            assert [region.name for region in client.list()] == ["kv"]
            serving.press("\x03")
            status, _ = serving.ending()
        assert status == 0

    def test_by_ctrl_c_on_a_terminal_is_asked_for_while_regions_sleep(
        self, tmp_path: Path, terminal
    ):
        path = str(tmp_path / "b.sock")
        serving = terminal("serve", "--socket", path, "--keeper", "none")
        serving.wait_for("serving at ")
        with gdrpy.connect(path) as client, client.put("kv", b"bytes", seal=True) as region:
            client.sleep_many([region])
            assert client.status()["leases"] == 0
            serving.press("\x03")
            assert serving.error_line().startswith("processes hold 1 region (4.0 KiB)")
            serving.press("\x03")
            assert serving.ending()[0] == 0

    def test_by_ctrl_c_on_a_terminal_comes_at_once_if_no_process_holds_a_region(
        self, tmp_path: Path, terminal
    ):
        path = str(tmp_path / "b.sock")
        serving = terminal("serve", "--socket", path, "--keeper", "none")
        serving.wait_for("serving at ")
        with gdrpy.connect(path) as client:
            client.allocate("kv", 4096, "cpu").close()
            assert client.status()["leases"] == 0
        serving.press("\x03")
        assert serving.ending()[0] == 0
        assert "it gave back 1 region (4.0 KiB)" in serving.wait_for("the broker has ended")

    def test_comes_though_another_thread_takes_the_signal(self, tmp_path: Path):
        # As a signal that comes after the last look for one, and before the wait.
        program = """
import signal, sys, threading
threading.Thread(target=threading.Event().wait, daemon=True).start()
signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGTERM])
from gdrpy.cli import main
sys.exit(main(sys.argv[1:]))
"""
        words = ["serve", "--json", "--keeper", "none", "--socket", str(tmp_path / "b.sock")]
        with subprocess.Popen(
            [sys.executable, "-c", program, *words], cwd=CHECKOUT, stdout=subprocess.PIPE
        ) as process:
            assert process.stdout is not None
            assert process.stdout.readline()
            with gdrpy.connect(str(tmp_path / "b.sock")) as client:
                client.list()  # it waits for the next one now
                process.terminate()
                try:
                    assert process.wait(30) == 0
                finally:
                    process.kill()


class TestKilledBroker:
    def test_is_followed_by_one_that_has_its_regions(self, broker_process: BrokerProcess):
        with gdrpy.connect(broker_process.socket) as client:
            client.put("x", b"kept", "cpu")
        broker_process.restart()
        assert broker_process.ready["recovered"] == 1
        with gdrpy.connect(broker_process.socket) as client, client.get("x", gpu=False) as region:
            assert region.read(4) == b"kept"

    def test_loses_them_without_a_keeper(self, start_serving: StartServing):
        broker = start_serving("--keeper", "none")
        with gdrpy.connect(broker.socket) as client:
            client.put("x", b"lost", "cpu")
        broker.restart()
        assert broker.ready["recovered"] == 0
        assert "replaced the stale socket" in broker.log


class TestWords:
    def test_are_what_is_served_and_its_limits(self, tmp_path: Path):
        words = ["--max-bytes", "1G", "--max-bytes-per-user", "256M", "--keeper", "none"]
        with serving(tmp_path / "b.sock", *words) as lines:
            found = list(itertools.takewhile(lambda line: not line.startswith("serving"), lines))
        assert found == [
            "GPU 0, gdrpy simulated GPU: regions may take 1.0 GiB of 16.0 GiB",
            found[1],
            "of that each user 256.0 MiB",
        ]
        assert found[1].startswith("host memory: regions may take 1.0 GiB of ")

    def test_tell_how_many_regions_were_taken_over(self, broker_process: BrokerProcess):
        with gdrpy.connect(broker_process.socket) as client:
            for name in "ab":
                client.allocate(name, 1, "cpu")
        broker_process.kill()
        with serving(Path(broker_process.socket)) as lines:
            assert "took over 2 regions of an earlier broker" in itertools.islice(lines, 3)


class TestUsersOfContainers:
    def test_count_as_the_hosts(self, start_serving: StartServing):
        """A range of one: this process counts as user 7, who has only his own memory."""
        if os.geteuid() != 0:
            pytest.skip("a broker of another user does not admit this one")
        broker = start_serving("--map-users", "0:7:1", "--map-users", "100001:1:65535")
        with gdrpy.connect(broker.socket) as client:
            client.put("x", b"mine", "cpu")
            assert (client.stat("x").uid, client.status()["uid"]) == (7, 7)

    @pytest.mark.parametrize(
        ("given", "why"),
        [
            ("5", "'5' is not SEEN:OWNER:COUNT, as 100001:1:65535 is"),
            ("1:2:x", "'1:2:x' is not SEEN:OWNER:COUNT, as 100001:1:65535 is"),
            ("1:2:0", "'1:2:0' has numbers that no user has"),
            ("1:4294967295:2", "'1:4294967295:2' has numbers that no user has"),
            ("100000:0:2", "'100000:0:2' would make a container's user 100000 the broker's user 0"),
        ],
    )
    def test_are_refused_where_they_would_be_nobody_or_root(self, capsys, given, why):
        with pytest.raises(SystemExit) as ended:
            main(["serve", "--map-users", given])
        assert ended.value.code == 2
        assert why in " ".join(capsys.readouterr().err.split())


class TestSocket:
    def test_is_for_a_group_if_one_is_named(self, start_serving: StartServing):
        broker = start_serving("--group", "root")
        assert stat.S_IMODE(Path(broker.socket).stat().st_mode) == 0o660

    def test_has_the_mode_that_is_wanted(self, start_serving: StartServing):
        broker = start_serving("--mode", "0666")
        assert stat.S_IMODE(Path(broker.socket).stat().st_mode) == 0o666

    def test_is_where_the_environment_says_in_a_folder_of_its_own(self, tmp_path: Path):
        path = f"{tmp_path}/own/b.sock"
        with serving(None, "--keeper", "none", GDRPY_SOCKET=path) as lines:
            assert f"serving at {path}" in lines
            assert stat.S_IMODE((tmp_path / "own").stat().st_mode) == 0o700

    def test_lets_others_through_its_folder_if_it_is_for_them(self, public_path: Path):
        path = f"{public_path}/own/b.sock"
        with serving(None, "--keeper", "none", "--mode", "666", GDRPY_SOCKET=path) as lines:
            assert f"serving at {path}" in lines
            assert stat.S_IMODE((public_path / "own").stat().st_mode) == 0o755


class TestRefusal:
    def test_where_another_broker_serves(self, broker_process: BrokerProcess, gdrpy_command):
        done = gdrpy_command("serve", "--socket", broker_process.socket)
        assert (done.returncode, done.stdout) == (2, "")
        assert done.stderr == (
            f"error: cannot serve at {broker_process.socket}: another broker runs there; end it, "
            f"or choose another --socket; `gdrpy ls --socket {broker_process.socket}` shows what "
            f"it has\n"
        )
        assert len(broker_process.family()) == 2

    def test_where_a_file_lies(self, tmp_path: Path, gdrpy_command):
        (tmp_path / "b.sock").write_text("precious")
        done = gdrpy_command("serve", "--socket", str(tmp_path / "b.sock"))
        assert done.returncode == 2
        assert "it is not a socket and is left alone" in done.stderr
        assert (tmp_path / "b.sock").read_text() == "precious"

    def test_in_somebody_elses_folder(self, tmp_path: Path, capsys, monkeypatch):
        folder = tmp_path / "gdrpy-12345"
        folder.mkdir(mode=0o700)
        monkeypatch.setattr(os, "geteuid", lambda: 12345)
        monkeypatch.setenv("TMPDIR", str(tmp_path))
        for name in ("XDG_RUNTIME_DIR", "GDRPY_SOCKET"):
            monkeypatch.delenv(name, raising=False)
        assert main(["serve"]) == 2
        said = f"error: cannot serve: {folder} is not a folder that only you can enter"
        assert capsys.readouterr().err.startswith(said)

    def test_without_a_gpu_driver_leaves_no_keeper(self, tmp_path: Path, gdrpy_command):
        path = tmp_path / "b.sock"
        mark = {MARK: str(tmp_path)}
        done = gdrpy_command("serve", "--socket", str(path), GDRPY_SIM_FAULT="cuInit:1:100", **mark)
        assert done.returncode == 2
        assert done.stderr.startswith("error: cuInit: CUDA_ERROR_NO_DEVICE")
        assert wait_for_ends(marked(tmp_path)) == []
        assert list(tmp_path.iterdir()) == []


@contextlib.contextmanager
def serving(path: Path | None, *words: str, **environment: str) -> Iterator[Iterator[str]]:
    """``gdrpy serve`` as people run it, for as long as a block: its lines."""
    where = [] if path is None else ["--socket", str(path)]
    with subprocess.Popen(
        [sys.executable, "-m", "gdrpy", "serve", *where, *words],
        cwd=CHECKOUT,
        env=os.environ | {"GDRPY_SIM": "1"} | environment,
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdout is not None
        try:
            yield (line.rstrip("\n") for line in process.stdout)
        finally:
            process.terminate()
    assert process.returncode == 0
