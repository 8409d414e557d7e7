"""Copies for asyncio: threads make them while the event loop runs."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar
from weakref import WeakValueDictionary

from gdrpy._core._mapping import Undo, fork_generation
from gdrpy.arrays.copied import Copied
from gdrpy.arrays.elements import host_view, place_of
from gdrpy.common.arguments import as_range
from gdrpy.common.resource import Hold

if TYPE_CHECKING:
    from asyncio import AbstractEventLoop, Event, Semaphore
    from concurrent.futures import Future, ThreadPoolExecutor

T = TypeVar("T")

#: The threads of a process, and the most copies that one event loop gives them at a time.
MOST = 8

#: The threads of this process by its fork generation: a forked child does not have its parent's.
_pools: dict[int, ThreadPoolExecutor] = {}
#: The turns of each event loop that copies, held by its copies.
_turns: WeakValueDictionary[AbstractEventLoop, Semaphore] = WeakValueDictionary()

#: Up to these sizes in bytes, stores and loads through the mapping take less than about 5 us, and
#: a thread would take longer.
_QUICK_WRITE = 64 * 1024
_QUICK_READ = 4 * 1024


class Asynchronous(Copied):
    """Copies for asyncio."""

    async def read_async(
        self, nbytes: int | None = None, offset: int = 0, via: str | None = None
    ) -> bytes:
        """Like :meth:`read`, for asyncio: other tasks run while the bytes are copied.

        Args:
            nbytes: How many bytes; None is all up to the end.
            offset: The first byte.
            via: As for :meth:`write`.

        Copies of a few KiB through the mapping are made at once. Others are made by threads, up to
        8 in a process at a time; the next ones wait for a thread, and their bytes take no memory
        before that.

        Until the call is over, :meth:`close` raises BufferError. A task that is cancelled goes on
        when the copy is over: a copy that has not begun is left out, and others are waited for.
        """
        start, size = as_range(f"{type(self).__name__}.read_async", offset, nbytes, self.nbytes)
        if self._is_quick(via, size, _QUICK_READ):
            return self.read(size, start, "mapping")
        return await self._beside("read_async", partial(self.read, size, start, via))

    async def readinto_async(self, buffer: Any, offset: int = 0, via: str | None = None) -> int:
        """Like :meth:`readinto`, for asyncio: see :meth:`read_async`.

        Args:
            buffer: As for :meth:`readinto`, but on the host. It is kept until the call is over, and
                cannot be resized.
            offset: The first byte.
            via: As for :meth:`write`.

        When a cancelled call is over, nothing stores to the buffer any more. Its content is
        undefined then.
        """
        kept = self._keep_buffer("readinto_async", buffer, writable=True)
        if isinstance(kept, memoryview) and self._is_quick(via, kept.nbytes, _QUICK_READ):
            return self.readinto(kept, offset, "mapping")
        return await self._beside("readinto_async", partial(self.readinto, kept, offset, via), kept)

    async def write_async(self, data: Any, offset: int = 0, via: str | None = None) -> None:
        """Like :meth:`write`, for asyncio: see :meth:`read_async`.

        Args:
            data: As for :meth:`write`, but on the host. It must not change until the call is over.
            offset: The byte of the region that the first one goes to.
            via: As for :meth:`write`.

        Writes of one task are made in its order; those of several tasks have no order. A cancelled
        call may have written all bytes, none or some.
        """
        kept = self._keep_buffer("write_async", data, writable=False)
        if isinstance(kept, memoryview) and self._is_quick(via, kept.nbytes, _QUICK_WRITE):
            return self.write(kept, offset, "mapping")
        return await self._beside("write_async", partial(self.write, kept, offset, via), kept)

    def _is_quick(self, via: str | None, nbytes: int, most: int) -> bool:
        """Whether a copy through the mapping takes less time than a thread."""
        return nbytes <= most and via in (None, "mapping") and self._cpu is not None

    def _keep_buffer(self, name: str, buffer: Any, writable: bool) -> Any:
        """The buffer for a copy by a thread: a memoryview, if it has one, so that it stays."""
        if place_of(buffer) is not None:
            return buffer
        try:
            return memoryview(buffer)
        except ValueError:  # numpy's elements of a type that memoryview does not know
            return buffer
        except TypeError:
            if not hasattr(buffer, "__dlpack__"):
                return buffer
        # Refuses GPU arrays: libraries order their work by the current stream of a thread.
        shown: Any = host_view(f"{type(self).__name__}.{name}", buffer, writable)
        return memoryview(shown)

    async def _beside(self, name: str, copy: Callable[[], T], buffer: object = None) -> T:
        """Make a copy in a thread; neither memory nor buffer goes away until it is over.

        If the caller is cancelled, a copy that has not begun is left out, and one that has is
        waited for.
        """
        from asyncio import CancelledError, Event, get_running_loop

        loop = get_running_loop()
        turn, over = _turn(loop), Event()
        results: list[T] = []
        failures: list[BaseException] = []
        with Undo() as undo:
            for one in (self, buffer):
                place = place_of(one)
                if place is not None:
                    region: Copied = place[0]
                    region._check(f"{type(self).__name__}.{name}")
                    region._flush()  # the thread's fence does not cover the stores of this one
                    undo.callback(Hold(region._memory).end)
                elif isinstance(one, memoryview):
                    undo.callback(one.release)
            await turn.acquire()
            try:
                made = _pool().submit(_make, copy, results, failures)
            except BaseException:
                turn.release()
                raise
            made.add_done_callback(partial(_end, undo.pop_all(), loop, turn, over))
            try:
                await over.wait()
            except CancelledError:
                made.cancel()
                while not over.is_set():
                    with suppress(CancelledError):
                        await over.wait()
                raise
        if failures:
            raise failures.pop()
        return results.pop()


def _make(copy: Callable[[], T], results: list[T], failures: list[BaseException]) -> None:
    """A future would keep the failure, and what its traceback uses, until the thread forgets it."""
    try:
        results.append(copy())
    except BaseException as failure:
        failures.append(failure)


def _turn(loop: AbstractEventLoop) -> Semaphore:
    from asyncio import Semaphore

    return _turns.get(loop) or _turns.setdefault(loop, Semaphore(MOST))


def _pool() -> ThreadPoolExecutor:
    from concurrent.futures import ThreadPoolExecutor

    # If another thread has made a pool meanwhile, that one is used: an unused pool has no threads.
    generation = fork_generation()
    return _pools.get(generation) or _pools.setdefault(
        generation, ThreadPoolExecutor(MOST, "gdrpy-copy")
    )


def _end(
    undo: Undo, loop: AbstractEventLoop, turn: Semaphore, over: Event, _: Future[None]
) -> None:
    """Called by the thread that made the copy, or by the one that cancelled it."""

    def tell() -> None:
        turn.release()
        over.set()

    try:
        undo.close()
    finally:
        with suppress(RuntimeError):  # the loop was closed
            loop.call_soon_threadsafe(tell)
