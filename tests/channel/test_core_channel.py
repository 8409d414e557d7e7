"""The C types under Channel, Inbox, Link and their ends, given what Python ones never give them."""

from __future__ import annotations

import threading

import pytest

import gdrpy
from gdrpy._core import _mapping
from gdrpy.channel.named import CPU_END


@pytest.fixture
def gpu_memory(memory: None):
    with gdrpy.alloc(256 + 8 * 16) as region:
        yield region.cpu


@pytest.fixture
def host_memory(memory: None):
    with gdrpy.page_locked(256) as mapping:
        yield mapping


class TestMemory:
    def test_that_just_suffices_is_taken(self, gpu_memory, host_memory):
        channel = _mapping.Channel(gpu_memory, host_memory, 16, 8)
        assert (channel.record_nbytes, channel.capacity, channel.room) == (16, 8, 8)

    @pytest.mark.parametrize(
        ("nbytes", "capacity"), [(16, 16), (32, 8), (0, 8), (-16, 8), (8, 8), (16, 0), (16, 3)]
    )
    def test_that_does_not_fit_the_ring_is_refused(self, gpu_memory, host_memory, nbytes, capacity):
        with pytest.raises(ValueError, match="Channel: record_nbytes, capacity or the mappings'"):
            _mapping.Channel(gpu_memory, host_memory, nbytes, capacity)

    def test_of_the_host_that_is_too_small_is_refused(self, gpu_memory):
        with gdrpy.page_locked(255) as small, pytest.raises(ValueError, match="out of range"):
            _mapping.Channel(gpu_memory, small, 16, 8)

    def test_that_is_read_only_is_refused(self, memory, host_memory):
        with (
            gdrpy.alloc(4096) as region,
            region.map(readonly=True) as mapping,
            pytest.raises(gdrpy.ReadOnly, match="Channel: the mapping is read-only"),
        ):
            _mapping.Channel(mapping, host_memory, 16, 8)

    def test_without_an_address_for_the_gpu_is_refused(self, memory, host_memory):
        with gdrpy.alloc(4096, device="cpu") as region, pytest.raises(TypeError):
            _mapping.Channel(region.cpu, host_memory, 16, 8)

    def test_is_not_closed_under_the_channel(self, gpu_memory, host_memory):
        channel = _mapping.Channel(gpu_memory, host_memory, 16, 8)
        for mapping in (gpu_memory, host_memory):
            with pytest.raises(BufferError, match=r"still use the mapping \(1 in all\)"):
                mapping.close()
        channel.push(bytes(16))
        del channel

    def test_is_given_once(self, gpu_memory, host_memory):
        channel = _mapping.Channel(gpu_memory, host_memory, 16, 8)
        with pytest.raises(TypeError, match="Channel: an object is initialized once"):
            channel.__init__(gpu_memory, host_memory, 16, 8)
        reader = _mapping.ChannelReader(channel)
        with pytest.raises(TypeError, match="ChannelReader: an object is initialized once"):
            reader.__init__(channel)


class TestUninitialized:
    def test_channel_does_nothing(self, memory):
        channel = _mapping.Channel.__new__(_mapping.Channel)
        for call in (channel.push, channel.push_many):
            with pytest.raises(TypeError, match="the Channel was never initialized"):
                call(bytes(16))
        with pytest.raises(TypeError, match="the Channel was never initialized"):
            channel.drain()
        with pytest.raises(TypeError, match="the Channel was never initialized"):
            _mapping.ChannelReader(channel)
        channel.close()
        assert channel.closed

    def test_reader_does_nothing(self, memory):
        reader = _mapping.ChannelReader.__new__(_mapping.ChannelReader)
        for call in (reader.pop, reader.pop_many):
            with pytest.raises(TypeError, match="the reader was never initialized"):
                call()
        reader.close()
        assert reader.closed

    def test_inbox_does_nothing(self, memory):
        inbox = _mapping.Inbox.__new__(_mapping.Inbox)
        calls = (inbox.pop, inbox.pop_many, lambda: inbox.popped, lambda: inbox.c_reader)
        for call in calls:
            with pytest.raises(TypeError, match="the Inbox was never initialized"):
                call()
        with pytest.raises(TypeError, match="the Inbox was never initialized"):
            _mapping.InboxWriter(inbox)
        inbox.close()
        assert inbox.closed

    def test_writer_does_nothing(self, memory):
        writer = _mapping.InboxWriter.__new__(_mapping.InboxWriter)
        for push in (writer.push, writer.push_many):
            with pytest.raises(TypeError, match="the writer was never initialized"):
                push(bytes(16))
        writer.close()
        assert writer.closed

    def test_link_does_nothing(self, memory):
        link = _mapping.Link.__new__(_mapping.Link)
        calls = (
            lambda: link.call(bytes(16)),
            lambda: _mapping.LinkServer(link),
            lambda: _mapping.Answer(link, bytes(16)),
        )
        for call in calls:
            with pytest.raises(TypeError, match="the Link was never initialized"):
                call()
        link.close()
        assert link.closed

    def test_server_does_nothing(self, memory):
        server = _mapping.LinkServer.__new__(_mapping.LinkServer)
        for call in (server.pop, lambda: server.answer(0, bytes(16))):
            with pytest.raises(TypeError, match="the server was never initialized"):
                call()
        server.close()
        assert server.closed

    def test_answer_does_nothing(self, memory):
        answer = _mapping.Answer.__new__(_mapping.Answer)
        for call in (answer.done, answer.result):
            with pytest.raises(TypeError, match="the Answer was never initialized"):
                call()


class TestMemoryOfAnInbox:
    def test_that_just_suffices_is_taken(self, memory):
        with gdrpy.alloc(384) as region, gdrpy.page_locked(256 + 8 * 32) as host:
            inbox = _mapping.Inbox(region.cpu, host, 16, 8)
            assert (inbox.record_nbytes, inbox.capacity) == (16, 8)
            with pytest.raises(BufferError, match=r"still use the mapping \(1 in all\)"):
                host.close()
            with pytest.raises(TypeError, match="Inbox: an object is initialized once"):
                inbox.__init__(region.cpu, host, 16, 8)
            del inbox

    @pytest.mark.parametrize(
        ("nbytes", "capacity"), [(16, 16), (32, 8), (0, 8), (-16, 8), (8, 8), (16, 0), (16, 3)]
    )
    def test_that_does_not_fit_the_ring_is_refused(self, memory, nbytes, capacity):
        with (
            gdrpy.alloc(384) as region,
            gdrpy.page_locked(256 + 8 * 32) as host,
            pytest.raises(ValueError, match="Inbox: record_nbytes, capacity or the mappings'"),
        ):
            _mapping.Inbox(region.cpu, host, nbytes, capacity)


class TestMemoryOfALink:
    def test_that_just_suffices_is_taken(self, memory):
        nbytes = _mapping.LINK_NBYTES + 8 * 64
        with gdrpy.alloc(nbytes) as region, gdrpy.page_locked(128 + 8 * 32) as host:
            link = _mapping.Link(region.cpu, host, 32, 8, 16)
            assert (link.record_nbytes, link.answer_nbytes, link.capacity) == (32, 16, 8)
            for mapping in (region.cpu, host):
                with pytest.raises(BufferError, match=r"still use the mapping \(1 in all\)"):
                    mapping.close()
            with pytest.raises(TypeError, match="Link: an object is initialized once"):
                link.__init__(region.cpu, host, 32, 8, 16)
            server = _mapping.LinkServer(link)
            with pytest.raises(TypeError, match="LinkServer: an object is initialized once"):
                server.__init__(link)
            del link, server

    @pytest.mark.parametrize(
        ("nbytes", "capacity", "answer_nbytes"),
        [(32, 16, 16), (48, 8, 16), (32, 8, 32), (0, 8, 16), (32, 3, 16)]
        + [(32, 8, answer) for answer in (0, -16, 8, 1 << 17)],
    )
    def test_that_does_not_fit_is_refused(self, memory, nbytes, capacity, answer_nbytes):
        with (
            gdrpy.alloc(_mapping.LINK_NBYTES + 8 * 64) as region,
            gdrpy.page_locked(128 + 8 * 32) as host,
            pytest.raises(ValueError, match="Link: record_nbytes, capacity, answer_nbytes or the"),
        ):
            _mapping.Link(region.cpu, host, nbytes, capacity, answer_nbytes)

    def test_is_of_a_link_alone_where_answers_are_named(self, gpu_memory, host_memory):
        with pytest.raises(ValueError, match="Channel: record_nbytes, capacity or the mappings'"):
            _mapping.Channel(gpu_memory, host_memory, 16, 8, 16)


class TestCallerOfALink:
    def test_goes_on_after_callers_each_of_which_died_before_it_told(self, memory):
        nbytes = _mapping.LINK_NBYTES + 4 * 32
        with gdrpy.alloc(nbytes) as region, gdrpy.page_locked(128 + 4 * 32) as host:
            region.cpu.write(bytes(nbytes))
            host.write(bytes(host.nbytes))
            for caller in range(1, 4):
                link = _mapping.Link(region.cpu, host, 16, 4, 16, CPU_END, caller)
                host.store(72, caller, 8)  # the kernel's end takes it up
                told = host.load(64, 8)
                answer = _mapping.Answer(link, bytes(16))
                host.store(64, told, 8)
                assert answer.number == caller - 1
                del answer, link


class TestClearingOfManySlots:
    """Slots of 64 MiB, the first and the last of which another thread looks at meanwhile."""

    COUNT, RECORD = 512, 1 << 16

    @pytest.mark.parametrize(
        "make",
        [
            lambda gpu, host, count, record: _mapping.Inbox(gpu, host, record, count),
            lambda gpu, host, count, record: _mapping.Link(gpu, host, 16, count, record),
        ],
        ids=["Inbox", "Link"],
    )
    def test_lets_other_threads_run(self, memory, make):
        halfway, ended = threading.Event(), threading.Event()

        def watch(slots):
            while not (halfway.is_set() or ended.is_set()):
                last = slots[-1]
                if last and slots[0] == 0 and slots[-1] == last:
                    halfway.set()

        nbytes = 2 * self.COUNT * self.RECORD
        with gdrpy.alloc(1 << 20) as region, gdrpy.page_locked(256 + nbytes) as host:
            slots = memoryview(host)[256 : 128 + nbytes]
            slots[0] = slots[-1] = 0
            watching = threading.Thread(target=watch, args=(slots,))
            watching.start()
            for number in range(1, 100):
                slots[0] = number
                slots[-1] = number
                make(region.cpu, host, self.COUNT, self.RECORD)
                if halfway.is_set():
                    break
            ended.set()
            watching.join()
            del slots
        assert halfway.is_set()
