"""A DLPack consumer of few words: it takes a capsule's table, reads it and gives it back."""

from __future__ import annotations

import ctypes


class _Tensor(ctypes.Structure):
    _fields_ = [
        ("data", ctypes.c_void_p),
        ("device_type", ctypes.c_int32),
        ("device_id", ctypes.c_int32),
        ("ndim", ctypes.c_int32),
        ("code", ctypes.c_uint8),
        ("bits", ctypes.c_uint8),
        ("lanes", ctypes.c_uint16),
        ("shape", ctypes.POINTER(ctypes.c_int64)),
        ("strides", ctypes.POINTER(ctypes.c_int64)),
        ("byte_offset", ctypes.c_uint64),
    ]


class _Managed(ctypes.Structure):
    _fields_ = [
        ("tensor", _Tensor),
        ("context", ctypes.c_void_p),
        ("deleter", ctypes.c_void_p),
    ]


class _Versioned(ctypes.Structure):
    _fields_ = [
        ("major", ctypes.c_uint32),
        ("minor", ctypes.c_uint32),
        ("context", ctypes.c_void_p),
        ("deleter", ctypes.c_void_p),
        ("flags", ctypes.c_uint64),
        ("tensor", _Tensor),
    ]


_TABLES = {b"dltensor": _Managed, b"dltensor_versioned": _Versioned}
_USED = {name: b"used_" + name for name in _TABLES}

_get_name = ctypes.pythonapi.PyCapsule_GetName
_get_name.restype, _get_name.argtypes = ctypes.c_char_p, [ctypes.py_object]
_get_pointer = ctypes.pythonapi.PyCapsule_GetPointer
_get_pointer.restype, _get_pointer.argtypes = ctypes.c_void_p, [ctypes.py_object, ctypes.c_char_p]
_set_name = ctypes.pythonapi.PyCapsule_SetName
_set_name.argtypes = [ctypes.py_object, ctypes.c_char_p]


class Consumer:
    """What a capsule held. The memory stays until one of the ``give_back`` methods is called."""

    def __init__(self, capsule: object) -> None:
        self.name = _get_name(capsule)
        self._pointer = _get_pointer(capsule, self.name)
        _set_name(capsule, _USED[self.name])
        self.table = _TABLES[self.name].from_address(self._pointer)
        tensor = self.table.tensor
        self.address = tensor.data + tensor.byte_offset
        self.device = tensor.device_type, tensor.device_id
        self.dtype = tensor.code, tensor.bits, tensor.lanes
        self.shape = tuple(tensor.shape[: tensor.ndim])
        self.strides = tuple(tensor.strides[: tensor.ndim])

    @property
    def readonly(self) -> bool:
        return bool(self.table.flags & 1)

    @property
    def copied(self) -> bool:
        return bool(self.table.flags & 2)

    def give_back(self) -> None:
        """As a library does that has released the GIL."""
        ctypes.CFUNCTYPE(None, ctypes.c_void_p)(self.table.deleter)(self._pointer)

    def give_back_with_the_gil(self) -> None:
        ctypes.PYFUNCTYPE(None, ctypes.c_void_p)(self.table.deleter)(self._pointer)

    def give_back_in_a_foreign_thread(self) -> None:
        """In a thread that Python has not made and has never seen."""
        libc = ctypes.CDLL(None)
        thread = ctypes.c_ulong()
        start, argument = ctypes.c_void_p(self.table.deleter), ctypes.c_void_p(self._pointer)
        assert libc.pthread_create(ctypes.byref(thread), None, start, argument) == 0
        assert libc.pthread_join(thread, None) == 0
