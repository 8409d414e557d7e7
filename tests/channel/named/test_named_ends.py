"""The ends of named rings: one of a kind at a time, and what stands in for a kernel."""

from __future__ import annotations

import math
import os
import threading
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from threading import Event

import pytest
from ringchildren import SOON, hearing, until, until_closed, until_pushed, word

import gdrpy
from gdrpy.broker.client.watch import Watch
from gdrpy.broker.replies import LOST
from gdrpy.channel import KernelEnd


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
