"""Fixtures that several files share, and what they require of the machine."""

from __future__ import annotations

import pytest

from gdrpy.memory import engine


@pytest.fixture
def usable_engine() -> None:
    status = engine.status(0)
    assert status.usable, status.reason


@pytest.fixture
def torch(backend):
    module = pytest.importorskip("torch")
    module.zeros(1, device="cuda")
    return module
