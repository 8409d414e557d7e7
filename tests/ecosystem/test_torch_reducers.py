"""Tensors in gdrpy's memory go through torch's queues by reference, and are kept while in use."""

from __future__ import annotations

import gc
import os
import pickle
import re
import subprocess
import sys
import threading
import weakref
from collections.abc import Iterator
from multiprocessing import resource_sharer
from multiprocessing.reduction import ForkingPickler
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import multiprocessing
from torch.multiprocessing import reductions

import gdrpy
import gdrpy.torch
import tensorchildren as children
from gdrpy.broker import temporary
from gdrpy.torch.holds import Outbox, Watcher

MIB = 1 << 20
NOBODY = 65534


@pytest.fixture(scope="module")
def worker() -> Iterator[children.Worker]:
    made = children.Worker()
    yield made
    made.close()


@pytest.fixture
def other() -> Iterator[children.Worker]:
    """A process of the test alone, which may be killed."""
    made = children.Worker()
    yield made
    made.close()


@pytest.fixture(autouse=True)
def reducers() -> Iterator[gdrpy.torch.Reducers]:
    with gdrpy.torch.install_reducers() as installed:
        yield installed
        installed.discard()  # what a test did not receive


#: Fewer, for tests that start processes, which takes seconds.
FEWER = pytest.mark.parametrize("region", ["own", "anonymous"], indirect=True)


@pytest.fixture(params=["own", "named", "anonymous"])
def region(request: pytest.FixtureRequest, broker: gdrpy.Broker) -> gdrpy.Region:
    if request.param == "own":
        return gdrpy.alloc(MIB)
    return broker.allocate("kv" if request.param == "named" else None, MIB)


def tensor_in(region: gdrpy.Region, *shape: int, offset: int = 64) -> torch.Tensor:
    """Numbers from 0 on, in a region."""
    tensor = torch.from_dlpack(region.array(shape, "F32", offset))
    return tensor.copy_(torch.arange(tensor.numel()).reshape(shape))


def dropped(tensor: torch.Tensor) -> threading.Event:
    """What is set when nothing keeps a tensor's storage any more."""
    event = threading.Event()
    weakref.finalize(tensor.untyped_storage(), event.set)
    return event


def words(error: Any, kind: type[Exception]) -> str:
    assert type(error) is kind, error
    return str(error)


class TestTensor:
    def test_is_the_same_memory_in_the_receiver(self, worker, region):
        tensor = tensor_in(region, 2, 2)
        assert worker.ask(children.add, tensor) == [[0, 1], [2, 3]]
        assert tensor.tolist() == [[1, 2], [3, 4]]
        region.write(bytes(16), 64)
        assert worker.ask(children.add, tensor) == [[0, 0], [0, 0]]

    def test_that_was_made_by_the_receiver_comes_by_reference_too(self, worker, region):
        tensor = tensor_in(region, 3)
        worker.ask(children.keep, tensor)
        del tensor
        came = worker.ask(children.again)
        region.write(bytes(12), 64)
        assert came.tolist() == [0, 0, 0]
        del came
        assert worker.ask(children.dropped) == 0

    def test_that_comes_back_has_the_storage_that_it_had(self, worker, region):
        tensor = tensor_in(region, 4)
        came = worker.ask(children.identity, tensor[1:3])
        assert came.untyped_storage()._cdata == tensor.untyped_storage()._cdata
        assert came.tolist() == [1, 2]

    def test_shares_its_storage_and_one_mapping_with_others(self, worker, region):
        one, two = tensor_in(region, 5, 5), tensor_in(region, 3, offset=4096)
        assert worker.ask(children.dropped) == 0
        assert worker.ask(children.storages, one, one[2], one[:, 1], two) == (2, 1)
        worker.ask(children.keep, one)
        assert worker.ask(children.storages, one.t(), two) == (2, 1)
        assert worker.ask(children.dropped) == 0

    def test_keeps_its_region_when_it_is_dropped(self, worker, region, request):
        tensor = tensor_in(region, 3)
        if not isinstance(region, gdrpy.BrokerRegion):
            del region
            request.node.funcargs.clear()
        gc.collect()
        assert worker.ask(children.add, tensor) == [0, 1, 2]
        assert tensor.tolist() == [1, 2, 3]

    def test_of_any_kind_arrives_as_it_was(self, worker, region):
        x = tensor_in(region, 4, 4)
        tensors = [
            x.t(),
            x[1:, 2:],
            x[::2, 1::2],
            x[0, 0],
            x[:0],
            x[0].expand(3, 4),
            x.unfold(0, 2, 1),
            x.view(torch.int32),
            x.view(torch.bfloat16),
            x.view(torch.float8_e4m3fn),
            x.view(torch.bool),
            x.view(torch.complex64),
            x.view(torch.complex64).conj(),
            x.view(torch.complex64).conj().imag,
            x[1].requires_grad_(),
            torch.nn.Parameter(x[1]),
            torch.nn.Parameter(x.view(torch.int64), requires_grad=False),
        ]
        expected = [children.look(tensor) for tensor in tensors]
        assert worker.ask(children.looks, *tensors) == expected
        for tensor, came in zip(tensors, worker.ask(children.identity, *tensors), strict=True):
            assert type(came) is type(tensor)
            assert children.look(came) == children.look(tensor)

    def test_of_a_read_only_region_is_read_only_there(self, worker, broker):
        assert worker.ask(children.dropped) == 0
        with broker.put("sealed", torch.arange(3.0), seal=True) as sealed:
            tensor = torch.from_dlpack(sealed)
            assert worker.ask(children.storages, tensor) == (1, 1)
            assert worker.ask(children.guarded, tensor)
            fd = sealed.export()
            region = gdrpy.Region.from_fd(fd, readonly=True)
            os.close(fd)
            again = torch.from_dlpack(region.array(3, "F32"))
            assert worker.ask(children.add, again[:0]) == []
            assert worker.ask(children.guarded, again)
            assert not worker.ask(children.guarded, tensor_in(gdrpy.alloc(MIB), 3))
            del tensor, again
            wait_until_given_back()

    def test_of_memory_that_was_replaced_lies_in_the_new_one(self, worker):
        region = gdrpy.alloc(MIB)
        tensor = tensor_in(region, 3)
        worker.ask(children.keep, tensor)
        arena = gdrpy.Arena(region)
        arena.sleep(keep=None)
        arena.wake()
        tensor.fill_(9)
        assert worker.ask(children.add, tensor) == [9, 9, 9]
        assert tensor.tolist() == [10, 10, 10]
        assert worker.ask(children.again).tolist() == [0, 1, 2]
        worker.ask(children.drop)

    def test_of_a_newer_version_lies_in_that(self, worker, broker):
        with broker.put("weights", torch.arange(3.0)) as region:
            tensor = torch.from_dlpack(region)
            worker.ask(children.keep, tensor)
            region.detach()
            broker.put("weights", torch.full((3,), 7.0)).close()
            region.attach(newer=True)
            assert worker.ask(children.add, tensor) == [7, 7, 7]
            assert worker.ask(children.again).tolist() == [0, 1, 2]
            worker.ask(children.drop)
            del tensor
            wait_until_given_back()


def settle() -> None:
    """Have everything dropped that was received."""
    gc.collect()
    gdrpy.torch.reducers._outboxes.collect()


def wait_until_given_back() -> None:
    """Wait until nothing is kept for other processes.

    The thread that gives it back ends then. settle() may return while that thread still does so,
    here or in the other process.
    """
    gc.collect()
    watcher = gdrpy.torch.reducers._watcher
    watcher.wake()
    if (thread := watcher._thread) is not None:
        thread.join(30)
        assert not thread.is_alive()


class TestAutograd:
    def test_is_left_behind_but_for_the_wish(self, worker, region):
        tensor = tensor_in(region, 2).requires_grad_()
        tensor.register_hook(torch.utils.hooks.unserializable_hook(lambda *_: None))
        tensor.grad = torch.zeros(2)
        assert worker.ask(children.learn, tensor) == ("Tensor", True, False)
        parameter = torch.nn.Parameter(tensor_in(region, 2))
        assert worker.ask(children.learn, parameter) == ("Parameter", True, False)
        assert tensor.grad.tolist() == [0, 0]

    def test_of_a_result_is_refused_as_by_torch(self, region):
        tensor = tensor_in(region, 2).requires_grad_().view(2)
        with pytest.raises(RuntimeError, match="refusing to serialize non-leaf tensor which req"):
            ForkingPickler.dumps(tensor)

    def test_hooks_are_warned_of(self, worker, region):
        tensor = tensor_in(region, 2).requires_grad_()
        tensor.register_hook(lambda gradient: gradient)
        with pytest.warns(UserWarning, match="hook"):
            worker.ask(children.learn, tensor)


class TestThingsMadeOfTensors:
    def test_are_sent_with_their_parts(self, worker, region):
        values, places = tensor_in(region, 3), tensor_in(region, 3, offset=256).long()
        sparse = torch.sparse_coo_tensor(places[None], values, (3,))
        came = worker.ask(children.identity, sparse)
        assert came.to_dense().tolist() == [0, 1, 2]
        assert came._values().data_ptr() == values.data_ptr()
        nested = torch.nested.nested_tensor_from_jagged(
            tensor_in(region, 4, 2), torch.tensor([0, 1, 4])
        )
        assert worker.ask(children.identity, nested.values()).tolist() == nested.values().tolist()

    def test_of_a_subclass_keep_their_attributes(self, worker, region):
        tensor = tensor_in(region, 3).as_subclass(children.Noted)
        tensor.note = 5
        assert worker.ask(children.note, tensor) == ("Noted", 5, [0, 1, 2])
        came = worker.ask(children.identity, tensor)
        came += 1
        assert tensor.tolist() == [1, 2, 3]

    def test_storages_are_sent_by_reference(self, worker, region):
        tensor = tensor_in(region, 3)
        storage, typed, came = worker.ask(
            children.identity, tensor.untyped_storage(), tensor.storage(), tensor
        )
        assert storage._cdata == tensor.untyped_storage()._cdata == typed._untyped_storage._cdata
        assert came.data_ptr() == tensor.data_ptr()

    def test_modules_share_their_weights(self, worker, region):
        module = torch.nn.Linear(2, 2)
        module.weight = torch.nn.Parameter(tensor_in(region, 2, 2))
        came = worker.ask(children.identity, module)
        assert came.weight.data_ptr() == module.weight.data_ptr()
        assert came.bias.tolist() == module.bias.tolist()


class TestWays:
    @FEWER
    @pytest.mark.parametrize("method", ["spawn", "forkserver"])
    def test_arguments_of_processes(self, region, method):
        context = multiprocessing.get_context(method)
        receiver, sender = context.Pipe(duplex=False)
        tensor = tensor_in(region, 3)
        process = context.Process(target=children.told, args=(tensor, sender))
        process.start()
        assert receiver.recv() == [0, 1, 2]
        process.join(30)
        assert tensor.tolist() == [1, 2, 3]
        resource_sharer.stop()

    @FEWER
    def test_queues_and_pools(self, region):
        context = multiprocessing.get_context("spawn")
        tensors = [tensor_in(region, 2, 2, offset=64 * number) for number in range(4)]
        with context.Pool(2) as pool:
            results = pool.map(children.increase, tensors, 1)
        assert [one.tolist() for one in results] == [[[5, 5], [5, 5]]] * 4
        assert [one.tolist() for one in tensors] == [[[4, 4], [4, 4]]] * 4
        queue = context.Queue()
        queue.put(tensors[0])
        assert queue.get().untyped_storage()._cdata == tensors[0].untyped_storage()._cdata
        queue.close()
        queue.join_thread()
        resource_sharer.stop()

    @FEWER
    def test_a_fork_is_told_that_cuda_does_not_survive_it(self, region):
        context = multiprocessing.get_context("fork")
        ours, theirs = context.Pipe()
        process = context.Process(target=children.say, args=(theirs, theirs))
        process.start()
        ours.send(tensor_in(region, 3))
        assert "fork" in ours.recv()
        process.join(30)
        resource_sharer.stop()

    def test_any_pickle_carries_what_lies_in_a_brokers_region(self, broker):
        with broker.allocate("kv", MIB) as region:
            tensor = tensor_in(region, 3)
            rebuild, arguments = pickle.loads(pickle.dumps(reductions.reduce_tensor(tensor)))
            assert rebuild(*arguments).untyped_storage()._cdata == tensor.untyped_storage()._cdata
            del tensor
            wait_until_given_back()

    def test_no_other_pickle_carries_the_rest(self):
        tensor = tensor_in(gdrpy.alloc(MIB), 3)
        with pytest.raises(TypeError, match="cannot be copied or pickled: send it by multiproc"):
            pickle.dumps(reductions.reduce_tensor(tensor))


class TestSender:
    def test_keeps_a_tensor_until_its_receiver_drops_it(self, worker, region):
        tensor = tensor_in(region, 3)
        gone = dropped(tensor)
        worker.ask(children.keep, tensor)
        del tensor
        settle()
        assert not gone.is_set()
        with pytest.raises(BufferError, match="still use the memory"):
            region.close()
        worker.ask(children.drop)
        assert gone.wait(30)
        region.close()

    def test_keeps_a_tensor_until_the_receivers_gpu_is_done_with_it(self, worker, region):
        tensor = tensor_in(region, 3)
        gone = dropped(tensor)
        with gdrpy.alloc(4096) as ringing:
            bell = ringing.flag()
            bell.set(0)
            worker.ask(children.queue, tensor, bell)
            del tensor
            settle()
            assert not gone.is_set()
            bell.set(1)
            assert gone.wait(30)
            assert region.read(12, 64) == bytes([9] * 12)
            worker.ask(children.drop)

    def test_keeps_more_tensors_than_a_file_has_slots_for(self, worker):
        region = gdrpy.alloc(MIB)
        tensors = [tensor_in(region, 1, offset=64 * number) for number in range(4100)]
        gone = [dropped(tensor) for tensor in tensors]
        worker.ask(children.keep, *tensors)
        del tensors
        settle()
        assert not any(event.is_set() for event in gone)
        worker.ask(children.drop)
        assert all(event.wait(30) for event in gone)

    def test_keeps_its_tensor_if_the_receiver_has_the_same_place_from_others(
        self, worker, other, broker
    ):
        region = broker.allocate(None, MIB)
        own = tensor_in(region, 3)
        ForkingPickler.dumps(own)
        one, two = worker.ask(children.make, region), other.ask(children.make, region)
        assert one.untyped_storage()._cdata == two.untyped_storage()._cdata
        assert one.untyped_storage()._cdata != own.untyped_storage()._cdata
        assert (worker.ask(children.sent), other.ask(children.sent)) == (1, 1)
        del one, two
        settle()
        assert (worker.ask(children.sent), other.ask(children.sent)) == (0, 0)

    def test_drops_a_tensor_without_the_lock_of_the_region_that_is_closed(
        self, worker, monkeypatch
    ):
        watcher = gdrpy.torch.reducers._watcher
        monkeypatch.setattr(watcher, "_look", lambda: False)
        if watcher._thread is not None:
            watcher._thread.join(30)
        closed, busy = gdrpy.alloc(MIB), gdrpy.alloc(MIB)
        tensor = tensor_in(busy, 3)
        gone = dropped(tensor)
        worker.ask(children.add, tensor)
        del tensor
        with busy._lock:  # as in its close()
            thread = threading.Thread(target=closed.close)
            thread.start()
            assert gone.wait(30)
            assert closed._lock.acquire(timeout=30)
            closed._lock.release()
        thread.join(30)
        busy.close()

    def test_keeps_a_tensor_that_is_on_its_way(self, region):
        tensor = tensor_in(region, 3)
        gone = dropped(tensor)
        message = ForkingPickler.dumps(tensor)
        del tensor
        settle()
        assert not gone.is_set()
        came = pickle.loads(message)
        assert came.tolist() == [0, 1, 2]
        del came
        assert gone.wait(30)
        with pytest.raises(gdrpy.Gone, match="another process has received it"):
            pickle.loads(message)
        resource_sharer.stop()

    def test_is_told_that_another_process_keeps_the_region_from_closing(self, worker):
        region = gdrpy.alloc(MIB)
        tensor = tensor_in(region, 3)
        gone = dropped(tensor)
        worker.ask(children.keep, tensor)
        del tensor
        with pytest.raises(BufferError) as refused:
            region.close()
        assert str(refused.value) == (
            "Region.close: views or running copies still use the memory (1 of the GPU view, such "
            "as tensors by DLPack and arenas, or asynchronous copies); delete the arrays made from "
            "it first, and wait until the other processes have dropped the tensors that this one "
            "has sent (1): discard() of install_reducers() drops those that were not received yet"
        )
        worker.ask(children.drop)
        assert gone.wait(30)
        assert region._memory.sent == 0

    def test_discards_what_nobody_will_receive(self, reducers, worker, region):
        lost, kept = tensor_in(region, 3), tensor_in(region, 3, offset=4096)
        gone, stays = dropped(lost), dropped(kept)
        worker.ask(children.keep, kept)
        message = ForkingPickler.dumps(lost)
        del lost, kept
        assert (reducers.discard(), reducers.discard()) == (1, 0)
        assert gone.is_set()
        assert not stays.is_set()
        with pytest.raises(gdrpy.Gone, match="or the sender discarded it"):
            pickle.loads(message)
        worker.ask(children.drop)
        assert stays.wait(30)

    @FEWER
    def test_has_a_tensor_back_when_its_receiver_is_killed(self, other, region):
        tensor = tensor_in(region, 3)
        gone = dropped(tensor)
        other.ask(children.keep, tensor)
        del tensor
        settle()
        assert not gone.is_set()
        other.kill()
        assert gone.wait(30)

    @FEWER
    def test_keeps_a_tensor_for_a_third_process_when_the_second_is_killed(
        self, worker, other, region
    ):
        tensor = tensor_in(region, 3)
        gone = dropped(tensor)
        came = other.ask(children.identity, tensor)
        other.ask(children.keep, tensor)
        del tensor, came
        ours, theirs = worker.context.Pipe()
        other.ask(children.forward, theirs)
        # Its bytes, as they came, are the worker's to load.
        message = ours.recv_bytes()
        worker.ask(children.load, message)
        other.kill()
        settle()
        assert not gone.is_set()
        worker.ask(children.drop)
        assert gone.wait(30)

    @pytest.mark.parametrize("kind", ["own", "anonymous"])
    @pytest.mark.parametrize("stays", [True, False])
    def test_may_end_when_the_tensor_was_received(self, kind, stays):
        context = multiprocessing.get_context("forkserver")
        with temporary() as path, gdrpy.connect(path) as broker:
            ours, theirs = context.Pipe()
            arguments = (None if kind == "own" else path, theirs, stays)
            process = context.Process(target=children.send_one, args=arguments)
            process.start()
            theirs.close()
            if stays:
                tensor = ours.recv()
                process.kill()
                process.join(30)
                assert tensor.tolist() == [7, 7, 7]
                region, slots = (0, 0) if kind == "own" else (1, 1)
                assert broker.status()["regions"] == region + slots
                del tensor
            else:
                process.join(30)
                with pytest.raises(gdrpy.Gone, match="sender has ended.*has arrived"):
                    ours.recv()
            gc.collect()
            with broker.watch(timeout=20) as events:
                while broker.status()["regions"]:
                    next(events)


class TestWatcher:
    def test_looks_again_if_it_is_woken_while_it_ends(self):
        looks = threading.Semaphore(0)

        def look() -> bool:
            watcher._woken.clear()
            looks.release()
            return False

        class Woken(threading.Event):
            waker: threading.Thread | None = None

            def is_set(self) -> bool:
                found = super().is_set()
                if self.waker is None:
                    self.waker = threading.Thread(target=watcher.wake)
                    self.waker.start()
                    self.waker.join(0.1)  # it may have to wait until the watcher has ended
                return found

        watcher = Watcher(look)
        watcher._woken = Woken()
        watcher.wake()
        assert looks.acquire(timeout=30)
        assert looks.acquire(timeout=30)

    def test_starts_again_after_an_error(self, monkeypatch):
        looks, told = threading.Semaphore(0), threading.Event()

        def look() -> bool:
            looks.release()
            raise OSError("once")

        monkeypatch.setattr(threading, "excepthook", lambda _: told.set())
        watcher = Watcher(look)
        for _ in range(2):
            watcher.wake()
            assert looks.acquire(timeout=30)
            assert told.wait(30)
            told.clear()
            watcher._thread.join(30)


class TestElsewhere:
    def test_host_tensors_are_left_to_torch(self, worker):
        tensor = torch.zeros(3)
        worker.ask(children.add, tensor)
        assert tensor.tolist() == [1, 1, 1]
        assert tensor.is_shared()
        assert worker.ask(children.identity, torch.empty(0)).numel() == 0
        assert worker.ask(children.identity, torch.zeros(2, device="meta")).is_meta

    def test_uninstalling_restores_what_was_there(self, reducers):
        region = gdrpy.alloc(MIB)
        with gdrpy.torch.install_reducers():
            pass
        assert repr(reducers) == "<Reducers installed>"
        assert reductions.reduce_tensor(tensor_in(region, 3))[0].__name__ == "rebuild_tensor"
        ours = reductions.reduce_tensor
        reducers.uninstall()
        reducers.uninstall()
        assert repr(reducers) == "<Reducers UNINSTALLED>"
        registered = ForkingPickler._extra_reducers
        assert reductions.reduce_tensor is ours.__wrapped__ is registered[torch.Tensor]
        assert registered[torch.nn.Parameter] is ours.__wrapped__
        assert registered[torch.UntypedStorage] is reductions.reduce_storage
        tensor = tensor_in(region, 3)
        assert ours(tensor)[0] is reductions.rebuild_tensor

    def test_uninstalling_closes_nothing_that_another_thread_keeps_a_tensor_in(
        self, reducers, monkeypatch
    ):
        region = gdrpy.alloc(MIB)
        tensor = tensor_in(region, 3)
        pickle.loads(ForkingPickler.dumps(tensor))
        places, close = [], Outbox.close

        def keep_and_close(box: Outbox) -> None:
            places.append(box.keep(tensor.untyped_storage(), region._memory))
            close(box)

        monkeypatch.setattr(Outbox, "close", keep_and_close)
        reducers.uninstall()
        assert set(places) == {None}
        resource_sharer.stop()

    def test_frameworks_that_replace_torchs_reducer_keep_theirs(self, reducers, monkeypatch):
        seen = []

        def theirs(tensor: torch.Tensor) -> Any:
            seen.append(tensor)
            return ours(tensor)

        ours = reductions.reduce_tensor
        monkeypatch.setattr(reductions, "reduce_tensor", theirs)
        reductions.init_reductions()
        tensor = tensor_in(gdrpy.alloc(MIB), 3)
        message = ForkingPickler.dumps(tensor)
        assert pickle.loads(message).data_ptr() == tensor.data_ptr()
        reducers.uninstall()
        assert ForkingPickler._extra_reducers[torch.Tensor] is theirs
        assert theirs(tensor)[0] is reductions.rebuild_tensor
        assert len(seen) == 2
        monkeypatch.undo()
        reductions.reduce_tensor = ours.__wrapped__
        reductions.init_reductions()
        resource_sharer.stop()


class TestErrors:
    def test_a_closed_region(self, region):
        with pytest.warns(gdrpy.StillInUse), region:
            tensor = tensor_in(region, 3)
        with pytest.raises(gdrpy.Closed, match="sending a tensor: the region .* was closed: keep"):
            ForkingPickler.dumps(tensor)

    def test_a_detached_region(self):
        region = gdrpy.alloc(MIB)
        tensor = tensor_in(region, 3)
        region.detach()
        with pytest.raises(gdrpy.Detached, match="sending a tensor: .*attach"):
            ForkingPickler.dumps(tensor)
        del tensor

    def test_no_broker_at_a_socket(self, tmp_path):
        with pytest.raises(gdrpy.BrokerUnavailable, match="no broker answers at"):
            gdrpy.torch.install_reducers(tmp_path / "none")
        with pytest.raises(TypeError, match="install_reducers: socket must be a path, not 5"):
            gdrpy.torch.install_reducers(5)


class TestOtherUsers:
    @pytest.fixture
    def nobody(self, other) -> children.Worker:
        if os.geteuid() != 0:
            pytest.skip("being other users needs CAP_SETUID")
        other.ask(children.add, tensor_in(gdrpy.alloc(MIB), 1))  # which imports all it needs
        other.ask(children.become, NOBODY)
        return other

    @pytest.fixture
    def public(self) -> Iterator[str]:
        """The socket of a broker that takes everybody, and that this process has not used."""
        with temporary() as path:
            Path(path).parent.chmod(0o755)
            Path(path).chmod(0o666)
            yield path

    def test_are_refused_a_tensor_of_a_region_that_is_not_theirs(self, nobody, public):
        with gdrpy.connect(public) as broker:
            error = nobody.ask(children.add, tensor_in(broker.allocate(None, MIB), 3))
            assert "or is another user's, whose regions" in words(error, gdrpy.Gone)
            assert "gdrpy.torch.share(..., mode=0o660)" in str(error)

    def test_are_refused_a_tensor_of_a_process(self, nobody):
        error = nobody.ask(children.add, tensor_in(gdrpy.alloc(MIB), 3))
        assert "the sender runs as another user: share a" in words(error, gdrpy.PermissionDenied)

    def test_send_to_each_other_by_the_broker_of_a_third(self, nobody, public):
        try:
            children.become(NOBODY)
            with gdrpy.connect(public) as broker:
                region = broker.allocate(None, MIB)
                tensor = tensor_in(region, 3)
                assert nobody.ask(children.add, tensor) == [0, 1, 2]
                assert tensor.tolist() == [1, 2, 3]
                gone = dropped(tensor)
                nobody.ask(children.keep, tensor)
                nobody.ask(children.add, tensor_in(region, 2, offset=4096))
                del tensor
                settle()
                assert not gone.is_set()
                os.seteuid(0)
                nobody.kill()
                assert gone.wait(30)
        finally:
            os.seteuid(0)
            os.setegid(0)


RECEIVER = """
import pickle, sys
import gdrpy
try:
    print(pickle.loads(bytes.fromhex(sys.argv[1])).tolist())
except gdrpy.Error as error:
    print(type(error).__name__, error)
"""

TWO_GPUS = """
import os, subprocess, sys
from multiprocessing.reduction import ForkingPickler
import torch
import gdrpy.torch
from gdrpy.broker import temporary

with temporary() as socket, gdrpy.connect(socket) as broker, gdrpy.torch.install_reducers():
    tensor = torch.from_dlpack(broker.allocate(None, 4096, 1).array(3, "F32"))
    tensor.fill_(3)
    for devices in "2", "1":
        message = bytes(ForkingPickler.dumps(tensor)).hex()
        environment = os.environ | {"GDRPY_SIM_DEVICES": devices}
        subprocess.run([sys.executable, "-c", sys.argv[1], message], env=environment, check=True)
"""


class TestOtherGpus:
    def test_are_found_if_the_receiver_sees_them(self):
        environment = os.environ | {"GDRPY_SIM_DEVICES": "2"}
        command = [sys.executable, "-c", TWO_GPUS, RECEIVER]
        done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
        found, refused = done.stdout.splitlines()
        assert found == "[3.0, 3.0, 3.0]"
        assert refused.startswith("NotFound ")
        words = r"the memory lies on the GPU GPU-\S+ that this process does not see: add it to"
        assert re.search(words, refused)


STRANGER = """
import pickle, sys
import gdrpy.torch

if sys.argv[1]:
    gdrpy.torch.install_reducers(sys.argv[1])
try:
    tensor = pickle.loads(bytes.fromhex(sys.stdin.readline()))
    print(tensor.tolist(), flush=True)
except Exception as error:
    print(type(error).__name__, error, flush=True)
    sys.exit()
sys.stdin.readline()
tensor += 1
"""


class TestStranger:
    """A process that has the broker's socket alone, maybe at another path."""

    def run(self, message: bytes, path: str, **environment: str) -> subprocess.Popen[str]:
        process = subprocess.Popen(
            [sys.executable, "-c", STRANGER, path],
            env=os.environ | environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        assert process.stdin is not None
        process.stdin.write(f"{message.hex()}\n")
        process.stdin.flush()
        return process

    @pytest.fixture
    def message(self, socket, tmp_path) -> Iterator[tuple[bytes, torch.Tensor]]:
        """A tensor that was sent by a process that has the socket at another path."""
        mine = tmp_path / "mine.sock"
        mine.symlink_to(socket)
        with gdrpy.connect(str(mine)) as broker:
            tensor = tensor_in(broker.allocate(None, MIB), 3)
            sent = bytes(ForkingPickler.dumps(tensor))
            mine.unlink()
            yield sent, tensor

    @pytest.mark.parametrize("way", ["call", "variable"])
    def test_gets_the_tensor_where_it_has_the_socket(self, message, socket, tmp_path, way):
        sent, tensor = message
        yours = tmp_path / "yours.sock"
        yours.symlink_to(socket)
        told = (str(yours), {}) if way == "call" else ("", {"GDRPY_SOCKET": str(yours)})
        with self.run(sent, told[0], **told[1]) as process:
            assert process.stdout.readline() == "[0.0, 1.0, 2.0]\n"
            process.communicate("\n")
        assert tensor.tolist() == [1, 2, 3]

    def test_is_told_what_it_lacks(self, message, tmp_path):
        sent, _ = message
        with self.run(sent, "", GDRPY_SOCKET=str(tmp_path / "none")) as process:
            said, _ = process.communicate()
        assert "BrokerUnavailable receiving a tensor: this process does not reach" in said
        assert "say where by gdrpy.torch.install_reducers(socket)" in said
