"""CUDA tensors in pools and regions go through torch's queues by reference."""

from __future__ import annotations

import gc
import threading
import time
import weakref
from collections.abc import Iterator
from typing import Any

import pytest

import gdrpy
import tensorchildren as children
from gdrpy.broker import temporary

pytestmark = pytest.mark.gpu

MIB = 1 << 20


@pytest.fixture
def worker(torch) -> Iterator[children.Worker]:
    with gdrpy.torch.install_reducers():
        made = children.Worker()
        yield made
        made.close()


@pytest.fixture(params=["own", "anonymous"])
def region(request: pytest.FixtureRequest) -> Iterator[gdrpy.Region]:
    if request.param == "own":
        yield gdrpy.alloc(128 * MIB)
        return
    with temporary() as path, gdrpy.connect(path) as broker:
        yield broker.allocate(None, 128 * MIB)


@pytest.fixture
def pool(torch, region) -> gdrpy.torch.Pool:
    return gdrpy.torch.Pool(region)


def dropped(tensor: Any) -> threading.Event:
    """What is set when nothing keeps a tensor's storage any more."""
    event = threading.Event()
    weakref.finalize(tensor.untyped_storage(), event.set)
    return event


class TestTensorOfAPool:
    def test_is_the_same_memory_in_the_receiver(self, torch, worker, pool):
        with pool.use():
            tensor = torch.arange(4.0, device="cuda")
        assert worker.ask(children.add, tensor) == [0, 1, 2, 3]
        assert tensor.tolist() == [1, 2, 3, 4]
        came = worker.ask(children.identity, tensor[1:])
        assert came.untyped_storage()._cdata == tensor.untyped_storage()._cdata

    def test_lies_there_beside_others_of_the_region(self, torch, worker, pool):
        with pool.use():
            one, two = torch.zeros(MIB, device="cuda"), torch.zeros(5, device="cuda")
        offset = two.data_ptr() - one.data_ptr()
        assert worker.ask(children.place, one, two, one[7:]) == [
            ("cuda:0", 0),
            ("cuda:0", offset),
            ("cuda:0", 28),
        ]

    def test_keeps_its_block_until_the_receiver_drops_it(self, torch, worker, pool):
        with pool.use():
            tensor = torch.ones(100 * MIB, dtype=torch.uint8, device="cuda")
        gone = dropped(tensor)
        worker.ask(children.keep, tensor)
        del tensor
        gc.collect()
        with pool.use(), pytest.raises(torch.OutOfMemoryError):
            torch.empty(100 * MIB, dtype=torch.uint8, device="cuda")
        worker.ask(children.drop)
        assert gone.wait(60)
        with pool.use():
            torch.empty(100 * MIB, dtype=torch.uint8, device="cuda")

    def test_has_its_block_back_when_the_receiver_is_killed(self, torch, worker, pool):
        with pool.use():
            tensor = torch.ones(100 * MIB, dtype=torch.uint8, device="cuda")
        gone = dropped(tensor)
        worker.ask(children.keep, tensor)
        del tensor
        worker.kill()
        assert gone.wait(60)

    def test_arrives_when_the_work_queued_on_it_is_done(self, torch, worker, pool):
        with pool.use():
            tensor = torch.zeros(4, device="cuda")
        torch.cuda._sleep(children.CYCLES)
        tensor.fill_(5)
        assert worker.ask(children.add, tensor) == [5] * 4

    def test_is_kept_until_the_receivers_gpu_is_done_with_it(self, torch, worker, pool, region):
        with pool.use():
            tensor = torch.zeros(4, device="cuda")
        gone, offset = dropped(tensor), tensor.data_ptr() - region.ptr
        worker.ask(children.fill_later, tensor)
        del tensor
        assert gone.wait(60)
        assert region.read(16, offset) == bytes([0, 0, 16, 65] * 4)  # 9.0

    def test_goes_with_an_event(self, torch, worker, pool):
        with pool.use():
            tensor = torch.ones(4, device="cuda")
        event = torch.cuda.Event(interprocess=True)
        torch.cuda._sleep(children.CYCLES)
        tensor.add_(1)
        event.record()
        assert worker.ask(children.double_after, event, tensor) == [4] * 4


class TestTensorOfARegion:
    def test_keeps_the_memory_that_nobody_else_holds(self, torch, worker):
        free = torch.cuda.mem_get_info()[0]
        region = gdrpy.alloc(256 * MIB)
        tensor = torch.from_dlpack(region.array(4, "F32"))
        tensor.fill_(3)
        worker.ask(children.keep, tensor)
        del tensor, region
        gc.collect()
        gdrpy.torch.reducers._outboxes.collect()
        assert torch.cuda.mem_get_info()[0] < free - 200 * MIB
        worker.kill()
        deadline = time.monotonic() + 20  # no event tells of the end of another process's locks
        while torch.cuda.mem_get_info()[0] < free - 100 * MIB and time.monotonic() < deadline:
            time.sleep(0.001)
        assert torch.cuda.mem_get_info()[0] > free - 100 * MIB


class TestOtherCudaTensors:
    def test_are_left_to_torch(self, torch, worker):
        from torch.multiprocessing import reductions

        tensor = torch.arange(4.0, device="cuda")
        assert reductions.reduce_tensor(tensor)[0] is reductions.rebuild_cuda_tensor
        assert reductions.reduce_tensor(torch.empty(0, device="cuda"))[0] is (
            reductions.rebuild_cuda_tensor
        )
        assert worker.ask(children.add, tensor) == [0, 1, 2, 3]
        assert tensor.tolist() == [1, 2, 3, 4]
