"""Element types of tensors, by their names in the safetensors format."""

import importlib
import math
import sys
from typing import TYPE_CHECKING, Any, NamedTuple

from gdrpy.common.arguments import is_of
from gdrpy.common.spelling import suggested

if TYPE_CHECKING:
    import numpy as np

#: DLPack's type codes.
_INT, _UINT, _FLOAT, _BFLOAT, _BOOL, _FLOAT8_E4M3FN, _FLOAT8_E5M2 = 0, 1, 2, 4, 6, 10, 12
_COMPLEX = 5


class DType(NamedTuple):
    """An element type: ``nbytes`` bytes an element, ``code`` is DLPack's.

    ``array_name`` is its name in numpy, or in ml_dtypes where numpy lacks it.
    """

    name: str
    nbytes: int
    code: int
    array_name: str
    native: bool = True

    def numpy(self, call: str) -> "np.dtype[Any]":
        """The numpy dtype. Raises TypeError if it needs ml_dtypes, which is not installed."""
        import numpy as np

        if self.native:
            return np.dtype(self.array_name)
        try:
            ml_dtypes = importlib.import_module("ml_dtypes")
        except ImportError:
            raise TypeError(
                f"{call}: numpy has no {self.name}: pip install ml_dtypes, or use "
                f"torch.from_dlpack(), or take the raw bits as U{8 * self.nbytes}"
            ) from None
        kind: np.dtype[Any] = np.dtype(getattr(ml_dtypes, self.array_name))
        return kind

    def element(self, call: str, number: Any) -> "np.ndarray[Any, Any]":
        """A number as one element; floating-point types round it.

        Raises ValueError if the type does not hold it, and as :meth:`numpy`.
        """
        import numpy as np

        dtype = self.numpy(call)
        rounds = self.code not in (_INT, _UINT, _BOOL)
        try:
            with np.errstate(all="ignore"):
                element = np.asarray(float(number) if rounds else int(number), dtype)
            if _class_of(number) == _class_of(element) if rounds else int(element) == number:
                return element
        except (ValueError, OverflowError):
            pass
        try:
            words = f"{number!r:.40}"
        except ValueError:  # Python writes no more than 4300 digits
            words = "so large a number"
        raise ValueError(f"{call}: {self.name} does not hold {words}")


def _class_of(number: Any) -> tuple[bool, bool]:
    return math.isnan(number), math.isinf(number)


DTYPES = {
    dtype.name: dtype
    for dtype in (
        DType("BOOL", 1, _BOOL, "bool"),
        DType("U8", 1, _UINT, "uint8"),
        DType("I8", 1, _INT, "int8"),
        DType("U16", 2, _UINT, "uint16"),
        DType("I16", 2, _INT, "int16"),
        DType("F16", 2, _FLOAT, "float16"),
        DType("BF16", 2, _BFLOAT, "bfloat16", native=False),
        DType("U32", 4, _UINT, "uint32"),
        DType("I32", 4, _INT, "int32"),
        DType("F32", 4, _FLOAT, "float32"),
        DType("U64", 8, _UINT, "uint64"),
        DType("I64", 8, _INT, "int64"),
        DType("F64", 8, _FLOAT, "float64"),
        DType("F8_E4M3", 1, _FLOAT8_E4M3FN, "float8_e4m3fn", native=False),
        DType("F8_E5M2", 1, _FLOAT8_E5M2, "float8_e5m2", native=False),
    )
}
_BY_ARRAY_NAME = {dtype.array_name: dtype for dtype in DTYPES.values()}
#: By any name: safetensors', numpy's and torch's, and short ones that mean nothing else to numpy.
_BY_NAME = {
    **_BY_ARRAY_NAME,
    **DTYPES,
    "bf16": DTYPES["BF16"],
    "fp16": DTYPES["F16"],
    "fp32": DTYPES["F32"],
    "fp64": DTYPES["F64"],
}
#: The element types of other libraries' arrays, by DLPack's code and the bytes of an element.
_FOREIGN = {
    (dtype.code, dtype.nbytes): dtype
    for dtype in (
        *DTYPES.values(),
        DType("complex64", 8, _COMPLEX, "complex64"),
        DType("complex128", 16, _COMPLEX, "complex128"),
    )
}
#: DLPack's type codes by the kind in an array interface's type string.
_KINDS = {"i": _INT, "u": _UINT, "f": _FLOAT, "b": _BOOL, "c": _COMPLEX}


def as_dtype(call: str, value: Any) -> DType:
    """The element type of a safetensors name, of a torch.dtype, or of a value that ``numpy.dtype``
    accepts.

    A name that numpy defines too ("U8") is safetensors'. Raises TypeError.
    """
    if isinstance(value, DType):
        value = value.name
    named = _name_of(value)
    found = _BY_NAME.get(named) if isinstance(named, str) else None
    if found is not None:
        return found
    kind = None if value is None else _numpy_dtype(named)
    if kind is None or kind.name not in _BY_ARRAY_NAME:
        raise TypeError(_unknown(call, value))
    if not kind.isnative:
        raise TypeError(
            f"{call}: dtype {kind.str!r} has the other byte order: convert the array first, by "
            f"array.astype(array.dtype.newbyteorder('='))"
        )
    return _BY_ARRAY_NAME[kind.name]


def as_numpy_dtype(call: str, value: Any) -> "np.dtype[Any]":
    """Like :func:`as_dtype`, as numpy's dtype, which may also be one that safetensors lacks.

    Raises TypeError, also if it needs ml_dtypes, which is not installed.
    """
    named = value.name if isinstance(value, DType) else _name_of(value)
    found = _BY_NAME.get(named) if isinstance(named, str) else None
    kind = _numpy_dtype(named) if found is None else found.numpy(call)
    if kind is None:
        raise TypeError(_unknown(call, value))
    return kind


#: torch's further names of types, which numpy has for others or not at all.
_TORCH_NAMES = {
    "half": "float16",
    "float": "float32",
    "double": "float64",
    "char": "int8",
    "short": "int16",
    "int": "int32",
    "long": "int64",
    "cfloat": "complex64",
    "cdouble": "complex128",
}


def _name_of(value: Any) -> Any:
    """The name of a torch.dtype; any other value itself."""
    if is_of(value, "torch", "dtype"):
        value = str(value)
    if isinstance(value, str) and value.startswith("torch."):
        name = value.removeprefix("torch.")
        return _TORCH_NAMES.get(name, name)
    return value


def _numpy_dtype(value: Any) -> "np.dtype[Any] | None":
    import numpy as np

    try:
        kind: np.dtype[Any] = np.dtype(value)
    except (TypeError, ValueError):
        return None
    return kind


def _unknown(call: str, value: Any) -> str:
    near = suggested(value, _BY_NAME) if isinstance(value, str) else ""
    if isinstance(value, tuple):
        near = f": did you mean shape={value}?"
    return (
        f"{call}: dtype must be one of {', '.join(DTYPES)}, or numpy's or torch's name or type for "
        f"one, not {value!r}{near}"
    )


def of_dlpack(call: str, code: int, bits: int, lanes: int) -> DType:
    """The element type of DLPack's numbers. Raises TypeError."""
    found = _FOREIGN.get((code, bits // 8)) if bits % 8 == 0 and lanes == 1 else None
    if found is None:
        raise TypeError(
            f"{call}: gdrpy does not know the array's element type (DLPack code {code}, {bits} "
            f"bits, {lanes} lanes): view it as integers of the same size"
        )
    return found


def as_typestr(call: str, text: str) -> DType:
    """The element type of an array interface's type string ("<f4"). Raises TypeError."""
    order, kind, size = text[0], text[1], text[2:]
    found = _FOREIGN.get((_KINDS.get(kind, -1), int(size))) if size.isdigit() else None
    if found is None or order == {"little": ">", "big": "<"}[sys.byteorder]:
        raise TypeError(
            f"{call}: gdrpy does not know the array's element type {text!r}: view it as integers "
            f"of the same size, in this machine's byte order"
        )
    return found
