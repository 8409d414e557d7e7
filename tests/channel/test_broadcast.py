"""Several channels that get the same records."""

from __future__ import annotations

import threading

import pytest

import gdrpy

SOON = 20.0


def word(value: int) -> bytes:
    """A record of 16 bytes."""
    return value.to_bytes(16, "little")


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
