"""What a broker left with its keeper is taken up by the broker of today.

One journal is as the first version wrote it. Whoever changes a record so that this fails has every
upgrade lose its regions.
"""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

import gdrpy
from gdrpy import cuda
from gdrpy.broker import unix as _unix
from gdrpy.broker.server import keeper, records
from gdrpy.broker.server.journal import Journal
from serving import BrokerProcess

#: Every kind of record: a region published, changed, sealed and digested, and one that is gone.
JOURNAL = bytes.fromhex(
    "4744524a07000000010000000000000025000000e4239eb39300d92030303131323233333434353536363737"
    "383839396161626263636464656566660429000000893447859b0101a57461626c6506cd1000ffcdd431cdd4"
    "31cd01a4c40f81a26279aa616e206f6c64206f6e650004000000ef4429e3930201011a0000008313b7b99b01"
    "02a4676f6e6506cd1000ffcdd431cdd431cd0180c4018000040000002c1704c893020201030000006387f5c4"
    "92030217000000694dc49a940601cd0180c40f81a26279aa616e206f6c64206f6e650d000000e423c4479707"
    "03ce000f423f010000910006000000ab97a86e95090301c2c204000000d5770cdf930a0301030000003e6e06"
    "50920803030000001e40bd12920401450000001e69c7fe930501d94062626262626262626262626262626262"
    "6262626262626262626262626262626262626262626262626262626262626262626262626262626262626262"
    "62626262"
)
JOURNAL_SIZE = 1 << 20


def hold(keeping: socket.socket, key: str, fd: int) -> None:
    """Have the keeper hold a descriptor."""
    _unix.send(keeping, keeper.HOLD + key.encode(), [fd])
    os.close(fd)


@contextmanager
def taken_up(folder: Path, journal: bytes, region: gdrpy.Region) -> Iterator[BrokerProcess]:
    """A broker on two GPUs that finds a keeper, which has a journal and the memory of region 1."""
    broker = BrokerProcess(folder, [], {"GDRPY_SIM_DEVICES": "2"})
    path = f"{broker.socket}.keeper"
    with _unix.listen(path, 0o600, backlog=4) as listener:
        words = [sys.executable, "-m", keeper.__name__, path, "60", str(listener.fileno())]
        keeping = subprocess.Popen(words, pass_fds=[listener.fileno()])
    held = os.memfd_create("gdrpy-journal")
    os.pwrite(held, journal, 0)
    os.ftruncate(held, JOURNAL_SIZE)
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as old:
        old.connect(path)
        hold(old, "j7", held)
        hold(old, "r1", region.export())
    region.close()
    broker.start()
    yield broker
    broker.finish()
    assert keeping.wait(20) == 0


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[BrokerProcess]:
    """A broker that takes up what one of the first version left."""
    region = gdrpy.alloc(4096, device="cpu")
    region.write(b"of old")
    with taken_up(tmp_path, JOURNAL, region) as broker:
        yield broker


class TestJournalOfTheFirstVersion:
    def test_is_taken_up(self, broker: BrokerProcess) -> None:
        assert broker.ready["recovered"] == 1
        with gdrpy.connect(broker.socket) as client:
            (region,) = client.list()
            told = client.stat("table")
            with client.get("table", gpu=False) as found:
                assert (found.read(), found.sealed, found.digest()) == (b"of old", True, "b" * 64)
        assert (region.name, told.version, told.uid, told.mode) == ("table", 1, 54321, 0o600)
        assert told.metadata == {"by": "an old one"}
        assert told.holders == ()


class TestBrokerThatSeesTheGpusInAnotherOrder:
    @pytest.fixture
    def broker(self, tmp_path: Path) -> Iterator[BrokerProcess]:
        """A broker that takes up a region of GPU 0, which was number 1 to the broker before."""
        region = gdrpy.alloc(4096, gpu=False)
        number, size, owner = 1, region.allocation_size, (os.getuid(), os.getgid())
        written = Journal.begin(
            7,
            [
                records.encode(records.Life("00" * 16, 9)),
                records.encode(
                    records.Made(
                        *(number, "kept", 4096, size, 1, *owner, 0o600, b""),
                        uuid=cuda.uuid(0),
                    )
                ),
                records.encode(records.Published(number, 1)),
            ],
        )
        journal = os.pread(written.fd, JOURNAL_SIZE, 0)
        written.close()
        with taken_up(tmp_path, journal, region) as broker:
            yield broker

    def test_counts_and_finds_a_region_on_the_gpu_that_it_lies_on(
        self, broker: BrokerProcess
    ) -> None:
        with gdrpy.connect(broker.socket) as client:
            status, uuid = client.status(), cuda.uuid(0)
            assert status["used"] == {"0": 2 << 20, "1": 0, "-1": 0}
            assert status["users"] == {f"0/{os.getuid()}": 2 << 20}
            assert status["uuids"]["0"] == uuid
            told = client.stat("kept")
            assert (told.device, told.uuid) == (0, uuid)
            client.allocate("kept", 4096, uuid).close()
            client.delete("kept")
            assert client.status()["used"] == {"0": 0, "1": 0, "-1": 0}
