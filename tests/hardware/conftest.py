"""Libraries with CUDA that the tests of several files need."""

from __future__ import annotations

import pytest


@pytest.fixture
def torch(backend):
    module = pytest.importorskip("torch")
    module.zeros(1, device="cuda")
    return module
