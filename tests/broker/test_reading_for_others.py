"""With which views a region is opened to be sent to another machine."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from gdrpy.broker.client import reading
from gdrpy.errors import BackendUnavailable, CudaError


class Region:
    """A region of five bytes, with or without an engine."""

    nbytes = 5

    def __init__(self, engine: bool) -> None:
        self.engine = engine
        self.closed = False

    def _prepare_engine(self, call: str) -> None:
        if not self.engine:
            raise BackendUnavailable(call)

    def readinto(self, data: Any, offset: int) -> None:
        data[:] = offset

    def close(self) -> None:
        self.closed = True

    def __enter__(self) -> Region:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


@pytest.mark.parametrize(
    ("gpu", "cpu", "engine", "cuda", "views"),
    [
        (True, True, True, True, [(False, True)]),
        (True, True, False, True, [(False, True), (True, True)]),
        (True, True, False, False, [(False, True), (True, True), (False, True)]),
        (True, False, True, True, [(False, False)]),
        (True, False, False, False, [(False, False), (True, False), (False, True)]),
        (False, True, False, True, [(False, True)]),
    ],
)
def test_makes_a_cuda_context_only_without_an_engine(
    monkeypatch: pytest.MonkeyPatch,
    gpu: bool,
    cpu: bool,
    engine: bool,
    cuda: bool,
    views: list[tuple[bool, bool]],
) -> None:
    opened: list[tuple[bool, bool]] = []
    regions: list[Region] = []

    def attach(*about: Any) -> Region:
        opened.append(about[3:5])
        if about[3] and not cuda:
            raise CudaError("cuInit", "CUDA_ERROR_NO_DEVICE", "no GPU")
        regions.append(Region(engine))
        return regions[-1]

    monkeypatch.setattr(reading, "attach", attach)
    source = reading.Source("socket", "life", 7, gpu, cpu, "host")
    assert np.array_equal(reading.piece(source, 2), [2, 2, 2])
    assert opened == views
    assert all(region.closed for region in regions)
