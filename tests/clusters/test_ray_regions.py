"""Regions whose references Ray carries to actors and tasks, on this machine and on another."""

from __future__ import annotations

import pytest

import gdrpy
import ray_programs as programs


class TestActorOnTheSameMachine:
    def test_has_the_very_memory(self, ray_cluster):
        read, told, number = ray_cluster(programs.written_by_an_actor_here)
        assert read == b"by the actor"
        assert (told["id"], told["metadata"]) == (number, {"for": "both"})

    def test_gets_gone_for_what_nobody_holds(self, ray_cluster):
        with pytest.raises(gdrpy.Gone, match="no longer exists"):
            ray_cluster(programs.use_what_is_gone, False)


class TestFourActorsWithTheSameWeights:
    def test_take_the_memory_of_one_and_give_their_leases_back_when_killed(self, ray_cluster):
        sums, more, holders, without_one, without_all = ray_cluster(programs.share_weights)
        assert sums == [0.5 * 256 * 1024] * 4
        assert (more, holders, without_one, without_all) == (2 << 20, 5, 4, 0)


class TestActorOnAnotherMachine:
    def test_has_a_copy_of_its_own(self, ray_cluster):
        read, read_here, told = ray_cluster(programs.written_by_an_actor_there)
        assert (read, read_here) == (b"by the driver", b"by the driver")
        assert told["name"] is None
        assert told["metadata"] == {"for": "both"}
        assert (told["nbytes"], told["device"], told["readonly"]) == (4096, 0, False)

    @pytest.mark.parametrize("seal", [False, True])
    def test_has_a_read_only_copy_of_what_is_read_only(self, ray_cluster, seal):
        told = ray_cluster(programs.tell_there, True, seal)
        assert (told["readonly"], told["sealed"], told["device"]) == (True, seal, None)
        assert told["metadata"] == {"array": ["<i8", [3]]}

    @pytest.mark.parametrize(("seal", "error"), [(False, gdrpy.ReadOnly), (True, gdrpy.Sealed)])
    def test_cannot_write_what_is_read_only(self, ray_cluster, seal, error):
        with pytest.raises(error):
            ray_cluster(programs.write_there, seal)

    def test_gets_more_than_the_object_store_has_room_for(self, ray_cluster):
        there, here = ray_cluster(programs.sum_of_large, programs.STORE_BYTES + 12_345)
        assert there == here

    def test_gets_the_copy_of_a_sealed_region_that_is_there(self, ray_cluster):
        assert len(set(ray_cluster(programs.arrives_twice, True))) == 1

    def test_gets_each_time_what_a_writable_region_holds_then(self, ray_cluster):
        assert len(set(ray_cluster(programs.arrives_twice, False))) == 3

    def test_sends_what_it_made(self, ray_cluster, there):
        assert ray_cluster(programs.made_there, there.socket) == (b"\7\10\11", {"of": "actor"})

    def test_gets_gone_for_what_nobody_holds(self, ray_cluster):
        with pytest.raises(gdrpy.Gone, match="no longer exists"):
            ray_cluster(programs.use_what_is_gone, True)

    def test_without_a_broker_is_told_to_start_one(self, ray_cluster, there):
        there.stop()
        try:
            with pytest.raises(
                gdrpy.BrokerUnavailable,
                match=r"region \d+ of the broker at .* on .* is another machine's, and a copy "
                r"needs a broker on this one: .*: start one by `gdrpy serve`",
            ):
                ray_cluster(programs.use_there)
        finally:
            there.serve()


class TestArray:
    @pytest.mark.parametrize("elsewhere", [False, True])
    def test_is_made_from_the_reference(self, ray_cluster, elsewhere):
        assert ray_cluster(programs.array_of_an_actor, elsewhere) == [2.0, 3.0, 4.0, 5.0]


class TestObjectStore:
    def test_has_a_reference_to_a_region(self, ray_cluster):
        assert ray_cluster(programs.put_once) == [6, 6]
