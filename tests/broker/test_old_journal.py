"""What a broker of the first version left with its keeper is taken up by the broker of today.

The journal is as that version wrote it. Whoever changes a record so that this fails has every
upgrade lose its regions.
"""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import gdrpy
from gdrpy import _unix
from gdrpy.broker.server import keeper
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


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[BrokerProcess]:
    """A broker that finds a keeper, which has the journal and the memory of its region 1."""
    broker = BrokerProcess(tmp_path, [], {})
    path = f"{broker.socket}.keeper"
    with _unix.listen(path, 0o600, backlog=4) as listener:
        words = [sys.executable, "-m", keeper.__name__, str(listener.fileno()), "60"]
        keeping = subprocess.Popen(words, pass_fds=[listener.fileno()])
    journal = os.memfd_create("gdrpy-journal")
    os.pwrite(journal, JOURNAL, 0)
    os.ftruncate(journal, JOURNAL_SIZE)
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as old:
        old.connect(path)
        hold(old, "j7", journal)
        with gdrpy.alloc(4096, device="cpu") as region:
            region.write(b"of old")
            hold(old, "r1", region.export())
    broker.start()
    yield broker
    broker.finish()
    assert keeping.wait(20) == 0


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
