"""Timeouts of calls that wait several times, by a clock that the tests move on."""

from __future__ import annotations

import ctypes
import sys
import threading

import pytest

import gdrpy

ON_NVRM = {"GDRPY_SIM": "1", "GDRPY_BACKEND": "nvrm"}
HOUR = 3600
SOON = 20.0

pytestmark = pytest.mark.preloaded(**ON_NVRM)


def test_counts_the_time_in_which_another_thread_keeps_the_gil_and_takes_the_record() -> None:
    channel = gdrpy.Channel(32, 8)
    reader = channel.reader()
    raised: list[type[BaseException]] = []
    sys.setswitchinterval(HOUR)  # a thread keeps the GIL until it waits

    def pop() -> None:
        try:
            reader.pop(timeout=HOUR)
        except gdrpy.Error as error:
            raised.append(type(error))

    thread = threading.Thread(target=pop, daemon=True)
    thread.start()  # returns when pop() waits without the GIL
    channel.push(bytes(32))
    for _ in range(1_000_000):  # meanwhile the thread finds the record, and waits for the GIL
        pass
    reader.pop(timeout=0)
    ctypes.PyDLL(None).fakerm_pass_time(HOUR, False)
    thread.join(SOON)
    assert raised == [gdrpy.Timeout]
