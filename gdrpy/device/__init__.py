"""The consumer's end of a channel for kernels written in Python: ``numba`` and ``triton``.

CUDA C++ has ``gdrpy/channel.cuh``, in the folder that :func:`gdrpy.include_dir` names.
"""

#: Byte offsets of the fields of ``struct gdr_channel``, as in gdrpy/channel.h.
RECORD_NBYTES, CAPACITY, RECORDS, TAIL, CLOSED, HEAD, STOPPED = 12, 16, 24, 32, 40, 48, 56
