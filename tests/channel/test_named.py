"""Channels, inboxes and links by name: what each end may do, and sees of the other."""

from __future__ import annotations

import math
import os
import re
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from pathlib import Path
from queue import Queue
from threading import Event
from unittest.mock import Mock

import pytest
from ringchildren import kill, until_closed

import gdrpy
from gdrpy.broker.client.watch import Watch
from gdrpy.broker.replies import LOST
from gdrpy.channel import KernelEnd, named

SOON = 20.0
GONE = "the kernel's end was closed, or its process has ended"


def word(value: int) -> bytes:
    """A record of 16 bytes."""
    return value.to_bytes(16, "little")


@pytest.fixture
def channel(broker):
    with gdrpy.Channel(16, 8, broker=broker, name="ring") as made:
        yield made


@pytest.fixture
def inbox(broker):
    with gdrpy.Inbox(16, 8, broker=broker, name="ring") as made:
        yield made


@pytest.fixture
def link(broker):
    with gdrpy.Link(16, capacity=4, broker=broker, name="ring") as made:
        yield made


def reserve(broker, count) -> None:
    """Take numbers of an inbox, as kernels do, without a record."""
    with broker.get("ring", gpu=False) as memory:
        memory.cpu.store(128, memory.cpu.load(128, 8) + count, 8)


def until(happens) -> None:
    for _ in range(10_000):
        if happens():
            return
        Event().wait(0.001)
    raise AssertionError("it did not happen")


def until_pushed(channel, record) -> None:
    """Push once the end before is replaced, as it is soon."""
    for _ in range(10_000):
        try:
            channel.push(record, SOON)
        except gdrpy.Closed:
            Event().wait(0.001)
        else:
            return
    raise AssertionError("it stayed closed")


class TestName:
    def test_is_of_two_regions_with_the_rights_that_were_asked_for(self, broker):
        with gdrpy.Channel(16, 8, broker=broker, name="ring", mode=0o660) as channel:
            assert channel.name == "ring"
            found = {str(info.name): info.mode for info in broker.list("ring")}
            (end,) = set(found) - {"ring", "ring/host"}
            assert (found["ring"], found["ring/host"], found[end]) == (0o660, 0o660, 0o644)
            assert re.fullmatch(r"ring/cpu\.[0-9a-f]{16}", end)
        assert [info.name for info in broker.list()] == ["ring", "ring/host"]

    def test_is_joined_with_equal_sizes_alone(self, broker, channel):
        with gdrpy.Channel(16, 8, broker=broker, name="ring") as other:
            other.push(word(1))
            assert (channel.pushed, channel.room) == (1, 7)
        message = (
            "Channel: 'ring' exists as a Channel of 8 records of 16 bytes, and a Channel of 16 "
            "records of 16 bytes was asked for: ask for what exists, or take another name"
        )
        with pytest.raises(gdrpy.SizeMismatch, match=message):
            gdrpy.Channel(16, 16, broker=broker, name="ring")
        with pytest.raises(gdrpy.SizeMismatch, match="and an Inbox of 8 records"):
            gdrpy.Inbox(16, 8, broker=broker, name="ring")

    def test_of_another_region_is_refused(self, broker):
        broker.allocate("data", 4096).close()
        broker.allocate("data/host", 4096, device="cpu").close()
        message = "region 'data' holds no channel, inbox or link: take another name, or delete it"
        with pytest.raises(gdrpy.InvalidRequest, match=f"Channel: {message}"):
            gdrpy.Channel(16, 8, broker=broker, name="data")
        with pytest.raises(gdrpy.InvalidRequest, match=f"KernelEnd: {message}"):
            KernelEnd(broker, "data")

    def test_with_only_one_of_the_regions_is_refused(self, broker):
        broker.allocate("ring/host", 4096, device="cpu").close()
        message = "region 'ring/host' exists without the other memory of a ring: delete it"
        with pytest.raises(gdrpy.InvalidRequest, match=f"Channel: {message}"):
            gdrpy.Channel(16, 8, broker=broker, name="ring")
        assert [info.name for info in broker.list()] == ["ring/host"]

    @pytest.mark.parametrize("given", [{"name": "ring"}, {"broker": "broker", "name": "ring"}])
    def test_needs_a_broker(self, memory, given):
        with pytest.raises(TypeError, match="Channel: .*broker"):
            gdrpy.Channel(16, 8, **given)

    def test_is_needed_with_a_broker(self, broker):
        with pytest.raises(TypeError, match="needs broker=, of gdrpy.connect.., and name="):
            gdrpy.Channel(16, 8, broker=broker)

    def test_is_free_after_it_was_deleted_and_its_ends_are_closed(self, broker, channel):
        with KernelEnd(broker, "ring") as end:
            gdrpy.channel.delete(broker, "ring")
            message = "it was deleted, or the broker lost its state: open it again"
            assert message in until_closed(lambda: channel.push(word(1), 0.01))
            assert "'ring' was deleted, or the broker lost" in until_closed(lambda: end.wait(SOON))
        channel.close()
        with gdrpy.Channel(32, 8, broker=broker, name="ring") as other:
            assert other.record_nbytes == 32

    @pytest.mark.parametrize("name", ["ring", "ring/host"])
    def test_without_one_of_its_regions_is_lost_to_both_ends(self, broker, channel, name):
        with KernelEnd(broker, "ring") as end:
            broker.delete(name)
            message = "it was deleted, or the broker lost its state: open it again"
            assert message in until_closed(lambda: channel.push(word(1), 0.01))
            assert "'ring' was deleted, or the broker lost" in until_closed(lambda: end.wait(SOON))

    def test_of_a_plain_region_is_refused_to_the_kernels_end_and_kept(self, broker):
        broker.allocate("data", 4096).close()
        message = "region 'data' holds no channel, inbox or link"
        with pytest.raises(gdrpy.InvalidRequest, match=f"KernelEnd: {message}"):
            KernelEnd(broker, "data")
        with pytest.raises(gdrpy.InvalidRequest, match=f"delete: {message}"):
            gdrpy.channel.delete(broker, "data")
        assert [info.name for info in broker.list()] == ["data"]

    def test_that_has_lost_a_region_is_deleted_whole(self, broker):
        for name in ("ring", "ring/host"):
            gdrpy.Channel(16, 8, broker=broker, name="ring").close()
            broker.delete(name)
            gdrpy.channel.delete(broker, "ring")
            assert broker.list() == []

    def test_without_host_memory_is_refused_to_the_kernels_end(self, broker):
        gdrpy.Channel(16, 8, broker=broker, name="ring").close()
        broker.delete("ring/host")
        message = "KernelEnd: region 'ring' exists without the other memory of a ring: delete it by"
        with pytest.raises(gdrpy.InvalidRequest, match=message):
            KernelEnd(broker, "ring")

    def test_that_is_unknown_is_not_deleted(self, broker):
        with pytest.raises(gdrpy.NotFound, match="delete: there is no region of the name 'ring'"):
            gdrpy.channel.delete(broker, "ring")

    def test_that_leaves_no_room_for_those_of_ends_is_refused(self, broker):
        message = "the name of a ring has 234 bytes at most, not 235: 'rrr"
        for make in (
            partial(gdrpy.Channel, 16, 8, broker=broker, name=235 * "r"),
            partial(KernelEnd, broker, 235 * "r"),
        ):
            with pytest.raises(ValueError, match=message):
                make()
        gdrpy.Channel(16, 8, broker=broker, name=234 * "r").close()

    def test_needs_a_broker_that_blocks(self, memory):
        with pytest.raises(TypeError, match=r"must be a gdrpy.Broker, .* not a builtins.object"):
            KernelEnd(object(), "ring")


class TestEnd:
    def test_of_the_cpu_has_no_address_for_kernels(self, channel):
        for use in (lambda: channel.ptr, lambda: channel.device, channel.reader):
            with pytest.raises(gdrpy.MissingView, match="this is the CPU's end of 'ring'"):
                use()

    def test_of_the_kernel_is_one_at_a_time(self, broker, channel):
        with KernelEnd(broker, "ring") as end:
            assert (end.kind, end.record_nbytes, end.capacity, end.device) == ("Channel", 16, 8, 0)
            message = f"'ring' has a kernel's end, of process {os.getpid()}, and only one is"
            with pytest.raises(gdrpy.InvalidRequest, match=message):
                KernelEnd(broker, "ring")
            with pytest.raises(gdrpy.Timeout, match="KernelEnd: waited 0.01 s, and 'ring' has"):
                KernelEnd(broker, "ring", wait=0.01)
        with pytest.raises(gdrpy.Closed, match="KernelEnd.ptr: this end is closed: open another"):
            _ = end.ptr
        with KernelEnd(broker, "ring", wait=SOON) as end:
            assert end.wait(SOON)

    @pytest.mark.parametrize("make", [gdrpy.Inbox, gdrpy.Link])
    def test_of_the_cpu_is_one_at_a_time(self, broker, make):
        with make(16, broker=broker, name="ring"):
            message = f"'ring' has a CPU's end, of process {os.getpid()}, and only one is allowed"
            with pytest.raises(gdrpy.InvalidRequest, match=message):
                make(16, broker=broker, name="ring")
        make(16, broker=broker, name="ring", wait=SOON).close()

    def test_of_the_kernel_waits_for_the_name(self, broker):
        with pytest.raises(gdrpy.NotFound, match="'ring'"):
            KernelEnd(broker, "ring")
        with pytest.raises(gdrpy.Timeout):
            KernelEnd(broker, "ring", wait=0.01)
        made = []
        other = gdrpy.connect(broker.socket)
        thread = threading.Thread(target=lambda: made.append(KernelEnd(other, "ring", wait=SOON)))
        thread.start()
        with gdrpy.Channel(16, 8, broker=broker, name="ring"):
            thread.join()
            made[0].close()
        other.close()

    def test_of_the_kernel_waits_without_an_end_if_it_is_told_to(self, broker, channel):
        end = KernelEnd(broker, "ring", wait=math.inf)
        channel._named.close()  # as if its process had died
        with ThreadPoolExecutor(1) as executor:
            waiting = executor.submit(until_closed, lambda: end.wait(math.inf))
            until(lambda: end._condition._waiters)
            end.close()
            assert "this end is closed: open another" in waiting.result(SOON)

    def test_lends_only_the_stand_in_of_its_kind(self, broker, channel):
        with KernelEnd(broker, "ring") as end:
            with pytest.raises(gdrpy.InvalidRequest, match=r"'ring' is of a Channel: call reader"):
                end.writer()
            reader = end.reader()
            with pytest.raises(ValueError, match="this KernelEnd has a reader"):
                end.reader()
            reader.close()

    def test_in_a_forked_child_is_the_parents(self, broker, channel):
        with KernelEnd(broker, "ring") as end:
            pid = os.fork()
            if pid == 0:
                found = 0
                for use in (lambda: channel.push(word(1)), lambda: end.wait(0), lambda: end.ptr):
                    try:
                        use()
                    except gdrpy.Forked:
                        found += 1
                channel.close()
                end.close()
                os._exit(found)
            assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 3
            channel.push(word(2))
            assert end.reader().pop(SOON) == word(2)

    def test_that_two_threads_close_at_once_is_closed_once(self, channel, monkeypatch):
        both, met, pid = threading.Barrier(2), threading.local(), os.getpid()

        def getpid() -> int:  # once each has seen that it is open
            if threading.current_thread().name.startswith("closer") and not hasattr(met, "once"):
                met.once = both.wait(SOON)
            return pid

        with ThreadPoolExecutor(2, "closer") as closers:
            monkeypatch.setattr(os, "getpid", getpid)
            for closing in [closers.submit(channel._named.close) for _ in range(2)]:
                closing.result(SOON)

    def test_of_the_kernel_that_is_closed_ends_a_wait_of_another_thread(
        self, broker, channel, monkeypatch
    ):
        end = KernelEnd(broker, "ring")
        channel._named.close()  # as if its process had died
        with ThreadPoolExecutor(1) as executor:
            waiting = executor.submit(until_closed, lambda: end.wait(SOON))
            until(lambda: end._condition._waiters)
            closing = end._descriptor.close

            def close_late() -> None:  # as while kernels run
                assert "this end is closed: open another" in waiting.result(SOON)
                closing()

            monkeypatch.setattr(end._descriptor, "close", close_late, raising=False)
            end.close()

    def test_leaves_a_forked_child_no_descriptor(self, broker, channel):
        with KernelEnd(broker, "ring") as end:
            wakers = [one._named._waker.fileno() for one in (channel, end)]
            pid = os.fork()
            if pid == 0:
                os._exit(sum(Path(f"/proc/self/fd/{number}").exists() for number in wakers))
            assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0

    def test_that_a_finalizer_closes_in_the_thread_that_hears_is_closed(self, broker, monkeypatch):
        channel, errors, closed = gdrpy.Channel(16, 8, broker=broker, name="ring"), [], Event()

        def listed_amid_a_collection():
            try:
                channel.close()
            except RuntimeError as error:
                errors.append(error)
            closed.set()

        with monkeypatch.context() as patched:
            patched.setattr(channel._named, "listed", listed_amid_a_collection)
            assert closed.wait(SOON)
        assert (errors, channel.closed) == ([], True)

    def test_is_closed_though_events_never_end(self, broker, monkeypatch):
        heard = Event()

        def following(_watch) -> object:
            heard.set()
            return LOST

        channel = gdrpy.Channel(16, 8, broker=broker, name="ring")
        with monkeypatch.context() as patched:
            patched.setattr(Watch, "__next__", following)
            assert heard.wait(SOON)
            channel.close()
        assert hearing() == []

    @pytest.mark.parametrize(
        ("name", "grace"), [("ring/cpu.0", None), ("ring/cpu.0/a", 0), ("ring/cpus", 0)]
    )
    def test_is_no_region_unbound_or_of_another_name(self, broker, channel, name, grace):
        with broker.allocate(name, 1, "cpu", mode=0o644, grace=grace) as region:
            region.seal()
            with KernelEnd(broker, "ring") as end:
                assert end.wait(SOON)
                channel.close()
                assert end.reader().pop(SOON) is None
                assert not end.wait(SOON)

    def test_that_is_dropped_gives_its_place_up(self, broker, channel):
        end = KernelEnd(broker, "ring")
        del end
        KernelEnd(broker, "ring", wait=SOON).close()


class TestStandIn:
    """A reader, writer or server in place of a kernel."""

    PLACE = "its KernelEnd was closed, or has lost its place: open another"

    def test_of_a_closed_end_takes_nothing_from_the_next(self, broker, channel):
        channel.push_many(b"".join(map(word, range(3))))
        with KernelEnd(broker, "ring") as end:
            reader = end.reader()
            assert reader.pop(SOON) == word(0)
        with KernelEnd(broker, "ring") as end:
            for pop in (reader.pop, reader.pop_many):
                with pytest.raises(gdrpy.Closed, match=self.PLACE):
                    pop()
            reader.close()  # which does not stop the next one
            assert reader.popped == 1
            assert end.reader().pop_many(None, SOON) == word(1) + word(2)
            until_pushed(channel, word(3))

    def test_of_a_closed_end_pushes_nothing(self, broker, inbox):
        with KernelEnd(broker, "ring") as end:
            writer = end.writer()
        with pytest.raises(gdrpy.Closed, match=f"InboxWriter.push: {self.PLACE}"):
            writer.push(word(1))
        with KernelEnd(broker, "ring") as end:
            writer.close()  # which does not end the inbox
            end.writer().push(word(2))
            assert inbox.pop(SOON) == word(2)

    def test_of_a_closed_end_answers_nothing(self, broker, link):
        with KernelEnd(broker, "ring") as end:
            server = end.server()
            answer = link.submit(word(1), SOON)
            assert server.pop(SOON) == word(1)
        for call in (server.pop, partial(server.answer, 0, word(2))):
            with pytest.raises(gdrpy.Closed, match=self.PLACE):
                call()
        server.close()
        with pytest.raises(gdrpy.Closed, match="request 0 was not answered"):
            answer.result(SOON)

    def test_that_waits_is_closed_with_its_end(self, broker, channel):
        with ThreadPoolExecutor(1) as executor:
            with KernelEnd(broker, "ring") as end:
                waiting = executor.submit(end.reader().pop)
                until(waiting.running)
            with pytest.raises(gdrpy.Closed, match=f"ChannelReader.pop: {self.PLACE}"):
                waiting.result(SOON)

    def test_of_an_end_that_lost_its_place_is_closed(self, broker, channel):
        with KernelEnd(broker, "ring") as end:
            reader = end.reader()
            broker.delete("ring/kernel")
            assert self.PLACE in until_closed(lambda: reader.pop(0.01))

    def test_keeps_its_end(self, broker, channel):
        reader = KernelEnd(broker, "ring").reader()
        assert repr(reader) == "<ChannelReader of the KernelEnd of 'ring'>"
        channel.push(word(1))
        assert reader.pop(SOON) == word(1)
        with pytest.raises(gdrpy.InvalidRequest, match="'ring' has a kernel's end"):
            KernelEnd(broker, "ring")
        del reader
        KernelEnd(broker, "ring", wait=SOON).close()


class TestChannel:
    def test_ends_for_the_kernel_with_its_last_producer(self, broker, channel):
        with KernelEnd(broker, "ring") as end:
            reader = end.reader()
            with gdrpy.Channel(16, 8, broker=broker, name="ring") as other:
                other.push(word(1))
            channel.push(word(2))
            assert reader.pop(SOON) + reader.pop(SOON) == word(1) + word(2)
            channel.close()
            assert reader.pop(SOON) is None
            assert end.wait(SOON) is False

    def test_goes_on_with_the_next_producer(self, broker, channel):
        with KernelEnd(broker, "ring") as end:
            channel.push(word(1))
            channel.close()
            with gdrpy.Channel(16, 8, broker=broker, name="ring") as other:
                other.push(word(2))
                found = []
                while len(found) < 2 and end.wait(SOON):
                    reader = end.reader()  # which perhaps sees the end of the first
                    while len(found) < 2 and (record := reader.pop(SOON)) is not None:
                        found.append(record)
                    del reader
            assert found == [word(1), word(2)]

    def test_is_closed_while_it_has_no_kernels_end(self, broker, channel):
        with KernelEnd(broker, "ring") as end:
            channel.push(word(1))
            channel.push(word(2))
            assert end.reader().pop(SOON) == word(1)
        assert GONE in until_closed(lambda: channel.push(word(2), 0))
        with pytest.raises(gdrpy.Closed, match=f"Channel.drain: {GONE}"):
            channel.drain(SOON)
        assert not channel.closed
        held = channel.pushed - channel.popped
        with KernelEnd(broker, "ring") as end:
            reader = end.reader()
            assert reader.pop_many(held, SOON) == word(2) * held
            until_pushed(channel, word(3))
            assert reader.pop(SOON) == word(3)

    def test_holds_what_was_pushed_before_there_was_a_kernel(self, broker, channel):
        for number in range(8):
            channel.push(word(number))
        channel.close()
        with KernelEnd(broker, "ring") as end:
            assert end.wait(SOON)
            assert end.reader().pop_many() == b"".join(map(word, range(8)))
            assert end.wait(SOON) is False

    def test_is_pushed_into_again_after_a_kernel_stopped(self, broker, channel):
        with KernelEnd(broker, "ring") as end:
            end.reader().close()
            with pytest.raises(gdrpy.Closed, match="the consumer has stopped"):
                channel.push(word(1))
            assert end.wait(SOON)
            channel.push(word(1), SOON)
            assert end.reader().pop(SOON) == word(1)

    def test_waits_for_a_new_producer_after_the_last_was_closed_if_it_is_told_to(
        self, broker, channel
    ):
        with KernelEnd(broker, "ring") as end, ThreadPoolExecutor(1) as executor:
            channel.close()
            assert end.wait(SOON) is False
            with pytest.raises(gdrpy.Timeout, match="'ring' has no CPU's end, and none came"):
                end.wait(0.01, new=True)
            waiting = executor.submit(end.wait, SOON, new=True)
            until(lambda: end._condition._waiters)
            with gdrpy.Channel(16, 8, broker=broker, name="ring"):
                assert waiting.result(SOON) is True

    def test_waits_for_a_producer(self, broker, channel, nursery, notes, tmp_path):
        ring = {"socket": broker.socket, "name": "other", "notes": str(tmp_path / "notes")}
        pid = nursery.start("produce", **ring, number=1, capacity=8, many=1)
        with KernelEnd(broker, "other", wait=SOON) as end:
            assert end.wait(SOON)
            reader = end.reader()
            assert reader.pop(SOON)
            kill(pid)
            while reader.pop(SOON) is not None:
                pass
            with pytest.raises(gdrpy.Timeout, match="'other' has no CPU's end, and none came"):
                end.wait(0.01)


def hearing() -> list[threading.Thread]:
    """The threads that hear of other ends."""
    return [thread for thread in threading.enumerate() if thread.name == "gdrpy-ring"]


class TestClosedEnd:
    def test_of_a_channel_hears_of_the_kernels_end_while_records_are_not_taken(
        self, broker, channel
    ):
        with ThreadPoolExecutor(1) as executor:
            with KernelEnd(broker, "ring"):
                channel.push(word(1))
                before = executor.submit(until_closed, channel.drain)
                until(before.running)
                channel.close()
                with pytest.raises(gdrpy.Timeout, match="of 1 records, 0 were taken in time"):
                    channel.drain(0)
            assert GONE in before.result(SOON)
        with pytest.raises(gdrpy.Closed, match=f"Channel.drain: {GONE}"):
            channel.drain()
        with pytest.raises(gdrpy.Closed, match=r"Channel.push: the channel is closed"):
            channel.push(word(2))

    def test_of_a_link_hears_of_the_kernels_end_while_requests_are_not_answered(self, broker, link):
        with KernelEnd(broker, "ring") as end:
            answers = [link.submit(word(number), SOON) for number in range(2)]
            link.close()
            server = end.server()
            assert server.pop(SOON) == word(0)
            server.answer(0, word(10))
            del server
        with pytest.raises(gdrpy.Closed, match="request 1 was not answered, and its kernel's pro"):
            answers[1].result()
        assert answers[0].result() == word(10)
        with KernelEnd(broker, "ring") as end:
            assert end.wait(SOON)
            end.server().serve(lambda request: request)
            until(lambda: answers[1].done())
            assert answers[1].result() == word(1)
            assert end.wait(SOON) is False

    @pytest.mark.parametrize("make", [gdrpy.Channel, gdrpy.Inbox, gdrpy.Link])
    def test_that_no_call_waits_at_hears_of_nothing(self, broker, make):
        make(16, broker=broker, name="ring").close()
        assert hearing() == []

    def test_that_is_dropped_hears_of_nothing(self, broker):
        with gdrpy.Channel(16, 8, broker=broker, name="ring") as channel:
            channel.push(word(1))
        (thread,) = hearing()
        assert [info.name for info in broker.list("ring/")] == ["ring/host"]
        del channel
        thread.join(SOON)
        assert not thread.is_alive()


class TestWaitForKernel:
    @pytest.mark.parametrize("make", [gdrpy.Channel, gdrpy.Inbox, gdrpy.Link])
    def test_returns_once_there_is_a_kernels_end(self, broker, make):
        with make(16, broker=broker, name="ring") as ring, ThreadPoolExecutor(1) as executor:
            message = f"{make.__name__}.wait_for_kernel: 'ring' has no kernel's end, and none came"
            with pytest.raises(gdrpy.Timeout, match=message):
                ring.wait_for_kernel(0.01)
            waiting = executor.submit(ring.wait_for_kernel, SOON)
            until(lambda: ring._named._changed._waiters)
            with KernelEnd(broker, "ring"):
                waiting.result(SOON)
                ring.wait_for_kernel(0)

    def test_lets_the_next_push_succeed(self, broker, channel):
        with KernelEnd(broker, "ring"):
            channel.wait_for_kernel(SOON)
        assert GONE in until_closed(lambda: channel.push(word(1), 0))
        with KernelEnd(broker, "ring") as end:
            channel.wait_for_kernel(SOON)
            end.reader().pop_many()
            channel.push(word(2), SOON)

    def test_is_ended_by_close_of_another_thread(self, channel):
        with ThreadPoolExecutor(1) as executor:
            waiting = executor.submit(channel.wait_for_kernel)
            until(lambda: channel._named._changed._waiters)
            channel.close()
            with pytest.raises(gdrpy.Closed, match="wait_for_kernel: this end is closed"):
                waiting.result(SOON)

    def test_is_ended_by_the_loss_of_the_ring(self, broker, channel):
        with ThreadPoolExecutor(1) as executor:
            waiting = executor.submit(channel.wait_for_kernel)
            until(lambda: channel._named._changed._waiters)
            gdrpy.channel.delete(broker, "ring")
            with pytest.raises(gdrpy.Closed, match="wait_for_kernel: it was deleted, or the bro"):
                waiting.result(SOON)

    def test_of_a_forked_child_is_refused(self, channel):
        pid = os.fork()
        if pid == 0:
            with suppress(gdrpy.Forked):
                channel.wait_for_kernel(0)
                os._exit(1)
            os._exit(0)
        assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0

    def test_needs_a_name(self, memory):
        with pytest.raises(gdrpy.InvalidRequest, match="wait_for_kernel: this Channel has no name"):
            gdrpy.Channel(16, 8).wait_for_kernel()


class TestFailure:
    """Of the thread that hears of the other end."""

    @pytest.fixture
    def fail(self, monkeypatch):
        """Has the thread of an end fail, and returns the error that it was reported with."""

        def failing(end) -> Exception:
            reported, error = Queue(), ZeroDivisionError("by a test")
            with monkeypatch.context() as patched:
                patched.setattr(threading, "excepthook", reported.put)
                patched.setattr(end._named, "listed", Mock(side_effect=error))
                assert reported.get(timeout=SOON).exc_value is error
            return error

        return failing

    @pytest.mark.parametrize(
        ("make", "calls"),
        [
            (gdrpy.Channel, {"push": (word(1),), "drain": ()}),
            (gdrpy.Inbox, {"pop": (), "pop_many": ()}),
            (gdrpy.Link, {"call": (word(1),), "submit": (word(1),)}),
        ],
    )
    def test_closes_the_cpus_end(self, broker, fail, make, calls):
        with make(16, broker=broker, name="ring") as ring:
            if make is gdrpy.Channel:
                ring.push(word(1))
            error = fail(ring)
            for call, arguments in calls.items():
                message = f"{call}: the thread that hears of the kernel's end has failed: open this"
                with pytest.raises(gdrpy.Closed, match=message) as caught:
                    getattr(ring, call)(*arguments)
                assert caught.value.__cause__ is error

    def test_closes_an_answer(self, broker, link, fail):
        with KernelEnd(broker, "ring"):
            answer = link.submit(word(1), SOON)
            error = fail(link)
            message = "Answer.result: the thread that hears of the kernel's end has failed"
            with pytest.raises(gdrpy.Closed, match=message) as caught:
                answer.result()
            assert caught.value.__cause__ is error

    def test_closes_the_kernels_end(self, broker, channel, fail):
        with KernelEnd(broker, "ring") as end:
            reader = end.reader()
            error = fail(end)
            assert reader.pop(SOON) is None
            message = "KernelEnd.wait: the thread that hears of the CPU's ends has failed: close"
            with pytest.raises(gdrpy.Closed, match=message) as caught:
                end.wait()
            assert caught.value.__cause__ is error


class TestFinished:
    """Whether wait() tells that the last CPU's end was closed."""

    @pytest.fixture
    def late(self, monkeypatch):
        """Holds the looks of an end up, and returns what lets them go on."""

        def held_up(end):
            looks, goes_on, listed = Event(), Event(), end._named.listed

            def listed_late():
                looks.set()
                assert goes_on.wait(SOON)
                return listed()

            monkeypatch.setattr(end._named, "listed", listed_late)
            assert looks.wait(SOON)
            return goes_on

        return held_up

    def test_is_true_of_one_that_came_and_went_between_two_looks(self, broker, channel, late):
        with KernelEnd(broker, "ring") as end:
            reader = end.reader()
            channel._named.close()  # as if its process had died
            assert reader.pop(SOON) is None
            goes_on = late(end)
            with gdrpy.Channel(16, 8, broker=broker, name="ring") as other:
                other.push(word(1))
            goes_on.set()
            assert end.wait(SOON)
            assert reader.pop(SOON) == word(1)
            assert end.wait(SOON) is False

    @pytest.mark.parametrize("make", [gdrpy.Channel, gdrpy.Inbox, gdrpy.Link])
    def test_is_false_if_another_began_and_died_before_there_was_a_kernel(self, broker, make):
        make(16, broker=broker, name="ring").close()
        make(16, broker=broker, name="ring")._named.close()  # as if its process had died
        with KernelEnd(broker, "ring") as end:
            with pytest.raises(gdrpy.Timeout, match="'ring' has no CPU's end, and none came"):
                end.wait(0.01)
            make(16, broker=broker, name="ring").close()
            assert end.wait(SOON) is False


class TestTurn:
    """The word of the host memory that says whose turn it is."""

    @pytest.fixture
    def host(self, broker, channel):
        with broker.get("ring/host", gpu=False) as region:
            yield region.cpu

    def test_of_a_producer_that_is_gone_is_ended(self, channel, host):
        host.store(64, 1 << 40, 8)
        channel.push(word(1), SOON)
        assert host.load(64, 8) == 0

    def test_of_another_producer_is_waited_for(self, broker, channel, host):
        with gdrpy.Channel(16, 8, broker=broker, name="ring") as other:
            host.store(64, other._named.number, 8)
            message = (
                r"Channel.push: another producer of the ring of 8 records did not end its push"
            )
            with pytest.raises(gdrpy.Timeout, match=message):
                channel.push(word(1), 0.05)
            host.store(64, 0, 8)
            channel.push(word(1), 0)

    def test_that_was_left_begins_at_the_tail_of_gpu_memory(self, broker, channel, host):
        channel.push(word(1))
        host.store(72, 0, 8)  # as if it had died before it told
        for holder in (1 << 40, (1 << 64) - 1):
            host.store(64, holder, 8)
            assert (channel.pushed, channel.room) == (1, 7)
        channel.push(word(2), 0)
        assert (channel.pushed, host.load(72, 8)) == (2, 2)
        with KernelEnd(broker, "ring") as end:
            assert end.reader().pop_many(None, SOON) == word(1) + word(2)

    def test_begins_right_though_others_pushed_and_popped_while_the_producer_joined(
        self, broker, channel, host
    ):
        with broker.get("ring", gpu=False) as memory:
            memory.cpu.store(128, 11, 8)
            host.store(72, 11, 8)
            with gdrpy.Channel(16, 8, broker=broker, name="ring") as other:
                host.store(0, 8, 8)
                other.push(word(1), 0)
                assert (other.pushed, other.room) == (12, 4)


class TestHostileMemory:
    """A peer with rights may store anything."""

    @pytest.fixture
    def both(self, broker):
        """Opens the memory of the ring."""
        opened = []

        def views():
            opened.extend(broker.get_many(["ring", "ring/host"], gpu=False))
            return [region.cpu for region in opened]

        yield views
        for region in opened:
            region.close()

    @pytest.mark.parametrize("value", [9, 1 << 63, (1 << 64) - 1])
    @pytest.mark.parametrize("offset", [0, 72], ids=["head", "pushed"])
    def test_of_a_channel_closes_it(self, channel, both, offset, value):
        _, host = both()
        host.store(offset, value, 8)
        with pytest.raises(gdrpy.Closed, match="a counter was overwritten with an impossible"):
            channel.push_many(word(1) * 9, SOON)

    def test_with_ones_own_turn_closes_the_channel(self, channel, both):
        _, host = both()
        host.store(64, channel._named.number, 8)
        with pytest.raises(gdrpy.Closed, match="a counter was overwritten with an impossible"):
            channel.push(word(1), SOON)

    def test_of_a_channel_is_told_to_the_kernels_process(self, broker, channel, both):
        gpu, _ = both()
        gpu.store(128, 1 << 40, 8)
        with pytest.raises(gdrpy.Closed, match="KernelEnd.wait: a counter of the channel was over"):
            KernelEnd(broker, "ring")

    @pytest.mark.parametrize("value", [9, 1 << 40, 1 << 63])
    def test_of_an_inbox_ends_no_call_but_by_its_errors(self, broker, inbox, both, value):
        gpu, host = both()
        gpu.store(128, value, 8)  # the numbers that were taken
        with KernelEnd(broker, "ring"):
            pass
        assert GONE in until_closed(lambda: inbox.pop(0.01))
        host.store(128, value | 1 << 63, 8)
        with pytest.raises(gdrpy.Closed, match="a counter of the inbox was overwritten"):
            KernelEnd(broker, "ring")

    @pytest.mark.parametrize("value", [9, 1 << 40, (1 << 64) - 1])
    @pytest.mark.parametrize("offset", [64, 80], ids=["pushed", "began"])
    def test_of_a_link_ends_no_call_but_by_its_errors(self, broker, link, both, offset, value):
        _, host = both()
        host.store(offset, value, 8)
        with KernelEnd(broker, "ring") as end:
            server = end.server()
            link.submit(word(1), SOON)
            link.close()
            for _ in range(3):
                with suppress(gdrpy.Timeout):
                    server.pop(0.01)

    def test_of_sizes_is_not_believed(self, broker, channel):
        with broker.get("ring", gpu=False) as region:
            region.set_metadata({**region.metadata, "capacity": 1 << 30})
        for make in (
            lambda: gdrpy.Channel(16, 1 << 30, broker=broker, name="ring"),
            lambda: KernelEnd(broker, "ring"),
        ):
            with pytest.raises(gdrpy.InvalidRequest, match="holds no channel, inbox or link"):
                make()


class TestInbox:
    def test_takes_what_kernels_push(self, broker, inbox):
        with KernelEnd(broker, "ring") as end:
            writer = end.writer()
            for number in range(20):
                writer.push(word(number), SOON)
                assert inbox.pop(SOON) == word(number)
            writer.close()
            assert inbox.pop(SOON) is None

    def test_passes_records_that_a_dead_kernel_did_not_finish(self, broker, inbox):
        with KernelEnd(broker, "ring") as end:
            writer = end.writer()
            writer.push_many(word(0) + word(1) + word(2))
            with broker.get("ring/host", gpu=False) as host:
                host.cpu.store(256 + 32, 7 << 32, 8)  # one word of record 1 is missing
            assert inbox.pop(SOON) == word(0)
            with pytest.raises(gdrpy.Timeout):
                inbox.pop(0)
            del writer
        assert inbox.pop(SOON) == word(2)
        with pytest.raises(gdrpy.Closed, match=GONE):
            inbox.pop(SOON)
        with KernelEnd(broker, "ring") as end:
            assert end.wait(SOON)
            end.writer().push_many(b"".join(map(word, range(8))), SOON)
            found = []
            while len(found) < 8:
                try:
                    found.append(inbox.pop(SOON))
                except gdrpy.Closed:
                    Event().wait(0.001)
            assert found == [word(number) for number in range(8)]

    def test_refuses_pushes_once_its_reader_is_gone(self, broker, inbox):
        with KernelEnd(broker, "ring") as end:
            writer = end.writer()
            writer.push(word(1))
            inbox.close()
            assert "the inbox is closed" in until_closed(partial(writer.push, word(2), SOON))
            del writer
            with gdrpy.Inbox(16, 8, broker=broker, name="ring") as other:
                assert end.wait(SOON)
                assert other.pop(SOON) == word(1)

    def test_is_closed_after_a_kernels_end_that_came_and_went_between_two_looks(
        self, broker, inbox, monkeypatch
    ):
        looks, goes_on, listed = Event(), Event(), inbox._named.listed

        def listed_late():
            looks.set()
            assert goes_on.wait(SOON)
            return listed()

        with monkeypatch.context() as patched:
            patched.setattr(inbox._named, "listed", listed_late)
            assert looks.wait(SOON)
            KernelEnd(broker, "ring").close()
            goes_on.set()
            with pytest.raises(gdrpy.Closed, match=GONE):
                inbox.pop(SOON)

    def test_is_closed_after_a_kernels_end_that_came_and_went_before_the_thread_ran(
        self, broker, monkeypatch
    ):
        goes_on, hear = Event(), named._hear

        def hear_late(*arguments):
            assert goes_on.wait(SOON)
            hear(*arguments)

        with monkeypatch.context() as patched:
            patched.setattr(named, "_hear", hear_late)
            inbox = gdrpy.Inbox(16, 8, broker=broker, name="ring")
        with inbox:
            KernelEnd(broker, "ring").close()
            goes_on.set()
            with pytest.raises(gdrpy.Closed, match=GONE):
                inbox.pop(SOON)

    def test_tells_kernels_of_an_end_until_wait_even_if_there_is_a_next_reader(self, broker, inbox):
        def is_ended() -> bool:
            return memory.cpu.load(256, 8) >> 63 == 1

        with KernelEnd(broker, "ring") as end, broker.get("ring", gpu=False) as memory:
            inbox.close()
            with gdrpy.Inbox(16, 8, broker=broker, name="ring", wait=SOON):
                memory.cpu.store(256, 0, 8)  # as its pops do
                until(is_ended)
                assert end.wait(SOON)
                assert not is_ended()

    def test_passes_numbers_of_pushes_that_found_the_reader_gone(self, broker, inbox):
        with KernelEnd(broker, "ring") as end:
            end.writer().push_many(b"".join(map(word, range(8))))
            reserve(broker, 2)  # by threads of a kernel, which wait for room
            inbox.close()
            with gdrpy.Inbox(16, 8, broker=broker, name="ring", wait=SOON) as other:
                assert [other.pop(SOON) for _ in range(8)] == [word(i) for i in range(8)]
                with pytest.raises(gdrpy.Timeout):
                    other.pop(0)
                assert end.wait(SOON)
                end.writer().push(word(10))
                assert other.pop(SOON) == word(10)
                assert other.popped == 11


class TestLink:
    def test_is_answered(self, broker, link):
        with pytest.raises(gdrpy.Timeout, match="no kernel's end took this end of the link up"):
            link.call(word(1), 0.01)
        with KernelEnd(broker, "ring") as end:
            kernel = threading.Thread(target=end.server().serve, args=(lambda one: one[::-1],))
            kernel.start()
            for number in range(20):
                assert link.call(word(number), SOON) == word(number)[::-1]
            link.close()
            kernel.join()
            assert end.wait(SOON) is False

    def test_raises_closed_from_calls_that_wait_for_a_kernel_that_died(self, broker, link):
        with KernelEnd(broker, "ring") as end:
            server = end.server()
            answers = [link.submit(word(number), SOON) for number in range(4)]
            for _ in range(3):
                server.pop(SOON)
            server.answer(0, word(10))
            server.answer(2, word(12))
            del server
        with pytest.raises(gdrpy.Closed, match="request 1 was not answered, and its kernel's pro"):
            answers[1].result(SOON)
        assert [answers[number].result(SOON) for number in (0, 2)] == [word(10), word(12)]
        with KernelEnd(broker, "ring") as end:
            server = end.server()
            assert server.pop(SOON) == word(3)  # which none has taken
            server.answer(3, word(13))
            for _ in range(10_000):
                try:
                    assert answers[3].result(SOON) == word(13)
                    break
                except gdrpy.Closed:  # of the end before
                    continue
            with pytest.raises(gdrpy.Closed, match="request 1 was not answered"):
                answers[1].result(SOON)

    def test_goes_on_with_the_next_caller_after_wait(self, broker, link):
        with KernelEnd(broker, "ring") as end:
            server = end.server()
            link.submit(word(1), SOON)
            assert server.pop(SOON) == word(1)
            server.answer(0, word(2))
            link.close()
            with gdrpy.Link(16, capacity=4, broker=broker, name="ring") as other:
                with pytest.raises(gdrpy.Timeout, match="no kernel's end took this end"):
                    other.submit(word(2), 0.01)
                assert server.pop(SOON) is None
                del server
                assert end.wait(SOON)
                answer = other.submit(word(2), SOON)
                server = end.server()
                assert (answer.number, server.pop(SOON)) == (1, word(2))
                server.answer(1, word(4))
                assert answer.result(SOON) == word(4)
                del server


class TestBroadcast:
    def test_gives_each_kernel_every_record(self, memory):
        channels = [gdrpy.Channel(16, 4), gdrpy.Channel(16, 8)]
        readers = [channel.reader() for channel in channels]
        found = [[], []]

        def take(number):
            found[number].extend(readers[number])

        threads = [threading.Thread(target=take, args=(number,)) for number in range(2)]
        for thread in threads:
            thread.start()
        with gdrpy.channel.Broadcast(channels) as broadcast:
            broadcast.push(word(0), SOON)
            broadcast.push_many(b"".join(map(word, range(1, 100))), SOON)
        for thread in threads:
            thread.join()
        assert broadcast.closed
        assert found == [[word(number) for number in range(100)]] * 2

    def test_stores_to_none_until_all_have_room(self, memory):
        channels = [gdrpy.Channel(16, 4), gdrpy.Channel(16, 1)]
        broadcast = gdrpy.channel.Broadcast(channels)
        broadcast.push(word(0))
        message = r"Broadcast.push: channel 1 of 2 \(<Channel .*>\) has no room for 1 records"
        with pytest.raises(gdrpy.Timeout, match=message):
            broadcast.push(word(1), 0.01)
        assert [channel.pushed for channel in channels] == [1, 1]

    def test_says_which_channel_is_closed(self, memory):
        channels = [gdrpy.Channel(16, 4), gdrpy.Channel(16, 4)]
        broadcast = gdrpy.channel.Broadcast(channels)
        channels[1].reader().close()
        message = r"Broadcast.push_many: channel 1 of 2 \(<Channel .*>\): the consumer has stopped"
        with pytest.raises(gdrpy.Closed, match=message):
            broadcast.push_many(word(1) + word(2))
        assert [channel.pushed for channel in channels] == [0, 0]

    def test_of_other_things_is_refused(self, memory):
        with pytest.raises(TypeError, match="Broadcast: channels must be Channels, not 5"):
            gdrpy.channel.Broadcast([5])
        with pytest.raises(ValueError, match="one or more, of equal record_nbytes"):
            gdrpy.channel.Broadcast([])
        with pytest.raises(ValueError, match=r"of equal record_nbytes, not \[16, 32\]"):
            gdrpy.channel.Broadcast([gdrpy.Channel(16), gdrpy.Channel(32)])
        with pytest.raises(ValueError, match="a record has 16 bytes, and 17 is not a multiple"):
            gdrpy.channel.Broadcast([gdrpy.Channel(16)]).push_many(bytes(17))
        with pytest.raises(ValueError, match="Broadcast.push: timeout must be seconds >= 0 or No"):
            gdrpy.channel.Broadcast([gdrpy.Channel(16)]).push(word(1), "soon")
