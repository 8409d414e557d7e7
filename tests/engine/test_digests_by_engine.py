"""Digests by the engine, on the simulated resource manager."""

from __future__ import annotations

import hashlib
import itertools
import os
import random
from collections.abc import Iterator
from contextlib import closing, contextmanager
from mmap import mmap
from typing import Any

import pytest

import gdrpy
import rmclient as rm
from gdrpy import cuda
from gdrpy.broker.server import memory
from gdrpy.memory import vmm
from gdrpy.memory.engine import register

ON_NVRM = {"GDRPY_SIM": "1", "GDRPY_BACKEND": "nvrm"}
MIB = 1 << 20
#: Bytes of a step of the digests here.
STEP = 2 * MIB

on_nvrm = pytest.mark.preloaded(**ON_NVRM)


@contextmanager
def filled(nbytes: int) -> Iterator[tuple[int, str]]:
    """A descriptor of GPU memory, and the digest of its first bytes."""
    cuda.driver()
    fd = vmm.create_export(vmm.rounded(nbytes, 0))
    content = random.Random(nbytes).randbytes(nbytes)
    with gdrpy.Region.from_fd(fd, gpu=False) as region:
        region.write(content, via="mapping")
    try:
        yield fd, hashlib.sha256(content).hexdigest()
    finally:
        os.close(fd)


def digest(fd: int, nbytes: int, faults: dict[int, str] | None = None) -> str:
    """A digest, with faults set before some of its steps."""
    buffer = mmap(-1, STEP)
    with register(buffer):
        steps = memory.digest(fd, nbytes, buffer)
        for step in itertools.count():
            if faults and step in faults:
                rm.set_fault(faults[step])
            try:
                next(steps)
            except StopIteration as done:
                return str(done.value)
    raise AssertionError  # not reached


def map_nothing() -> None:
    """From now on only the engine reads regions."""

    def refuse(*_: object, **__: object) -> Any:
        raise AssertionError("a mapping was made")

    gdrpy.Region.map = refuse  # type: ignore[method-assign]


class TestDigest:
    @on_nvrm
    @pytest.mark.parametrize(
        "nbytes", [1, 4095, STEP - 1, STEP, STEP + 1, 3 * STEP + 12_345, 10 * STEP]
    )
    def test_is_exact_and_takes_no_mapping(self, nbytes: int) -> None:
        with filled(nbytes) as (fd, expected):
            map_nothing()
            assert digest(fd, nbytes) == expected
        assert rm.violations() == []

    @pytest.mark.preloaded(**ON_NVRM, FAKE_RM_DELAY="5")
    def test_is_exact_on_an_engine_that_does_all_as_late_as_it_may(self) -> None:
        with filled(3 * STEP) as (fd, expected):
            map_nothing()
            assert digest(fd, 3 * STEP) == expected

    @on_nvrm
    def test_leaves_nothing_of_the_region(self) -> None:
        with filled(STEP + 1) as (fd, _), closing(mmap(-1, STEP)) as buffer:
            digest(fd, STEP + 1)
            before = rm.counts()
            digest(fd, STEP + 1)
            with register(buffer), closing(memory.digest(fd, STEP + 1, buffer)) as broken_off:
                next(broken_off)
            assert rm.counts() == before
        assert rm.violations() == []

    @on_nvrm
    def test_copies_into_its_buffer_without_staging(self) -> None:
        with filled(3 * STEP) as (fd, expected), closing(mmap(-1, STEP)) as buffer:
            assert digest(fd, 3 * STEP) == expected
            before = rm.count("dma_mappings")
            with register(buffer), closing(memory.digest(fd, 3 * STEP, buffer)) as steps:
                next(steps)
                assert rm.count("dma_mappings") == before + 2  # the region and the buffer

    @on_nvrm
    @pytest.mark.parametrize("step", [0, 1, 2])
    def test_is_exact_if_the_engine_is_lost_and_made_anew(self, step: int) -> None:
        with filled(3 * STEP) as (fd, expected):
            digest(fd, 1)
            map_nothing()
            assert digest(fd, 3 * STEP, {step: "ENGINE:1:31"}) == expected
        assert rm.count("xids") == 1
        assert rm.violations() == []

    @on_nvrm
    @pytest.mark.parametrize("step", [0, 1, 2])
    def test_is_exact_if_the_engine_is_lost_for_good(self, step: int) -> None:
        with filled(3 * STEP) as (fd, expected):
            digest(fd, 1)
            assert digest(fd, 3 * STEP, {step: "ENGINE:1:31,ENGINE:2:79"}) == expected
            assert rm.count("channels") == 0
            assert digest(fd, 3 * STEP) == expected
        assert rm.count("xids") == 2
        assert rm.violations() == []

    @pytest.mark.parametrize(
        "reason",
        [
            pytest.param(reason, id=reason, marks=pytest.mark.preloaded(**ON_NVRM, **{reason: "3"}))
            for reason in ("FAKE_RM_NO_COPY", "FAKE_RM_MIG")
        ],
    )
    def test_is_exact_without_an_engine(self, reason: str) -> None:
        with filled(3 * STEP) as (fd, expected):
            for _ in range(2):
                assert digest(fd, 3 * STEP) == expected
            assert rm.count("channels") == 0
        assert rm.violations() == []

    @on_nvrm
    @pytest.mark.parametrize("call", ["RM_ALLOC", "RM_ALLOC_MEMORY", "RM_MAP_MEMORY_DMA"])
    def test_is_exact_whatever_call_of_the_engine_is_refused(self, call: str) -> None:
        with filled(STEP + 1) as (fd, expected):
            for nth in range(1, 60):
                rm.set_fault(f"{call}:{nth}:0x51")
                assert digest(fd, STEP + 1) == expected
            rm.set_fault("")
            map_nothing()
            assert digest(fd, STEP + 1) == expected
        assert rm.violations() == []
