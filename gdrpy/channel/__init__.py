"""Records between the CPU and kernels: ``Channel``, ``Inbox``, ``Link``, and their other ends.

CUDA C++ kernels include ``gdrpy/channel.cuh``, in the folder :func:`include_dir`; kernels written
in Python use ``gdrpy.channel.numba`` or ``gdrpy.channel.triton``.
"""

from pathlib import Path

from gdrpy.channel.broadcast import Broadcast
from gdrpy.channel.channel import Channel as Channel
from gdrpy.channel.channel import ChannelReader
from gdrpy.channel.inbox import Inbox as Inbox
from gdrpy.channel.inbox import InboxWriter
from gdrpy.channel.inputs import StepInputs as StepInputs
from gdrpy.channel.kernel_end import KernelEnd
from gdrpy.channel.link import Answer, LinkServer
from gdrpy.channel.link import Link as Link
from gdrpy.channel.named import delete

#: The names that gdrpy itself does not offer.
__all__ = [
    "Answer",
    "Broadcast",
    "ChannelReader",
    "InboxWriter",
    "KernelEnd",
    "LinkServer",
    "delete",
    "include_dir",
]


def include_dir() -> str:
    """The folder for a C or CUDA compiler's ``-I``: with it, ``#include <gdrpy/channel.cuh>``."""
    return str(Path(__file__).parent.parent / "include")
