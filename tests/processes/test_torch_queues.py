"""Regions beside torch's tensors, in torch's own queues."""

from __future__ import annotations

from multiprocessing import resource_sharer

import children
import torch
from torch import multiprocessing

import gdrpy


class TestTorchQueue:
    def test_takes_a_region_beside_a_tensor(self) -> None:
        context = multiprocessing.get_context("spawn")
        inbox, outbox = context.Queue(), context.Queue()
        process = context.Process(target=children.echo, args=(inbox, outbox))
        process.start()
        with gdrpy.alloc(4096) as region:
            region.write(b"hello")
            tensor = torch.zeros(3)
            inbox.put(("with_tensor", (region, tensor)))
            assert outbox.get(timeout=60) == (b"hello", 3.0)
            assert tensor.tolist() == [1.0, 1.0, 1.0]
        inbox.put(None)
        process.join(30)
        assert process.exitcode == 0
        resource_sharer.stop()
