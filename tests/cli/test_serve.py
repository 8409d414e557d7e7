"""``gdrpy serve`` as a program: its start, its words, its end."""

from __future__ import annotations

import os
import signal
import stat
from pathlib import Path

import pytest

from serving import BrokerProcess, StartServing, wait_for_ends


class TestReadyBroker:
    def test_says_what_it_serves(self, broker_process: BrokerProcess):
        ready = broker_process.ready
        assert ready["socket"] == broker_process.socket
        assert ready["pid"] == broker_process.pid
        assert ready["simulated"] is True
        assert ready["recovered"] == 0
        assert [device["device"] for device in ready["devices"]] == [0, "cpu"]

    def test_has_a_private_socket(self, broker_process: BrokerProcess):
        found = Path(broker_process.socket).stat()
        assert stat.S_ISSOCK(found.st_mode)
        assert stat.S_IMODE(found.st_mode) == 0o600

    def test_has_a_keeper(self, broker_process: BrokerProcess):
        assert len(broker_process.family()) == 2

    def test_has_none_where_none_is_wanted(self, start_serving: StartServing):
        broker = start_serving("--keeper", "none")
        assert broker.family() == [broker.pid]


class TestEnd:
    @pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
    def test_by_a_signal_leaves_neither_socket_nor_keeper(
        self, broker_process: BrokerProcess, number
    ):
        family = broker_process.family()
        assert broker_process.stop(number) == 0
        assert not Path(broker_process.socket).exists()
        assert wait_for_ends(family) == []


class TestKilledBroker:
    def test_is_followed_by_one_at_the_same_socket(self, broker_process: BrokerProcess):
        first = broker_process.pid
        broker_process.restart()
        assert broker_process.ready["socket"] == broker_process.socket
        assert broker_process.pid != first
        os.kill(broker_process.pid, 0)
