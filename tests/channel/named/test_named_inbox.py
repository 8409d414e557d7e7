"""Named inboxes."""

from __future__ import annotations

from functools import partial
from threading import Event

import pytest
from ringchildren import GONE, SOON, until, until_closed, word

import gdrpy
from gdrpy.channel import KernelEnd, named


def reserve(broker, count) -> None:
    """Take numbers of an inbox, as kernels do, without a record."""
    with broker.get("ring", gpu=False) as memory:
        memory.cpu.store(128, memory.cpu.load(128, 8) + count, 8)


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
