"""Who takes part, and who cannot."""

from __future__ import annotations

import pytest

import gdrpy
import rivals
from gdrpy import cuda
from harness import Session
from payload import pinned


class Broken:
    """A library that can be loaded, and copies nothing."""

    def __init__(self, region):
        self.region = region

    def writes(self, data):
        raise RuntimeError("no kernel image is available")

    def reads(self, target):
        return []


@pytest.fixture
def session():
    with cuda.context(0):
        yield Session(0.001, True, lambda what: None)


class TestBrokenLibrary:
    @pytest.fixture(autouse=True)
    def _install(self, monkeypatch):
        monkeypatch.setattr(rivals, "_OPTIONAL", {"broken": Broken})
        monkeypatch.setattr(rivals, "_why_not", lambda name: None)

    def test_is_absent_with_the_reason_and_ends_nothing(self, session):
        with gdrpy.alloc(4096) as region, pinned(4096) as host:
            found = rivals.rivals(session, region, host)
            assert [type(one) for one in found] == [rivals.CudaBindings]
        assert session.absent == {"broken": "RuntimeError: no kernel image is available"}
