"""The client and a real broker: every call, restarts, and regions that travel between processes."""

from __future__ import annotations

import asyncio
import gc
import hashlib
import multiprocessing
import os
import pickle
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest

import gdrpy
from brokers import Broker
from gdrpy import aio, cuda, safetensors
from gdrpy.broker import requests
from gdrpy.broker.client.broker import attach
from gdrpy.cli import main
from support import gpu_mappings, open_descriptors


@pytest.fixture
def connected(broker: Broker) -> Iterator[gdrpy.Broker]:
    """A client of the test's broker."""
    with gdrpy.connect(broker.path) as made:
        yield made


class TestRegions:
    def test_allocate_makes_and_then_finds(self, connected):
        with connected.allocate("a", 5000, metadata={"k": 1}) as made:
            made.write(b"bytes", 4995)
            with connected.allocate("a", 5000, gpu=False) as found:
                assert found.id == made.id
                assert found.read(5, 4995) == b"bytes"
                assert found.metadata == {"k": 1}
            assert made.allocation_size == connected.rounded_size(5000)

    def test_of_the_gpu_are_seen_by_it(self, connected, gpu_read):
        with connected.allocate("a", 4096) as region:
            region.write(b"for the GPU")
            assert gpu_read(region.ptr, 11) == b"for the GPU"
            assert region.device == 0

    def test_allocate_with_another_size_says_both(self, connected):
        connected.allocate("a", 5000, gpu=False).close()
        with pytest.raises(gdrpy.SizeMismatch, match="5000 bytes .* and 6000 bytes"):
            connected.allocate("a", 6000, gpu=False)

    @pytest.mark.parametrize(
        ("packed", "told"),
        [
            (b"\xc1 no msgpack", {"bytes": b"\xc1 no msgpack"}),
            (b"\x93\x01\x02\x03", {"bytes": b"\x93\x01\x02\x03"}),
            (b"\x81\xa1a\x81\xc4\x01b\x01", {"a": {b"b": 1}}),
        ],
    )
    def test_with_metadata_of_a_foreign_client_are_told_of(
        self, packed, told, broker, connected, capsys
    ):
        with broker.client() as foreign:
            foreign.allocate("a", metadata=packed).close()
            assert connected.stat("a").metadata == told
            assert connected.get("a", gpu=False).metadata == told
            for words in ([], ["--json"]):
                assert main(["stat", "a", "--socket", broker.path, *words]) == 0
        assert capsys.readouterr().err == ""

    def test_of_no_name_raise_what_names_a_near_one(self, connected):
        connected.allocate("weights", 1, "cpu").close()
        why = "there is no region of the name 'wieghts': did you mean 'weights'?"
        for call in ("get", "stat", "delete", "seal", "tensors", "wake"):
            with pytest.raises(gdrpy.NotFound) as caught:
                getattr(connected, call)("wieghts")
            assert str(caught.value) == f"{call}: {why}"
        with pytest.raises(gdrpy.NotFound, match="did you mean 'weights'"):
            connected.get("weights/")
        with pytest.raises(gdrpy.NotFound) as caught:
            connected.get("of another kind")
        why = "there is no region of the name 'of another kind': broker.list() lists them"
        assert str(caught.value) == f"get: {why}"

    def test_of_no_name_raise_the_same_from_asyncio(self, broker, connected):
        connected.allocate("weights", 1, "cpu").close()

        async def get() -> None:
            async with await aio.connect(broker.path) as client:
                await client.get("wieghts")

        with pytest.raises(gdrpy.NotFound, match="did you mean 'weights'"):
            asyncio.run(get())

    def test_that_sleep_are_not_mistaken_for_others(self, connected):
        region = connected.put("w", b"x", seal=True)
        connected.sleep_many([region])
        with pytest.raises(gdrpy.NotFound) as caught:
            connected.get("w")
        assert str(caught.value) == "get: the region 'w' sleeps: broker.wake('w') opens it"

    @pytest.mark.parametrize(
        "call", ["sleep_many", "wake_many", "keep_many", "attach_many", "publish_many"]
    )
    def test_are_no_text(self, connected, call):
        with pytest.raises(TypeError, match=f"{call}: regions must be .*, not 'weights'$"):
            getattr(connected, call)("weights")

    def test_that_are_closed_name_the_call(self, connected):
        region = connected.put("w", b"x", "cpu")
        region.close()
        calls = {"stale": lambda: region.stale, "numpy": region.numpy, "flag": region.flag}
        for call, ask in calls.items():
            with pytest.raises(gdrpy.Closed, match=rf"^BrokerRegion\.{call}: "):
                ask()

    def test_anonymous_ones_are_not_listed(self, connected):
        with connected.allocate(None, 4096, "cpu") as region:
            assert region.name is None
            assert connected.list() == []
            assert region.info().device == "cpu"

    def test_list_tells_those_with_the_prefix(self, connected):
        for name in ("a/2", "b", "a/1"):
            connected.allocate(name, 1, "cpu").close()
        assert [info.name for info in connected.list("a/")] == ["a/1", "a/2"]
        connected.delete("a/1")
        assert [info.name for info in connected.list()] == ["a/2", "b"]

    def test_list_takes_no_python_call_for_each_region(self, connected):
        for number in range(300):
            connected.allocate(f"region/{number:03}", 1, "cpu").close()
        connected.list()
        called = []
        sys.setprofile(lambda frame, event, _: called.append(event == "call"))
        try:
            found = connected.list()
        finally:
            sys.setprofile(None)
        assert [info.name for info in found] == [f"region/{number:03}" for number in range(300)]
        assert {info.device for info in found} == {"cpu"}
        assert sum(called) < 300

    def test_a_thousand_come_in_one_call_in_their_order(self, connected):
        names = [f"region/{number}" for number in range(600)]
        for name in names:
            connected.allocate(name, 1, "cpu").close()
        regions = connected.get_many(reversed(names), gpu=False)
        assert [region.name for region in regions] == names[::-1]
        assert len(connected.list()) == 600
        for region in regions:
            region.close()

    def test_stat_tells_the_holders(self, connected):
        import os

        with connected.allocate("a", 1, "cpu"), connected.get("a", readonly=True):
            info = connected.stat("a")
            (holder,) = info.holders
            assert (holder.pid, holder.uid, holder.count) == (os.getpid(), os.getuid(), 2)
            assert (info.mode, info.linked, info.metadata) == (0o600, True, {})
        connected.chmod("a", 0o644)
        assert connected.stat("a").mode == 0o644

    def test_are_held_while_a_view_of_them_is_alive(self, connected):
        array = connected.allocate("a", 4096, "cpu").numpy()
        gc.collect()
        assert connected.stat("a").writers == 1
        array[0] = 5
        del array
        gc.collect()
        assert connected.stat("a").writers == 0

    def test_by_dma_alone_can_be_filled_and_read(self, connected):
        with connected.allocate("a", 4096, cpu=False) as region:
            region.fill(7)
            assert region.read(2, 4094) == b"\x07\x07"
            region.seal()
            with pytest.raises(gdrpy.Sealed):
                region.fill(8)


class TestVersions:
    def test_a_draft_is_found_by_nobody_until_it_is_published(self, connected):
        with connected.create("a", 1, "cpu") as draft:
            assert draft.version == 0
            with pytest.raises(gdrpy.NotFound):
                connected.get("a")
            assert draft.publish() == 1
            with connected.get("a") as found:
                assert found.id == draft.id

    def test_the_older_one_is_stale_and_stays(self, connected):
        with connected.put("a", np.array([1, 2])) as old, connected.put("a", [3]) as new:
            assert (old.version, new.version) == (1, 2)
            assert (old.stale, new.stale) == (True, False)
            assert old.numpy().tolist() == [1, 2]

    def test_delete_of_the_older_one_leaves_the_newer(self, connected):
        with connected.put("a", [1]) as old, connected.put("a", [2]):
            with pytest.raises(gdrpy.Gone):
                old.delete()
            connected.get("a", gpu=False).close()

    def test_a_draft_that_can_be_neither_filled_nor_closed_tells_of_the_filling_first(
        self, connected, monkeypatch
    ):
        def fail(*_: object) -> None:
            raise OSError("the close failed")

        def fill(*_: object) -> None:
            raise ValueError("the fill failed")

        monkeypatch.setattr(gdrpy.BrokerRegion, "_put", fill)
        monkeypatch.setattr(gdrpy.BrokerRegion, "close", fail)
        with pytest.raises(ValueError, match="the fill failed") as raised:
            connected.put("a", b"x", "cpu")
        assert raised.value.__notes__ == ["closing: OSError: the close failed"]

    def test_a_draft_that_is_closed_is_gone(self, connected):
        connected.create("a", 1, "cpu").close()
        assert connected.status()["regions"] == 0


class TestPublishing:
    def test_what_its_name_means_already_gives_its_version(self, connected):
        with connected.allocate("a", 3, "cpu") as region:
            assert region.publish() == 1

    def test_what_its_name_means_no_longer_is_refused(self, connected):
        with connected.allocate("a", 3, "cpu") as region:
            connected.delete("a")
            with pytest.raises(gdrpy.InvalidRequest, match="published before, as version 1"):
                region.publish()
            assert connected.list() == []


class TestMetadata:
    def test_that_is_set_later_is_what_others_get(self, connected):
        with connected.allocate("a", 3, "cpu", metadata={"step": 1}) as region:
            region.set_metadata({"step": 2})
            assert region.metadata == {"step": 2}
            assert connected.stat("a").metadata == {"step": 2}
            with connected.get("a") as other:
                assert other.metadata == {"step": 2}

    def test_of_a_sealed_region_stays(self, connected):
        with connected.allocate("a", 3, "cpu", metadata={"step": 1}) as region:
            region.seal()
            with pytest.raises(gdrpy.Sealed, match="set_metadata: .* publish a new version"):
                region.set_metadata({"step": 2})
            assert region.metadata == {"step": 1}

    def test_that_is_too_much_is_refused_before_it_is_sent(self, connected):
        with connected.allocate("a", 3, "cpu") as region, pytest.raises(ValueError, match="4096"):
            region.set_metadata({"much": "x" * 5000})


class TestSealing:
    def test_gives_readers_a_read_only_view_and_a_digest(self, connected):
        with connected.allocate("a", 3, "cpu") as region:
            region.write(b"abc")
            region.seal()
            assert region.digest() == hashlib.sha256(b"abc").hexdigest()
            with connected.get("a") as reader:
                assert (reader.sealed, reader.readonly, reader.enforced) == (True, True, True)
                with pytest.raises(gdrpy.Sealed):
                    reader.write(b"x")
            assert connected.stat("a").sha256 == region.digest()

    def test_as_a_copy_makes_it_what_the_originals_life_and_number_mean(self, connected):
        original = connected.socket, "ab" * 16, 7, False, True, False
        with connected.allocate(None, 3, "cpu") as copy:
            copy._seal_copy("ab" * 16, 7)
            with attach(*original) as found:
                assert (found.id, found.readonly) == (copy.id, True)
        assert connected.list() == []  # the copy was released before
        with pytest.raises(gdrpy.Gone, match="region 7 belongs to another broker"):
            attach(*original)

    def test_by_name_seals_what_the_name_means(self, connected):
        connected.allocate("a", 1, "cpu").close()
        connected.seal("a")
        assert connected.stat("a").sealed

    @pytest.mark.parametrize(("call", "more"), [("stat", ()), ("seal", ()), ("chmod", (0o600,))])
    def test_that_is_missing_is_told_by_the_call_that_was_made(self, connected, call, more):
        with pytest.raises(gdrpy.NotFound) as caught:
            getattr(connected, call)("a", *more)
        why = "there is no region of the name 'a': broker.list() lists them"
        assert str(caught.value) == f"{call}: {why}"

    def test_digest_of_a_draft_is_refused(self, connected):
        with connected.create("a", 16, "cpu") as draft:
            draft.seal()
            words = f"BrokerRegion.digest: {draft!r} is a draft, whose contents may change: publish"
            with pytest.raises(gdrpy.InvalidRequest) as caught:
                draft.digest()
            assert str(caught.value).startswith(words)

    def test_digest_of_what_is_not_sealed_is_refused(self, connected):
        region = connected.allocate("a", 1, "cpu")
        with pytest.raises(gdrpy.InvalidRequest, match="not sealed"):
            region.digest()


class TestArrays:
    @pytest.mark.parametrize(
        "array",
        [
            np.arange(12, dtype=">i2").reshape(3, 4),
            np.array(2.5),
            np.zeros((0, 3), np.float16),
            np.asfortranarray(np.arange(6).reshape(2, 3)),
            np.array(["a", "bc"]),
            np.array([1 + 2j], np.complex64),
        ],
        ids=lambda array: str(array.dtype),
    )
    @pytest.mark.parametrize("device", [0, "cpu"])
    def test_come_back_as_they_were(self, connected, array, device):
        connected.put("a", array, device, metadata={"more": 1}).close()
        with connected.get("a", gpu=False) as region:
            found = region.numpy()
            assert (found.dtype, found.shape) == (array.dtype, array.shape)
            assert (found == array).all()
            assert region.metadata["more"] == 1
            del found

    @pytest.mark.parametrize("kind", [bytes, bytearray, memoryview])
    @pytest.mark.parametrize("data", [b"a\0b\0", b""])
    def test_of_bytes_are_uint8(self, connected, kind, data):
        connected.put("a", kind(data), "cpu").close()
        found = connected.get("a").numpy()
        assert (found.dtype, found.shape) == (np.uint8, (len(data),))
        assert found.tobytes() == data

    def test_can_be_put_sealed(self, connected):
        with connected.put("a", [1, 2], "cpu", seal=True) as region:
            assert region.sealed
            assert not region.numpy().flags.writeable

    def test_that_are_sealed_are_shown_to_other_libraries_as_read_only(self, connected):
        with connected.put("a", [1, 2], seal=True) as region:
            array = np.from_dlpack(region)
            assert array.ctypes.data == region.ptr
            assert not array.flags.writeable
            del array

    @pytest.mark.parametrize(
        "make",
        [
            lambda client: client.put("a", [1, 2], seal=True),
            lambda client: client.put_tensors("a", {"x": np.ones(2)}, seal=True, cpu=False),
        ],
    )
    def test_that_were_put_sealed_are_not_written_by_their_publisher_on_the_gpu(
        self, connected, make
    ):
        with make(connected) as region, connected.get("a") as reader:
            before = reader.read()
            with cuda.context(0), pytest.raises(gdrpy.CudaError, match="ERROR_INVALID_VALUE"):
                cuda.call("cuMemsetD8", region.ptr, 9, region.nbytes)
            assert region.read() == reader.read() == before

    def test_that_cannot_be_put_leave_nothing(self, connected):
        with pytest.raises(TypeError):
            connected.put("a", [object()])
        with pytest.raises(TypeError):
            connected.put_tensors("a", {"x": np.array([1j])})
        with pytest.raises(TypeError, match=r"put: this is a path, '/x': read the file first"):
            connected.put("a", Path("/x"))
        assert connected.status()["regions"] == 0

    @pytest.mark.parametrize(
        "array", [np.array([1 + 2j], np.complex64), np.array(["a"]), np.arange(2, dtype=">i2")]
    )
    def test_of_types_that_gpu_libraries_lack_are_refused_and_not_taken_for_bytes(
        self, connected, array
    ):
        connected.put("a", array).close()
        why = r"BrokerRegion\.array: dtype .*; the region's numpy\(\) gives the array, array"
        with connected.get("a") as region:
            with pytest.raises(TypeError, match=why):
                np.from_dlpack(region)
            for interface in ("__cuda_array_interface__", "__array_interface__"):
                with pytest.raises(AttributeError, match=f"^{interface}: {why}"):
                    getattr(region, interface)
            assert region.array(dtype="U8").read().tobytes() == array.tobytes()
            assert (region.numpy() == array).all()
            for device in (0, "cpu"):
                with connected.put("copy", region, device) as copy:
                    assert (copy.numpy() == array).all()

    def test_in_gpu_memory_come_back_too(self, connected):
        with gdrpy.alloc(4096) as source:
            halves, bits = source.array((2, 2), "F16", 64), source.array((2,), "BF16")
            halves.write(np.float16([[1, 2], [3, 4]]))
            connected.put("halves", halves).close()
            connected.put("bits", bits, "cpu").close()
        with connected.get("halves", gpu=False) as region, connected.get("bits") as other:
            assert region.numpy().tolist() == [[1, 2], [3, 4]]
            assert other.metadata["array"] == ["BF16", [2]]

    def test_by_name_come_back_by_name(self, connected):
        tensors = {"x": np.arange(6, dtype=np.float32).reshape(2, 3), "y": np.array([True])}
        connected.put_tensors("a", tensors, "cpu").close()
        with connected.get("a") as region:
            layout = safetensors.plan(tensors).digest
            assert region.metadata == {"format": "safetensors", "layout": layout}
            found = {name: tensor.read() for name, tensor in region.tensors().items()}
            assert found.keys() == tensors.keys()
            assert all((found[name] == tensors[name]).all() for name in tensors)

    def test_of_a_file_come_back_by_name(self, connected, tmp_path):
        header = b'{"x":{"dtype":"U8","shape":[3],"data_offsets":[0,3]}}'
        path = tmp_path / "x.safetensors"
        path.write_bytes(len(header).to_bytes(8, "little") + header + b"abc")
        steps = []
        with connected.load(
            path, "a", "cpu", seal=True, progress=lambda *step: steps.append(step)
        ) as region:
            assert region.tensors()["x"].read().tobytes() == b"abc"
            assert region.sealed
        done, whole = steps[-1]
        assert done == whole > 0

    def test_can_be_changed_through_a_mirror(self, connected):
        with connected.put("a", [1.0, 2.0], "cpu") as region:
            with region.mirror(load=True, dtype="f8") as host:
                host *= 2
            assert region.numpy().tolist() == [2.0, 4.0]


class TestWaiting:
    @pytest.mark.parametrize("seconds", [20, 10**400])
    def test_for_a_name_ends_when_it_is_published(self, connected, broker, seconds):
        with gdrpy.connect(broker.path) as other, connected.watch() as watch:
            found: list[Any] = []
            options = {"gpu": False, "wait": seconds}
            thread = threading.Thread(
                target=lambda: found.append(other.get("a", **options).numpy().tolist())
            )
            thread.start()
            connected.put("b", [0], "cpu").close()
            connected.put("a", [7], "cpu").close()
            thread.join()
            assert found == [[7]]
            assert [next(watch).name for _ in range(2)] == ["b", "a"]

    def test_for_memory_ends_when_it_is_freed(self, start_broker):
        path = start_broker(quotas={"device": 2 << 20}).path
        with gdrpy.connect(path) as first, gdrpy.connect(path) as second:
            region = first.allocate(None, 2 << 20, gpu=False)
            with pytest.raises(gdrpy.QuotaExceeded):
                second.allocate(None, 1, gpu=False)
            timer = threading.Timer(0.05, region.close)
            timer.start()
            second.allocate(None, 1, gpu=False, wait=20).close()
            timer.join()

    @pytest.mark.parametrize("call", ["allocate", "create"])
    def test_for_more_than_the_limit_is_refused_at_once(self, start_broker, call):
        why = f"{call}: 8 KiB on the host: regions may take 4 KiB there in all"
        path = start_broker(quotas={"device": 4096}).path
        with gdrpy.connect(path) as connected, pytest.raises(gdrpy.TooLarge, match=why):
            getattr(connected, call)("a", 8192, "cpu", wait=3600)

    def test_in_vain_is_a_timeout_which_names_no_near_one(self, connected):
        connected.allocate("weights", 1, "cpu").close()
        with pytest.raises(gdrpy.Timeout) as late:
            connected.get("wieghts", wait=0.01)
        assert str(late.value) == (
            "get: waited 0.01 s: there is no region of the name 'wieghts': publish it, or wait "
            "longer"
        )


@contextmanager
def stalled(broker: Broker) -> Iterator[None]:
    """The broker answers nobody meanwhile."""
    os.kill(broker.pid, signal.SIGSTOP)
    try:
        yield
    finally:
        os.kill(broker.pid, signal.SIGCONT)


class TestUnansweredCall:
    """Drafts and nameless regions are kept by leases alone, which end with their connection."""

    @pytest.mark.parametrize("call", ["get", "stat"])
    def test_that_timed_out_costs_no_lease(self, broker: Broker, call: str) -> None:
        with gdrpy.connect(broker.path, timeout=1) as client:
            draft = client.create("draft", 8, "cpu")
            one = client.allocate(None, 8, "cpu")
            with stalled(broker):
                for _ in range(2):
                    with pytest.raises(gdrpy.Timeout):
                        getattr(client, call)("a")
            assert draft.publish() == 1
            assert one.info().writers == 1
            assert client.status()["sessions"] == 1
            draft.close()
            one.close()

    def test_that_was_cancelled_costs_no_lease(self, broker: Broker) -> None:
        async def publish() -> int:
            async with await aio.connect(broker.path) as client:
                with await client.create("draft", 8, "cpu") as draft:
                    with stalled(broker), pytest.raises(TimeoutError):
                        await asyncio.wait_for(client.stat("a"), 0.2)
                    return await draft.publish()

        assert asyncio.run(publish()) == 1


class TestBusyBroker:
    """One that reads nothing for a while, until the socket has no room for what is given back."""

    def test_does_not_delay_the_garbage_collector(self, broker: Broker) -> None:
        with gdrpy.connect(broker.path) as client:
            regions = [client.allocate(None, 8, "cpu") for _ in range(800)]
            with stalled(broker):
                regions.clear()
                assert client._connection.returned
            assert client.status()["leases"] == 0

    def test_is_waited_for_once(self, broker: Broker) -> None:
        with gdrpy.connect(broker.path, timeout=0.5) as client:
            regions = [client.allocate(None, 8, "cpu") for _ in range(800)]
            with stalled(broker):
                for region in regions:
                    region.close()
                assert not client._connection.ready
            assert client.status()["leases"] == 0


class TestRestart:
    def test_keeps_regions_leases_and_bytes(self, connected, broker):
        with connected.put("a", [1, 2], "cpu") as region, connected.allocate(None, 8, "cpu") as one:
            life = connected.life
            one.write(b"nameless")
            broker.restart()
            assert connected.stat("a").writers == 1
            assert connected.life == life
            assert one.info().writers == 1
            region.seal()
            assert one.read() == b"nameless"
            broker.restart()
            connected.delete("a")
        assert connected.status()["regions"] == 0

    def test_keeps_more_leases_than_one_packet_tells_of(self, connected, broker, monkeypatch):
        monkeypatch.setattr("gdrpy.broker.client.connection.BATCH_LIMIT", 2)
        drafts = [connected.create(f"draft-{number}", 8, "cpu") for number in range(5)]
        broker.restart()
        assert [draft.publish() for draft in drafts] == [1] * 5
        for draft in drafts:
            draft.close()
        assert connected.status()["leases"] == 0

    def test_tells_watchers_that_events_are_lost(self, connected, broker):
        with connected.watch() as watch:
            connected.allocate("a", 1, "cpu").close()
            assert next(watch).kind == "allocated"
            broker.restart()
            assert next(watch).kind == "lost"
            connected.delete("a")
            assert next(watch).kind == "deleted"

    def test_while_somebody_waits_for_a_name_is_not_noticed(self, connected, broker):
        found: list[Any] = []
        thread = threading.Thread(
            target=lambda: found.append(connected.get("a", gpu=False, wait=20).name)
        )
        thread.start()
        broker.restart()
        with gdrpy.connect(broker.path) as other:
            other.put("a", [7], "cpu").close()
            thread.join()
        assert found == ["a"]

    def test_without_its_state_leaves_the_memory_and_says_gone(self, start_broker):
        broker = start_broker()
        with gdrpy.connect(broker.path) as connected:
            region = connected.put("a", [1, 2], "cpu")
            keeper = broker.keeper
            broker.kill()
            os.kill(keeper, signal.SIGKILL)
            broker.start()
            with pytest.raises(gdrpy.Gone):
                region.info()
            with pytest.raises(gdrpy.NotFound):
                connected.get("a")
            assert region.numpy().tolist() == [1, 2]
            pickled = pickle.dumps(region)
            with pytest.raises(gdrpy.Gone):
                pickle.loads(pickled)
            region.close()


def add_one(region: gdrpy.BrokerRegion) -> str:
    """What another process does with a region that came to it."""
    with region:
        region.numpy()[:] += 1
        return repr(region)


class TestOtherProcesses:
    @pytest.mark.parametrize("method", ["spawn", "fork"])
    def test_attach_a_region_that_is_sent_to_them(self, connected, method):
        with connected.put("a", [1, 2]) as named, connected.allocate(None, 4, "cpu") as nameless:
            context = multiprocessing.get_context(method)
            with context.Pool(1) as pool:
                if method == "spawn":  # CUDA is not for forked children
                    assert pool.apply(add_one, [named]).startswith("<BrokerRegion 'a'")
                    assert named.numpy().tolist() == [2, 3]
                assert pool.apply(add_one, [nameless]).startswith("<BrokerRegion anonymous")
                assert nameless.read() == b"\x01\x01\x01\x01"

    @pytest.mark.parametrize("device", [0, "cpu"])
    def test_keep_nothing_of_what_their_parent_has_open(self, connected, device):
        with connected.allocate("a", 4096, device, gpu=False) as region, region.map():
            assert gpu_mappings() == 2
            told, tell = os.pipe()
            child = os.fork()
            if not child:
                kept = [one for one in open_descriptors().values() if "gdrpy" in one]
                os.write(tell, repr((kept, gpu_mappings())).encode())
                os._exit(0)
            os.close(tell)
            assert os.waitpid(child, 0)[1] == 0
            with os.fdopen(told) as pipe:
                assert pipe.read() == "([], 0)"
            region.write(b"still here")
            assert pickle.loads(pickle.dumps(region)).read(10) == b"still here"

    def test_use_one_connection_for_all_that_they_attach(self, connected):
        with connected.put("a", [1], "cpu") as region:
            before = connected.status()["sessions"]
            copies = pickle.loads(pickle.dumps([region] * 1)) + [
                pickle.loads(pickle.dumps(region)) for _ in range(3)
            ]
            assert connected.status()["sessions"] == before + 1
            assert connected.stat("a").writers == 2
            for copy in copies:
                copy.close()


class TestThreads:
    def test_share_a_broker(self, connected):
        connected.allocate("a", 64, "cpu").close()

        def work(slot: int) -> None:
            for _ in range(200):
                with connected.get("a") as region:
                    region.cpu.store(4 * slot, region.cpu.load(4 * slot) + 1)

        threads = [threading.Thread(target=work, args=[slot]) for slot in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        with connected.get("a") as region:
            assert region.numpy("u4").tolist() == [200] * 8 + [0] * 8
        assert connected.stat("a").holders == ()


class TestAsyncio:
    def test_serves_the_same_calls(self, broker):
        async def main():
            async with await aio.connect(broker.path) as connected:
                async with connected.watch() as watch:
                    with await connected.put("a", [1, 2], "cpu", seal=True) as region:
                        assert (await anext(watch)).kind == "published"
                        assert region.numpy().tolist() == [1, 2]
                        assert len(await region.digest()) == 64
                        assert not await region.stale
                with await connected.get("a", wait=1) as found:
                    assert found.sealed
                waiting = asyncio.create_task(connected.get("b", wait=20))
                async with await aio.connect(broker.path) as other:
                    (await other.put("b", [3], "cpu")).close()
                (await waiting).close()
                assert [info.name for info in await connected.list()] == ["a", "b"]
                await connected.delete("a")

        asyncio.run(main())


COLD = """
import sys
import gdrpy
with gdrpy.connect(sys.argv[1]).get("a", gpu=False) as region:
    assert region.cpu.load(0) == 7
heavy = sys.argv[2].split()
print(sorted(name for name in sys.modules if name in heavy or name.partition(".")[0] in heavy))
"""
HEAVY = "numpy asyncio rich tempfile importlib.metadata cuda"


class TestColdProcess:
    def test_gets_a_region_without_importing_much(self, connected, broker):
        with connected.allocate("a", 4, "cpu") as region:
            region.cpu.store(0, 7)
        done = subprocess.run(
            [sys.executable, "-c", COLD, broker.path, HEAVY],
            capture_output=True,
            text=True,
            check=True,
        )
        assert done.stdout == "[]\n"


class TestBlockWithViews:
    """The lease lasts as long as the last of them."""

    VIEWS: ClassVar = {"buffer": memoryview, "dlpack": lambda region: region.__dlpack__()}

    @pytest.mark.parametrize("view", VIEWS)
    @pytest.mark.parametrize("options", [{"device": "cpu"}, {"gpu": False}, {}], ids=str)
    def test_holds_its_lease_until_the_last_view_is_gone(self, connected, options, view):
        with (
            pytest.warns(gdrpy.StillInUse, match="^<BrokerRegion 'a': Region of 4096 bytes"),
            connected.allocate("a", 4096, **options) as region,
        ):
            views = [self.VIEWS[view](region) for _ in range(2)]
        with pytest.raises(gdrpy.Closed, match="is closed: get it again by its name"):
            region.info()
        assert connected.status()["leases"] == 1
        views.pop()
        assert connected.status()["leases"] == 1
        views.pop()
        assert connected.status()["leases"] == 0
        assert region.closed

    def test_holds_its_lease_for_asyncio_too(self, broker):
        async def main() -> list[int]:
            async with await aio.connect(broker.path) as client:
                with (
                    pytest.warns(gdrpy.StillInUse, match="^<BrokerRegion 'a'"),
                    await client.allocate("a", 4096, "cpu") as region,
                ):
                    view = memoryview(region)
                found = [(await client.status())["leases"]]
                view[0] = 1
                view.release()
                return [*found, (await client.status())["leases"]]

        assert asyncio.run(main()) == [1, 0]


class TestLeaseThatABrokersDeathMadeUncertain:
    """Ends when the client is heard of again, though it holds nothing that it could resume."""

    def leases(self, broker, connected):
        connected.status()  # which finds the new broker
        with broker.client() as other:
            return other.ok("status")["leases"]

    def test_of_a_region_closed_in_between(self, broker, connected):
        region = connected.allocate("a", 4096, device="cpu")
        broker.kill()
        region.close()
        broker.start()
        assert self.leases(broker, connected) == 0

    def test_of_a_region_made_for_a_reply_that_did_not_come(self, broker, connected):
        connected.allocate("a", 4096, device="cpu").close()
        connection = connected._connection
        # As a client does that is interrupted, or whose broker dies, after it has asked.
        connection._granting, connection._settled = True, False
        request = requests.Get(name="a", readonly=False, gpu=False, id=99)
        connection.transport._sock.send(requests.encode(request))
        assert connection.transport._sock.recv(1 << 16)
        broker.restart()
        assert self.leases(broker, connected) == 0

    def test_of_a_client_that_does_not_come_back(self, start_broker):
        broker = start_broker(options={"resume_within": 0.05})
        connected = gdrpy.connect(broker.path)
        region = connected.allocate("a", 4096, device="cpu")
        broker.restart()
        with broker.client() as other:
            deadline = time.monotonic() + 20
            while other.ok("status")["leases"]:
                assert time.monotonic() < deadline
            assert connected.stat("a").writers == 1  # and it may come back yet
        region.close()
        connected.close()


class TestArguments:
    @pytest.mark.parametrize(
        ("wrong", "words"),
        [
            (lambda _: gdrpy.connect(3), "connect: socket must be a path, not 3"),
            (lambda one: one.load(None, "a"), "load: path must be a path, not None"),
            (
                lambda one: one.load_checkpoint(None, "a"),
                "load_checkpoint: folder must be a path, not None",
            ),
            (lambda one: one.put("a", b"1", metadata="m"), "put: metadata must be a dict, not 'm'"),
            (
                lambda one: one.put_tensors("a", {}, metadata=[1]),
                "put_tensors: metadata must be a dict, not [1]",
            ),
            (
                lambda one: one.attach_many(["a"]),
                "attach_many: regions must be regions of a broker, not 'a'",
            ),
            (
                lambda _: gdrpy.broker.Reference(3),
                "Reference: region must be a region of a broker, not 3",
            ),
        ],
    )
    def test_of_another_kind_are_named(self, connected, wrong, words):
        with pytest.raises(TypeError) as caught:
            wrong(connected)
        assert str(caught.value) == words
