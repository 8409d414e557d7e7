"""Rings of records from the CPU to kernels: ``Channel``, and consumers for kernels.

CUDA C++ kernels include ``gdrpy/channel.cuh``, in the folder :func:`include_dir`; kernels written
in Python use ``gdrpy.channel.numba`` or ``gdrpy.channel.triton``.
"""

from gdrpy.channel.channel import Channel as Channel
from gdrpy.channel.channel import ChannelReader, include_dir

#: The names that gdrpy itself does not offer.
__all__ = ["ChannelReader", "include_dir"]
