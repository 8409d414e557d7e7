"""Checkpoints in a broker: loaded, broken off and gone on with, replaced, and opened whole."""

from __future__ import annotations

import asyncio
import gc
import os
import re
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import msgspec
import numpy as np
import pytest
from msgpack import packb

import gdrpy
from brokers import Broker
from checkpoints import SHARDS, TENSORS, write_checkpoint
from gdrpy import aio
from gdrpy.arrays.array import Array
from gdrpy.broker.checkpoint import places_of
from gdrpy.broker.client import calls, lookup
from support import open_descriptors

FIRST, SECOND, THIRD = SHARDS
#: What the region of each file has.
FILE_BYTES = 4270


@pytest.fixture
def connected(broker: Broker) -> Iterator[gdrpy.Broker]:
    """A client of the test's broker, which looks for another one for a moment only."""
    with gdrpy.connect(broker.path, reconnect=0.1) as made:
        yield made


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return write_checkpoint(tmp_path / "model")


class Steps:
    """A progress that notes what it is told, and does something once, after so many files."""

    def __init__(self, after: int = 0, do: Callable[[], object] | None = None) -> None:
        self.told: list[tuple[int, int]] = []
        self._after, self._do = after, do

    def __call__(self, done: int, total: int) -> None:
        self.told.append((done, total))
        if self._do and done > self._after * FILE_BYTES:
            do, self._do = self._do, None
            do()


def stop() -> None:
    raise KeyboardInterrupt


def names(broker: gdrpy.Broker) -> list[str]:
    """The names of the broker's regions, with ID for what stands for the files."""
    return [re.sub("/[0-9a-f]{8}/", "/ID/", str(info.name)) for info in broker.list()]


def numbers(broker: gdrpy.Broker) -> dict[str, int]:
    """The numbers of the checkpoint's regions by their files."""
    return {str(info.name).rpartition("/")[2]: info.region for info in broker.list("m/")}


def assert_whole(found: Mapping[str, Array], expected: Mapping[str, np.ndarray] = TENSORS) -> None:
    assert found.keys() == expected.keys()
    for name, array in expected.items():
        assert found[name].numpy().dtype == array.dtype
        assert (found[name].numpy() == array).all()


class TestLoad:
    @pytest.mark.parametrize("device", [0, "cpu"])
    def test_gives_the_tensors_of_all_files(self, connected, folder, device):
        assert_whole(connected.load_checkpoint(folder, "m", device))
        assert names(connected) == ["m", f"m/ID/{FIRST}", f"m/ID/{SECOND}", f"m/ID/{THIRD}"]
        assert {info.device for info in connected.list()} == {device}

    def test_of_a_single_file_is_opened_alike(self, connected, tmp_path):
        write_checkpoint(tmp_path / "one", {"model.safetensors": TENSORS})
        (tmp_path / "one/model.safetensors.index.json").unlink()
        connected.load_checkpoint(tmp_path / "one", "m", gpu=False)
        assert_whole(connected.tensors("m", gpu=False))
        assert names(connected) == ["m", "m/ID/model.safetensors"]

    def test_tells_the_bytes_done_and_to_do(self, connected, folder):
        steps = Steps()
        connected.load_checkpoint(folder, "m", "cpu", progress=steps)
        assert {info.nbytes for info in connected.list("m/")} == {FILE_BYTES}
        assert steps.told[-1] == (3 * FILE_BYTES, 3 * FILE_BYTES)
        assert steps.told == sorted(steps.told)

    def test_seals_and_gives_the_mode_to_every_region(self, connected, folder):
        connected.load_checkpoint(folder, "m", "cpu", seal=True, mode=0o644)
        assert {(info.sealed, info.mode) for info in connected.list()} == {(True, 0o644)}

    def test_keeps_no_region_open_but_those_of_the_tensors(self, connected, folder):
        before = open_descriptors()
        found = connected.load_checkpoint(folder, "m", "cpu")
        assert [info.writers for info in connected.list()] == [0, 1, 1, 1]
        del found
        gc.collect()
        assert [info.writers for info in connected.list()] == [0, 0, 0, 0]
        assert open_descriptors() == before

    def test_of_an_incomplete_folder_changes_nothing(self, connected, folder):
        (folder / THIRD).unlink()
        with pytest.raises(ValueError, match=f"{THIRD}' is not there: copy or download"):
            connected.load_checkpoint(folder, "m", "cpu")
        assert names(connected) == []

    def test_of_a_file_and_of_a_single_files_folder_name_the_other_call(self, connected, folder):
        with pytest.raises(NotADirectoryError) as file:
            connected.load_checkpoint(folder / FIRST, "m", "cpu")
        assert file.value.strerror == (
            f"safetensors: cannot read {folder / FIRST}: Not a directory: give the checkpoint's "
            f"folder, or load one file by broker.load()"
        )
        with pytest.raises(IsADirectoryError) as found:
            connected.load(folder, "m", "cpu")
        assert found.value.strerror == (
            f"safetensors: cannot read {folder}: Is a directory: give one of its files, or load "
            f"the folder by broker.load_checkpoint()"
        )

    def test_of_a_missing_file_tells_where_it_was_looked_for(self, connected, folder, monkeypatch):
        monkeypatch.chdir(folder)
        for call in (connected.load, connected.load_checkpoint):
            with pytest.raises(FileNotFoundError) as caught:
                call("missing", "m", "cpu")
            assert caught.value.strerror == (
                f"safetensors: cannot read missing: No such file or directory: the current folder "
                f"is {folder}"
            )

    def test_by_the_asyncio_client_is_the_same(self, broker, folder):
        async def load() -> None:
            async with await aio.connect(broker.path) as connected:
                assert_whole(await connected.load_checkpoint(folder, "m", "cpu"))
                assert_whole(await connected.tensors("m"))

        asyncio.run(load())


class TestLoadAgain:
    def test_reads_nothing_that_is_there(self, connected, folder):
        connected.load_checkpoint(folder, "m", "cpu")
        before, steps = {info.name: info.version for info in connected.list()}, Steps()
        assert_whole(connected.load_checkpoint(folder, "m", "cpu", progress=steps))
        after = {info.name: info.version for info in connected.list()}
        assert (steps.told, after) == ([], before)

    @pytest.mark.parametrize("files", [0, 1, 2])
    def test_after_an_interrupt_goes_on_where_it_ended(self, connected, folder, files):
        before = open_descriptors()
        with pytest.raises(KeyboardInterrupt):
            connected.load_checkpoint(folder, "m", "cpu", progress=Steps(files, stop))
        assert names(connected) == [f"m/ID/{file}" for file in list(SHARDS)[:files]]
        kept, steps = numbers(connected), Steps()
        assert open_descriptors() == before
        assert connected.status()["regions"] == files
        assert_whole(connected.load_checkpoint(folder, "m", "cpu", progress=steps))
        assert numbers(connected).items() >= kept.items()
        assert steps.told[-1][1] == (3 - files) * FILE_BYTES

    def test_reads_files_that_were_written_meanwhile(self, connected, folder):
        old = connected.load_checkpoint(folder, "m", "cpu")
        changed = {**SHARDS, SECOND: {**SHARDS[SECOND], "layers.2.bias": np.arange(7)}}
        write_checkpoint(folder, changed)
        new = connected.load_checkpoint(folder, "m", "cpu")
        assert new["layers.2.bias"].numpy().tolist() == list(range(7))
        assert_whole(old)
        assert names(connected) == ["m", f"m/ID/{FIRST}", f"m/ID/{SECOND}", f"m/ID/{THIRD}"]

    def test_reads_a_file_of_another_time(self, connected, folder):
        connected.load_checkpoint(folder, "m", "cpu")
        before = numbers(connected)
        os.utime(folder / SECOND, ns=(0, 1))
        assert_whole(connected.load_checkpoint(folder, "m", "cpu"))
        assert not numbers(connected).items() & before.items()

    def test_for_another_device_moves_it(self, connected, folder):
        connected.load_checkpoint(folder, "m", "cpu")
        connected.load_checkpoint(folder, "m", 0, gpu=False)
        assert [info.device for info in connected.list()] == [0] * 4

    def test_gives_what_is_there_the_new_mode_and_seal(self, connected, folder):
        connected.load_checkpoint(folder, "m", "cpu")
        before, steps = numbers(connected), Steps()
        connected.load_checkpoint(folder, "m", "cpu", mode=0o644, seal=True, progress=steps)
        assert (steps.told, numbers(connected)) == ([], before)
        assert {(info.sealed, info.mode) for info in connected.list()} == {(True, 0o644)}

    def test_unsealed_reads_what_was_sealed(self, connected, folder):
        connected.load_checkpoint(folder, "m", "cpu", seal=True)
        before = numbers(connected)
        connected.load_checkpoint(folder, "m", "cpu")
        assert not numbers(connected).items() & before.items()
        assert {info.sealed for info in connected.list()} == {False}

    def test_takes_no_region_that_was_not_loaded_from_the_file(self, connected, folder):
        connected.load_checkpoint(folder, "m", "cpu")
        name = str(connected.list("m/")[1].name)
        connected.put_tensors(name, SHARDS[FIRST], "cpu").close()
        assert_whole(connected.load_checkpoint(folder, "m", "cpu"))

    def test_leaves_other_regions_below_the_name(self, connected, folder):
        other = ["m/12345678", "m/12345678/a/b", "m/tokens", "mm/12345678/a"]
        for name in [*other, "m/12345678/old.safetensors", "m/20240101/loss"]:
            connected.put(name, [1], "cpu").close()
        loaded = connected.load_checkpoint(folder, "m", "cpu").values()
        loaded_names = {array.region.name for array in loaded}
        assert {info.name for info in connected.list()} - loaded_names == {
            "m",
            "m/12345678/old.safetensors",
            "m/20240101/loss",
            *other,
        }

    def test_replaces_a_region_that_only_says_that_it_is_a_checkpoint(self, connected, folder):
        region = connected.create("m", 8, "cpu", metadata={"format": "checkpoint"})
        region.write(b"no list!")
        region.publish()
        region.close()
        assert_whole(connected.load_checkpoint(folder, "m", "cpu"))
        assert_whole(connected.tensors("m"))

    def test_on_the_host_asks_nothing_of_gpus(self, connected, folder, monkeypatch):
        async def status(client):
            raise gdrpy.BackendUnavailable("CUDA failed")

        monkeypatch.setattr(calls, "status", status)
        assert_whole(connected.load_checkpoint(folder, "m", "cpu"))

    def test_names_a_gpu_alike_however_it_is_named(self, connected, folder):
        connected.load_checkpoint(folder, "m", 0, gpu=False)
        before, steps = numbers(connected), Steps()
        for device in (connected.list()[0].uuid, np.int64(0)):
            connected.load_checkpoint(folder, "m", device, gpu=False, progress=steps)
        assert (steps.told, numbers(connected)) == ([], before)

    def test_of_a_file_that_changes_meanwhile_publishes_nothing(self, connected, folder):
        def change() -> None:
            os.utime(folder / FIRST, ns=(0, 1))

        with pytest.raises(ValueError, match=f"{FIRST} was changed while"):
            connected.load_checkpoint(folder, "m", "cpu", progress=Steps(1, change))
        assert "m" not in names(connected)

    def test_beside_another_load_of_the_name_leaves_one_of_them_whole(
        self, connected, broker, folder, tmp_path
    ):
        """The other one begins and ends while this one is half done."""
        changed = {**SHARDS, SECOND: {**SHARDS[SECOND], "layers.2.bias": np.arange(7)}}
        others = write_checkpoint(tmp_path / "other", changed)

        def load_others() -> None:
            with gdrpy.connect(broker.path) as second:
                second.load_checkpoint(others, "m", "cpu")

        connected.load_checkpoint(folder, "m", "cpu", progress=Steps(1, load_others))
        assert_whole(connected.tensors("m"))
        assert names(connected) == ["m", f"m/ID/{FIRST}", f"m/ID/{SECOND}", f"m/ID/{THIRD}"]

    def test_takes_no_region_of_another_user(self, broker, connected, folder, monkeypatch):
        connected.load_checkpoint(folder, "m", "cpu")
        found, before, steps = lookup.stat, numbers(connected), Steps()

        async def stat(client, name):
            info = await found(client, name)
            return msgspec.structs.replace(info, uid=info.uid + 1)

        monkeypatch.setattr(lookup, "stat", stat)
        connected.load_checkpoint(folder, "m", "cpu", progress=steps)
        assert steps.told
        assert not numbers(connected).items() & before.items()


class TestFiles:
    @pytest.fixture(autouse=True)
    def loaded(self, connected, folder):
        """A checkpoint, and another region whose name begins like those of its files."""
        connected.load_checkpoint(folder, "m", "cpu")
        connected.put("m/01234567/other", b"x", "cpu").close()

    @pytest.mark.parametrize("device", [0, "cpu"])
    @pytest.mark.parametrize(
        "take",
        [
            lambda client, device: client.put("m", b"x", device).close(),
            lambda client, device: client.put_tensors("m", TENSORS, device).close(),
            lambda client, device: client.create("m", 1, device).publish(),
        ],
        ids=["put", "put_tensors", "publish"],
    )
    def test_go_when_another_region_takes_the_name(self, connected, take, device):
        take(connected, device)
        assert names(connected) == ["m", "m/ID/other"]

    @pytest.mark.parametrize(
        "delete",
        [
            lambda client: client.delete("m"),
            lambda client: client.get("m", gpu=False).delete(),
        ],
        ids=["Broker.delete", "BrokerRegion.delete"],
    )
    def test_go_when_the_name_is_deleted(self, connected, delete):
        kept = connected.tensors("m", gpu=False)
        delete(connected)
        assert names(connected) == ["m/ID/other"]
        assert_whole(kept)

    def test_go_when_the_asyncio_client_deletes_the_name(self, broker, connected):
        async def delete():
            async with await aio.connect(broker.path) as client:
                await client.delete("m")

        asyncio.run(delete())
        assert names(connected) == ["m/ID/other"]

    def test_go_also_when_another_process_deleted_one(self, connected):
        connected.delete(next(str(one.name) for one in connected.list("m/") if FIRST in one.name))
        connected.delete("m")
        assert names(connected) == ["m/ID/other"]

    def test_are_sealed_with_the_checkpoint(self, connected):
        connected.seal("m")
        assert {info.name[-5:] for info in connected.list() if not info.sealed} == {"other"}

    def test_have_the_mode_of_the_checkpoint(self, connected):
        connected.chmod("m", 0o640)
        assert {info.name[-5:] for info in connected.list() if info.mode != 0o640} == {"other"}

    @pytest.mark.parametrize(
        ("take", "kind"),
        [
            (lambda client: client.put("m", b"x", "cpu").close(), "published"),
            (lambda client: client.delete("m"), "deleted"),
        ],
        ids=["put", "delete"],
    )
    def test_are_announced_as_they_go(self, connected, take, kind):
        files = [str(info.name) for info in connected.list("m/") if info.name[-5:] != "other"]
        with connected.watch(timeout=30) as watch:
            take(connected)
            told = [next(watch) for _ in range(1 + len(files))]
        gone = [("deleted", name) for name in files]
        assert [(event.kind, event.name) for event in told] == [(kind, "m"), *gone]

    def test_go_however_many_there_are(self, connected):
        file = next(info for info in connected.list("m/") if FIRST in str(info.name))
        metadata = connected.stat(str(file.name)).metadata
        place = str(file.name).rpartition("/")[0]
        for number in range(200):
            connected.allocate(f"{place}/{number}", 1, "cpu", metadata=metadata).close()
        connected.delete("m")
        assert names(connected) == ["m/ID/other"]

    @pytest.mark.parametrize(
        "wrong", [None, "..", "01234567", 7, ["x"], 700 * [[]], "x" * 300, "0" * 9]
    )
    @pytest.mark.parametrize("name", ["x", "x" * 255])
    def test_are_not_what_a_region_says_that_only_has_the_format(self, connected, wrong, name):
        before = names(connected)
        metadata = {"format": "checkpoint", "id": wrong}
        connected.put(name, b"[]", "cpu", metadata=metadata).close()
        connected.put("x/01234567/other", b"x", "cpu").close()
        connected.chmod(name, 0o640)
        connected.seal(name)
        connected.delete(name)
        assert names(connected) == [*before, "x/ID/other"]

    def test_are_not_what_a_region_says_in_too_many_words(self):
        about = b"\x82" + packb("format") + packb("checkpoint") + packb("id")
        for depth in range(1100):
            assert places_of("m", about + b"\x91" * depth + b"\x90") == (None, None)
        assert places_of("m", about + packb("01234567")) == ("m/01234567/", None)


class TestLoadWithoutRoom:
    def test_names_the_file_and_keeps_those_before_it(self, start_broker, folder):
        broker = start_broker(quotas={"device": 5 << 20})
        with gdrpy.connect(broker.path) as connected:
            with pytest.raises(
                gdrpy.QuotaExceeded,
                match=f"load_checkpoint: no room for {THIRD!r}: create: .* 2 of the 3 files are in "
                "regions 'm/[0-9a-f]{8}/'.*, which stay: free memory and load again",
            ):
                connected.load_checkpoint(folder, "m", gpu=False)
            assert names(connected) == [f"m/ID/{FIRST}", f"m/ID/{SECOND}"]


class TestLoadWhoseBrokerIsKilled:
    def test_goes_on_when_there_is_a_broker_again(self, broker, connected, folder):
        with pytest.raises(gdrpy.BrokerUnavailable):
            connected.load_checkpoint(folder, "m", "cpu", progress=Steps(1, broker.kill))
        broker.start()
        kept = numbers(connected)
        assert list(kept) == [FIRST]
        assert_whole(connected.load_checkpoint(folder, "m", "cpu"))
        assert numbers(connected).items() >= kept.items()

    def test_and_started_again_notices_nothing(self, broker, folder):
        steps = Steps(1, broker.restart)
        with gdrpy.connect(broker.path) as connected:
            assert_whole(connected.load_checkpoint(folder, "m", "cpu", progress=steps))
        assert steps.told[-1][1] == 3 * FILE_BYTES


class TestTensors:
    def test_of_a_region_without_any_tell_what_it_holds_and_what_to_do(self, connected, folder):
        connected.allocate("plain", 64, "cpu").close()
        connected.put("array", [1], "cpu").close()
        connected.load_checkpoint(folder, "m", "cpu")
        for name, told in (
            ("plain", "no tensors: publish some by broker.put_tensors() or `gdrpy load`"),
            (
                "array",
                "one array: torch.from_dlpack(broker.get('array')), or the region's array() or "
                "numpy()",
            ),
        ):
            why = re.escape(f"tensors: region '{name}' holds {told}")
            with pytest.raises(ValueError, match=f"^{why}$"):
                connected.tensors(name)
        why = "BrokerRegion.tensors: region 'm' lists the files of a checkpoint: open it by "
        with pytest.raises(ValueError, match=re.escape(f"{why}broker.tensors('m')")):
            connected.get("m").tensors()

    def test_of_one_region_are_its_own(self, connected, folder):
        connected.put_tensors("a", TENSORS, "cpu").close()
        connected.load(folder / FIRST, "b", "cpu").close()
        assert_whole(connected.tensors("a"))
        assert_whole(connected.tensors("b", gpu=False), SHARDS[FIRST])

    def test_have_the_views_that_are_asked_for(self, connected, folder):
        connected.load_checkpoint(folder, "m", gpu=False)
        found = connected.tensors("m", cpu=False, readonly=True)["layers.1.bias"]
        assert (found.readonly, found.read().tolist()) == (True, [1] * 7)
        with pytest.raises(gdrpy.MissingView):
            found.numpy()

    def test_can_be_waited_for(self, connected):
        with pytest.raises(gdrpy.Timeout, match="no region of the name 'm'"):
            connected.tensors("m", wait=0.01)

    def test_of_an_incomplete_checkpoint_are_refused(self, connected, folder):
        connected.load_checkpoint(folder, "m", "cpu")
        connected.delete(str(connected.list("m/")[0].name))
        with pytest.raises(gdrpy.NotFound) as caught:
            connected.tensors("m")
        assert re.fullmatch(
            r"tensors: checkpoint 'm' is incomplete: .*'m/[0-9a-f]{8}/"
            + re.escape(FIRST)
            + "'; load it again",
            str(caught.value),
        )

    def test_that_are_replaced_meanwhile_are_the_new_ones(self, connected, folder, monkeypatch):
        connected.load_checkpoint(folder, "m", "cpu")
        get_many, replaced = calls.get_many, []

        async def replace_first(client, names, **options):
            if not replaced:
                replaced.append(names)
                monkeypatch.setattr(calls, "get_many", get_many)
                os.utime(folder / FIRST, ns=(0, 1))
                with gdrpy.connect(connected.socket) as other:
                    other.load_checkpoint(folder, "m", "cpu")
            return await get_many(client, names, **options)

        monkeypatch.setattr(calls, "get_many", replace_first)
        assert_whole(connected.tensors("m"))
        assert replaced

    @pytest.mark.parametrize("data", [b"\0" * 8, b"{}", b"[1]", b"[" * 100_000])
    def test_of_a_region_that_lies_are_refused(self, connected, data):
        draft = connected.create("m", len(data), "cpu", metadata={"format": "checkpoint"})
        draft.write(data)
        draft.publish()
        with pytest.raises(ValueError, match="region 'm' says that it is a checkpoint and lists"):
            connected.tensors("m")
