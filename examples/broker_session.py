"""A session at the broker: allocate by name, list, write, read, fill, and allocate once more."""

import gdrpy
from gdrpy.broker import temporary

with temporary() as path, gdrpy.connect(path) as broker:
    print("size ", broker.rounded_size(10_000), "bytes for 10000 on device 0")
    region = broker.allocate("scratch", 10_000)
    for info in broker.list():
        print("list ", info.name, info.nbytes, "bytes on device", info.device)

    region.write(b"hello from one process")
    print("read ", region.read(22))

    region.fill(0x7E, offset=0, nbytes=16)  # memset
    print("read ", region.read(22))

    again = broker.allocate("scratch", 10_000)  # found, not made again
    print("same ", again.id == region.id, again.read(5, offset=17))
    try:
        broker.allocate("scratch", 20_000)
    except gdrpy.SizeMismatch as error:
        print("error", error)

    again.close()
    region.close()
    broker.delete("scratch")
    print("list ", broker.list())
