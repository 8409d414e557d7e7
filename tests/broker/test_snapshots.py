"""Regions that are saved into a folder and restored from it."""

from __future__ import annotations

import asyncio
import errno
import json
import os
import signal
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import gdrpy
from brokers import BROKER_UID, Broker, StartBroker
from gdrpy import aio
from gdrpy.broker import requests
from gdrpy.broker.client import calls, snapshots
from gdrpy.common.workers import by_threads
from rawclient import acting_as
from support import open_descriptors

ABOUT = {"format": "checkpoint", "id": "01234567"}


@pytest.fixture
def connected(broker: Broker) -> Iterator[gdrpy.Broker]:
    """A client of the test's broker."""
    with gdrpy.connect(broker.path, reconnect=0.1) as made:
        yield made


@pytest.fixture
def other(broker: Broker) -> Iterator[gdrpy.Broker]:
    """Another client of it."""
    with gdrpy.connect(broker.path) as made:
        yield made


@pytest.fixture
def user(start_broker: StartBroker) -> Iterator[gdrpy.Broker]:
    """A client of an ordinary user, where everybody may connect."""
    if os.geteuid() != 0:
        pytest.skip("being other users needs CAP_SETUID")
    path = start_broker(uid=BROKER_UID, options={"mode": 0o666}).path
    with acting_as(40001):
        made = gdrpy.connect(path)
    with made:
        yield made


@pytest.fixture(autouse=True)
def _small_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    """Regions of some KiB have several pieces."""
    monkeypatch.setattr(snapshots, "_PIECE", 4096)


@pytest.fixture
def filled(connected: gdrpy.Broker) -> gdrpy.Broker:
    """A sealed array, tensors, a checkpoint, and host memory whose last piece is not whole."""
    connected.put("array", np.arange(6, dtype=np.float32), seal=True).close()
    connected.put_tensors("tensors", {"w": np.ones((40, 40))}, mode=0o640).close()
    connected.put("host", np.arange(10_001, dtype=np.uint8), "cpu", metadata={"n": 1}).close()
    put_checkpoint(connected)
    return connected


def put_checkpoint(
    client: gdrpy.Broker, id: str = "01234567", files: str = "f", mode: int = 0o600
) -> None:
    """The checkpoint m of files that have one letter each."""
    listed = [f"m/{id}/{file}" for file in files]
    for file in listed:
        about = {"checkpoint": "m"}
        client.put_tensors(file, {"v": np.zeros(3)}, metadata=about, mode=mode).close()
    index = np.frombuffer(json.dumps(listed).encode(), np.uint8)
    client.put("m", index, metadata={**ABOUT, "id": id}).close()


def names(client: gdrpy.Broker, prefix: str = "") -> list[str]:
    """The names of the regions."""
    return [str(info.name) for info in client.list(prefix)]


def before_requests(
    client: gdrpy.Broker, monkeypatch: pytest.MonkeyPatch, act: Callable[[Any], object]
) -> None:
    """Have something done before each request of a client, which gets the request."""
    ask = client._ask

    async def later(request: Any, *arguments: Any) -> Any:
        act(request)
        return await ask(request, *arguments)

    monkeypatch.setattr(client, "_ask", later)


def asks_for_regions(request: Any) -> bool:
    """Whether a request is for leases by names."""
    return isinstance(request, requests.Get | requests.GetMany)


def limit_threads(monkeypatch: pytest.MonkeyPatch, most: int) -> None:
    """Have no more threads started than that."""
    start, started = threading.Thread.start, []

    def limited(thread: threading.Thread) -> None:
        if len(started) == most:
            raise RuntimeError("can't start new thread")
        started.append(thread)
        start(thread)

    monkeypatch.setattr(threading.Thread, "start", limited)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder with nothing in it."""
    made = tmp_path / "folder"
    made.mkdir()
    return made


def content(client: gdrpy.Broker) -> dict[str, tuple[Any, ...]]:
    """All about the regions but their numbers and versions."""
    found = {}
    for info in client.list():
        told = client.stat(str(info.name))
        with client.get(str(info.name), gpu=False, readonly=True) as region:
            about = (told.nbytes, told.device, told.mode, told.uid, told.sealed, told.metadata)
            found[str(info.name)] = (*about, region.read())
    return found


def restart(broker: Broker) -> None:
    """Another broker, which has no regions."""
    broker.stop()
    broker.start()


class TestSave:
    def test_and_restore_bring_all_back_as_it_was(self, broker, filled, folder):
        before = content(filled)
        names = sorted(before)
        assert filled.save(folder / "s") == names
        restart(broker)
        assert filled.list() == []
        assert sorted(filled.restore(folder / "s")) == names
        assert content(filled) == before
        assert filled.tensors("m")["v"].read().tolist() == [0, 0, 0]

    def test_of_names_takes_a_checkpoints_files_along(self, filled, folder):
        assert filled.save(folder / "s", ["m", "host"]) == ["m", "m/01234567/f", "host"]

    def test_tells_the_bytes_done_and_to_do(self, filled, folder):
        told: list[tuple[int, int]] = []
        filled.save(folder / "s", ["host"], progress=lambda *bytes_: told.append(bytes_))
        assert len(told) == 3
        assert told[-1] == (10_001, 10_001)

    def test_writes_tensors_as_a_safetensors_file(self, filled, folder):
        filled.save(folder / "s", ["tensors"])
        found = gdrpy.safetensors.file_layout(folder / "s/00000.safetensors")
        assert found.entries.keys() == {"w"}

    def test_of_a_missing_name_or_into_a_folder_that_exists_makes_nothing(self, filled, folder):
        with pytest.raises(gdrpy.NotFound, match="^save: there is no region of the name 'nope'"):
            filled.save(folder / "s", ["host", "nope"])
        with pytest.raises(TypeError, match=r"save: names must be several names, .*\['host'\]"):
            filled.save(folder / "s", "host")
        (folder / "there").mkdir()
        with pytest.raises(FileExistsError, match="save: .*there exists: choose another folder"):
            filled.save(folder / "there")
        with pytest.raises(FileNotFoundError, match="save: cannot make .*nowhere/s"):
            filled.save(folder / "nowhere/s")
        assert [path.name for path in folder.iterdir()] == ["there"]

    def test_that_fails_in_the_middle_leaves_nothing(self, filled, folder):
        before = open_descriptors()

        def fail(*_: int) -> None:
            raise KeyboardInterrupt

        with pytest.raises(KeyboardInterrupt):
            filled.save(folder / "s", progress=fail)
        assert list(folder.iterdir()) == []
        assert open_descriptors() == before
        assert filled.status()["leases"] == 0

    def test_saves_what_it_found_though_all_is_replaced_or_deleted_meanwhile(self, filled, folder):
        before = content(filled)

        def change(*_: int) -> None:
            if filled.list("array"):
                filled.delete("array")
                filled.delete("m")
                filled.put("host", b"newer", "cpu").close()

        told: list[tuple[int, int]] = []
        filled.save(folder / "s", progress=lambda *pair: [change(), told.append(pair)])
        assert told[-1][0] == told[-1][1]
        filled.restore(folder / "s")
        assert content(filled) == before

    def test_of_a_name_that_is_replaced_at_every_moment_saves_a_whole_region(
        self, filled, other, folder, monkeypatch
    ):
        def replace(request: Any) -> None:
            if asks_for_regions(request):
                other.put("host", b"newer", "cpu").close()

        before_requests(filled, monkeypatch, replace)
        filled.save(folder / "s", ["host"])
        filled.restore(folder / "s")
        assert filled.get("host", gpu=False).read() == b"newer"

    def test_of_all_leaves_out_what_is_deleted_meanwhile(self, filled, other, folder, monkeypatch):
        kept, busy = names(filled), ["busy 0"]
        other.put(busy[0], b"x", "cpu").close()

        def replace(request: Any) -> None:
            if asks_for_regions(request):
                busy.append(f"busy {len(busy)}")
                other.put(busy[-1], b"x", "cpu").close()
                other.delete(busy[-2])

        before_requests(filled, monkeypatch, replace)
        assert filled.save(folder / "s") == kept

    @pytest.mark.parametrize("named", [["m"], None])
    def test_of_a_checkpoint_that_is_replaced_between_two_files_saves_the_new_one(
        self, connected, other, folder, monkeypatch, named
    ):
        put_checkpoint(connected, files="fg")

        def replace(request: Any) -> None:
            if getattr(request, "name", None) == "m/01234567/g":
                put_checkpoint(other, "89abcdef")

        before_requests(connected, monkeypatch, replace)
        assert connected.save(folder / "s", named) == ["m", "m/89abcdef/f"]

    @pytest.mark.parametrize("requests_before", [0, 1])
    def test_describes_the_region_that_it_copies_though_the_broker_loses_its_state_meanwhile(
        self, broker, connected, folder, monkeypatch, requests_before
    ):
        connected.put("a", b"old", "cpu").close()
        asked: list[Any] = []

        def lose(request: Any) -> None:
            asked.append(request)
            if len(asked) == requests_before + 1:
                restart(broker)
                with gdrpy.connect(broker.path) as new:
                    new.put("a", b"newer", "cpu", mode=0o640, seal=True).close()

        before_requests(connected, monkeypatch, lose)
        connected.save(folder / "s", ["a"])
        (one,) = json.loads((folder / "s/snapshot.json").read_text())["regions"]
        assert (one["nbytes"], one["mode"], one["sealed"]) == (5, 0o640, True)
        assert (folder / "s/00000.bin").read_bytes() == b"newer"

    def test_of_a_checkpoint_that_lists_another_region_is_refused(self, filled, folder):
        index = np.frombuffer(b'["host"]', np.uint8)
        filled.put("x", index, metadata=ABOUT).close()
        why = "^save: checkpoint 'x' lists 'host', which is not its file: load it again$"
        with pytest.raises(ValueError, match=why):
            filled.save(folder / "s", ["x"])
        filled.put("x", b"host", metadata=ABOUT).close()
        why = "^save: region 'x' says that it is a checkpoint and lists no regions: load it again$"
        with pytest.raises(ValueError, match=why):
            filled.save(folder / "s", ["x"])
        filled.save(folder / "s")
        filled.restore(folder / "s", ["x"])
        assert filled.get("x", gpu=False).read() == b"host"

    def test_of_a_checkpoint_without_one_of_its_files_is_refused(self, filled, folder):
        filled.get("m/01234567/f", gpu=False).delete()
        why = "^save: there is no region of the name 'm/01234567/f'"
        with pytest.raises(gdrpy.NotFound, match=why):
            filled.save(folder / "s", ["m"])

    def test_that_finds_no_room_names_the_remedy(self, filled, folder, monkeypatch):
        def full(*_: Any) -> int:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

        monkeypatch.setattr(os, "pwrite", full)
        why = r"save: cannot write .*/s: No space left on device: make room, or choose"
        with pytest.raises(OSError, match=why) as raised:
            filled.save(folder / "s")
        assert raised.value.filename == str(folder / "s")
        assert list(folder.iterdir()) == []

    def test_writes_and_removes_nothing_through_a_link_in_its_folders_place(self, filled, folder):
        (folder / "precious").mkdir()
        (folder / "precious/file").touch()

        def swap(*_: int) -> None:
            (partial,) = folder.glob("s.partial-*")
            if partial.is_symlink():
                raise KeyboardInterrupt
            partial.rename(folder / "moved")
            partial.symlink_to(folder / "precious")

        with pytest.raises(KeyboardInterrupt):
            filled.save(folder / "s", progress=swap)
        assert [path.name for path in (folder / "precious").iterdir()] == ["file"]
        assert list((folder / "moved").iterdir()) == []

    @pytest.mark.parametrize("link", [False, True])
    def test_into_a_folder_that_is_replaced_as_soon_as_it_is_made_is_refused(
        self, filled, folder, monkeypatch, link
    ):
        (folder / "precious").mkdir()
        (folder / "precious/file").touch()
        mkdir = os.mkdir

        def swap(name: str, mode: int, **where: int) -> None:
            mkdir(name, mode, **where)
            (partial,) = folder.glob("s.partial-*")
            partial.rmdir()
            if link:
                partial.symlink_to(folder / "precious")
            else:
                (folder / "precious").rename(partial)

        monkeypatch.setattr(os, "mkdir", swap)
        why = "Not a directory" if link else "another user replaced it: choose one where no other"
        with pytest.raises(OSError, match=f"save: cannot make .*/s: {why}"):
            filled.save(folder / "s")
        assert [path.name for path in folder.glob("*/*") if not path.parent.is_symlink()] == [
            "file"
        ]

    def test_goes_on_with_the_threads_that_can_be_started(self, filled, folder, monkeypatch):
        before = content(filled)
        with monkeypatch.context() as patch:
            limit_threads(patch, 1)
            filled.save(folder / "s", ["host"])
        with filled.get("host", gpu=False) as region:
            region.write(b"changed")
        with monkeypatch.context() as patch:
            limit_threads(patch, 1)
            filled.restore(folder / "s")
        assert content(filled) == before

    def test_without_any_thread_names_the_remedy(self, filled, folder, monkeypatch):
        limit_threads(monkeypatch, 0)
        why = "no thread can be started: end some processes, or raise the limit .ulimit -u."
        with pytest.raises(BlockingIOError, match=f"save: cannot write .*/s: {why}"):
            filled.save(folder / "s")
        assert list(folder.iterdir()) == []

    def test_files_are_their_owners_alone(self, filled, folder):
        filled.save(folder / "s")
        modes = {path.stat().st_mode & 0o777 for path in (folder / "s").iterdir()}
        assert modes == {0o600}

    def test_by_the_asyncio_client_is_the_same(self, broker, filled, folder):
        async def save_and_restore() -> list[str]:
            async with await aio.connect(broker.path) as client:
                await client.save(folder / "s", ["host"])
                await client.delete("host")
                return await client.restore(folder / "s")

        assert asyncio.run(save_and_restore()) == ["host"]


@pytest.fixture
def saved(filled: gdrpy.Broker, folder: Path) -> Path:
    """A snapshot of all."""
    filled.save(folder / "s")
    return folder / "s"


class TestRestore:
    def test_replaces_regions_of_the_names(self, filled, saved):
        with filled.get("host", gpu=False) as region:
            region.write(b"changed")
        assert filled.restore(saved, ["host"]) == ["host"]
        with filled.get("host", gpu=False) as region:
            assert (region.version, region.read(3)) == (2, bytes([0, 1, 2]))

    def test_of_what_is_missing_leaves_the_others(self, filled, saved):
        filled.delete("m")
        assert filled.restore(saved, missing=True) == ["m/01234567/f", "m"]
        assert filled.restore(saved, missing=True) == []
        assert filled.stat("host").version == 1

    def test_of_what_is_missing_leaves_what_is_published_meanwhile(self, filled, saved):
        filled.delete("host")
        filled.delete("m")

        def publish(*_: int) -> None:
            if not filled.list("host"):
                filled.put("host", b"newer", "cpu").close()
                filled.put("m", b"newer", "cpu").close()

        assert filled.restore(saved, missing=True, progress=publish) == []
        assert filled.get("host", gpu=False).read() == b"newer"
        assert [str(info.name) for info in filled.list("m")] == ["m"]

    def test_of_what_is_missing_keeps_files_that_another_index_lists_by_now(
        self, filled, other, saved, monkeypatch
    ):
        filled.delete("m")
        publish, steps = calls.publish_many, []

        async def watched(client: Any, drafts: list[Any], **options: Any) -> list[int]:
            versions = await publish(client, drafts, **options)
            steps.append([draft.name for draft in drafts])
            if len(steps) == 1:
                assert other.restore(saved, missing=True) == ["m"]
            return versions

        monkeypatch.setattr(snapshots, "PUBLISH_LIMIT", 1)
        monkeypatch.setattr(calls, "publish_many", watched)
        assert filled.restore(saved, ["m"], missing=True) == ["m/01234567/f"]
        assert filled.tensors("m")["v"].read().tolist() == [0, 0, 0]

    @pytest.mark.parametrize(
        ("most", "expected"),
        [
            (5, [["array", "host", "tensors", "m/01234567/f", "m"]]),
            (4, [["array", "host", "tensors"], ["m/01234567/f", "m"]]),
            (2, [["array", "host"], ["tensors"], ["m/01234567/f", "m"]]),
        ],
    )
    def test_publishes_a_checkpoint_in_one_step(self, filled, saved, monkeypatch, most, expected):
        publish, steps = calls.publish_many, []

        async def watched(client: Any, drafts: list[Any], **options: Any) -> list[int]:
            steps.append([draft.name for draft in drafts])
            return await publish(client, drafts, **options)

        monkeypatch.setattr(snapshots, "PUBLISH_LIMIT", most)
        monkeypatch.setattr(calls, "publish_many", watched)
        filled.restore(saved)
        assert steps == expected

    def test_of_what_is_missing_asks_for_names_alone(self, broker, filled, saved):
        restart(broker)
        filled.restore(saved, missing=True)
        assert filled.status()["requests"].get("list", 0) == 0

    def test_of_what_is_missing_leaves_what_another_user_publishes_meanwhile(self, user, folder):
        put_checkpoint(user)
        for name in "ab":
            user.put(name, b"x", "cpu").close()
        user.save(folder / "s")
        for name in "abm":
            user.delete(name)
        with gdrpy.connect(user.socket) as root:

            def publish(*_: int) -> None:
                if not names(root):
                    root.put("b", b"root's", "cpu").close()
                    root.put("m", b"root's", "cpu").close()

            assert user.restore(folder / "s", missing=True, progress=publish) == ["a"]
            assert names(root) == ["a", "b", "m"]

    def test_of_what_is_missing_deletes_files_that_their_owner_may_not_write(self, user, folder):
        put_checkpoint(user, mode=0o440)
        user.save(folder / "s", ["m"])
        user.chmod("m", 0o600)
        user.delete("m")

        def publish(*_: int) -> None:
            if not names(user):
                user.put("m", b"newer", "cpu").close()

        publishing = {"missing": True, "progress": publish}
        assert user.restore(folder / "s", **publishing) == []
        assert names(user) == ["m"]

    def test_of_what_is_missing_leaves_the_files_of_a_replaced_checkpoint_away(self, filled, saved):
        filled.put("m", b"newer", "cpu").close()
        assert filled.restore(saved, missing=True) == []
        assert [str(info.name) for info in filled.list("m")] == ["m"]

    @pytest.mark.parametrize("mode", [0o440, 0o004, 0])
    @pytest.mark.parametrize("seal", [False, True])
    def test_gives_what_is_read_only_its_mode_again(self, filled, folder, mode, seal):
        filled.put("a", b"x", "cpu", mode=mode, seal=seal).close()
        filled.save(folder / "s", ["a"])
        filled.delete("a")
        filled.restore(folder / "s")
        assert (filled.stat("a").mode, filled.stat("a").sealed) == (mode, seal)

    @pytest.mark.parametrize("what", ["pipe", "folder", "device"])
    @pytest.mark.parametrize("name", ["snapshot.json", "00001.bin"])
    def test_of_what_is_not_a_file_is_refused(self, filled, saved, name, what):
        (saved / name).unlink()
        if what == "pipe":
            os.mkfifo(saved / name)
        elif what == "folder":
            (saved / name).mkdir()
        else:
            (saved / name).symlink_to("/dev/zero")
        why = f"restore: cannot read .*{name}: (not a regular file|Is a directory)"
        with pytest.raises(OSError, match=why):
            filled.restore(saved)

    def test_of_a_checkpoint_publishes_its_files_too(self, filled, saved):
        filled.delete("m")
        assert filled.restore(saved, ["m"]) == ["m/01234567/f", "m"]

    def test_may_be_to_another_device(self, filled, saved):
        filled.restore(saved, ["array", "tensors"], device="cpu")
        assert [filled.stat(name).device for name in ("array", "tensors")] == ["cpu", "cpu"]
        assert filled.tensors("tensors")["w"].read().all()

    def test_finds_the_gpu_by_its_uuid_else_by_its_number(self, filled, saved):
        index = json.loads((saved / "snapshot.json").read_text())
        for one, (uuid, device) in zip(
            index["regions"],
            [(index["regions"][0]["uuid"], 7), ("GPU-" + "0" * 36, 0)],
            strict=False,
        ):
            one["uuid"], one["device"] = uuid, device
        (saved / "snapshot.json").write_text(json.dumps(index))
        names = [one["name"] for one in index["regions"][:2]]
        assert filled.restore(saved, names) == names
        assert [filled.stat(name).device for name in names] == [0, 0]

    def test_of_a_changed_file_publishes_nothing(self, filled, saved):
        before = content(filled)
        with (saved / "00001.bin").open("r+b") as file:
            file.seek(5000)
            file.write(b"\xff\xff")
        with pytest.raises(ValueError, match="restore: .*00001.bin has changed since 'host' was"):
            filled.restore(saved)
        os.truncate(saved / "00001.bin", 10_000)
        with pytest.raises(ValueError, match="00001.bin has 10000 bytes, and 'host' had 10001"):
            filled.restore(saved)
        assert content(filled) == before
        assert filled.status()["regions"] == len(before)

    def test_of_a_name_that_was_not_saved_suggests_one(self, filled, saved):
        why = "restore: there is no region 'hots' in .*: did you mean 'host'"
        with pytest.raises(gdrpy.NotFound, match=why):
            filled.restore(saved, ["hots"])

    @pytest.mark.parametrize(
        ("change", "why"),
        [
            (lambda index: index.update(format="zip"), "does not describe a snapshot"),
            (lambda index: index.update(version=2), "does not describe a snapshot"),
            (lambda index: index.update(piece=0), "does not describe a snapshot"),
            (lambda index: index.update(piece=128 << 20), "does not describe a snapshot"),
            (lambda index: index["regions"][0].pop("mode"), "does not describe a snapshot"),
            (lambda index: index["regions"][0].update(file="../x"), "does not describe a snap"),
            (lambda index: index["regions"][0].update(file=".."), "does not describe a snapshot"),
            (lambda index: index["regions"][0].update(nbytes=0), "does not describe a snapshot"),
            (lambda index: index["regions"][0].update(nbytes=1 << 63), "does not describe a snap"),
            (lambda index: index["regions"][0].update(nbytes=1 << 60), "does not describe region"),
            (lambda index: index["regions"][0].update(uid=10**30), "does not describe a snapshot"),
            (lambda index: index["regions"][0].update(device=-2), "does not describe a snapshot"),
            (lambda index: index["regions"][0].update(metadata="A" * 8000), "describe region"),
            (lambda index: index["regions"][0]["sha256"].clear(), "does not describe region"),
            (lambda index: index["regions"][0].update(name=""), "name must be 1 to 255 bytes"),
            (lambda index: index["regions"][0].update(mode=0o777), "does not describe a snap"),
            (lambda index: index["regions"].append(index["regions"][0]), "two regions of one name"),
        ],
    )
    def test_of_another_description_is_refused(self, filled, saved, change, why):
        index = json.loads((saved / "snapshot.json").read_text())
        change(index)
        (saved / "snapshot.json").write_text(json.dumps(index))
        with pytest.raises((ValueError, gdrpy.InvalidRequest), match=why):
            filled.restore(saved)
        assert filled.stat("array").version == 1

    def test_of_a_folder_without_a_snapshot_is_refused(self, filled, folder):
        with pytest.raises(ValueError, match="restore: .* holds no snapshot: it has no snapshot"):
            filled.restore(folder)

    def test_gives_regions_to_their_owners(self, filled, saved):
        index = json.loads((saved / "snapshot.json").read_text())
        for one in index["regions"]:
            one["uid"], one["gid"] = 1234, 5678
        (saved / "snapshot.json").write_text(json.dumps(index))
        filled.restore(saved)
        assert {(info.uid, info.gid) for info in filled.list()} == {(1234, 5678)}


class TestByThreads:
    def test_returns_when_no_thread_works_though_signals_come_twice(self):
        main, done, signals = threading.get_ident(), [], []
        over = threading.Event()

        class Interrupted(Exception):
            pass

        def interrupt(*_: Any) -> None:
            signals.append(None)
            if len(signals) > 2:
                over.set()
            else:
                raise Interrupted

        def work(piece: int) -> int:
            while not over.wait(0.01):
                signal.pthread_kill(main, signal.SIGUSR1)
            done.append(piece)
            return piece

        before = signal.signal(signal.SIGUSR1, interrupt)
        try:
            with pytest.raises(Interrupted):
                next(by_threads([7], 1, lambda: work))
            assert done == [7]
        finally:
            over.set()
            signal.signal(signal.SIGUSR1, before)

    def test_ends_in_a_forked_child_where_no_thread_works(self):
        over = threading.Event()

        def work(piece: int) -> int:
            if piece:
                over.wait()
            return piece

        results = by_threads(range(2), 2, lambda: work)
        try:
            assert next(results) == 0
            child = os.fork()
            if child == 0:
                signal.signal(signal.SIGALRM, signal.SIG_DFL)
                signal.alarm(20)
                results.close()
                os._exit(0)
            assert os.waitpid(child, 0)[1] == 0
        finally:
            over.set()
        assert list(results) == [1]
