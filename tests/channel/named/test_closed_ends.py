"""Ends of named rings that were closed, or whose thread has failed."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from queue import Queue
from unittest.mock import Mock

import pytest
from ringchildren import GONE, SOON, hearing, until, until_closed, word

import gdrpy
from gdrpy.channel import KernelEnd
from gdrpy.channel.named import Named


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

    def test_closes_the_kernels_end_that_is_being_made(self, broker, channel, monkeypatch):
        watch, error = Named.watch, ZeroDivisionError("by a test")

        def fail_at_once(named, end):
            watch(named, end)
            end._fail(error)

        monkeypatch.setattr(Named, "watch", fail_at_once)
        with KernelEnd(broker, "ring") as end:
            assert end.reader().pop(SOON) is None
            with pytest.raises(gdrpy.Closed, match=r"KernelEnd.wait: the thread that hears"):
                end.wait()

    def test_closes_the_kernels_end(self, broker, channel, fail):
        with KernelEnd(broker, "ring") as end:
            reader = end.reader()
            error = fail(end)
            assert reader.pop(SOON) is None
            message = "KernelEnd.wait: the thread that hears of the CPU's ends has failed: close"
            with pytest.raises(gdrpy.Closed, match=message) as caught:
                end.wait()
            assert caught.value.__cause__ is error
