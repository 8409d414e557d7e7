"""Named rings in whose memory a peer stores anything."""

from __future__ import annotations

from contextlib import suppress

import pytest
from ringchildren import GONE, SOON, until_closed, word

import gdrpy
from gdrpy.channel import KernelEnd


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
