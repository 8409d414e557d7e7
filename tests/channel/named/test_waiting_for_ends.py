"""Calls that wait for the other end of a named ring."""

from __future__ import annotations

import os
import signal
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from threading import Event

import pytest
from ringchildren import GONE, SOON, until, until_closed, word

import gdrpy
from gdrpy.channel import KernelEnd, named


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
            channel.push(word(0))  # for the next end's reader, however soon this end is gone
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
            with pytest.raises(gdrpy.Closed, match="wait_for_kernel: its name was deleted, or the"):
                waiting.result(SOON)

    def test_of_a_forked_child_is_refused_whatever_its_parent_does(self, channel):
        locked, let_go = Event(), Event()

        def lock() -> None:  # as the thread that hears of the other end does
            with channel._named._changed:
                locked.set()
                assert let_go.wait(SOON)

        with ThreadPoolExecutor(1) as executor:
            executor.submit(lock)
            assert locked.wait(SOON)
            pid = os.fork()
            if pid == 0:
                signal.signal(signal.SIGALRM, signal.SIG_DFL)
                signal.alarm(int(SOON))
                with suppress(gdrpy.Forked):
                    channel.wait_for_kernel(0)
                    os._exit(1)
                channel._named.close()
                os._exit(0)
            let_go.set()
            assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0

    def test_needs_a_name(self, memory):
        with pytest.raises(gdrpy.InvalidRequest, match="wait_for_kernel: this Channel has no name"):
            gdrpy.Channel(16, 8).wait_for_kernel()


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


class TestKernelEndThatIsMade:
    """CPU's ends come and go while it is made."""

    @pytest.fixture(params=[(named.Named, "watch"), (KernelEnd, "_note")], ids=["before", "amid"])
    def at_a_look(self, request, memory):
        """Has something done before the next kernel's end looks, or before it notes what it saw."""
        owner, name = request.param
        going_on = getattr(owner, name)

        def have_done(do) -> None:
            def doing(*arguments) -> None:
                patched.undo()
                do()
                going_on(*arguments)

            patched.setattr(owner, name, doing)

        with pytest.MonkeyPatch.context() as patched:
            yield have_done

    def test_tells_kernels_of_one_that_goes(self, broker, channel, at_a_look):
        channel.push(word(1))
        at_a_look(channel.close)
        with KernelEnd(broker, "ring") as end:
            reader = end.reader()
            assert [reader.pop(SOON), reader.pop(SOON)] == [word(1), None]
            assert end.wait(SOON) is False

    def test_finds_one_that_comes(self, broker, channel, at_a_look):
        channel.close()
        made = []
        at_a_look(lambda: made.append(gdrpy.Channel(16, 8, broker=broker, name="ring")))
        with KernelEnd(broker, "ring") as end:
            assert end.wait(SOON)
            (other,) = made
            other.wait_for_kernel(SOON)
            other.push(word(1), SOON)
            assert end.reader().pop(SOON) == word(1)

    def test_takes_up_one_that_follows_another(self, broker, link, at_a_look):
        made = []

        def follow() -> None:
            link.close()
            made.append(gdrpy.Link(16, capacity=4, broker=broker, name="ring"))

        at_a_look(follow)
        with KernelEnd(broker, "ring") as end:
            assert end.wait(SOON)
            (other,) = made
            answer = other.submit(word(1), SOON)
            server = end.server()
            assert server.pop(SOON) == word(1)
            server.answer(0, word(2))
            assert answer.result(SOON) == word(2)
            del server
