"""The CPU's ends of the rings that are compared, with records that no kernel made."""

from __future__ import annotations

import ctypes
import subprocess
import sys

import numpy as np
import pytest

import gdrpy
import native
import rivalrings
from harness import Session

THREADS = 4
LIMIT = 1_000_000_000
ODD = np.uint64(0x9E3779B97F4A7C15)


def records(nbytes: int, each: int) -> np.ndarray:
    """Records of all threads in turns, as rivalrings_kernel.cu makes them."""
    words = nbytes // 8
    index, source = np.divmod(np.arange(each * THREADS, dtype=np.uint64), np.uint64(THREADS))
    first = (source << np.uint64(40) | index + np.uint64(1))[:, None]
    made = (first * np.uint64(8) + np.arange(words, dtype=np.uint64)) * ODD
    made = made >> np.uint64(1) | np.uint64(1)
    made[:, :1] = first
    return made


@pytest.fixture(scope="module")
def library() -> ctypes.CDLL:
    return rivalrings.built()


@pytest.fixture
def following() -> np.ndarray:
    return np.zeros(THREADS, np.uint64)


@pytest.fixture(params=[16, 64])
def nbytes(request) -> int:
    return request.param


def verified(take, reader, made: np.ndarray, following: np.ndarray) -> int:
    """How many of the records that a reader took were wrong."""
    check = rivalrings.Check(made.shape[1], THREADS, following.ctypes.data, 0)
    assert take(reader, len(made), LIMIT, ctypes.byref(check)) == len(made)
    return check.wrong


def spoiled(made: np.ndarray, how: str) -> np.ndarray:
    """Records of which one is torn, lost or told twice, or two come in the wrong order."""
    if how == "torn":
        made[5, -1] ^= np.uint64(1)
    elif how == "from no thread":
        made[5, 0] |= np.uint64(THREADS << 40)
    elif how == "twice":
        made[5] = made[1]
    else:
        made[[1, 5]] = made[[5, 1]]
    return made


class TestReader:
    def test_of_an_inbox_verifies_every_record(self, library, following, nbytes):
        with gdrpy.Inbox(nbytes, 64) as inbox:
            writer = inbox.writer()
            for lap in range(3):
                made = records(nbytes, 48)[lap * 64 : lap * 64 + 64]
                writer.push_many(made)
                assert (
                    verified(library.bench_take_inbox, inbox.c_reader, made, following),
                    following.tolist(),
                ) == (0, [16 * (lap + 1)] * THREADS)

    def test_of_the_hand_written_ring_verifies_every_record(self, library, following, nbytes):
        words, capacity = nbytes // 8, 64
        slots, tail = np.zeros((capacity, words + 2), np.uint64), np.zeros(1, np.uint64)
        reader = rivalrings.HandReader(capacity, words, slots.ctypes.data, tail.ctypes.data)
        for lap in range(3):
            made = records(nbytes, 48)[lap * 64 : lap * 64 + 64]
            slots[:, :words] = made
            slots[:, words] = np.arange(lap * 64 + 1, lap * 64 + 65)
            assert verified(library.bench_take_hand, ctypes.addressof(reader), made, following) == 0
            assert tail[0] == lap * 64 + 64
        assert following.tolist() == [48] * THREADS

    @pytest.mark.parametrize("how", ["torn", "from no thread", "twice", "in the wrong order"])
    def test_counts_wrong_records(self, library, following, nbytes, how):
        with gdrpy.Inbox(nbytes, 64) as inbox:
            made = spoiled(records(nbytes, 16), how)
            inbox.writer().push_many(made)
            assert verified(library.bench_take_inbox, inbox.c_reader, made, following) > 0


class TestMscclpp:
    def test_is_absent_without_its_sources(self, tmp_path):
        with pytest.raises(native.NotBuilt, match="give its sources by --mscclpp: git clone -b"):
            rivalrings.Mscclpp(None, tmp_path)

    def test_of_other_sources_is_refused_on_the_command_line(self, checkout, tmp_path):
        done = subprocess.run(
            [sys.executable, "benchmarks/run.py", "--mscclpp", tmp_path],
            cwd=checkout,
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 2
        said = f"argument --mscclpp: no {', '.join(rivalrings.NEEDED)} in {tmp_path.name}\n"
        assert done.stderr.endswith(said)


class TestSimulatedGpu:
    def test_has_no_kernels_to_compare(self):
        session = Session(0.001, True, lambda what: None)
        rivalrings.run(session)
        assert session.absent == {"rivalrings: Inbox, push": "the simulated GPU has no kernels"}
