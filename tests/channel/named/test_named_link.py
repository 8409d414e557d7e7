"""Named links."""

from __future__ import annotations

import threading

import pytest
from ringchildren import SOON, word

import gdrpy
from gdrpy.channel import KernelEnd


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
        message = (
            r"Answer.result: request 1 was not answered, and its kernel's process is gone: when "
            r"wait_for_kernel\(\) has returned, its answer may still come$"
        )
        with pytest.raises(gdrpy.Closed, match=message):
            answers[1].result(SOON)
        assert [answers[number].result(SOON) for number in (0, 2)] == [word(10), word(12)]
        with KernelEnd(broker, "ring") as end:
            link.wait_for_kernel(SOON)
            server = end.server()
            assert server.pop(SOON) == word(3)  # which none has taken
            server.answer(3, word(13))
            assert answers[3].result(SOON) == word(13)
            message = "request 1 never will be answered: its kernel's process had taken it, and is"
            with pytest.raises(gdrpy.Closed, match=message):
                answers[1].result(SOON)

    def test_whose_name_is_deleted_says_so_to_a_call_that_waits(self, broker, link, other_thread):
        with KernelEnd(broker, "ring") as end:
            calling = other_thread.submit(link.call, word(1), SOON)
            assert end.server().pop(SOON) == word(1)
            gdrpy.channel.delete(broker, "ring")
            message = "Link.call: its name was deleted, or the broker lost its state: open it again"
            with pytest.raises(gdrpy.Closed, match=message):
                calling.result(SOON)

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
