"""The contract: what holds for regions, pins and flags whatever backend maps them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

import gdrpy
from gdrpy.memory.node import Node

HERE = Path(__file__).parent


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if HERE in item.path.parents:
            item.add_marker(pytest.mark.gpu)


@pytest.fixture(autouse=True)
def contract(nothing_leaks: None) -> None:
    """Every test of the contract also proves that nothing leaks."""


@pytest.fixture
def asking(backend: str) -> dict[str, bool]:
    """What a pin must ask for: NVIDIA's module without persistent mappings makes no others."""
    if backend != "gdrdrv":
        return {}
    node = Node()
    lasting = node.full or node.struct.persistent
    node.close()
    return {} if lasting else {"revocable": True, "sigbus": True}


@pytest.fixture
def region(contract: None) -> Iterator[gdrpy.Region]:
    with gdrpy.alloc(1 << 20) as region:
        yield region
