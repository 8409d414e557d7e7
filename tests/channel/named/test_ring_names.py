"""Names of rings: which may be taken, joined and deleted."""

from __future__ import annotations

import re
from functools import partial

import pytest
from ringchildren import SOON, until_closed, word

import gdrpy
from gdrpy.channel import KernelEnd


class TestName:
    def test_is_of_two_regions_with_the_rights_that_were_asked_for(self, broker):
        with gdrpy.Channel(16, 8, broker=broker, name="ring", mode=0o660) as channel:
            assert channel.name == "ring"
            found = {str(info.name): info.mode for info in broker.list("ring")}
            (end,) = set(found) - {"ring", "ring/host"}
            assert (found["ring"], found["ring/host"], found[end]) == (0o660, 0o660, 0o644)
            assert re.fullmatch(r"ring/cpu\.[0-9a-f]{16}", end)
        assert [info.name for info in broker.list()] == ["ring", "ring/host"]

    def test_is_joined_with_equal_sizes_alone(self, broker, channel):
        with gdrpy.Channel(16, 8, broker=broker, name="ring") as other:
            other.push(word(1))
            assert (channel.pushed, channel.room) == (1, 7)
        message = (
            "Channel: 'ring' exists as a Channel of 8 records of 16 bytes, and a Channel of 16 "
            "records of 16 bytes was asked for: ask for what exists, or take another name"
        )
        with pytest.raises(gdrpy.SizeMismatch, match=message):
            gdrpy.Channel(16, 16, broker=broker, name="ring")
        with pytest.raises(gdrpy.SizeMismatch, match="and an Inbox of 8 records"):
            gdrpy.Inbox(16, 8, broker=broker, name="ring")

    def test_of_another_region_is_refused(self, broker):
        broker.allocate("data", 4096).close()
        broker.allocate("data/host", 4096, device="cpu").close()
        message = "region 'data' holds no channel, inbox or link: take another name, or delete it"
        with pytest.raises(gdrpy.InvalidRequest, match=f"Channel: {message}"):
            gdrpy.Channel(16, 8, broker=broker, name="data")
        with pytest.raises(gdrpy.InvalidRequest, match=f"KernelEnd: {message}"):
            KernelEnd(broker, "data")

    def test_with_only_one_of_the_regions_is_refused(self, broker):
        broker.allocate("ring/host", 4096, device="cpu").close()
        message = "region 'ring/host' exists without the other memory of a ring: delete it"
        with pytest.raises(gdrpy.InvalidRequest, match=f"Channel: {message}"):
            gdrpy.Channel(16, 8, broker=broker, name="ring")
        assert [info.name for info in broker.list()] == ["ring/host"]

    @pytest.mark.parametrize("given", [{"name": "ring"}, {"broker": "broker", "name": "ring"}])
    def test_needs_a_broker(self, memory, given):
        with pytest.raises(TypeError, match="Channel: .*broker"):
            gdrpy.Channel(16, 8, **given)

    def test_is_needed_with_a_broker(self, broker):
        with pytest.raises(TypeError, match="needs broker=, of gdrpy.connect.., and name="):
            gdrpy.Channel(16, 8, broker=broker)

    def test_is_free_after_it_was_deleted_and_its_ends_are_closed(self, broker, channel):
        with KernelEnd(broker, "ring") as end:
            gdrpy.channel.delete(broker, "ring")
            message = "its name was deleted, or the broker lost its state: open it again"
            assert message in until_closed(lambda: channel.push(word(1), 0.01))
            assert "'ring' was deleted, or the broker lost" in until_closed(lambda: end.wait(SOON))
        channel.close()
        with gdrpy.Channel(32, 8, broker=broker, name="ring") as other:
            assert other.record_nbytes == 32

    @pytest.mark.parametrize("name", ["ring", "ring/host"])
    def test_without_one_of_its_regions_is_lost_to_both_ends(self, broker, channel, name):
        with KernelEnd(broker, "ring") as end:
            broker.delete(name)
            message = "its name was deleted, or the broker lost its state: open it again"
            assert message in until_closed(lambda: channel.push(word(1), 0.01))
            assert "'ring' was deleted, or the broker lost" in until_closed(lambda: end.wait(SOON))

    def test_of_a_plain_region_is_refused_to_the_kernels_end_and_kept(self, broker):
        broker.allocate("data", 4096).close()
        message = "region 'data' holds no channel, inbox or link"
        with pytest.raises(gdrpy.InvalidRequest, match=f"KernelEnd: {message}"):
            KernelEnd(broker, "data")
        with pytest.raises(gdrpy.InvalidRequest, match=f"delete: {message}"):
            gdrpy.channel.delete(broker, "data")
        assert [info.name for info in broker.list()] == ["data"]

    def test_that_has_lost_a_region_is_deleted_whole(self, broker):
        for name in ("ring", "ring/host"):
            gdrpy.Channel(16, 8, broker=broker, name="ring").close()
            broker.delete(name)
            gdrpy.channel.delete(broker, "ring")
            assert broker.list() == []

    def test_without_host_memory_is_refused_to_the_kernels_end(self, broker):
        gdrpy.Channel(16, 8, broker=broker, name="ring").close()
        broker.delete("ring/host")
        message = "KernelEnd: region 'ring' exists without the other memory of a ring: delete it by"
        with pytest.raises(gdrpy.InvalidRequest, match=message):
            KernelEnd(broker, "ring")

    def test_that_is_unknown_is_not_deleted(self, broker):
        with pytest.raises(gdrpy.NotFound, match="delete: there is no region of the name 'ring'"):
            gdrpy.channel.delete(broker, "ring")

    def test_that_leaves_no_room_for_those_of_ends_is_refused(self, broker):
        message = "the name of a ring has 234 bytes at most, not 235: 'rrr"
        for make in (
            partial(gdrpy.Channel, 16, 8, broker=broker, name=235 * "r"),
            partial(KernelEnd, broker, 235 * "r"),
        ):
            with pytest.raises(ValueError, match=message):
                make()
        gdrpy.Channel(16, 8, broker=broker, name=234 * "r").close()

    def test_needs_a_broker_that_blocks(self, memory):
        with pytest.raises(TypeError, match=r"must be a gdrpy.Broker, .* not a builtins.object"):
            KernelEnd(object(), "ring")
