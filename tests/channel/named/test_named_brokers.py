"""Named rings while their broker is killed or ends, and among users."""

from __future__ import annotations

import os
import tempfile
import threading
from pathlib import Path

import pytest
from ringchildren import NBYTES, SOON, Notes, kill, records, until_closed

import gdrpy
from gdrpy.channel import KernelEnd
from serving import BrokerProcess, broker_process, start_serving

__all__ = ["broker_process", "start_serving"]

#: An ordinary user; nothing else here runs as it.
USER = 54321


@pytest.fixture(autouse=True)
def memory():
    """The other modules look for leaks: here brokers come and go."""


@pytest.fixture
def serving(start_serving):
    """A broker that can be killed and started again."""
    return start_serving(GDRPY_SIM=os.environ["GDRPY_SIM"])


class TestBrokerThatIsKilled:
    def test_leaves_the_ends_together_and_the_next_one_tells_of_their_ends(
        self, serving, nursery, tmp_path
    ):
        ring = {"socket": serving.socket, "name": "ring", "notes": str(tmp_path / "notes")}
        notes = Notes(ring["notes"])
        pid = nursery.start("produce", **ring, number=1, capacity=16, many=1)
        with (
            gdrpy.connect(serving.socket, reconnect=SOON) as broker,
            KernelEnd(broker, "ring", wait=SOON) as end,
        ):
            assert end.wait(SOON)
            reader = end.reader()
            found = records(reader.pop(SOON))
            serving.kill()
            for _ in range(100):  # while there is no broker
                found += records(reader.pop(SOON))
            serving.start()
            kill(pid)
            while data := reader.pop_many(None, SOON):
                found += records(data)
            assert found == [(1, number) for number in range(len(found))]
            assert len(found) >= notes[1] > 100
            del reader
        notes.close()

    def test_while_an_end_is_killed_still_has_the_other_one_told(self, serving, nursery, tmp_path):
        with gdrpy.connect(serving.socket, reconnect=SOON) as broker:
            channel = gdrpy.Channel(NBYTES, 16, broker=broker, name="ring")
            out = str(tmp_path / "out")
            ring = {"socket": serving.socket, "name": "ring", "out": out}
            pid = nursery.start("consume", **ring, number=1)
            channel.push(bytes(NBYTES), SOON)
            channel.drain(SOON)
            serving.kill()
            kill(pid)
            serving.start()
            gone = "the kernel's end was closed, or its process has ended"
            assert gone in until_closed(lambda: channel.push(bytes(NBYTES), 0))
            channel.close()


class TestBrokerThatEnds:
    def test_closes_both_ends_once_there_is_another(self, serving):
        with gdrpy.connect(serving.socket) as broker:
            channel = gdrpy.Channel(NBYTES, 16, broker=broker, name="ring")
            end = KernelEnd(broker, "ring")
            serving.stop()
            channel.push(bytes(NBYTES), SOON)  # goes on without
            assert len(end.reader().pop(SOON)) == NBYTES
            serving.start()
            lost = "or the broker lost its state: open it again"
            assert lost in until_closed(lambda: channel.push(bytes(NBYTES), 0))
            message = "'ring' was deleted, or the broker lost its state: close this end"
            assert message in until_closed(lambda: end.wait(0.01))
            channel.close()
            end.close()


def until_said(path: str) -> str:
    """Wait for what a child writes to a file, and return it."""
    for _ in range(2000):
        if Path(path).exists() and Path(path).read_text().endswith("\n"):
            return Path(path).read_text()
        threading.Event().wait(0.01)
    raise AssertionError("it said nothing")


@pytest.mark.skipif(os.geteuid() != 0, reason="other users' processes need root")
class TestUsers:
    @pytest.fixture
    def public(self):
        """A folder that all users may enter and write to."""
        with tempfile.TemporaryDirectory() as folder:
            Path(folder).chmod(0o777)
            yield folder

    @pytest.fixture
    def broker(self, public):
        environment = {"GDRPY_SIM": os.environ["GDRPY_SIM"]}
        served = BrokerProcess(Path(public), ["--mode", "0666"], environment)
        served.start()
        with gdrpy.connect(served.socket) as made:
            yield made
        served.finish()

    def test_take_part_where_the_mode_lets_them(self, broker, nursery, public):
        ring = {"socket": broker.socket, "name": "ring", "notes": f"{public}/notes"}
        notes = Notes(ring["notes"])
        Path(ring["notes"]).chmod(0o666)
        channel = gdrpy.Channel(NBYTES, 16, broker=broker, name="ring", mode=0o666)
        found: dict[int, int] = {}
        with KernelEnd(broker, "ring") as end:
            reader = end.reader()
            for number in range(1, 11):
                pid = nursery.start(
                    "produce", **ring, number=number, capacity=16, many=3, user=USER
                )
                for _ in range(7 * number):
                    for producer, index in records(reader.pop_many(5, SOON)):
                        assert index == found.get(producer, 0)
                        found[producer] = index + 1
                kill(pid)
            channel.close()
            while data := reader.pop_many(None, SOON):
                for producer, index in records(data):
                    assert index == found.get(producer, 0)
                    found[producer] = index + 1
            assert all(found[number] >= notes[number] for number in range(1, 11))
            del reader
        notes.close()

    @pytest.mark.parametrize("name", ["ring/kernel", "ring/cpu"])
    def test_without_permission_cannot_keep_others_out(self, broker, nursery, public, name):
        ring = {"capacity": 16, "broker": broker, "name": "ring", "mode": 0o644}
        gdrpy.Link(NBYTES, **ring).close()
        said = f"{public}/said"
        nursery.start("occupy", socket=broker.socket, name=name, said=said, user=USER)
        assert "allocate: user 54321 may not write region 'ring'" in until_said(said)
        with gdrpy.Link(NBYTES, **ring) as link, KernelEnd(broker, "ring"):
            link.submit(bytes(NBYTES), SOON)

    @pytest.mark.parametrize(
        ("mode", "message"),
        [
            (0o600, "Channel: this user may not read region 'ring'; both ends read and write"),
            (0o644, "Channel: this user may not write region 'ring'; both ends read and write"),
        ],
    )
    def test_are_refused_without_permission(self, broker, nursery, public, mode, message):
        with gdrpy.Channel(NBYTES, 16, broker=broker, name="ring", mode=mode) as channel:
            said = f"{public}/said"
            nursery.start("join", socket=broker.socket, name="ring", said=said, user=USER)
            words = until_said(said)
            assert words.startswith("PermissionDenied: ")
            assert message in words
            assert "'ring/host'; ask its owner, who may call broker.chmod() with 0o666 for" in words
            channel.push(bytes(NBYTES), SOON)
            for name in ("ring", "ring/host"):
                broker.chmod(name, 0o666)
            Path(said).unlink()
            nursery.start("join", socket=broker.socket, name="ring", said=said, user=USER)
            assert until_said(said) == "it was done\n"
