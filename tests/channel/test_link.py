"""Links, with a server on the CPU in place of a kernel."""

from __future__ import annotations

import asyncio
import gc
import os
import pickle
import signal
import struct
import threading
import weakref
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

import gdrpy
from gdrpy._core import _mapping
from gdrpy.channel import layout as device

DESCRIPTOR = struct.Struct("<8sIIQQQQQQQQQ")  # as in gdrpy/channel.h


def reversed_half(request: bytes) -> bytes:
    """What the servers here answer: 16 bytes of the 32."""
    return request[15::-1]


@pytest.fixture
def link(memory: None) -> gdrpy.Link:
    """Of 4 requests of 32 bytes, answers of 16."""
    return gdrpy.Link(32, 16, 4)


@pytest.fixture
def server(link: gdrpy.Link) -> gdrpy.channel.LinkServer:
    return link.server()


@pytest.fixture
def request_of() -> Callable[[int], bytes]:
    """Request number i: no two have the same bytes anywhere."""
    return lambda i: i.to_bytes(8, "little") * 4


@pytest.fixture
def served(link: gdrpy.Link, server: gdrpy.channel.LinkServer) -> Iterator[gdrpy.Link]:
    """The link, with a thread that answers."""
    thread = threading.Thread(target=server.serve, args=(reversed_half,))
    thread.start()
    yield link
    link.close()
    thread.join()


def described(link, gpu_read) -> list:
    """The fields of the struct that a kernel is given, after its magic, version and padding."""
    return list(DESCRIPTOR.unpack(gpu_read(link.ptr, DESCRIPTOR.size)))[3:]


def word(gpu_read, ptr: int) -> int:
    return int.from_bytes(gpu_read(ptr, 8), "little")


class TestDescriptor:
    def test_says_what_the_link_is(self, link, gpu_read):
        magic, version, unused, *fields = DESCRIPTOR.unpack(gpu_read(link.ptr, DESCRIPTOR.size))
        assert (magic, version, unused) == (b"GDRPLINK", 1, 0)
        requests, count, nbytes, _, answers, answer_nbytes, *_ = fields
        assert (count, nbytes, answers, answer_nbytes) == (4, 32, 4, 16)
        assert requests % 256 == 0

    def test_leads_a_kernel_to_the_words(self, link, server, request_of, gpu_read):
        *_, end, taken, stopped = described(link, gpu_read)
        for i in range(3):
            link.submit(request_of(i))
        server.pop()
        assert [word(gpu_read, ptr) for ptr in (end, taken, stopped)] == [0, 1, 0]
        link.close()
        server.close()
        assert [word(gpu_read, ptr) for ptr in (end, taken, stopped)] == [3 + 1, 1, 1]

    def test_leads_to_stamped_requests_and_answers(self, link, server, request_of, gpu_read):
        requests, _, _, answers, *_ = described(link, gpu_read)
        for number in range(6):  # two of the second round
            answer = link.submit(request_of(number))
            server.answer(number, reversed_half(server.pop()))
        words = np.frombuffer(gpu_read(requests + 64, 64), "<u4").reshape(8, 2)
        assert (words[:, 0].tobytes(), words[:, 1].tolist()) == (request_of(5), [5 + 4] * 8)
        words = np.frombuffer(gpu_read(answers + 32, 32), "<u4").reshape(4, 2)
        assert (words[:, 0].tobytes(), words[:, 1].tolist()) == (answer.result(), [5 + 4] * 4)

    def test_of_a_kernel_that_answers_brings_the_answer(self, link, server, gpu_read, gpu_write):
        answer = link.submit(bytes(32))
        slots = described(link, gpu_read)[3]
        stamped = np.array([[1, 4], [2, 4], [3, 4], [4, 4]], "<u4")
        gpu_write(slots, stamped[:3].tobytes())
        assert not answer.done()
        gpu_write(slots + 24, stamped[3:].tobytes())
        assert answer.result() == struct.pack("<IIII", 1, 2, 3, 4)

    def test_has_its_fields_where_kernels_in_python_look_for_them(self, link, gpu_read):
        offsets = (
            *(device.LINK_REQUESTS + field for field in device.SLOTS),
            *(device.LINK_ANSWERS + field for field in device.SLOTS),
            *(device.LINK_END, device.LINK_TAKEN, device.LINK_STOPPED),
        )
        assert [word(gpu_read, link.ptr + one) for one in offsets] == described(link, gpu_read)


class TestMemory:
    def test_is_as_large_as_integers_of_any_width_ask_for(self, memory):
        link = gdrpy.Link(np.int16(32), np.uint8(16), np.int8(4))
        server = link.server()
        answers = [link.submit(bytes(32)) for _ in range(4)]
        for number, _ in enumerate(answers):
            server.pop()
            server.answer(number, bytes([number] * 16))
        assert [one.result(0) for one in answers] == [bytes([i] * 16) for i in range(4)]

    def test_with_stamps_of_a_link_before_holds_no_request(self, memory, request_of):
        region, host = gdrpy.alloc(_mapping.LINK_NBYTES + 4 * 64), gdrpy.page_locked(256)
        for _ in range(2):
            link = _mapping.Link(region.cpu, host, 32, 4, 16)
            server = _mapping.LinkServer(link)
            with pytest.raises(gdrpy.Timeout):
                server.pop(timeout=0)
            answer = _mapping.Answer(link, request_of(0))
            assert not answer.done()
            server.answer(0, reversed_half(server.pop()))
            assert answer.done()
            link.close()
            assert server.pop() is None
            del link, server, answer
        region.close()
        host.close()


class TestCall:
    def test_returns_its_answer(self, served, request_of):
        assert served.call(request_of(5)) == reversed_half(request_of(5))

    def test_returns_its_answer_round_after_round(self, served, request_of):
        for i in range(50):
            assert served.call(request_of(i), timeout=60) == reversed_half(request_of(i))

    def test_of_many_threads_returns_to_each_its_own(self, served, request_of):
        def call(i: int) -> bool:
            return served.call(request_of(i), timeout=60) == reversed_half(request_of(i))

        with ThreadPoolExecutor(8) as threads:
            assert all(threads.map(call, range(400)))

    def test_times_out_and_its_late_answer_is_dropped(self, link, server, request_of):
        with pytest.raises(gdrpy.Timeout, match=r"Link.call: request 0 was not answered in time"):
            link.call(request_of(0), timeout=0)
        server.answer(0, reversed_half(server.pop()))
        answers = [link.submit(request_of(i)) for i in range(1, 5)]  # the fourth has its slot
        for number in range(1, 5):
            server.answer(number, reversed_half(server.pop()))
        assert [one.result() for one in answers] == [
            reversed_half(request_of(i)) for i in range(1, 5)
        ]

    def test_answers_a_signal(self, link, request_of):
        class Interrupted(Exception):
            pass

        def interrupt(number: int, frame: object) -> None:
            raise Interrupted

        def call_with_alarm() -> None:
            signal.setitimer(signal.ITIMER_REAL, 0.01)
            link.call(request_of(0))

        before = signal.signal(signal.SIGALRM, interrupt)
        try:
            with pytest.raises(Interrupted):
                call_with_alarm()
        finally:
            signal.signal(signal.SIGALRM, before)

    def test_lets_a_signal_handler_take_its_place(self, link, server, request_of):
        found = []

        def serve_and_submit(number: int, frame: object) -> None:
            server.answer(0, reversed_half(server.pop()))
            found.extend(link.submit(request_of(i), timeout=0).number for i in range(1, 5))

        def call_with_alarm() -> bytes:
            signal.setitimer(signal.ITIMER_REAL, 0.01)
            return link.call(request_of(0), timeout=60)

        before = signal.signal(signal.SIGALRM, serve_and_submit)
        try:
            assert call_with_alarm() == reversed_half(request_of(0))
        finally:
            signal.signal(signal.SIGALRM, before)
        assert found == [1, 2, 3, 4]  # the last one has the place of request 0

    @pytest.mark.parametrize("nbytes", [0, 16, 31, 33, 64])
    def test_of_another_size_is_refused(self, link, server, nbytes):
        message = f"Link.call: a request has 32 bytes, but {nbytes} were given"
        with pytest.raises(ValueError, match=message):
            link.call(bytes(nbytes), timeout=0)
        with pytest.raises(gdrpy.Timeout):
            server.pop(timeout=0)

    def test_of_a_kernel_that_stops_raises_closed(self, link, server, request_of, other_thread):
        calling = other_thread.submit(link.call, request_of(0))
        server.pop()
        server.close()
        message = r"Link.call: request 0 was not answered, and the kernel has stopped"
        with pytest.raises(gdrpy.Closed, match=message):
            calling.result()
        with pytest.raises(gdrpy.Closed, match=r"Link.call: the kernel has stopped"):
            link.call(request_of(1))

    def test_of_a_closed_link_is_refused(self, link, server, request_of):
        link.close()
        link.close()
        assert link.closed
        with pytest.raises(gdrpy.Closed, match=r"Link.call: the link is closed"):
            link.call(request_of(0))
        with pytest.raises(gdrpy.Closed, match=r"Link.submit: the link is closed"):
            link.submit(request_of(0))
        assert server.pop() is None


class TestAnswer:
    def test_is_found_by_its_request_in_any_order(self, link, server, request_of):
        answers = [link.submit(request_of(i)) for i in range(4)]
        requests = [server.pop() for _ in range(4)]
        assert [one.number for one in answers] == [0, 1, 2, 3]
        for number in (2, 0, 3, 1):
            assert not answers[number].done()
            server.answer(number, reversed_half(requests[number]))
            assert answers[number].done()
        assert [one.result() for one in answers] == [reversed_half(request_of(i)) for i in range(4)]

    def test_is_kept_for_who_comes_later(self, served, request_of):
        answers = [served.submit(request_of(i), timeout=60) for i in range(40)]
        for i in reversed(range(40)):
            assert answers[i].result(timeout=60) == reversed_half(request_of(i))
            assert answers[i].result(timeout=0) == reversed_half(request_of(i))

    def test_that_is_dropped_leaves_its_place(self, served, request_of):
        for i in range(40):
            served.submit(request_of(i), timeout=60)
        assert served.call(request_of(40), timeout=60) == reversed_half(request_of(40))

    def test_that_is_late_lets_its_waiter_time_out_and_comes_then(self, link, server, request_of):
        answer = link.submit(request_of(0))
        with pytest.raises(gdrpy.Timeout, match=r"Answer.result: request 0 was not answered in ti"):
            answer.result(timeout=0)
        server.answer(0, reversed_half(server.pop()))
        assert answer.result(timeout=0) == reversed_half(request_of(0))

    def test_reaches_a_waiter_whose_place_another_request_takes(
        self, link, server, request_of, other_thread
    ):
        answer = link.submit(request_of(0))
        waiting = other_thread.submit(answer.result, timeout=60)
        thread = threading.Thread(target=server.serve, args=(reversed_half,))
        thread.start()
        for i in range(1, 40):
            link.call(request_of(i), timeout=60)
        assert waiting.result() == reversed_half(request_of(0))
        link.close()
        thread.join()

    def test_given_before_the_kernel_stopped_is_there(self, link, server, request_of):
        answers = [link.submit(request_of(i)) for i in range(2)]
        server.answer(0, reversed_half(server.pop()))
        server.close()
        assert answers[0].result() == reversed_half(request_of(0))
        assert answers[1].done()
        with pytest.raises(gdrpy.Closed, match="request 1 was not answered, and the kernel has"):
            answers[1].result()

    def test_comes_after_the_link_was_closed(self, link, server, request_of):
        answer = link.submit(request_of(0))
        link.close()
        server.serve(reversed_half)
        assert answer.result() == reversed_half(request_of(0))

    def test_of_more_requests_than_fit_is_waited_for(self, link, server, request_of, other_thread):
        answers = [link.submit(request_of(i)) for i in range(4)]
        message = r"Link.submit: the link holds 4 requests, and the first of them was not taken or"
        with pytest.raises(gdrpy.Timeout, match=message):
            link.submit(request_of(4), timeout=0)
        submitting = other_thread.submit(link.submit, request_of(4), timeout=60)
        requests = [server.pop() for _ in range(4)]
        for number in (3, 2, 1):
            server.answer(number, reversed_half(requests[number]))
        with pytest.raises(gdrpy.Timeout):
            link.submit(request_of(5), timeout=0)
        server.answer(0, reversed_half(requests[0]))
        assert submitting.result().number == 4
        assert answers[0].result() == reversed_half(request_of(0))

    def test_in_a_cycle_of_references_is_collected(self, served, request_of):
        class Mine(gdrpy.channel.Answer):
            me: object

        one = Mine(served, request_of(0))
        one.me = one
        del one
        gc.collect()
        for i in range(1, 9):
            assert served.call(request_of(i), timeout=60) == reversed_half(request_of(i))


class TestAwait:
    def test_gives_the_answer(self, served, request_of):
        async def ask() -> bytes:
            return await served.submit(request_of(1))

        assert asyncio.run(ask()) == reversed_half(request_of(1))

    def test_of_many_tasks_gives_each_its_own(self, served, request_of):
        async def ask(i: int, turns: asyncio.Semaphore) -> bool:
            async with turns:
                return await served.submit(request_of(i)) == reversed_half(request_of(i))

        async def ask_all() -> list[bool]:
            turns = asyncio.Semaphore(served.capacity)
            return await asyncio.gather(*(ask(i, turns) for i in range(100)))

        assert asyncio.run(ask_all()) == [True] * 100

    def test_lets_other_tasks_run(self, link, server, request_of):
        async def ask() -> bytes:
            return await link.submit(request_of(0))

        async def serve() -> None:
            server.answer(0, reversed_half(server.pop()))

        async def both() -> bytes:
            found, _ = await asyncio.gather(ask(), serve())
            return found

        assert asyncio.run(both()) == reversed_half(request_of(0))

    def test_may_be_cancelled(self, link, server, request_of):
        async def ask() -> bytes:
            return await link.submit(request_of(0))

        async def cancel() -> None:
            with pytest.raises(TimeoutError):
                await asyncio.wait_for(ask(), 0.01)

        asyncio.run(cancel())
        server.answer(0, reversed_half(server.pop()))
        for number in range(1, 5):
            answer = link.submit(request_of(number), timeout=0)
            server.answer(number, reversed_half(server.pop()))
            assert answer.result() == reversed_half(request_of(number))

    def test_raises_when_the_kernel_has_stopped(self, link, server, request_of):
        async def ask() -> bytes:
            return await link.submit(request_of(0))

        async def stop() -> None:
            server.close()

        async def both() -> None:
            await asyncio.gather(ask(), stop())

        with pytest.raises(gdrpy.Closed, match="request 0 was not answered, and the kernel has"):
            asyncio.run(both())


class TestServer:
    def test_that_was_closed_is_the_last(self, link, server):
        server.close()
        message = "Link.server: the kernel has stopped: make another Link"
        with pytest.raises(gdrpy.Closed, match=message):
            link.server()

    def test_times_out(self, server):
        with pytest.raises(gdrpy.Timeout, match=r"LinkServer.pop: no record arrived in time"):
            server.pop(timeout=0)

    def test_that_waits_learns_of_a_request_and_of_the_end(
        self, link, server, request_of, other_thread
    ):
        popping = other_thread.submit(server.pop, 60)
        link.submit(request_of(0))
        assert popping.result() == request_of(0)
        popping = other_thread.submit(server.pop, 60)
        link.close()
        assert popping.result() is None

    def test_is_iterated_up_to_the_end(self, link, server, request_of):
        for i in range(3):
            link.submit(request_of(i))
        link.close()
        assert list(server) == [request_of(i) for i in range(3)]
        assert server.popped == 3

    def test_that_is_closed_pops_nothing(self, link, server, request_of):
        link.submit(request_of(0))
        server.close()
        server.close()
        assert server.closed
        with pytest.raises(gdrpy.Closed, match=r"LinkServer.pop: the server is closed"):
            server.pop()

    def test_that_waits_may_be_closed_by_another_thread(self, server, other_thread):
        popping = other_thread.submit(server.pop, 60)
        server.close()
        with pytest.raises(gdrpy.Closed, match=r"LinkServer.pop: the server is closed"):
            popping.result()

    def test_keeps_the_link(self, request_of):
        link = gdrpy.Link(32, 16, 4)
        server, kept = link.server(), weakref.ref(link)
        link.submit(request_of(0))
        del link
        gc.collect()
        assert kept() is not None
        assert server.pop() == request_of(0)

    def test_takes_no_request_with_a_word_that_has_not_arrived(
        self, link, server, request_of, gpu_read, gpu_write
    ):
        slot = described(link, gpu_read)[0]
        link.submit(request_of(0))
        whole = gpu_read(slot, 64)
        for missing in range(0, 64, 8):
            gpu_write(slot, whole[:missing] + bytes(8) + whole[missing + 8 :])
            with pytest.raises(gdrpy.Timeout):
                server.pop(timeout=0)
        gpu_write(slot, whole)
        assert server.pop(timeout=0) == request_of(0)

    def test_has_no_other_beside_it(self, link, server):
        with pytest.raises(ValueError, match=r"Link.server: this Link has a server, and may have"):
            link.server()

    def test_goes_on_where_another_has_left_off(self, link, request_of):
        answers = [link.submit(request_of(i)) for i in range(3)]
        first = link.server()
        first.answer(0, reversed_half(first.pop()))
        del first
        link.close()
        second = link.server()
        assert second.popped == 1
        second.serve(reversed_half)
        assert [one.result() for one in answers] == [reversed_half(request_of(i)) for i in range(3)]

    def test_that_fails_ends_the_calls_that_wait(self, link, server, request_of, other_thread):
        serving = other_thread.submit(server.serve, lambda request: bytes(17))
        message = "request 0 was not answered, and the kernel has stopped"
        with pytest.raises(gdrpy.Closed, match=message):
            link.call(request_of(0), timeout=60)
        with pytest.raises(ValueError, match=r"LinkServer.answer: an answer has 16 bytes, but 17 "):
            serving.result()

    def test_refuses_to_answer_what_is_not_open(self, link, server, request_of):
        link.submit(request_of(0))
        with pytest.raises(ValueError, match=r"LinkServer.answer: request 0 has not been taken"):
            server.answer(0, bytes(16))
        server.pop()
        with pytest.raises(ValueError, match=r"LinkServer.answer: an answer has 16 bytes, but 17 "):
            server.answer(0, bytes(17))
        server.answer(0, bytes(16))
        with pytest.raises(ValueError, match=r"LinkServer.answer: request 0 has been answered bef"):
            server.answer(0, bytes(16))
        for number in range(1, 5):
            link.submit(request_of(number))
            server.pop()
        with pytest.raises(ValueError, match=r"LinkServer.answer: request 0 has been answered bef"):
            server.answer(0, bytes(16))


class TestForkedChild:
    def test_may_not_use_it_and_harms_nothing(self, link, server, request_of):
        answer, shown = link.submit(request_of(0)), repr(link)
        calls = [
            lambda: link.call(request_of(1), 0),
            lambda: link.submit(request_of(1), 0),
            lambda: link.ptr,
            lambda: link.server(),
            lambda: answer.done(),
            lambda: answer.result(0),
            lambda: server.pop(0),
            lambda: server.answer(0, bytes(16)),
        ]
        child = os.fork()
        if child == 0:
            refused = 0
            for call in calls:
                try:
                    call()
                except gdrpy.Forked:
                    refused += 1
            refused += repr(link) == shown
            link.close()
            server.close()
            os._exit(refused)
        _, status = os.waitpid(child, 0)
        assert os.waitstatus_to_exitcode(status) == len(calls) + 1
        assert (link.closed, server.closed) == (False, False)
        server.answer(0, reversed_half(server.pop()))
        assert answer.result() == reversed_half(request_of(0))


class TestRefusal:
    @pytest.mark.parametrize("nbytes", [0, 8, 65552])
    @pytest.mark.parametrize("name", ["record_nbytes", "answer_nbytes"])
    def test_of_sizes(self, memory, name, nbytes):
        message = f"Link: {name} must be a multiple of 16 up to 65536, not {nbytes}"
        with pytest.raises(ValueError, match=message):
            gdrpy.Link(**{name: nbytes})

    @pytest.mark.parametrize("capacity", [0, 3, 1 << 32])
    def test_of_capacities(self, memory, capacity):
        refusal = f"Link: capacity must be a power of two up to {1 << 31}, not {capacity}$"
        with pytest.raises(ValueError, match=refusal):
            gdrpy.Link(64, 64, capacity)

    def test_of_making_it_again(self, link):
        before = link.ptr
        with pytest.raises(TypeError, match="Link: an object is initialized once"):
            link.__init__(64, 16)
        assert (link.ptr, link.capacity, link.record_nbytes) == (before, 4, 32)

    def test_of_an_answer_that_is_made_twice(self, link, server, request_of):
        class Again:
            def __index__(self) -> int:
                with pytest.raises(TypeError, match="Answer: an object is initialized once"):
                    answer.__init__(link, request_of(0))
                return 0

        answer = gdrpy.channel.Answer.__new__(gdrpy.channel.Answer)
        answer.__init__(link, request_of(1), Again())
        assert server.pop(timeout=0) == request_of(1)

    def test_of_copies(self, link, server, request_of):
        for thing in (link, server, link.submit(request_of(0))):
            with pytest.raises(TypeError, match="cannot be copied or pickled"):
                pickle.dumps(thing)


class TestRepr:
    def test_says_what_it_is(self, link, server, request_of):
        where = link._region.location
        assert repr(link) == f"<Link of 4 requests of 32 bytes, answers of 16 on {where}>"
        assert repr(server) == f"<LinkServer of {link!r}>"
        assert repr(link.submit(request_of(0))) == f"<Answer to request 0 of {link!r}>"
        assert link.device == 0
        link.close()
        assert repr(link) == "<Link of 4 requests of 32 bytes, answers of 16 CLOSED>"
