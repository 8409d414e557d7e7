"""torch tensors that Ray's actors hand to each other by the transport GDRPY."""

from __future__ import annotations

import re
from errno import EACCES

import pytest
import torch

import gdrpy
import gdrpy.ray
import ray_tensor_programs as programs
from gdrpy.broker import temporary
from gdrpy.broker.client import broker
from gdrpy.broker.client.broker import shared_broker

ROW = [4.0, 5.0, 6.0, 7.0]


class TestTensorInARegion:
    @pytest.mark.parametrize("device", [0, "cpu"])
    def test_is_the_very_memory_in_the_receiver(self, ray_cluster, device):
        first, second, third, regions, nbytes = ray_cluster(programs.share, device)
        assert first == {"all": [0.0, 1.0, 2.0, 3.0, *ROW], "row": ROW, "of": "actor"}
        assert (second["all"], second["row"]) == ([1.0] * 8, [1.0] * 4)
        assert third == [2.0] * 8
        assert (regions, nbytes) == (1, 2 << 20 if device == 0 else 4096)

    def test_stays_there_when_a_receiver_passes_it_on(self, ray_cluster):
        assert ray_cluster(programs.pass_on) == ([3.0] * 4, [3.0] * 8, 1)

    def test_is_copied_if_an_arena_could_use_its_memory_again(self, monkeypatch):
        with temporary() as path, gdrpy.connect(path) as own, own.allocate(None, 64) as one:
            monkeypatch.setenv("GDRPY_SOCKET", path)
            tensor = torch.from_dlpack(one.array((4,), "F32")).fill_(1)
            told, copies = gdrpy.ray._share([tensor])
            assert ([source.region for source in told.sources], copies) == ([one.id], [])
            with gdrpy.Arena(one):
                told, copies = gdrpy.ray._share([tensor])
            assert [source.region for source in told.sources] == [copies[0].id] != [one.id]
            assert copies[0].read(16) == one.read(16)
            del tensor


class TestTensorsOfTorchsMemory:
    def test_arrive_with_their_strides_overlaps_and_types_in_one_region(self, ray_cluster):
        found, (dtypes, strides, offsets), regions = ray_cluster(programs.copy)
        table = [[0.0, 1.0, 2.0, 3.0], ROW, [8.0, 9.0, 10.0, 11.0]]
        assert found[:3] == [table, ROW, [list(column) for column in zip(*table, strict=True)]]
        assert found[3:] == [[100 * i + 7 for i in range(10)], [0.5] * 3, [1 - 2j], []]
        kinds = ["float32"] * 3 + ["int64", "bfloat16", "complex64", "float32"]
        assert dtypes == [f"torch.{kind}" for kind in kinds]
        assert strides == [(4, 1), (1,), (1, 4), (1,), (1,), (1,), (3, 1)]
        assert offsets == [0, 16, 0]
        assert regions == 1

    def test_are_freed_with_the_last_of_reference_and_receivers(self, ray_cluster):
        assert ray_cluster(programs.free) == [1, 1, 0]

    def test_are_freed_if_no_actor_read_them(self, ray_cluster):
        assert ray_cluster(programs.free_unread) == 0

    def test_can_be_put_by_the_driver(self, ray_cluster):
        assert ray_cluster(programs.put) == ([0.0, 1.0, 2.0], 1, 0)

    def test_go_into_a_buffer_that_the_receiver_names(self, ray_cluster):
        assert ray_cluster(programs.into_buffer) == (True, [0.0, 1.0, 2.0])


class TestDeathOfAnActor:
    def test_that_receives_leaves_the_sender_its_tensor(self, ray_cluster):
        assert ray_cluster(programs.kill_receiver) == ([4.0] * 8, 1, 0)

    def test_that_sent_leaves_receivers_what_they_have(self, ray_cluster):
        assert ray_cluster(programs.kill_sender) == (ROW, 1, 0)

    def test_that_sent_ends_what_nobody_took(self, ray_cluster):
        with pytest.raises(gdrpy.Gone, match="no longer exists"):
            ray_cluster(programs.receive_from_the_dead)


class TestRefusal:
    def test_of_a_sparse_tensor_names_the_remedy(self, ray_cluster):
        with pytest.raises(TypeError, match=r"by GDRPY: it is sparse, .*: return a dense copy"):
            ray_cluster(programs.share_sparse)

    def test_of_a_tensor_in_a_detached_region_says_so(self):
        region = gdrpy.alloc(4096)
        tensor = torch.from_dlpack(region.array((4,), "F32"))
        region.detach()
        with pytest.raises(gdrpy.Detached, match=r"sharing a tensor by GDRPY: .*: attach\(\) it"):
            gdrpy.ray._share([tensor])

    def test_on_another_machine_names_what_carries_bytes_there(self, ray_cluster):
        told, row = ray_cluster(programs.send_there)
        assert re.match(
            r"receiving tensors by GDRPY: they lie at the broker at .* does not reach \(another "
            r"broker answers at .*\): between machines use another transport, such as NIXL or "
            r"GLOO, or .*_use_object_store=True",
            told,
        )
        assert row == ROW

    def test_without_a_broker_says_to_start_one(self, ray_cluster, there):
        there.stop()
        try:
            with pytest.raises(gdrpy.BrokerUnavailable, match="start one by `gdrpy serve`"):
                ray_cluster(programs.send_without_broker)
        finally:
            there.serve()


class TestReceiver:
    def test_finds_the_broker_at_its_own_path_if_the_senders_is_not_there(self, ray_cluster):
        assert ray_cluster(programs.receive_by_another_path) == [0.0, 1.0, 2.0]

    def test_finds_it_there_also_if_the_one_at_the_senders_refuses_this_user(self, monkeypatch):
        def connect(path: str) -> gdrpy.Broker:
            if path == "/refuses/broker.sock":
                raise gdrpy.PermissionDenied(EACCES, f"connecting to {path}: refused")
            return shared_broker(path)

        with temporary() as path:
            monkeypatch.setenv("GDRPY_SOCKET", path)
            monkeypatch.setattr(broker, "shared_broker", connect)
            transport = gdrpy.ray.Transport()
            sent = transport.extract_tensor_transport_metadata("object", [torch.arange(3.0)])
            sent.sources = [one._replace(socket="/refuses/broker.sock") for one in sent.sources]
            (tensor,) = transport.recv_multiple_tensors("object", sent, None)
            assert tensor.tolist() == [0.0, 1.0, 2.0]
            sent.sources = [one._replace(life="0" * 32) for one in sent.sources]
            with pytest.raises(gdrpy.BrokerUnavailable, match=r"reach \(.*: refused; "):
                transport.recv_multiple_tensors("object", sent, None)

    def test_gets_tensors_without_elements_on_their_device(self):
        place = gdrpy.ray._Place(None, 0, "meta", torch.float32, (0, 3), (3, 1))
        assert gdrpy.ray._tensor(place, []).is_meta
