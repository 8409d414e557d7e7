"""Calls of a client that Ctrl-C ends half-way; ``tests/broker/interrupts.py`` makes longer runs."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator

import pytest

import interrupts
from gdrpy import aio
from killing import Killer
from support import open_descriptors

#: Of which calls not all bytecodes are tried, and every which one is.
STEP = 13
INTERRUPTS = 300


@pytest.fixture(scope="module")
def client() -> Iterator[interrupts.Client]:
    """A client, and its broker."""
    with interrupts.client_of_its_own() as made:
        yield made


class TestInterruptedCall:
    @pytest.mark.parametrize("name", interrupts.CALLS)
    def test_leaves_nothing_behind_at_any_bytecode(self, client, name):
        tried = interrupts.at_every_bytecode(client, name, 1 if name == "get_gpu" else STEP)
        assert tried > 100
        assert client.leaks == []

    def test_leaves_nothing_behind_at_any_system_call(self, tmp_path):
        killer = Killer(tmp_path, signal.SIGALRM)
        done = subprocess.run(
            [sys.executable, interrupts.__file__, "--steps"],
            env=os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)} | killer.environment,
            stdout=subprocess.PIPE,
            check=True,
        )
        report = json.loads(done.stdout)
        assert report["leaks"] == []
        assert report["steps"].keys() == interrupts.CALLS.keys()
        assert min(report["steps"].values()) >= 4
        assert report["steps"]["resume_get"] > report["steps"]["get"] + 10

    def test_leaves_nothing_behind_at_any_moment(self):
        report = interrupts.run(INTERRUPTS, seed=3)
        assert report["interrupts"] >= INTERRUPTS
        assert report["leaks"] == 0


class TestCancelledCall:
    """A task that is cancelled after so many steps of its event loop."""

    @pytest.mark.parametrize("name", ["get", "get_many", "allocate", "watch"])
    def test_leaves_nothing_behind_at_any_step(self, broker, name):
        async def ask(client):
            if name == "get":
                (await client.get("a")).close()
            elif name == "get_many":
                for region in await client.get_many(["a"] * 200):
                    region.close()
            elif name == "allocate":
                (await client.allocate(None, 4096, device="cpu")).close()
            else:
                async with client.watch() as events:
                    await client.chmod("a", 0o600)
                    async with asyncio.timeout(0):
                        await anext(events)

        async def cancelled_after(client, steps):
            task = asyncio.create_task(ask(client))
            for _ in range(steps):
                await asyncio.sleep(0)
            task.cancel()
            with contextlib.suppress(asyncio.CancelledError, TimeoutError):
                await task

        async def main():
            async with await aio.connect(broker.path) as client:
                held = await client.allocate("a", 4096, device="cpu")
                await cancelled_after(client, 100)
                before = sorted(open_descriptors().values())
                for steps in range(60):
                    await cancelled_after(client, steps)
                    await client.stat("a")
                    gc.collect()
                    after = sorted(open_descriptors().values())
                    assert len(after) == len(before)
                assert not held._lease.lost
                await client.stat("a")
                with broker.client() as other:
                    assert other.ok("status")["leases"] == 1

        asyncio.run(main())
