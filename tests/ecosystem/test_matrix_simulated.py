"""Array libraries on the host and the simulated GPU's memory, which is the host's too."""

from __future__ import annotations

import gc

import pytest

import matrix
from matrix import library, readonly_region, region
from ways import SIMULATED, SOURCES_ON_THE_HOST

__all__ = ["library", "readonly_region", "region"]

pytestmark = pytest.mark.filterwarnings("ignore:The given buffer is not writable")


@pytest.fixture(scope="module", autouse=True)
def imported(quick_collections: None) -> None:
    """Leave the libraries out of garbage collections too; jax warns of every fork from now on."""
    for kind in SOURCES_ON_THE_HOST.values():
        kind()
    gc.freeze()


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    matrix.parametrize(metafunc, SIMULATED, SOURCES_ON_THE_HOST)


class TestMemory(matrix.Memory):
    pass


class TestLifetime(matrix.Lifetime):
    pass


class TestReadOnly(matrix.ReadOnly):
    pass


class TestSource(matrix.Source):
    pass
