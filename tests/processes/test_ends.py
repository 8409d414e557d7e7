"""Senders and receivers that end, that are strangers to each other, and that never meet."""

from __future__ import annotations

import multiprocessing
import os
import subprocess
import sys
from collections.abc import Iterator
from multiprocessing import resource_sharer, resource_tracker
from multiprocessing.connection import Listener
from typing import Any

import children
import pytest

import gdrpy
from support import open_descriptors


@pytest.fixture(autouse=True)
def descriptors() -> Iterator[None]:
    """This process has as many open at the end, once the sharer has stopped."""
    resource_tracker.ensure_running()
    resource_sharer.stop()
    before = len(open_descriptors())
    yield
    resource_sharer.stop()
    assert len(open_descriptors()) == before


class TestSenderThatHasEnded:
    def test_is_said_to_whoever_would_receive(self) -> None:
        context = multiprocessing.get_context("spawn")
        receiver, sender = context.Pipe(duplex=False)
        with receiver:
            process = context.Process(target=children.send_and_end, args=(sender,))
            process.start()
            sender.close()
            process.join(30)
            process.close()
            with pytest.raises(gdrpy.Gone, match=r"the sender has ended.*keep the"):
                receiver.recv()

    def test_leaves_what_was_received_before(self) -> None:
        context = multiprocessing.get_context("spawn")
        receiver, sender = context.Pipe()
        process = context.Process(target=children.send_and_wait, args=(sender,))
        process.start()
        sender.close()
        with receiver, receiver.recv() as region:
            process.kill()
            process.join(30)
            process.close()
            assert region.read(5) == b"hello"


class TestReceiverThatEnds:
    def test_without_taking_leaves_its_message_to_the_sharer(self) -> None:
        context = multiprocessing.get_context("spawn")
        queue: Any = context.SimpleQueue()
        with gdrpy.alloc(4096) as region:
            before = len(open_descriptors())
            queue.put(region)
            process = context.Process(target=os._exit, args=(0,))
            process.start()
            process.join(30)
            process.close()
            queue.close()
            resource_sharer.stop()
            assert len(open_descriptors()) == before - 2


STRANGER = """
import sys, multiprocessing
from multiprocessing.connection import Client
multiprocessing.current_process().authkey = sys.argv[2].encode()
with Client(sys.argv[1], authkey=b"of the connection") as connection:
    try:
        region, bell = connection.recv()
        region.write(b"world")
        bell.set(1)
        region.close()
    except Exception as error:
        connection.send(f"{type(error).__name__}: {error}")
    else:
        connection.send("done")
"""


class TestStranger:
    """A process that was not started from here, reached by Client and Listener."""

    @pytest.fixture
    def meet(self, monkeypatch: pytest.MonkeyPatch, tmp_path: Any) -> Any:
        """Send a region and its flag to a process with an authkey: the region, and its answer."""
        own = multiprocessing.current_process()
        kept = own.authkey
        own.authkey = b"shared"
        address = str(tmp_path / "listener")

        def run(authkey: str, region: gdrpy.Region) -> str:
            with (
                Listener(address, authkey=b"of the connection") as listener,
                subprocess.Popen([sys.executable, "-c", STRANGER, address, authkey]),
                listener.accept() as connection,
            ):
                connection.send((region, region.flag(64)))
                answer: str = connection.recv()
                return answer

        yield run
        resource_sharer.stop()
        own.authkey = kept

    def test_with_the_same_authkey_receives(self, meet: Any) -> None:
        with gdrpy.alloc(4096) as region:
            assert meet("shared", region) == "done"
            assert (region.read(5), region.flag(64).get()) == (b"world", 1)

    def test_with_another_authkey_is_told_to_share_one(
        self, meet: Any, capfd: pytest.CaptureFixture[str]
    ) -> None:
        with gdrpy.alloc(4096) as region:
            answer = meet("other", region)
        assert answer.startswith("PermissionDenied: ")
        assert "has another authkey: give both processes the same one" in answer


TWO_DEVICES = """
import multiprocessing
import children, gdrpy
if __name__ == "__main__":
    context = multiprocessing.get_context("spawn")
    receiver, sender = context.Pipe(duplex=False)
    regions = [gdrpy.alloc(4096, device) for device in (0, 1)]
    for region in regions:
        region.write(b"dev%d." % region.device)
    process = context.Process(target=children.devices, args=(regions, sender))
    process.start()
    print(receiver.recv())
    process.join()
"""


class TestRegionsOfTwoDevices:
    def test_are_on_theirs_there(self, tmp_path: Any) -> None:
        program = tmp_path / "program.py"
        program.write_text(TWO_DEVICES)
        done = subprocess.run(
            [sys.executable, str(program)],
            env=os.environ | {"GDRPY_SIM_DEVICES": "2", "PYTHONPATH": os.pathsep.join(sys.path)},
            capture_output=True,
            text=True,
            check=False,
        )
        assert (done.stdout, done.stderr) == ("[(0, b'dev0.'), (1, b'dev1.')]\n", "")


LATE = """
import gdrpy
region = gdrpy.alloc(4096, "cpu")
region.write(b"hello")
import multiprocessing.connection
one, other = multiprocessing.connection.Pipe()
one.send(region)
print(other.recv().read(5))
"""


class TestMultiprocessingImportedAfterwards:
    def test_sends_what_was_made_before(self) -> None:
        done = subprocess.run(
            [sys.executable, "-c", LATE], capture_output=True, text=True, check=False
        )
        assert (done.stdout, done.stderr) == ("b'hello'\n", "")
