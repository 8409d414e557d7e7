"""A buffer on the GPU with a mirror on the host, filled here and changed by another process."""

import subprocess
import sys

import gdrpy
from gdrpy.broker import temporary

OTHER = """
import sys, gdrpy

with gdrpy.connect(sys.argv[1]) as broker, broker.get("buffer") as region:
    with region.mirror(load=True) as host:  # page-locked, with what the region holds
        print("other: sees", bytes(host[:5]))
        host[:5] = [ord(letter) for letter in "HELLO"]
    # written back on leaving
"""

with temporary() as path, gdrpy.connect(path) as broker:
    with broker.create("buffer", 4096) as draft:  # nobody else sees it yet
        with draft.mirror() as host:
            host[:] = 0
            host[:5] = list(b"hello")
        draft.publish()

    subprocess.run([sys.executable, "-P", "-c", OTHER, path], check=True)

    with broker.get("buffer") as region:
        with region.mirror(load=True) as host:
            print("here:  sees", bytes(host[:5]))
        region.seal()
    with broker.get("buffer") as region, region.mirror(load=True) as host:
        print("sealed: the mirror can be written:", host.flags.writeable)
    broker.delete("buffer")
    print("left: ", broker.list())
