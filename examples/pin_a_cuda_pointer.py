"""Memory that somebody else allocated, mapped for the CPU: cuMemAlloc here, as well torch, cupy."""

import gdrpy
from gdrpy import cuda

with cuda.context(0):
    pointer = int(cuda.call("cuMemAlloc", 5_000_000))

with gdrpy.open() as gdr, gdr.pin(pointer + 100, 1000) as pin, pin.map() as mapping:
    mapping.write(b"hello, pinned memory")
    print(pin, pin.info)

with cuda.context(0):
    found = bytearray(20)
    cuda.call("cuMemcpyDtoH", found, pointer + 100, len(found))
    cuda.call("cuMemFree", pointer)
print(bytes(found))
