"""Fills a region with a rising number, queued far ahead on the GPU, until it is killed.

``failover_writer.py SOCKET NAME QUEUED``; it says when it has queued so many.
"""

import sys
from itertools import count

import gdrpy
from gdrpy import cuda


def main(socket: str, name: str, queued: int) -> None:
    """Fill the region for ever."""
    with cuda.context(0), gdrpy.connect(socket) as broker, broker.get(name, cpu=False) as region:
        stream = cuda.call("cuStreamCreate", 1)
        for number in count(1):
            cuda.call("cuMemsetD32Async", region.ptr, number, region.nbytes // 4, stream)
            if number == queued:
                print("queued", flush=True)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], int(sys.argv[3]))
