"""Regions whose references Dask carries to tasks, on this machine and on another."""

from __future__ import annotations

import pytest

import dask_programs as programs
import gdrpy


class TestTaskOnTheSameMachine:
    def test_has_the_very_memory(self, dask_cluster):
        read, told, number = dask_cluster(programs.written_by_a_task_here)
        assert read == b"by the task"
        assert (told["id"], told["metadata"]) == (number, {"for": "both"})

    def test_opens_a_scattered_reference_which_holds_no_lease(self, dask_cluster):
        assert dask_cluster(programs.passed_on_by_the_scheduler) == (b"to both", 1, 2)

    def test_gets_gone_for_what_nobody_holds(self, dask_cluster):
        with pytest.raises(gdrpy.Gone, match="no longer exists"):
            dask_cluster(programs.use_what_is_gone, "a")


class TestWorkersWithTheSameWeights:
    def test_take_the_memory_of_one_and_give_their_leases_back(self, dask_cluster):
        sums, more, holders, after = dask_cluster(programs.share_weights)
        assert sums == [0.5 * 256 * 1024] * 4
        assert (more, holders, after) == (2 << 20, 3, 1)


class TestTaskOnAnotherMachine:
    def test_has_a_copy_of_a_workers_region(self, dask_cluster, there):
        read, told = dask_cluster(programs.made_by_a_task_here, there.socket)
        assert read == b"\7\10\11"
        assert (told["name"], told["metadata"]) == (None, {"of": "task"})

    def test_has_a_copy_of_the_clients_region_by_a_worker_beside_it(self, dask_cluster):
        assert dask_cluster(programs.sent_by_the_client) == (b"of the client", b"of the client")

    def test_gives_its_region_to_tasks_and_client_here(self, dask_cluster, there):
        found = dask_cluster(programs.made_by_a_task_there, there.socket)
        assert found == (b"\7\10\11", b"\7\10\11", {"of": "task"})

    @pytest.mark.parametrize("seal", [False, True])
    def test_has_a_read_only_copy_of_what_is_read_only(self, dask_cluster, seal):
        told = dask_cluster(programs.tell_there, True, seal)
        assert (told["readonly"], told["sealed"], told["device"]) == (True, seal, None)
        assert told["metadata"] == {"array": ["<i8", [3]]}

    @pytest.mark.parametrize(("seal", "error"), [(False, gdrpy.ReadOnly), (True, gdrpy.Sealed)])
    def test_cannot_write_what_is_read_only(self, dask_cluster, seal, error):
        with pytest.raises(error):
            dask_cluster(programs.write_there, seal)

    def test_gets_several_pieces(self, dask_cluster):
        there, here = dask_cluster(programs.sum_of_large, 40_000_001)
        assert there == here

    def test_gets_gone_for_what_nobody_holds_and_lives_on(self, dask_cluster):
        with pytest.raises(gdrpy.Gone, match="no longer exists"):
            dask_cluster(programs.use_what_is_gone, "there")
        assert dask_cluster(programs.await_workers, 3) == 3

    def test_without_a_broker_is_told_to_start_one(self, dask_cluster, bare_worker):
        with pytest.raises(
            gdrpy.BrokerUnavailable,
            match=r"region \d+ of the broker at .* on .* is another machine's, and a copy needs a "
            r"broker on this one: .*: start one by `gdrpy serve`",
        ):
            dask_cluster(programs.use_on, bare_worker)


class TestPartOfARegion:
    @pytest.mark.parametrize("name", ["a", "there"])
    def test_that_is_an_array_is_made_from_the_reference(self, dask_cluster, name):
        assert dask_cluster(programs.array_of_a_task, name) == [2.0, 3.0, 4.0, 5.0]

    def test_that_is_a_mapping_is_sent_on_from_a_copy(self, dask_cluster):
        assert dask_cluster(programs.mapping_of_a_task) == ord("x")


class TestCoroutine:
    def test_may_not_block_its_event_loop(self, dask_cluster):
        with pytest.raises(RuntimeError, match="this is an event loop, .* asyncio.to_thread"):
            dask_cluster(programs.use_in_event_loop)

    def test_opens_a_reference_in_a_thread(self, dask_cluster):
        assert dask_cluster(programs.use_beside_event_loop) == b"off"
