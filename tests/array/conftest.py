"""Typed views of regions."""

from __future__ import annotations

import os
from collections.abc import Iterator
from types import SimpleNamespace

import pytest

import gdrpy
from gdrpy.arrays import array


@pytest.fixture(autouse=True)
def views(nothing_leaks: None) -> None:
    """Every test here also proves that nothing leaks."""


@pytest.fixture
def region(views: None) -> Iterator[gdrpy.Region]:
    with gdrpy.alloc(1 << 20) as region:
        yield region


@pytest.fixture
def readonly_region(region: gdrpy.Region) -> Iterator[gdrpy.Region]:
    """The bytes of ``region`` in a process that may only read them."""
    fd = region.export()
    with gdrpy.Region.from_fd(fd, region.nbytes, gpu=False, readonly=True) as reader:
        os.close(fd)
        yield reader


@pytest.fixture
def as_on_a_real_gpu(views: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """Arrays take the simulated GPU's memory for a real one's."""
    monkeypatch.setattr(array, "cuda", SimpleNamespace(simulated=lambda: False))
