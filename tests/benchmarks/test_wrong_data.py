"""A way that moves wrong bytes is found out."""

from __future__ import annotations

import json

import numpy as np
import pytest

import attach
import channel
import gdrpy
import inbox
import latency
import link
import rings
import run
import tables
import transfers
from gdrpy import Mapping, cuda
from gdrpy._core import _mapping


@pytest.fixture
def session():
    """A session with the context that run.py makes current."""
    with cuda.context(0):
        yield run.Session(0.001, True, lambda what: None)


def wrong_ways(session):
    return {one.way for one in session.measurements if one.verified is False}


class TestCorruptingWrite:
    @pytest.fixture(autouse=True)
    def _corrupt(self, monkeypatch):
        def write(self, data, offset=0):
            _mapping.Mapping.write(self, bytes(len(data)), offset)

        monkeypatch.setattr(Mapping, "write", write)

    def test_is_found_and_nobody_else_is_blamed(self, session):
        latency.run(session)
        assert wrong_ways(session) == {
            "mapping.write",
            "mapping.write, ndarray",
            "mapping.write - C routine",
            "mapping.write - empty call",
        }

    def test_fails_the_run_and_is_told(self, tmp_path, capsys):
        assert run.main(["--quick", "--only", "latency", "--output", str(tmp_path)]) == 1
        assert "WRONG DATA: latency/write/64/mapping.write" in capsys.readouterr().out
        (path,) = tmp_path.iterdir()
        assert tables.wrong_data(json.loads(path.read_text()))


class TestWriteThatDoesNothing:
    def test_is_found(self, session, monkeypatch):
        monkeypatch.setattr(Mapping, "write", lambda self, data, offset=0: None)
        latency.run(session)
        assert "mapping.write" in wrong_ways(session)


class TestCorruptingRead:
    def test_of_one_byte_is_found(self, session, monkeypatch):
        def readinto(self, buffer, offset=0):
            _mapping.Mapping.readinto(self, buffer, offset)
            buffer[-1] ^= 1

        monkeypatch.setattr(Mapping, "readinto", readinto)
        latency.run(session)
        assert {"mapping.readinto"} == {way for way in wrong_ways(session) if "-" not in way}

    def test_that_gives_old_bytes_is_found(self, session, monkeypatch):
        seen = {}

        def read(self, nbytes, offset=0):
            return seen.setdefault(nbytes, _mapping.Mapping.read(self, nbytes, offset))

        monkeypatch.setattr(Mapping, "read", read)
        latency.run(session)
        assert {"mapping.read"} == {way for way in wrong_ways(session) if "-" not in way}


class TestTornRecord:
    def test_is_found(self, session, monkeypatch):
        def push_many(self, records, timeout=None):
            torn = records.copy()
            torn[-1, -1] ^= 1
            _mapping.Channel.push_many(self, torn, timeout)

        monkeypatch.setattr(gdrpy.Channel, "push_many", push_many)
        channel.run(session)
        assert {one.verified for one in session.measurements} == {False}
        lost = {one.id: one.value for one in session.figures}[channel.LOST]
        assert lost > 0


class TestTornRecordOfAnInbox:
    def test_is_found(self, session, monkeypatch):
        def pop_many(self, limit=None, timeout=None):
            torn = bytearray(_mapping.Inbox.pop_many(self, limit, timeout))
            torn[-1] ^= 1
            return bytes(torn)

        monkeypatch.setattr(gdrpy.Inbox, "pop_many", pop_many)
        inbox.run(session)
        assert {one.verified for one in session.measurements} == {False}
        lost = {one.id: one.value for one in session.figures}[inbox.LOST]
        assert lost > 0

    def test_is_found_in_c(self, session):
        def wrong(records):
            writer.push_many(records)
            following, messages = np.zeros(512, np.uint64), np.zeros(512, np.uint64)
            return rings.take(ring, len(records), following, messages.ctypes.data)

        ring = gdrpy.Inbox(64)
        writer = ring.writer()
        records = inbox._records(0, 1)
        assert wrong(records) == 0
        records[3, 7] ^= np.uint64(1)
        records[5, 0] = 1 << 40  # a thread that does not exist: it has no message
        assert wrong(records) == 2


class TestWrongAnswer:
    def test_ends_the_module(self, session, monkeypatch):
        def call(self, record, timeout=None):
            return bytes(reversed(_mapping.Link.call(self, record, timeout)))

        monkeypatch.setattr(gdrpy.Link, "call", call)
        with pytest.raises(rings.Lost, match="call 2 was answered wrongly"):
            link.run(session)


class TestCorruptingTransfer:
    def test_is_found_and_its_figures_are_not_given(self, session, monkeypatch):
        def write(self, data, offset=0, via=None):
            _mapping.Transfers.write(self, bytes(data.nbytes), offset, via)

        monkeypatch.setattr(gdrpy.Region, "write", write)
        transfers.run(session)
        written, read = session.sweeps
        assert {where.partition(",")[0] for where in written.wrong} == {*transfers.WAYS} - {
            transfers.ENGINE
        }  # which this simulated GPU does not have
        assert read.wrong == []
        assert {one.id.split("/")[1] for one in session.figures} == {"read"}


class TestAttachedProcess:
    def test_that_stores_another_value_is_found(self, session, monkeypatch):
        honest = attach._child

        def lying(action, fd, value, repeats, **kwargs):
            return honest(action, fd, value + 1, repeats, **kwargs)

        monkeypatch.setattr(attach, "_child", lying)
        with gdrpy.alloc(1 << 20) as region:
            attach._attaches(session, region, "cpu", 1)
        assert [one.verified for one in session.measurements] == [False] * 3
