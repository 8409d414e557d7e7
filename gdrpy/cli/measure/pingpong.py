"""The responder to a flag that the CPU sets: a kernel on a GPU, a thread on the simulated GPU."""

from __future__ import annotations

import ctypes
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from gdrpy import Flag, Timeout, cuda
from gdrpy._core._mapping import Undo
from gdrpy.cli.data import Mismatch
from gdrpy.cli.measure.resident import KERNEL, THREAD, Resident
from gdrpy.cli.measure.timing import clock, undisturbed

FINISHED = "all rounds answered"
STOPPED = "stopped"
OUT_OF_TIME = "out of time"

#: The most rounds of one responder: the next value asks it to stop.
MOST_ROUNDS = 0x7FFF_FFFE
_STOP = MOST_ROUNDS + 1
#: Seconds after which every responder ends in any case: a GPU may be shared.
TIME_LIMIT = 20.0

_PTX = Path(__file__).with_name("pingpong.ptx")
#: The kernel's numbers of its endings.
_ENDINGS = {1: FINISHED, 2: STOPPED, 3: OUT_OF_TIME}


@dataclass(frozen=True)
class Ending:
    """How a responder ended, and how many rounds it had answered."""

    how: str
    answered: int


@contextmanager
def responder(
    ping: Flag, reply: Flag, rounds: int, *, device: int = 0, seconds: float = TIME_LIMIT
) -> Iterator[_Kernel | _Thread]:
    """Have a device answer the values 1, 2, ... ``rounds`` of ``ping`` with the same in ``reply``.

    Both words begin at 0. The responder polls from the block's beginning; it ends after the last
    round, at the block's end, or after ``seconds``, whichever comes first. On a GPU it is a kernel
    of one thread in a separate stream: run one at a time, and allocate memory before, because
    allocating may wait for kernels. Its ``ending`` exists after the block.

    Raises ValueError, MissingView, CudaError.
    """
    if ping.width != 4 or reply.width != 4:
        raise ValueError("a responder's flags must be 4 bytes wide")
    if not 1 <= rounds <= MOST_ROUNDS:
        raise ValueError(f"a responder answers 1 to {MOST_ROUNDS} rounds, not {rounds}")
    if not 0 < seconds <= TIME_LIMIT:
        raise ValueError(f"a responder runs for up to {TIME_LIMIT:g} seconds, not {seconds:g}")
    ping.set(0)
    reply.set(0)
    kind = _Thread if cuda.simulated() else _Kernel
    answering = kind(ping, reply, rounds, device, seconds)
    with Undo() as undo:
        undo.callback(answering.finish)
        undo.callback(ping.set, _STOP)
        yield answering


def play(ping: Flag, reply: Flag, rounds: int, timeout: float = 5.0) -> list[int]:
    """Play rounds with a responder; the nanoseconds of each, from before the store to the answer.

    ``timeout`` is the seconds of one round. Raises Timeout, and Mismatch for a wrong answer.
    """
    set_ping, wait = ping.set, reply.wait
    samples = []
    with undisturbed():
        for number in range(1, rounds + 1):
            begun = clock()
            set_ping(number)
            answer = wait(number, timeout)
            samples.append(clock() - begun)
            if answer != number:
                raise Mismatch(f"round {number} was answered by {answer}")
    return samples


class _Kernel:
    """The kernel of pingpong.ptx."""

    kind = KERNEL
    ending: Ending

    def __init__(self, ping: Flag, reply: Flag, rounds: int, device: int, seconds: float) -> None:
        arguments = (ping.ptr, reply.ptr, rounds, _STOP, round(seconds * 1e9))
        address, word, time_ns = ctypes.c_void_p, ctypes.c_uint, ctypes.c_ulonglong
        kinds = (address, address, word, word, time_ns)
        self._kernel = Resident(_PTX, "answer", device, arguments, kinds)

    def finish(self) -> None:
        found = (ctypes.c_uint * 2)()
        with self._kernel.ended() as module:
            address, nbytes = cuda.call("cuModuleGetGlobal", module, b"ending")
            cuda.call("cuMemcpyDtoH", found, address, nbytes)
        how, answered = found
        self.ending = Ending(_ENDINGS[how], answered)


class _Thread:
    """Does the same as the kernel, by Flag.wait and Flag.set."""

    kind = THREAD
    ending: Ending

    def __init__(self, ping: Flag, reply: Flag, rounds: int, device: int, seconds: float) -> None:
        del device
        self._flags = ping, reply
        self._rounds = rounds
        self._deadline = time.monotonic() + seconds
        self._thread = threading.Thread(target=self._answer, name="ping-pong responder")
        self._thread.start()

    def _answer(self) -> None:
        ping, reply = self._flags
        for number in range(1, self._rounds + 1):
            try:
                called = ping.wait(number, max(0.0, self._deadline - time.monotonic()))
            except Timeout:
                self.ending = Ending(OUT_OF_TIME, number - 1)
                return
            if called == _STOP:
                self.ending = Ending(STOPPED, number - 1)
                return
            reply.set(number)
        self.ending = Ending(FINISHED, self._rounds)

    def finish(self) -> None:
        self._thread.join()
