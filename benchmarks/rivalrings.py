"""gdrpy.Inbox beside other rings from a kernel to the CPU, both ends in CUDA C++ and C.

The others are the FIFO of MSCCL++, by which its kernels call the CPU, compiled here of its own
sources, and a ring of page-locked memory written by hand, with a flag in each slot.
"""

from __future__ import annotations

import ctypes
import importlib.util
import os
import tempfile
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

import gdrpy
import gpukernels
import native
import rings
from gdrpy import cuda
from gdrpy.cli.measure.timing import Samples, clock, undisturbed
from harness import Figure, Measurement, Session, Topic

MODULE = "rivalrings"
OPERATION = "records, one reader in C"
#: Millions of records a second.
UNIT = "M/s"
ROUND = "a word to a kernel, and its record of 16 B"

INBOX, RELAXED, HAND, FIFO = (
    "Inbox, push",
    "Inbox, push_relaxed",
    "a hand-written ring",
    "MSCCL++'s FIFO",
)
#: Ways of the round.
MAPPED, PINNED = "word through the mapping", "word in page-locked memory"
COPIED = "word by cudaMemcpyAsync, as its semaphore's"

#: Where the sources of MSCCL++ are, and what of them is needed.
SOURCES = "git clone -b v0.9.0 https://github.com/microsoft/mscclpp"
NEEDED = ("include/mscclpp/fifo_device.hpp", "include/mscclpp/fifo.hpp", "src/core/fifo.cc")

#: The name of the figure of those that were lost, torn or out of order.
WRONG = "wrong records beside rivals"

_HERE = Path(__file__).resolve().parent
_THREADS, _CAPACITY = 512, 4096
_EACH, _TURNS, _QUICK_EACH, _QUICK_TURNS = 4000, 9, 4, 2
_ROUNDS, _QUICK_ROUNDS, _WARM_UP = 10_000, 20, 200
#: In ns: what a wait in C takes at most.
_LIMIT = 20_000_000_000
#: More than any number of records.
_ENDLESS = 1 << 62
#: Bytes of the structures that kernels are given: the hand-written ring's, and the FIFO's at most.
_HANDLE_NBYTES = 128
#: Places in the GPU memory of a ring.
_HANDLE, _TOKEN, _HEAD, _FIFO_MEMORY = 0, 256, 512, 1024
#: What NVRTC has not, and the FIFO's headers include.
_CSTDINT = """#include <cuda/std/cstdint>
using cuda::std::int64_t;
using cuda::std::uint32_t;
using cuda::std::uint64_t;
"""


class Check(ctypes.Structure):
    """``struct check`` of rivalrings.h."""

    _fields_ = (
        ("words", ctypes.c_uint64),
        ("threads", ctypes.c_uint64),
        ("next", ctypes.c_void_p),
        ("wrong", ctypes.c_uint64),
    )


class HandReader(ctypes.Structure):
    """``struct hand`` of rivalrings.c."""

    _fields_ = (
        ("capacity", ctypes.c_uint64),
        ("words", ctypes.c_uint64),
        ("slots", ctypes.c_void_p),
        ("tail", ctypes.c_void_p),
    )


@dataclass
class Ring:
    """One ring for records of ``nbytes``: its kernels' end, and its CPU's by functions of C."""

    name: str
    nbytes: int
    ptr: int  # for kernels
    token: int  # the same
    reader: Any  # for C
    told: Any  # the same
    take: Any
    play: Any
    kernel: gpukernels.Kernel
    stream: Any
    done: int = 0
    following: NDArray[np.uint64] = field(default_factory=lambda: np.zeros(_THREADS, np.uint64))

    def __post_init__(self) -> None:
        self.check = Check(self.nbytes // 8, _THREADS, self.following.ctypes.data, 0)

    def rate(self, each: int) -> float:
        """Millions of records a second, from the launch of the threads to the last. Raises Lost."""
        count = each * _THREADS
        with undisturbed():
            begun = clock()
            self.kernel(self.stream, self.ptr, self.token, self.done, each)
            came = self.take(self.reader, count, _LIMIT, ctypes.byref(self.check))
            taken = clock() - begun
        if came != count:
            raise rings.Lost(f"{self.name}: of {count} records, {came} came in time")
        self.done += each
        return count / taken * 1e3

    def rounds(self, count: int) -> list[int]:
        """Nanoseconds of each round with one thread. Raises Lost."""
        samples = np.zeros(count, np.uint64)
        self.kernel(self.stream, self.ptr, self.token, self.done, count)
        arguments = (self.done, count, _LIMIT, samples.ctypes.data, ctypes.byref(self.check))
        answered = self.play(self.told, self.reader, *arguments)
        if answered != count or self.check.wrong:
            raise rings.Lost(f"{self.name}: round {answered + 1} was answered wrongly, or not")
        self.done += count
        return [int(sample) for sample in samples]


def rate_name(nbytes: int, rival: str) -> str:
    """The name of the figure of an inbox's rate, relative to a rival's."""
    return f"records of {nbytes} B a second, relative to {rival}"


def round_name(rival: str) -> str:
    """The name of the figure of a rival's least median of rounds, relative to an inbox's."""
    return f"{ROUND}: times faster than {rival}"


def run(session: Session) -> None:
    """Measure the rings into the session."""
    if cuda.simulated():
        session.absent[f"{MODULE}: {INBOX}"] = "the simulated GPU has no kernels"
        return
    try:
        library = built()
    except native.NotBuilt as error:
        session.absent[f"{MODULE}: {INBOX}"] = str(error)
        return
    with tempfile.TemporaryDirectory() as folder:
        fifo = None
        try:
            fifo = Mscclpp(session.mscclpp, Path(folder))
        except (native.NotBuilt, gpukernels.NotCompiled) as error:
            session.absent[f"{MODULE}: {FIFO}"] = str(error)
        _measure(session, library, fifo)


def _measure(session: Session, library: ctypes.CDLL, fifo: Mscclpp | None) -> None:
    image = gpukernels.compiled(_HERE / "rivalrings_kernel.cu")
    each, turns = (_QUICK_EACH, _QUICK_TURNS) if session.quick else (_EACH, _TURNS)
    with ExitStack() as undo:

        def inbox(kind: str, nbytes: int, kernel: str, threads: int, name: str) -> Ring:
            return undo.enter_context(
                _inbox(library, image, name, nbytes, f"{kind}{kernel}", threads)
            )

        def hand(nbytes: int, kernel: str, threads: int, name: str, mapped: bool = False) -> Ring:
            return undo.enter_context(
                _hand(library, image, name, nbytes, f"hand{kernel}", threads, mapped)
            )

        found = [
            ring
            for nbytes in (16, 64)
            for ring in (
                inbox("inbox", nbytes, str(nbytes), _THREADS, INBOX),
                inbox("relaxed", nbytes, str(nbytes), _THREADS, RELAXED),
                hand(nbytes, str(nbytes), _THREADS, HAND),
            )
        ]
        players = [
            inbox("inbox", 16, "_answer", 1, f"{INBOX}, {MAPPED}"),
            inbox("relaxed", 16, "_answer", 1, f"{RELAXED}, {MAPPED}"),
            hand(16, "_answer", 1, f"{HAND}, {PINNED}"),
            hand(16, "_answer", 1, f"{HAND}, {MAPPED}", mapped=True),
        ]
        if fifo:
            found.append(undo.enter_context(fifo.ring(FIFO, b"fifo16", _THREADS)))
            players += [
                undo.enter_context(fifo.ring(f"{FIFO}, {COPIED}", b"fifo_answer", 1)),
                undo.enter_context(
                    fifo.ring(f"{FIFO}, {MAPPED}", b"fifo_answer", 1, "bench_play_fifo_mapped")
                ),
            ]
        _keep_rates(session, found, each, turns)
        _keep_rounds(session, players, turns)
        wrong = sum(int(ring.check.wrong) for ring in found if ring.name in (INBOX, RELAXED))
        session.derive_figure(_figure(WRONG, wrong, ""))


def _figure(name: str, value: float, unit: str) -> Figure:
    return Figure(f"{MODULE}/{name}", value, unit)


def _keep_rates(session: Session, found: list[Ring], each: int, turns: int) -> None:
    rates: list[list[float]] = [[] for _ in found]
    for turn in range(turns):
        session.step(f"{MODULE}: {OPERATION}, turn {turn + 1}")
        for ring, samples in zip(found, rates, strict=True):
            samples.append(ring.rate(each))
    method = (
        f"{_CAPACITY} slots; from the launch of {_THREADS} threads of one block, until the last "
        f"was taken and verified"
    )
    medians: dict[tuple[int, str], float] = {}
    for ring, samples in zip(found, rates, strict=True):
        topic = Topic(MODULE, OPERATION, ring.nbytes, UNIT)
        one = Measurement(topic, ring.name, method, samples, verified=not ring.check.wrong)
        medians[ring.nbytes, ring.name] = session.add(one).median
    for (nbytes, name), median in medians.items():
        if name in (HAND, FIFO):
            ratio = medians[nbytes, INBOX] / median
            session.derive_figure(_figure(rate_name(nbytes, name), ratio, "x"))


def _keep_rounds(session: Session, players: list[Ring], turns: int) -> None:
    count = _QUICK_ROUNDS if session.quick else _ROUNDS
    samples: dict[str, list[int]] = {ring.name: [] for ring in players}
    for turn in range(turns):
        for ring in players:
            session.step(f"{MODULE}: {ring.name}, turn {turn + 1}")
            samples[ring.name] += ring.rounds(_WARM_UP + count)[_WARM_UP:]
    method = "the clock is read in C before the word is stored, and when its record was taken"
    session.keep_single_times(MODULE, ROUND, dict.fromkeys(samples, method), samples)
    medians = {name: Samples(one).median for name, one in samples.items()}
    own = medians[f"{INBOX}, {MAPPED}"]
    for rival in (HAND, FIFO):
        theirs = [median for name, median in medians.items() if name.startswith(rival)]
        if theirs:
            session.derive_figure(_figure(round_name(rival), min(theirs) / own, "x"))


_KINDS = (ctypes.c_void_p, ctypes.c_void_p, ctypes.c_ulonglong, ctypes.c_ulonglong)


@contextmanager
def _ended(ring: Ring, release: Callable[[], object]) -> Iterator[Ring]:
    """The ring; its kernels have ended at the end of the block, because of ``release``."""
    try:
        yield ring
    finally:
        release()
        cuda.call("cuStreamSynchronize", ring.stream)


@contextmanager
def _inbox(
    library: ctypes.CDLL, image: bytes, name: str, nbytes: int, kernel: str, threads: int
) -> Iterator[Ring]:
    with (
        gdrpy.alloc(4096) as region,
        gpukernels.stream() as stream,
        gpukernels.loaded(image, kernel.encode(), threads, *_KINDS) as launch,
    ):
        token = region.flag(0, 8)
        token.set(0)
        inbox = gdrpy.Inbox(nbytes, _CAPACITY)
        ends = (inbox.c_reader, region.cpu.address, library.bench_take_inbox)
        ring = Ring(
            name, nbytes, inbox.ptr, token.ptr, *ends, library.bench_play_inbox, launch, stream
        )

        def release() -> None:
            token.set(_ENDLESS)
            inbox.close()

        with _ended(ring, release):
            yield ring


@contextmanager
def _hand(
    library: ctypes.CDLL,
    image: bytes,
    name: str,
    nbytes: int,
    kernel: str,
    threads: int,
    mapped: bool,
) -> Iterator[Ring]:
    """The hand-written ring, in page-locked memory of its own.

    ``mapped`` says whether the CPU stores its word through a mapping, instead of to host memory.
    """
    words = nbytes // 8
    slots_nbytes = _CAPACITY * (words + 2) * 8
    with (
        gdrpy.alloc(4096) as region,
        gdrpy.page_locked(slots_nbytes + 512) as host,
        gpukernels.stream() as stream,
        gpukernels.loaded(image, kernel.encode(), threads, *_KINDS) as launch,
    ):
        host.write(bytes(host.nbytes))
        tail = host.flag(slots_nbytes, 8)
        token = region.flag(_TOKEN, 8) if mapped else host.flag(slots_nbytes + 256, 8)
        told = (region.cpu.address if mapped else host.address) + token.offset
        play = library.bench_play_hand_mapped if mapped else library.bench_play_hand
        handle = np.array([_CAPACITY, region.ptr + _HEAD, host.ptr, tail.ptr], np.uint64)
        region.write(bytes(4096))
        region.write(handle)
        addresses = (host.address, host.address + tail.offset)
        reader = HandReader(_CAPACITY, words, *addresses)
        ends = (ctypes.addressof(reader), told, library.bench_take_hand)
        ring = Ring(name, nbytes, region.ptr, token.ptr, *ends, play, launch, stream)

        def release() -> None:
            token.set(_ENDLESS)
            tail.set(_ENDLESS)

        with _ended(ring, release):
            yield ring
        del reader


class Mscclpp:
    """The FIFO of MSCCL++, both ends compiled of its sources. Raises NotBuilt, NotCompiled."""

    def __init__(self, sources: Path | None, folder: Path) -> None:
        if sources is None:
            raise native.NotBuilt(f"give its sources by --mscclpp: {SOURCES}")
        self._library = built_with(sources, folder)
        (folder / "cstdint").write_text(_CSTDINT)
        include = [f"-I{one}" for one in (sources / "include", folder, libcudacxx())]
        source = _HERE / "rivalrings_mscclpp.cu"
        self._image = gpukernels.compiled(source, more=["-D__NVCC__", *include])

    @contextmanager
    def ring(
        self, name: str, kernel: bytes, threads: int, play: str = "bench_play_fifo"
    ) -> Iterator[Ring]:
        """A FIFO; its word comes by a copy, or, for another ``play``, through the mapping."""
        nbytes = _CAPACITY * 32 + 4096  # 0.9.0 has triggers of 32 bytes, of which 16 are stored
        with (
            gdrpy.alloc(4096) as region,
            gdrpy.page_locked(nbytes) as host,
            gpukernels.stream() as stream,
            gpukernels.stream() as copies,
            gpukernels.loaded(self._image, kernel, threads, *_KINDS) as launch,
        ):
            host.write(bytes(nbytes))
            region.write(bytes(4096))
            assert host.ptr == host.address  # as cudaHostAlloc gives memory
            memory = (host.ptr, nbytes, region.ptr + _FIFO_MEMORY, 4096 - _FIFO_MEMORY)
            handle = ctypes.create_string_buffer(_HANDLE_NBYTES)
            fifo = self._library.bench_fifo(*memory, _CAPACITY, handle)
            if fifo is None:
                raise native.NotBuilt("this MSCCL++ takes more memory than 0.9.0")
            region.write(handle.raw)
            told = (ctypes.c_uint64 * 2)(region.ptr + _TOKEN, int(copies))
            mapped = play != "bench_play_fifo"
            ring = Ring(
                name,
                16,
                region.ptr,
                region.ptr + _TOKEN,
                fifo,
                region.cpu.address + _TOKEN if mapped else ctypes.addressof(told),
                self._library.bench_take_fifo,
                getattr(self._library, play),
                launch,
                stream,
            )

            def release() -> None:
                cuda.call("cuStreamSynchronize", copies)
                region.flag(_TOKEN, 8).set(_ENDLESS)
                tail = int(np.frombuffer(handle.raw, np.uint64)[2])
                ctypes.c_uint64.from_address(tail).value = _ENDLESS

            try:
                with _ended(ring, release):
                    yield ring
            finally:
                self._library.bench_drop_fifo(fifo)
            del told


def built() -> ctypes.CDLL:
    """rivalrings.c, compiled. Raises NotBuilt."""
    arguments = [f"-I{gdrpy.channel.include_dir()}", str(_HERE / "rivalrings.c")]
    with tempfile.TemporaryDirectory() as folder:
        library = ctypes.CDLL(str(native.compiled(arguments, Path(folder) / "rivalrings.so")))
    for name in ("inbox", "hand"):
        _typed(library, name, name)
    _typed(library, "hand", "hand_mapped")
    return library


def built_with(sources: Path, folder: Path) -> ctypes.CDLL:
    """rivalrings_mscclpp.cpp with MSCCL++'s FIFO, compiled in ``folder``. Raises NotBuilt."""
    headers = folder / "mscclpp"
    headers.mkdir()
    for name in ("gpu_utils", "numa", "env"):
        (headers / f"{name}.hpp").write_text('#include "rivalrings_gpu_utils.hpp"\n')
    include = (folder, sources / "include", sources / "src/core/include", _HERE)
    arguments = ["-x", "c++", "-std=gnu++17", f"-I{gdrpy.channel.include_dir()}"]
    arguments += [f"-I{one}" for one in include]
    arguments += [str(_HERE / "rivalrings_mscclpp.cpp"), str(sources / "src/core/fifo.cc")]
    library = ctypes.CDLL(
        str(native.compiled([*arguments, "-lstdc++", "-ldl"], folder / "mscclpp.so"))
    )
    _typed(library, "fifo", "fifo")
    _typed(library, "fifo", "fifo_mapped")
    pointer, number = ctypes.c_void_p, ctypes.c_uint64
    library.bench_fifo.restype = pointer
    library.bench_fifo.argtypes = (pointer, number, pointer, number, ctypes.c_int, pointer)
    library.bench_drop_fifo.restype = None
    library.bench_drop_fifo.argtypes = (pointer,)
    return library


def _typed(library: ctypes.CDLL, take: str, play: str) -> None:
    pointer, number = ctypes.c_void_p, ctypes.c_uint64
    taking, playing = library[f"bench_take_{take}"], library[f"bench_play_{play}"]
    for name, function in ((f"bench_take_{take}", taking), (f"bench_play_{play}", playing)):
        setattr(library, name, function)
        function.restype = number
    taking.argtypes = (pointer, number, number, pointer)
    playing.argtypes = (pointer, pointer, number, number, number, pointer, pointer)


def libcudacxx() -> Path:
    """The folder of libcu++'s headers, of its wheel or CUDA's toolkit. Raises NotBuilt."""
    spec = importlib.util.find_spec("nvidia")
    places = [Path(one) for one in (spec.submodule_search_locations or ())] if spec else []
    wheels = ("cu1*/include/cccl", "cuda_cccl/include")
    found = [one for place in places for wheel in wheels for one in place.glob(wheel)]
    found.append(Path(os.environ.get("CUDA_HOME", "/usr/local/cuda"), "include", "cccl"))
    for folder in found:
        if (folder / "cuda" / "atomic").exists():
            return folder
    raise native.NotBuilt("needs libcu++: pip install nvidia-cuda-cccl, or a toolkit in CUDA_HOME")
