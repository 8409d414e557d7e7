"""The C types under Channel and ChannelReader, given what the Python ones never give them."""

from __future__ import annotations

import pytest

import gdrpy
from gdrpy._core import _mapping


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
        with pytest.raises(TypeError, match="a Channel is initialized once"):
            channel.__init__(gpu_memory, host_memory, 16, 8)
        reader = _mapping.ChannelReader(channel)
        with pytest.raises(TypeError, match="a ChannelReader is initialized once"):
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
