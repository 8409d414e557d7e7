"""The interface of the package torch_memory_saver, as SGLang and RL frameworks call it.

The tensors lie in heaps that sleep: :class:`gdrpy.Heap`. :func:`install` has these frameworks find
it.
"""

from __future__ import annotations

import ctypes
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from types import ModuleType
from typing import Any
from weakref import WeakSet

import torch

from gdrpy.arena.heap import Heap
from gdrpy.torch.pool import Pool, require_pools

#: A tag, whether its contents are kept, its device, and the graph pool that it stands for.
_Key = tuple[str, bool, int, Any]


class TorchMemorySaver:
    """Tensors that give their GPU memory back by tag, and come back at the same addresses.

    Names and arguments are those of torch_memory_saver 0.0.10. The hook modes are alike: nothing is
    preloaded, and captured graphs can be paused in either. Backups lie in page-locked host memory,
    which is kept for the next pause. What is not there raises ValueError.
    """

    enabled = True

    def __init__(self) -> None:
        self._pools: dict[_Key, Pool] = {}
        #: The graphs of those that are for graphs.
        self._graphs: dict[_Key, WeakSet[torch.cuda.CUDAGraph]] = {}
        #: Whether the end of a capture has failed: torch takes it for under way ever after.
        self._stuck = False
        #: Blocks of region() and cuda_graph() that run.
        self._running = 0
        self._lock = threading.Lock()
        self._thread = _Thread()

    @property
    def hook_mode(self) -> str:
        """The mode "torch"; "preload" may be set, and changes nothing."""
        return "torch"

    @hook_mode.setter
    def hook_mode(self, mode: str) -> None:
        if mode not in ("torch", "preload"):
            raise ValueError(f'hook_mode must be "torch" or "preload", not {mode!r}')

    @property
    def retain_cpu_backup(self) -> bool:
        """False: a backup can be had while its tensors are paused."""
        return False

    @retain_cpu_backup.setter
    def retain_cpu_backup(self, value: bool) -> None:
        if value:
            raise ValueError("retain_cpu_backup: a backup can be had only before resume()")

    @property
    def memory_margin_bytes(self) -> int:
        """0: there is no margin."""
        return 0

    @memory_margin_bytes.setter
    def memory_margin_bytes(self, value: int) -> None:
        if value:
            raise ValueError("memory_margin_bytes: no memory is held back: set 0")

    def set_disk_backup_dir(self, path: str) -> None:
        """Raise ValueError."""
        raise ValueError(f"set_disk_backup_dir: there is no disk backup, so not to {path!r}")

    @contextmanager
    def region(
        self,
        tag: str = "default",
        enable_cpu_backup: bool = False,
        enable_disk_backup: bool = False,
        cpu_backup_backend: str | None = None,
    ) -> Iterator[None]:
        """Inside the block, this thread's tensors on the current device can be paused.

        Args:
            tag: What :meth:`pause` and :meth:`resume` call them by.
            enable_cpu_backup: Whether their contents come back.
            enable_disk_backup: Must be false.
            cpu_backup_backend: "pinned" or None.

        Raises ValueError for other backups, BackendUnavailable without a real GPU.
        """
        if enable_disk_backup:
            raise ValueError("region: there is no disk backup: take enable_cpu_backup=True")
        _check_backend("region", enable_cpu_backup, cpu_backup_backend)
        require_pools("region")
        pool = self._pool((tag, enable_cpu_backup, torch.cuda.current_device(), None))
        with self._run(), pool.use():
            self._thread.inside.append(pool)
            try:
                yield
            finally:
                self._thread.inside.pop()

    @contextmanager
    def cuda_graph(
        self,
        cuda_graph: torch.cuda.CUDAGraph,
        pool: Any = None,
        stream: Any = None,
        capture_error_mode: str = "global",
        tag: str = "default",
        enable_cpu_backup: bool = False,
        cpu_backup_backend: str | None = None,
    ) -> Iterator[None]:
        """As torch.cuda.graph(); the memory of the graph can be paused.

        Args:
            cuda_graph: The graph to capture.
            pool: A graph pool's handle, which may be an earlier graph's ``pool()``. Graphs of one
                tag with the same pool share memory, which is freed with the last of them.
            stream: The stream to capture on, as for torch.cuda.graph().
            capture_error_mode: As for torch.cuda.graph().
            tag: What :meth:`pause` and :meth:`resume` call the memory by.
            enable_cpu_backup: Whether its contents come back.
            cpu_backup_backend: "pinned" or None.

        If the capture itself fails, torch cannot end memory pools any more: later graphs and tags
        then keep their pools until the process ends. An exception of the block leaves nothing.

        Raises as :meth:`region`.
        """
        _check_backend("cuda_graph", enable_cpu_backup, cpu_backup_backend)
        require_pools("cuda_graph")
        with self._run():
            key = self._key_of(tag, enable_cpu_backup, pool)
            graphs = self._pool(key)
            with self._lock:
                self._graphs.setdefault(key, WeakSet()).add(cuda_graph)
            raised: BaseException | None = None
            try:
                with torch.cuda.graph(cuda_graph, graphs.mem_pool.id, stream, capture_error_mode):
                    try:
                        yield
                    except BaseException as error:
                        raised = error
                        raise
            except BaseException as error:
                if error is not raised:
                    self._keep_pools()
                raise
            finally:
                del raised  # its traceback has this frame

    def _key_of(self, tag: str, kept: bool, pool: Any) -> _Key:
        """The key of the pool for a graph: one of its own without ``pool``."""
        device = torch.cuda.current_device()
        if pool is None:
            return tag, kept, device, object()
        with self._lock:
            for key in self._graphs:
                if key[:3] == (tag, kept, device) and self._pools[key].mem_pool.id == pool:
                    return key
        return tag, kept, device, pool

    @contextmanager
    def disable(self) -> Iterator[None]:
        """Inside blocks of :meth:`region`, have this thread make ordinary tensors."""
        # torch offers no function for it: what use_mem_pool() calls is private, and a pool of its
        # own for these tensors could not be dropped here, since torch aborts then.
        inside, self._thread.inside = self._thread.inside, []
        pools = [(pool.arena.device, pool.mem_pool.id) for pool in inside]
        for device, number in reversed(pools):
            torch._C._cuda_endAllocateToPool(device, number)
            torch._C._cuda_releasePool(device, number)
        try:
            yield
        finally:
            for device, number in pools:
                torch._C._cuda_beginAllocateCurrentThreadToPool(device, number)
            self._thread.inside = inside

    def pause(self, tag: str | None = None) -> None:
        """Give the memory of a tag back, of None all. Raises as :meth:`gdrpy.Heap.sleep`.

        Make no tensors of it meanwhile, and use none.
        """
        self._drop_unused()
        for (_, kept, _, _), pool in self._of(tag):
            pool.sleep("host" if kept else None)

    def resume(self, tag: str | None = None) -> None:
        """Bring the memory of a tag back, of None all. Raises as :meth:`gdrpy.Heap.wake`."""
        for _, pool in self._of(tag):
            pool.wake()

    def get_cpu_backup(self, x: torch.Tensor, zero_copy: bool = False) -> torch.Tensor | None:
        """A copy of a paused tensor's contents, on the CPU; None if it has none.

        Raises ValueError for a tensor that is not contiguous or not of a region, or for
        ``zero_copy``.
        """
        if zero_copy:
            raise ValueError("get_cpu_backup: there are only copies: leave out zero_copy")
        for _, pool in self._of(None):
            heap = pool.arena
            if isinstance(heap, Heap) and heap.contains(x.data_ptr()) and x.is_contiguous():
                kept = heap.kept(x.data_ptr(), x.nbytes)
                if kept is None:
                    return None
                return torch.frombuffer(bytearray(kept), dtype=x.dtype).view(x.shape)
        raise ValueError(
            f"get_cpu_backup: the tensor of shape {tuple(x.shape)} on {x.device} is not "
            f"contiguous, or not one that was made inside `with region():`"
        )

    @contextmanager
    def _run(self) -> Iterator[None]:
        """Count a block that runs."""
        with self._lock:
            self._running += 1
        try:
            yield
        finally:
            with self._lock:
                self._running -= 1
            self._drop_unused()

    def _drop_unused(self) -> None:
        """Drop the pools whose graphs are gone.

        Not while anything is captured or made in a pool: torch aborts if a pool ends then.
        """
        with self._lock:
            if self._running or self._stuck or torch.cuda.is_current_stream_capturing():
                return
            for key in [key for key, graphs in self._graphs.items() if not graphs]:
                del self._graphs[key], self._pools[key]

    def _keep_pools(self) -> None:
        """Keep all pools until the process ends; the interpreter's exit must not drop them."""
        with self._lock:
            if not self._stuck:
                ctypes.pythonapi.Py_IncRef(ctypes.py_object(self._pools))
            self._stuck = True

    def _pool(self, key: _Key) -> Pool:
        with self._lock:
            if key not in self._pools:
                self._pools[key] = Pool(Heap(key[2]))
            return self._pools[key]

    def _of(self, tag: str | None) -> list[tuple[_Key, Pool]]:
        with self._lock:
            return [item for item in self._pools.items() if tag in (None, item[0][0])]


class _Thread(threading.local):
    """The pools whose blocks a thread is inside of."""

    def __init__(self) -> None:
        self.inside: list[Pool] = []


def _check_backend(call: str, kept: bool, backend: str | None) -> None:
    if backend is not None and not kept:
        raise ValueError(f"{call}: cpu_backup_backend={backend!r} needs enable_cpu_backup=True")
    if backend not in (None, "pinned"):
        raise ValueError(f'{call}: cpu_backup_backend must be "pinned" or None, not {backend!r}')


#: What frameworks call.
torch_memory_saver = TorchMemorySaver()

#: Subprocesses need no preparation.
configure_subprocess: Callable[[], AbstractContextManager[None]] = nullcontext


def install() -> None:
    """Have ``import torch_memory_saver`` in this process find this module.

    Each process calls it before it imports the framework. Raises RuntimeError if the package
    torch_memory_saver is imported already.
    """
    here = sys.modules[__name__]
    found: ModuleType = sys.modules.setdefault("torch_memory_saver", here)
    if found is not here:
        raise RuntimeError(
            "install: this process has imported torch_memory_saver already, from "
            f"{found.__file__}: call install() before that"
        )
