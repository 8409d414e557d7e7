"""A program in which one allocation of Python memory fails while something is made.

``python nomemory.py WORK [SOCKET]`` makes WORK again and again; each time a later allocation fails.
It prints a line for each one that left something or raised something other than MemoryError.
"""

from __future__ import annotations

import _testcapi
import gc
import sys
import traceback
from collections.abc import Callable
from functools import partial
from typing import Any

import gdrpy
from gdrpy import cuda
from gdrpy._core._mapping import Undo
from gdrpy.broker import replies
from gdrpy.memory import page_locked
from gdrpy.memory.gpu import GpuMemory
from support import free_nbytes, gpu_mappings, listed_descriptors

#: Stop when so many in a row took all the memory that they need.
_ENOUGH = 5
_MOST = 2000
#: What CPython itself raises when a lock, or the name of an environment variable, takes no memory.
_OF_PYTHON = ("can't allocate lock", "error return without exception set")
#: What owns descriptors, mappings and GPU memory, and the garbage collector knows.
_OWNERS = (gdrpy.Region, GpuMemory, Undo)


def work_of(name: str, socket: str) -> tuple[Callable[[], Any], Callable[[], object]]:
    """What makes something that has close(), and what a broker has of it."""
    region = gdrpy.alloc(4096)
    fd = region.export()
    if name == "broker.get":
        broker = gdrpy.connect(socket)
        broker.allocate("given", 4096).close()
        return lambda: broker.get("given"), lambda: broker.stat("given").holders
    works: dict[str, Callable[[], Any]] = {
        "alloc": lambda: gdrpy.alloc(4096),
        "Region.map": lambda: region.map(0, 4096),
        "Region.from_fd": lambda: gdrpy.Region.from_fd(fd),
        "Channel": lambda: gdrpy.Channel(16, 1),
        "Inbox": lambda: gdrpy.Inbox(16, 1),
        "Link": lambda: gdrpy.Link(16, 16, 1),
        "page_locked": lambda: gdrpy.page_locked(4096),
        "pin": lambda: gdrpy.pin(region.ptr, 4096),
    }
    return works[name], lambda: None


def attempt(work: Callable[[], Any], begin: Callable[[], None]) -> tuple[str, bool]:
    """The error in words, "" for none, and whether it came out of cuda.bindings."""
    made = None
    begin()
    try:
        made = work()
    except BaseException as error:
        _testcapi.remove_mem_hooks()
        return f"{type(error).__name__}: {error}", raised_in(error).endswith(".pyx")
    finally:
        _testcapi.remove_mem_hooks()
    made.close()
    return "", False


def arm(number: int) -> None:
    """Have an allocation fail, by its number from now on."""
    _testcapi.set_nomemory(number, number + 1)


def arm_after_reply(number: int) -> None:
    """The same from the broker's next reply on: msgspec crashes without memory for a packet."""
    decode = replies.decode

    def armed(*packet: Any) -> Any:
        replies.decode = decode
        reply = decode(*packet)
        arm(number)
        return reply

    replies.decode = armed


def raised_in(error: BaseException) -> str:
    """The file whose code raised it."""
    return traceback.extract_tb(error.__traceback__)[-1].filename


def close_lost() -> None:
    """Close what only the interpreter has: it loses references to the arguments of a call when it
    has no memory for the call's frame.
    """
    for one in gc.get_objects():
        if isinstance(one, _OWNERS):
            one.close()


def main(name: str, socket: str) -> None:
    work, had = work_of(name, socket)
    begin = arm_after_reply if socket else arm

    def left() -> tuple[object, ...]:
        page_locked.free_kept()
        held = had()  # first: this connects again where that is needed
        return len(listed_descriptors()), gpu_mappings(), free_nbytes(), held

    for _ in range(3):
        work().close()
    gc.collect()
    gc.freeze()  # what is there by now takes no time in each collection
    before, succeeded = left(), 0
    for number in range(1, _MOST):
        error, inside = attempt(work, partial(begin, number))
        gc.collect()
        close_lost()
        after = left()
        if inside:  # cuda.bindings loses what it has no memory to return
            before = after
        raised = error.startswith("MemoryError") or not error or error.endswith(_OF_PYTHON)
        if after != before or not raised:
            print(f"allocation {number}: {error or 'no error'}: {before} became {after}")
            before = after
        succeeded = 0 if error else succeeded + 1
        if succeeded == _ENOUGH:
            print(f"{number - _ENOUGH} allocations", file=sys.stderr)
            return
    print(f"the last of {_MOST} allocations failed, too")


if __name__ == "__main__":
    with cuda.context(0):
        main(sys.argv[1], *(sys.argv[2:] or [""]))
