"""Array libraries with CUDA, on a real GPU's memory and its CPU view."""

from __future__ import annotations

import os

import pytest

import matrix
from matrix import library, readonly_region, region
from ways import ON_A_GPU, SOURCES_ON_A_GPU

__all__ = ["library", "readonly_region", "region"]

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.filterwarnings("ignore:The given buffer is not writable"),
]

# By itself jax takes three quarters of the GPU's memory.
os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    matrix.parametrize(metafunc, ON_A_GPU, SOURCES_ON_A_GPU)


class TestMemory(matrix.Memory):
    pass


class TestStream(matrix.Stream):
    pass


class TestLifetime(matrix.Lifetime):
    pass


class TestUncounted(matrix.Uncounted):
    pass


class TestReadOnly(matrix.ReadOnly):
    pass


class TestSource(matrix.Source):
    pass
