"""Array libraries, as the tests of the protocols between them and gdrpy use them."""

from __future__ import annotations

import importlib
from abc import ABC, abstractmethod
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any

import numpy as np


class Library:
    """A library's arrays of bytes.

    ``mutable`` says whether they can be written, ``streams`` whether one can choose on which stream
    of a GPU the work on them is queued.
    """

    module_name = "numpy"
    mutable = True
    streams = False

    def __init__(self) -> None:
        self.module = importlib.import_module(self.module_name)

    def address(self, array: Any) -> int:
        return array.ctypes.data

    def read(self, array: Any) -> bytes:
        return array.tobytes()

    def fill(self, array: Any, value: int) -> None:
        """Set all elements, by work on the current stream."""
        array[:] = value

    def make(self, data: bytes) -> Any:
        """A new array that holds these bytes, of the current stream."""
        return np.frombuffer(bytearray(data), np.uint8)


class StreamLibrary(Library, ABC):
    """One whose work is queued on streams of a GPU."""

    streams = True

    @abstractmethod
    def stream(self) -> Any:
        """A new stream that waits for no other."""

    @abstractmethod
    def on(self, stream: Any) -> AbstractContextManager[Any]:
        """Work in the block is queued on the stream."""

    @abstractmethod
    def clone(self, array: Any) -> Any:
        """A copy, by work on the current stream."""


class Numpy(Library):
    pass


class Torch(Library):
    module_name = "torch"
    device = "cpu"

    def address(self, array: Any) -> int:
        return array.data_ptr()

    def read(self, array: Any) -> bytes:
        return array.cpu().numpy().tobytes()

    def fill(self, array: Any, value: int) -> None:
        array.fill_(value)

    def make(self, data: bytes) -> Any:
        return self.module.tensor(list(data), dtype=self.module.uint8, device=self.device)


class TorchOnGpu(Torch, StreamLibrary):
    device = "cuda"

    def stream(self) -> Any:
        return self.module.cuda.Stream()

    def on(self, stream: Any) -> AbstractContextManager[Any]:
        return self.module.cuda.stream(stream)

    def clone(self, array: Any) -> Any:
        return array.clone()


class Jax(Library):
    module_name = "jax"
    mutable = False

    def address(self, array: Any) -> int:
        return array.unsafe_buffer_pointer()

    def read(self, array: Any) -> bytes:
        # Of what it has once copied to the host it keeps the copy: ask for something new.
        return np.asarray(array + self.module.numpy.uint8(0)).tobytes()

    def make(self, data: bytes) -> Any:
        return self.module.numpy.asarray(np.frombuffer(data, np.uint8)).block_until_ready()


class Cupy(StreamLibrary):
    module_name = "cupy"

    def address(self, array: Any) -> int:
        return array.data.ptr

    def read(self, array: Any) -> bytes:
        return self.module.asnumpy(array).tobytes()

    def make(self, data: bytes) -> Any:
        return self.module.asarray(np.frombuffer(data, np.uint8))

    def stream(self) -> Any:
        return self.module.cuda.Stream(non_blocking=True)

    def on(self, stream: Any) -> AbstractContextManager[Any]:
        return stream

    def clone(self, array: Any) -> Any:
        return array.copy()


class Numba(StreamLibrary):
    module_name = "numba.cuda"
    _current: Any = 0

    def address(self, array: Any) -> int:
        return array.device_ctypes_pointer.value

    def read(self, array: Any) -> bytes:
        return array.copy_to_host().tobytes()

    def fill(self, array: Any, value: int) -> None:
        array.setitem(slice(None), value, stream=self._current)

    def make(self, data: bytes) -> Any:
        return self.module.to_device(np.frombuffer(data, np.uint8), stream=self._current)

    def stream(self) -> Any:
        return self.module.stream()

    @contextmanager
    def on(self, stream: Any) -> Iterator[None]:
        self._current = stream
        yield
        self._current = 0

    def clone(self, array: Any) -> Any:
        copy = self.module.device_array(array.shape, array.dtype, stream=self._current)
        copy.copy_to_device(array, stream=self._current)
        return copy
