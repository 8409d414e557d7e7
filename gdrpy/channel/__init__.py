"""Rings of records from the CPU to kernels: ``Channel``, and the kernels' end of it.

CUDA C++ has ``gdrpy/channel.cuh``, in the folder that :func:`include_dir` names; kernels written in
Python take ``gdrpy.channel.numba`` or ``gdrpy.channel.triton``.
"""

from gdrpy.channel.channel import Channel as Channel
from gdrpy.channel.channel import ChannelReader, include_dir

#: What gdrpy itself does not offer.
__all__ = ["ChannelReader", "include_dir"]
