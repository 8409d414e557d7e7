"""Compiles the kernels of `gdrpy pplat` to PTX: `make ptx`, after a change of their headers.

By NVRTC of CUDA 11.8, whose PTX drivers from 520 on take, for compute capability 7.0.
"""

from __future__ import annotations

import ctypes
import sys
from pathlib import Path
from typing import Any

TOP = Path(__file__).resolve().parent.parent
SOURCE = TOP / "gdrpy" / "cli" / "measure" / "records.cu"
OPTIONS = ("--gpu-architecture=compute_70", "--std=c++14", f"-I{TOP / 'gdrpy' / 'include'}")
LIBRARY = "nvidia/cuda_nvrtc/lib/libnvrtc.so.11.2"


def ptx_of(nvrtc: ctypes.CDLL, source: Path) -> str:
    """The PTX of CUDA C++. Ends the program if it cannot be compiled."""
    program, options = ctypes.c_void_p(), [option.encode() for option in OPTIONS]
    text, name = source.read_bytes(), source.name.encode()
    nvrtc.nvrtcCreateProgram(ctypes.byref(program), text, name, 0, None, None)
    array = (ctypes.c_char_p * len(options))(*options)
    if nvrtc.nvrtcCompileProgram(program, len(options), array) != 0:
        sys.exit(_text(nvrtc, "ProgramLog", program))
    return _text(nvrtc, "PTX", program)


def _text(nvrtc: ctypes.CDLL, what: str, program: Any) -> str:
    size = ctypes.c_size_t()
    getattr(nvrtc, f"nvrtcGet{what}Size")(program, ctypes.byref(size))
    found = ctypes.create_string_buffer(size.value)
    getattr(nvrtc, f"nvrtcGet{what}")(program, found)
    return found.value.decode()


if __name__ == "__main__":
    made = ptx_of(ctypes.CDLL(str(Path(sys.argv[1]) / LIBRARY)), SOURCE)
    SOURCE.with_suffix(".ptx").write_text(made.strip() + "\n")
